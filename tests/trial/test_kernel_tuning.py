"""What an engine keeps between its starts is made once, outside the ready time, and is named in the facts."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dyno.engines.caches import KERNEL_TUNINGS
from dyno.engines.kinds import KINDS
from dyno.errors import EngineError, UsageError
from dyno.facts.engine import ContainerSpec, EngineFacts, EngineSpec, Preparation
from dyno.trial.engine_plan import EnginePlan
from dyno.trial.fleet import running
from test_fleet import RIG, script

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

# In place of vLLM: it writes tuned kernels when it ends, as PyTorch does, and compiles into its cache.
ENGINE = """
import json, os, signal, sys
from pathlib import Path
from dyno.engines.fake.server import serve
from dyno.engines.fake import FakeSpec

own = ("PYTORCH_", "HIPBLASLT_", "VLLM_CACHE", "TRITON_", "TORCHINDUCTOR_")
with open(STARTS, "a") as starts:
    print(json.dumps({name: value for name, value in os.environ.items() if name.startswith(own)}), file=starts)
if root := os.environ.get("VLLM_CACHE_ROOT"):
    path = Path(root) / "torch_compile_cache"
    print("Directly load the compiled graph" if path.exists() else "Compiling a graph", flush=True)
    path.mkdir(parents=True, exist_ok=True)
if os.environ.get("HIPBLASLT_LOG_MASK") == "32":
    for _ in range(2):
        with open(os.environ["HIPBLASLT_LOG_FILE"].replace("%i", str(os.getpid())), "a") as log:
            print("hipblaslt-bench --api_method c -m 1024 -n 512", file=log)

def tuned(*_):
    if os.environ.get("PYTORCH_TUNABLEOP_TUNING") == "1":
        name = os.environ["PYTORCH_TUNABLEOP_FILENAME"].replace(".csv", "0.csv")
        Path(name).write_text("Validator,PT_VERSION,2.9.0\\n")
    os._exit(0)

signal.signal(signal.SIGTERM, tuned)
serve(FakeSpec(first_ms=0.5, gap_ms=0.1, model="m"), int(sys.argv[sys.argv.index("--port") + 1]))
"""


class Machine:
    def __init__(self, tmp_path: Path) -> None:
        self.starts_path = tmp_path / "starts"
        self.binary = script(
            tmp_path / "vllm", ENGINE.replace("STARTS", repr(str(self.starts_path)))
        )
        self.said: list[str] = []
        self._folder = tmp_path / "e"
        self._folder.mkdir()

    def spec(self, **fields: Any) -> EngineSpec:
        return EngineSpec(
            "vllm", **{"model": "m", "binary": self.binary, "max_num_seqs": 4, **fields}
        )

    def run(self, **fields: Any) -> EngineFacts:
        plan = EnginePlan(self.spec(**fields), RIG)
        with running(plan, self._folder, {}, self.said.append, lambda _: None) as fleet:
            assert not plan.problems()
        return fleet.facts

    @property
    def starts(self) -> list[dict[str, str]]:
        return [
            msgspec.json.decode(line) for line in self.starts_path.read_text().splitlines()
        ]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("DYNO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("dyno.trial.fleet._AT_ONCE", (1, 2))
    monkeypatch.setattr("dyno.trial.fleet._PROMPT_WORDS", (4, 16))
    return Machine(tmp_path)


def test_kernels_are_tuned_once_by_a_start_of_their_own_and_used_with_tuning_off(
    machine: Machine,
) -> None:
    (first,) = machine.run(prepare=["tunableop"]).preparations
    assert (first.name, first.reused, first.files) == (
        "tunableop",
        False,
        ["tunableop_results0.csv"],
    )
    assert (first.took_s or 0) > 0
    assert any("Preparing tunableop" in text for text in machine.said)
    (again,) = machine.run(prepare=["tunableop"]).preparations
    assert again == msgspec.structs.replace(first, reused=True)
    assert [start["PYTORCH_TUNABLEOP_TUNING"] for start in machine.starts] == [
        "1",
        "0",
        "0",
    ]
    assert len({start["PYTORCH_TUNABLEOP_FILENAME"] for start in machine.starts}) == 1
    assert any("Reusing the tunableop tuning" in text for text in machine.said)


def test_another_model_or_parallel_size_is_tuned_again(machine: Machine) -> None:
    folders = {
        EnginePlan(machine.spec(**fields), RIG, dry=True).caches.folder
        for fields in (
            {},
            {"model": "other"},
            {"tensor_parallel": 2, "devices": []},
            {"dtype": "fp16"},
            {"version": "1"},
        )
    }
    assert len(folders) == 5
    same = [
        EnginePlan(machine.spec(**f), RIG, dry=True).caches.folder
        for f in ({}, {"max_num_seqs": 9, "replicas": 2})
    ]
    assert same[0] == same[1]


def test_a_tuning_whose_files_are_gone_or_of_another_image_is_not_reused(
    machine: Machine,
) -> None:
    caches = EnginePlan(machine.spec(), RIG, dry=True).caches
    file = caches.empty("tunableop") / "tunableop_results0.csv"
    file.touch()
    made = Preparation("tunableop", took_s=1.0, files=[file.name], image="vllm@sha256:1")
    caches.write(made)
    assert caches.read("tunableop", "vllm@sha256:1") == made
    assert caches.read("tunableop", "vllm@sha256:2") is None
    file.unlink()
    assert caches.read("tunableop", "vllm@sha256:1") is None


def test_an_engine_that_writes_no_result_is_not_measured_as_if_tuned(
    machine: Machine,
) -> None:
    Path(machine.binary).write_text(
        Path(machine.binary).read_text().replace('== "1"', '== "never"')
    )
    with pytest.raises(
        EngineError,
        match=r"Preparing tunableop failed: vLLM wrote no tunableop_results\*\.csv to",
    ):
        machine.run(prepare=["tunableop"])
    assert len(machine.starts) == 1


def test_hipblaslt_s_shapes_are_logged_then_tuned_by_its_own_program_once_each(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rocm").mkdir()
    script(
        tmp_path / "rocm" / "hipblaslt-bench",
        "import os, sys\nopen(os.environ['HIPBLASLT_TUNING_FILE'], 'a').write(' '.join(sys.argv[1:]) + '\\n')\n",
    )
    monkeypatch.setenv("PATH", str(tmp_path / "rocm"), prepend=":")
    (made,) = machine.run(prepare=["hipblaslt"]).preparations
    assert made.files == ["tuning.txt"]
    preparing, measured = machine.starts
    assert preparing["HIPBLASLT_LOG_MASK"] == "32"
    assert "HIPBLASLT_TUNING_OVERRIDE_FILE" not in preparing
    assert "HIPBLASLT_LOG_MASK" not in measured
    tuning = Path(measured["HIPBLASLT_TUNING_OVERRIDE_FILE"])
    assert tuning.read_text() == "--api_method c -m 1024 -n 512\n"  # logged twice


def test_a_compile_cache_is_shared_or_empty_at_each_start(machine: Machine) -> None:
    shared = [machine.run(compile_cache="on").preparations for _ in range(2)]
    assert shared == [
        [Preparation("compile cache", reused=reused)] for reused in (False, True)
    ]
    assert machine.run(compile_cache="off").preparations == [Preparation("compile cache")]
    roots = [Path(start["VLLM_CACHE_ROOT"]) for start in machine.starts]
    assert roots[0] == roots[1] != roots[2]
    assert roots[0].exists() and not roots[2].parent.exists()
    assert (
        "VLLM_CACHE_ROOT" not in EnginePlan(machine.spec(), RIG, dry=True).launches[0].env
    )


def test_a_dry_run_shows_the_variables_and_makes_nothing(
    machine: Machine, tmp_path: Path
) -> None:
    spec = machine.spec(prepare=["tunableop"], compile_cache="on")
    text = "\n".join(EnginePlan(spec, RIG, dry=True).lines())
    assert (
        "# preparation tunableop: made first, by one start with a short load; in " in text
    )
    assert "PYTORCH_TUNABLEOP_TUNING=0" in text
    assert "VLLM_CACHE_ROOT=" in text
    assert not (tmp_path / "home").exists()


def test_a_container_gets_the_folder_and_the_variables(machine: Machine) -> None:
    box = ContainerSpec("rocm/vllm:0.11", tool="podman", accelerator="amd")
    plan = EnginePlan(
        machine.spec(binary=None, prepare=["tunableop"], container=box), RIG, dry=True
    )
    folder = plan.caches.folder
    words = plan.launches[0].argv
    assert f"--volume={folder}:{folder}" in words
    assert (
        f"--env=PYTORCH_TUNABLEOP_FILENAME={folder}/tunableop/tunableop_results.csv"
        in words
    )
    first = EnginePlan(plan.caches.preparing("tunableop"), RIG, dry=True).launches[0].argv
    assert "--env=PYTORCH_TUNABLEOP_TUNING=1" in first
    assert first.count(f"--volume={folder}:{folder}") == 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"prepare": ["tunable"]},
            r"vllm has no such preparation. Known: tunableop, hipblaslt",
        ),
        (
            {"prepare": ["tunableop"], "env": {"PYTORCH_TUNABLEOP_TUNING": "1"}},
            "PYTORCH_TUNABLEOP_TUNING in --engine-env",
        ),
        (
            {"compile_cache": "on", "env": {"VLLM_CACHE_ROOT": "/x"}},
            "VLLM_CACHE_ROOT in --engine-env contradicts",
        ),
        (
            {"kind": "llamacpp", "prepare": ["tunableop"]},
            "llamacpp has no such preparation. Known: none",
        ),
        ({"kind": "llamacpp", "compile_cache": "on"}, "llamacpp has no compile cache"),
    ],
)
def test_a_preparation_that_can_not_be_is_refused_before_the_start(
    fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        EnginePlan(
            EngineSpec(
                **{"kind": "vllm", "model": None if "kind" in fields else "m", **fields}
            ),
            RIG,
            dry=True,
        )


def test_each_tuning_names_its_folder_and_turns_itself_off_for_measured_starts() -> None:
    for tuning in KERNEL_TUNINGS.values():
        for texts in (tuning.preparing, tuning.measured):
            assert any("{folder}" in text for text in texts.values())
        assert tuning.preparing != tuning.measured
    assert "VLLM_CACHE_ROOT" in KINDS["vllm"].compile_caches
