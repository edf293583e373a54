"""An engine is one file: tests/house/added_engine/quick.py and its name make it known wherever an engine is named."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dyno
from conftest import Scripted
from dyno.audit import commands
from dyno.cli.main import main
from dyno.engines import install, kinds, versions
from dyno.engines.caches import Caches
from dyno.engines.kinds import KINDS, metric_names, names
from dyno.engines.launch import misspelt
from dyno.engines.log import remarks
from dyno.errors import UsageError
from dyno.facts.engine import EngineSpec, Launch, Misspelt
from dyno.facts.target import TargetSpec
from dyno.http import Client, Url
from dyno.probe import server, software
from dyno.probe.telemetry import metrics
from dyno.results.columns import meaning
from dyno.store.rows import read_row
from dyno.store.run import Run
from dyno.trial import weights

SOURCE = Path(dyno.__file__).parent
FILE = Path(__file__).parent / "added_engine" / "quick.py"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """As if the file was in engines/kinds, and its name in the registry."""
    monkeypatch.setattr(kinds, "__path__", [*kinds.__path__, str(FILE.parent)])
    monkeypatch.setattr(kinds, "NAMES", (*kinds.NAMES, FILE.stem))
    monkeypatch.setenv("DYNO_HOME", str(tmp_path / "home"))
    yield
    sys.modules.pop(f"{kinds.__name__}.{FILE.stem}", None)
    kinds._load.cache_clear()


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command prints, with all white space as one blank."""

    def run(*words: str, code: int = 0) -> str:
        try:
            assert main(words) == code
        except SystemExit as e:  # argparse's --help
            assert e.code == code
        out, err = capsys.readouterr()
        return " ".join((out if code == 0 else err).split())

    return run


def test_one_file_and_one_name_add_it() -> None:
    """Files touched for an engine: its own, and the registry. There were 13."""
    assert [path.name for path in FILE.parent.glob("*.py")] == ["quick.py"]
    own = re.compile(r"quick(?:serve|d\b|_lanes|_tokens)", re.IGNORECASE)
    assert [path for path in SOURCE.rglob("*.py") if own.search(path.read_text())] == []
    assert kinds.NAMES[-1] == "quick" and KINDS["quick"].name == "quick"


# ---- the command line ----


def test_helps_and_listings_name_it(printed: Callable[..., str]) -> None:
    assert "openai, fake, quick; openai:" in printed("bench", "serve", "--help")
    assert "quick QuickServe: answers before it is asked" in printed(
        "engines", "start", "--help"
    )
    assert "Start QuickServe." in printed("engines", "start", "quick", "--help")
    assert "sglang, transformers or quick; or a tool:" in printed(
        "engines", "install", "--help"
    )
    assert "quick comes with dyno, version 2.1" in printed("engines", "list")
    assert " quick" in printed("completion", "bash")
    assert "Did you mean quick?" in printed(
        "bench", "serve", "--engine", "quik", "--dry-run", code=2
    )


def test_a_dry_run_prints_its_command_with_its_flags(printed: Callable[..., str]) -> None:
    words = printed("bench", "serve", "--engine", "quick", "--model", "m", "--max-num-seqs", "8", "--dtype", "bf16",
                    "--num-prompts", "1", "--dry-run")  # fmt: skip
    assert "dyno.engines.fake 8000 model=m --type bfloat16 --lanes 8" in words
    refused = printed(
        "bench",
        "serve",
        "--engine",
        "quick",
        "--model",
        "m",
        "--quantization",
        "fp8",
        "--dry-run",
        code=2,
    )
    assert "QuickServe 2.1 doesn't support --quantization 'fp8'" in refused


STUDY = """
[engines.a]
kind = "quick"
model = "m"
[workloads.w]
dataset = "tasks"
num_prompts = 1
[loads.l]
max_concurrency = 1
"""


def test_a_study_may_name_it(tmp_path: Path, printed: Callable[..., str]) -> None:
    file = tmp_path / "study.toml"
    file.write_text(STUDY)
    assert "dyno.engines.fake 8000 model=m" in printed("run", str(file), "--dry-run")


def test_it_is_started_measured_and_stored_under_its_name(
    tmp_path: Path, printed: Callable[..., str]
) -> None:
    printed("bench", "serve", "--engine", "quick", "--model", "m", "--num-prompts", "3", "--random-input-len", "4",
            "--random-output-len", "2", "--runs", str(tmp_path / "runs"), "--json")  # fmt: skip
    [folder] = (tmp_path / "runs").glob("*-serve-*")
    row = read_row(Run(folder))
    assert (row.setting("engine"), row.get("completed")) == ("quick", 3)


# ---- a server that runs already ----


def test_a_running_server_is_identified(scripted: Callable[..., Scripted]) -> None:
    routes: dict[bytes, Any] = {
        b"/v1/models": {"data": [{"id": "m"}]},
        b"/quick": {"quick": "2.3", "lanes": 4},
    }

    def talk(sock: Any, _: int) -> None:
        while data := sock.recv(65536):
            body = json.dumps(routes.get(data.split(b" ")[1], {})).encode()
            sock.sendall(
                b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
            )

    client = Client(Url(scripted(talk).base_url), {})
    try:
        facts = server.read_target(client, TargetSpec("", "openai", ""))
    finally:
        client.close()
    assert (facts.kind, facts.version, facts.slots, facts.model) == ("quick", "2.3", 4, "m")


def test_its_metrics_are_read_and_handed_to_the_sampler() -> None:
    text = "quick_running 3\nquick_tokens_total 70\n"
    assert metrics.read(text, metric_names()) == {
        "running_requests": 3.0,
        "output_tokens": 70.0,
    }


# ---- its log, caches, variables and weights ----


def test_its_log_is_read_for_facts_and_remarks() -> None:
    assert KINDS["quick"].read_log("cache of 640 tokens").target == {"kv_cache_tokens": 640}
    [remark] = remarks("quick", "one line\nINFO it walks instead of running\n")
    assert (remark.about, remark.line) == ("fallback", "it walks instead of running")
    assert remarks("fake", "INFO it walks instead of running\n") == []


def test_its_caches_are_kept_between_starts() -> None:
    caches = Caches(EngineSpec("quick", model="m", compile_cache="on"), "2.1", [])
    launch = caches.into(Launch(argv=["quickd"], env={}, port=8000), 0)
    assert launch.env == {"QUICK_CACHE": str(caches.folder / "compile" / "quick")}
    with pytest.raises(UsageError, match="quick has no such preparation"):
        Caches(EngineSpec("quick", model="m", prepare=["tunableop"]), "2.1", [])


def test_its_variables_and_packages_are_recorded_and_a_slip_is_reported() -> None:
    assert misspelt("quick", None, {"QUICK_LANES_MAXIMUN": "1"}, {}) == [
        Misspelt("QUICK_LANES_MAXIMUN", "QUICK_LANES_MAXIMUM", "unlike")
    ]
    assert software.variables({"QUICK_X": "1", "SLOW_X": "1"}) == {"QUICK_X": "1"}
    assert {"quickserve", "quick-kernels"} <= {*software.packages()}


def test_a_model_of_the_hub_is_fetched_before_it_starts() -> None:
    assert list(weights.of_hub(EngineSpec("quick", model="org/name"))) == ["org/name"]


# ---- installing it ----


def test_it_is_installed_as_a_package_or_an_image() -> None:
    assert (
        install.choose("quick", "cpu") == "package"
        and install.choose("quick", "cuda") == "container"
    )
    assert versions.image_of("quick", "cuda", "2.4") == ("example.org/quick:q2.4", "2.4")
    assert versions.version_of("example.org/other:for-q2.6") == "2.6"


# ---- other people's documents ----


def test_documents_and_results_name_it() -> None:
    command = commands.command("quickd org/name -z 32", 1, {})
    assert command is not None and command.role == "server"
    settings = {name: setting.value for name, setting in command.settings.items()}
    assert settings == {"model": "org/name", "max_num_seqs": 32, "engine": "quick"}
    assert commands.in_words("Latency of QuickServe", 1)["engine"].value == "quick"
    environments = commands.Environments()
    assert (
        environments.take(1, "Quick 2.7 starts")
        and environments.dumps[0]["engine_version"].value == "2.7"
    )
    assert names.spellings()["quick-serve"] == "quick"
    column = meaning("QuickServe version")
    assert column is not None and column.name == "engine_version"
