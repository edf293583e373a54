"""Plug-ins: the six examples at work, and what broken, slow and noisy ones can't do."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import plugin_folder
from plugin_folder import add, environment, with_examples

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

STUDY = """
[engines.slow]
kind = "slowfake"
backend = "echo"
[workloads.poems]
dataset = "poems"
options = {lines = 3}
output_len = 4
[loads.closed]
max_concurrency = 2
num_prompts = 6
[trial]
correctness_check = false
"""
SERVE = (
    *("bench", "serve", "--engine", "fake", "--engine-args=first_ms=2 gap_ms=1"),
    *("--num-prompts", "6", "--max-concurrency", "2", "--random-input-len", "8"),
    *(
        "--random-output-len",
        "3",
        "--no-correctness-check",
        "--disable-tqdm",
        "--runs",
        "runs",
    ),
)


def dyno(
    folder: Path, *words: str, plugins: Path, **more: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dyno", *words],
        cwd=folder,
        env=environment(plugins, **more),
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
    )


def only_run(folder: Path) -> Path:
    [summary] = folder.glob("runs/**/summary.json")
    return summary.parent


def test_a_study_uses_all_six_examples(tmp_path: Path) -> None:
    """A data set with a setting, a protocol and an engine by name; check, sink and chart by being installed."""
    site = with_examples(tmp_path / "site")
    (tmp_path / "s.toml").write_text(STUDY)
    sink = tmp_path / "sink.jsonl"
    done = dyno(
        tmp_path, "run", "s.toml", "--plain", plugins=site, DYNO_EXAMPLE_SINK=str(sink)
    )
    assert done.returncode in (0, 3), done.stderr  # 3: a busy machine makes it void
    assert "plug-in" not in done.stderr and "nobody" not in done.stdout
    run = only_run(tmp_path)
    facts = json.loads((run / "trial.json").read_text())
    assert facts["plugins"] == {
        f"dyno-example-{kind}": "0.1.0" for kind in plugin_folder.KINDS
    }
    lines = (run / "requests.jsonl").read_text().splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines]
    assert all(prompt.count("\n") == 2 for prompt in prompts)  # three lines
    [line] = sink.read_text().splitlines()
    assert json.loads(line)["figures"]["completed"] == 6
    assert "Requests by outcome" in (run.parents[1] / "report.html").read_text()


def test_the_check_of_a_plugin_judges_a_run(tmp_path: Path) -> None:
    """Its finding has the usual advice, and decides the verdict as any other."""
    site = tmp_path / "site"
    code = """
from dyno.checks import Check
from dyno.facts.finding import Finding
def judge(evidence):
    yield Finding("own.few", "void", f"{evidence.summary.completed} requests are too few.")
THING = Check({"own.few": ("void", "Few requests.", "Send more.")}, server=judge)
"""
    add(site, "strict", {"check.few": "strict:THING"}, "strict.py", code)
    done = dyno(tmp_path, *SERVE, plugins=site)
    summary = json.loads((only_run(tmp_path) / "summary.json").read_text())
    [finding] = [f for f in summary["findings"] if f["code"] == "own.few"]
    assert (
        finding["text"] == "6 requests are too few." and finding["advice"] == "Send more."
    )
    assert done.returncode == 3 and summary["verdict"] == "void"


def test_plugins_are_listed_with_versions_and_what_they_add(tmp_path: Path) -> None:
    site = with_examples(tmp_path / "site")
    done = dyno(tmp_path, "plugins", "--json", plugins=site)
    rows = {row["adds"]: row for row in json.loads(done.stdout)}
    assert done.returncode == 0 and list(rows) == sorted(rows)
    assert rows["dataset"]["plugin"] == "dyno-example-dataset"
    assert rows["dataset"]["name"] == "poems" and rows["dataset"]["version"] == "0.1.0"
    off = dyno(tmp_path, "plugins", plugins=site, DYNO_PLUGINS="off")
    assert off.stdout == "No plug-ins: DYNO_PLUGINS is off.\n"
    one = dyno(
        tmp_path, "plugins", "--json", plugins=site, DYNO_PLUGINS="dyno_example.check"
    )
    assert [row["adds"] for row in json.loads(one.stdout)] == ["check"]
    none = dyno(tmp_path, "plugins", plugins=tmp_path)
    assert none.stdout == "No plug-ins are installed.\n"


BAD = {  # code of the module → words of the problem
    "raise RuntimeError('no such luck')": "can't be loaded (RuntimeError: no such luck)",
    "import no_such_module": "can't be loaded (ModuleNotFoundError: No module named 'no_such_module')",
    "import sys; sys.exit(3)": "can't be loaded (SystemExit: 3)",
    "THING = 1": "can't be used: bad:THING has no",
    "x = 1": "can't be loaded (AttributeError",
}


@pytest.mark.hostile
@pytest.mark.parametrize("code", BAD)
@pytest.mark.parametrize("kind", ["check", "chart", "sink"])
def test_a_broken_plugin_costs_nothing_but_itself(
    tmp_path: Path, kind: str, code: str
) -> None:
    if kind == "sink" and code == "THING = 1":
        pytest.skip("an object that can't be called fails when it is called")
    site = tmp_path / "site"
    add(site, "bad", {f"{kind}.thing": "bad:THING"}, "bad.py", code)
    done = dyno(tmp_path, "plugins", plugins=site)
    assert done.returncode == 1 and BAD[code] in done.stdout, done.stdout


@pytest.mark.hostile
def test_a_check_that_raises_is_a_finding_that_names_it(tmp_path: Path) -> None:
    site = tmp_path / "site"
    code = """
import sys
from dyno.checks import Check
def judge(evidence):
    print("look at me")
    print("look at me", file=sys.stderr)
    raise ValueError("oops")
    yield
THING = Check({}, server=judge)
"""
    add(site, "bad", {"check.thing": "bad:THING"}, "bad.py", code)
    done = dyno(tmp_path, *SERVE, plugins=site)
    assert done.returncode in (0, 3) and "look at me" not in done.stdout + done.stderr
    summary = json.loads((only_run(tmp_path) / "summary.json").read_text())
    [finding] = [f for f in summary["findings"] if f["code"] == "plugin.failed"]
    assert (
        finding["text"]
        == "The check thing of the plug-in bad 1.0 failed (ValueError: oops)."
    )
    assert finding["level"] == "note" and "DYNO_PLUGINS=off" in finding["advice"]
    assert "dyno: The check thing of the plug-in bad 1.0 failed" in done.stderr
    off = dyno(tmp_path, *SERVE, plugins=site, DYNO_PLUGINS="off")
    assert "plug-in" not in off.stdout + off.stderr


@pytest.mark.hostile
def test_a_slow_check_is_stopped(tmp_path: Path) -> None:
    site = tmp_path / "site"
    code = """
import time
from dyno.checks import Check
def judge(evidence):
    time.sleep(3600)
    yield
THING = Check({}, server=judge)
"""
    add(site, "slow", {"check.thing": "slow:THING"}, "slow.py", code)
    done = dyno(tmp_path, *SERVE, plugins=site)
    assert done.returncode in (0, 3)
    assert (
        "The check thing of the plug-in slow 1.0 failed: it took over 10 s." in done.stderr
    )


def test_sinks_run_outside_of_dyno(tmp_path: Path) -> None:
    """One writes to its standard output, one ends its process; a third still gets the run."""
    site = tmp_path / "site"
    add(site, "a", {"sink.loud": "a:f"}, "a.py", "def f(run): print('look at me')")
    add(site, "b", {"sink.bad": "b:f"}, "b.py", "import os\ndef f(run): os._exit(7)")
    code = "from pathlib import Path\ndef f(run): Path('seen').write_text(str(run))"
    add(site, "c", {"sink.good": "c:f"}, "c.py", code)
    done = dyno(tmp_path, *SERVE, plugins=site)
    assert done.returncode in (0, 3) and "look at me" not in done.stdout + done.stderr
    assert "dyno: The sink bad of the plug-in b 1.0 failed (7)." in done.stderr
    assert (tmp_path / "seen").read_text() == str(only_run(tmp_path).relative_to(tmp_path))


def test_help_imports_no_plugin_and_names_their_data_sets(tmp_path: Path) -> None:
    site = tmp_path / "site"
    code = "import time; time.sleep(60)"
    points = {"dataset.lazy": "slow:X", "engine.lazy": "slow:X", "protocol.lazy": "slow:X"}
    add(site, "slow", points, "slow.py", code)
    begun = time.monotonic()
    done = dyno(tmp_path, "bench", "serve", "--help", plugins=site)
    assert done.returncode == 0 and done.stdout.count("lazy") >= 3
    assert dyno(tmp_path, *SERVE, plugins=site).returncode in (0, 3)  # it uses none of them
    assert time.monotonic() - begun < 55


def test_a_plugin_does_not_replace_what_dyno_has(tmp_path: Path) -> None:
    site = tmp_path / "site"
    add(site, "thief", {"dataset.random": "thief:X"}, "thief.py", "X = None")
    done = dyno(tmp_path, *SERVE, plugins=site)
    assert done.returncode in (0, 3)
    assert (
        "The dataset random of the plug-in thief 1.0 has a name that dyno itself uses."
        in done.stderr
    )


def test_an_option_that_the_data_set_lacks_is_refused(tmp_path: Path) -> None:
    site = with_examples(tmp_path / "site", ["dataset"])
    words = [*SERVE, "--dataset-name", "poems", "--dataset-option"]
    words = [w for w in words if not w.startswith(("--random", "8", "3"))]
    refused = {
        (
            *words,
            "verses=3",
        ): "The data set poems has no option verses. Its options: lines.",
        (
            *words,
            "lines=many",
        ): "An option of the data set poems: Expected `int`, got `str`",
        (*words, "lines=0"): "The data set poems: lines must be at least 1, but is 0.",
        (*SERVE, "--dataset-option", "lines=3"): "random has no option lines",
    }
    code = "from dyno.cli.main import main; print(*map(main, COMMANDS))"
    done = subprocess.run(
        [sys.executable, "-c", code.replace("COMMANDS", repr([*map(list, refused)]))],
        cwd=tmp_path,
        env=environment(site),
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.split() == ["2"] * 4, done.stderr
    for reported in refused.values():
        assert reported in done.stderr
    assert "Starting" not in done.stderr, "it is refused before an engine starts"


@pytest.mark.engines
def test_examples_are_installed_by_pip_into_a_fresh_environment(tmp_path: Path) -> None:
    """dyno and what it needs come from this environment; the examples are built and installed by pip."""
    fresh = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", fresh], check=True)
    python = fresh / "bin/python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = [
        subprocess.check_output([p, "-c", where], text=True).strip()
        for p in (python, sys.executable)
    ]
    code = f"import site; site.addsitedir({own[1]!r})\n"  # also the .pth files: an editable dyno
    (Path(own[0]) / "shared.pth").write_text(code)
    folders = [str(plugin_folder.EXAMPLES / kind) for kind in plugin_folder.KINDS]
    flags = ["--no-index", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([python, "-m", "pip", "install", *flags, *folders], check=True)
    (tmp_path / "s.toml").write_text(STUDY)
    listed = subprocess.check_output([python, "-m", "dyno", "plugins", "--json"], text=True)
    assert {row["adds"] for row in json.loads(listed)} == {*plugin_folder.KINDS}
    command = [python, "-m", "dyno", "run", "s.toml", "--plain", "--no-report"]
    done = subprocess.run(
        command, cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert done.returncode in (0, 3), done.stderr
    facts = json.loads((only_run(tmp_path) / "trial.json").read_text())
    assert set(facts["plugins"]) == {f"dyno-example-{kind}" for kind in plugin_folder.KINDS}
