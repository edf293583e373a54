"""Environment variables that an engine won't read as they are written: a letter is lost, or no shell can set them."""

import functools
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path

from dyno.engines.kinds import kind_of
from dyno.engines.kinds.base import EngineKind
from dyno.facts.engine import Misspelt

_NEAR, _SHORTEST = 0.92, 8  # of difflib; letters


# Well-known ones: only a near miss of them is reported, never an unknown name.
_EVERYWHERE = """
    CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING CUDA_MODULE_LOADING CUDA_DEVICE_MAX_CONNECTIONS
    NVIDIA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES HIP_FORCE_DEV_KERNARG HIP_LAUNCH_BLOCKING ROCR_VISIBLE_DEVICES
    GPU_DEVICE_ORDINAL GPU_MAX_HW_QUEUES HSA_OVERRIDE_GFX_VERSION HSA_ENABLE_SDMA HSA_NO_SCRATCH_RECLAIM HSA_XNACK
    HSA_FORCE_FINE_GRAIN_PCIE HIPBLASLT_TUNING_FILE HIPBLASLT_TUNING_OVERRIDE_FILE TORCH_BLAS_PREFER_HIPBLASLT
    TORCH_CUDA_ARCH_LIST TORCH_NCCL_HIGH_PRIORITY TORCH_NCCL_BLOCKING_WAIT PYTORCH_TUNABLEOP_ENABLED
    PYTORCH_TUNABLEOP_TUNING PYTORCH_TUNABLEOP_FILENAME PYTORCH_TUNABLEOP_VERBOSE PYTORCH_CUDA_ALLOC_CONF
    PYTORCH_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF PYTORCH_ROCM_ARCH TORCHINDUCTOR_MAX_AUTOTUNE TORCHINDUCTOR_CACHE_DIR
    NCCL_DEBUG NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_SHM_DISABLE NCCL_IB_DISABLE NCCL_IB_HCA NCCL_SOCKET_IFNAME
    NCCL_NET_GDR_LEVEL NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS NCCL_NCHANNELS_PER_PEER NCCL_ALGO NCCL_PROTO
    NCCL_BUFFSIZE NCCL_NTHREADS NCCL_TOPO_FILE NCCL_CUMEM_ENABLE NCCL_NVLS_ENABLE NCCL_CROSS_NIC NCCL_LAUNCH_MODE
    RCCL_MSCCL_ENABLE RCCL_MSCCLPP_ENABLE OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES MKL_NUM_THREADS KMP_AFFINITY
    KMP_BLOCKTIME TOKENIZERS_PARALLELISM HF_HUB_OFFLINE HF_HUB_ENABLE_HF_TRANSFER TRANSFORMERS_OFFLINE
    TRITON_CACHE_DIR
""".split()  # noqa: SIM905


def misspelt(
    kind: str, python: str | None, env: Mapping[str, str], exported: Mapping[str, str]
) -> list[Misspelt]:
    """Return variables that are probably misspelt. `python`: the engine's interpreter, if it is on this machine.
    `exported`: the environment that the engine inherits; only variables of known families are looked for in it."""
    paths = [
        *env.get("PYTHONPATH", "").split(":"),
        *exported.get("PYTHONPATH", "").split(":"),
    ]
    engine = kind_of(kind)
    listed = _listed(engine, python, filter(None, paths))
    known = {*_EVERYWHERE, *engine.variables, *listed}
    families = known if engine.variables_have_prefix else known - {*engine.variables}
    own = [_judge(name, known, listed, engine) for name in env]
    inherited = [
        _judge(name, families, listed, engine)
        for name in exported
        if name not in env and name.isupper()
    ]
    return [m for m in (*own, *inherited) if m is not None]


def _judge(
    name: str, known: set[str], listed: set[str], engine: EngineKind
) -> Misspelt | None:
    spelling = re.sub(r"[^A-Za-z0-9_]", "_", name)
    valid = spelling == name and not name[:1].isdigit()
    if valid and name in (listed or known):
        return None
    meant = None
    if name not in known and len(name) >= _SHORTEST:
        meant = _meant(spelling, known)
    if meant is not None:
        return Misspelt(name, meant, "unlike" if valid else "invalid")
    if not valid:
        return Misspelt(name, None, "invalid")
    if listed and name.startswith(engine.variable_prefixes):
        return Misspelt(name, None, "unlisted")
    return None


def _meant(spelling: str, known: set[str]) -> str | None:
    """Return the known variable that is most like this one. None: none is."""
    if spelling in known:
        return spelling
    return next(iter(_near(spelling, frozenset(known))), None)


@functools.lru_cache(4096)  # a study asks for the same environment at each of its settings
def _near(name: str, known: frozenset[str]) -> list[str]:
    return get_close_matches(name, known, 1, _NEAR)


def _listed(engine: EngineKind, python: str | None, paths: Iterable[str]) -> set[str]:
    """Return the names in the file of the installed engine that lists them, which is read and not run; none where it
    isn't found."""
    if not engine.variables_file:
        return set()
    folders = [Path(path) for path in paths]
    if python is not None:  # its path as it is: that of a virtual environment is a link
        folders += sorted(Path(python).parent.parent.glob("lib*/python3*/*-packages"))
    name = rf"""["']((?:{"|".join(engine.variable_prefixes)})[A-Z0-9_]+)["']"""
    for file in (folder / engine.variables_file for folder in folders):
        try:
            return {*re.findall(name, file.read_text("utf-8", "replace"))}
        except OSError:
            continue
    return set()
