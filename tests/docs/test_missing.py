"""The documentation says what dyno lacks. Each such statement is asked of the code: it fails when the code gains it."""

import argparse
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dyno.cli.main import parser
from dyno.engines.kinds import KINDS
from dyno.errors import DynoError
from dyno.load.protocols import PROTOCOLS
from dyno.workload.datasets import DATASETS
from listings import DOCS
from reference import PART, ROOT, _parsers

PAGES = [*(p for p in DOCS if p.name != "report-lines.md"), ROOT / "METHOD.md"]
SOURCE = ROOT / "src" / "dyno"

# A sentence with one of these says that something is missing.
DENIAL = re.compile(
    r"not supported|HTTP/1\.1|no images|single-turn|one client process|downloads nothing|downloads no "
    r"|dyno (?:does not|doesn't|can't|cannot) (?:read|send|fetch|quantize|download|support|load|apply|wait|compare)"
    r"|dyno always (?:streams|sends|reads)"
    r"|(?:addresses|proxies|code|logs of coding assistants|pictures|\*\.pth`) are (?:refused|not read)"
    r"|dyno refuses `|doesn't read `|only \d is supported|gets no chat template|not by a unix socket|gives? no images",
    re.I,
)


def _flags() -> set[str]:
    """All flags that do something: those that are refused or ignored say so when they are used."""
    known: set[str] = set()
    for p, _ in _parsers(parser(), ""):
        for action in p._actions:
            if (
                type(action).__name__ not in ("_Refused", "_Ignored")
                and action.help != argparse.SUPPRESS
            ):
                known.update(action.option_strings)
    return known


def _commands() -> set[str]:
    return {p.prog for p, _ in _parsers(parser(), "")}


def exists(name: str) -> bool:
    """Whether a name in backticks is a flag, a dataset, a backend, an engine or a command of dyno."""
    return name in {*_flags(), *DATASETS, *PROTOCOLS, *KINDS, *_commands()}


def _mentioned(*words: str) -> bool:
    """Whether one of the words is in the code of dyno's load and workloads."""
    files = [p for folder in ("load", "workload") for p in (SOURCE / folder).rglob("*.py")]
    text = "\n".join(p.read_text() for p in files)
    return any(word in text for word in words)


def _refuses(call: Callable[[], object]) -> bool:
    try:
        call()
    except DynoError:
        return True
    return False


def _ray_client_is_refused() -> bool:
    from dyno.facts.client import ClientSpec
    from dyno.remote import on_ray

    return _refuses(
        lambda: on_ray.check(ClientSpec(on="ray", ray_address="ray://127.0.0.1:10001"))
    )


def _proxies_are_refused() -> bool:
    from dyno.transport import proxy_for

    return all(
        _refuses(lambda value=value: proxy_for(False, "h", 80, {"all_proxy": value}))  # type: ignore[misc]
        for value in ("socks5://p:1", "https://p:1")
    )


def _capacity_is_not_waited_for() -> bool:
    from dyno.remote.dstack import _expect_offers

    return _refuses(
        lambda: _expect_offers(
            SimpleNamespace(total_offers=0), {"type": "task"}, lambda _: None
        )
    )


# Statement (a part of its sentence) → whether it still holds.
HOLDS: dict[str, Callable[[], bool]] = {
    "HTTP/1.1 only": lambda: not _mentioned("http2", "HTTP/2", "h2c"),
    "Windows: not supported": lambda: "import fcntl" in _text("store/run.py"),
    "SOCKS and `https://` proxies are refused": _proxies_are_refused,
    "`ray://` addresses are refused": _ray_client_is_refused,
    "Raw session logs of coding assistants are not read": lambda: (
        not _mentioned("parentUuid", "codex")
    ),
    "doesn't read `*.bin` and `*.pth`": lambda: "torch" not in _text("models/check.py"),
    "Pictures are not read": lambda: (
        "pictures, which dyno doesn't read" in _text("audit/audit.py")
    ),
    "Tasks that run generated code": lambda: (
        "confirm_run_unsafe_code" not in _text("quality/harness.py")
    ),
    "by HTTP(S), not by a Unix socket": lambda: (
        "can't reach a server by a Unix socket" in _text("quality/lm_eval.py")
    ),
    "gets no chat template": lambda: (
        "--apply-chat-template needs the chat form" in _text("quality/lm_eval.py")
    ),
    "dyno doesn't wait for capacity": _capacity_is_not_waited_for,
    "dyno can't compare their other flags": lambda: (
        "kv_unified" in _text("facts/llama.py") + _text("probe/server.py")
    ),
    "dyno can't read values of `Q1_0`": lambda: "Q1_0" in _text("models/gguf.py"),
}
# Sentences that match, and are about how dyno works, not about what it lacks.
BEHAVIOUR = (
    "A setting that this version does not support is an error",
    "Keys come from your SSH agent or your key files; dyno doesn't read them",
    "dyno doesn't send the rest of its conversation",
    "On two cores it takes about a minute and downloads no model",  # of the demo
    "dyno refuses `-d`",  # a container's flags
)


def _text(path: str) -> str:
    return (SOURCE / path).read_text()


def _sentences(path: Path) -> Iterator[str]:
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    text = PART.sub("", text)
    for block in re.split(r"\n\s*\n|\n(?=- )|\n(?=\|)", text):
        yield from re.split(r"(?<=[.!?]) (?=[A-Z`*])", " ".join(block.split()))


DENIALS = [
    (path, sentence)
    for path in PAGES
    for sentence in _sentences(path)
    if DENIAL.search(sentence)
]


def test_there_are_statements_to_ask() -> None:
    assert len(DENIALS) >= 12


@pytest.mark.parametrize(("path", "sentence"), DENIALS, ids=lambda v: str(v)[-60:])
def test_what_the_documentation_denies_is_not_there(path: Path, sentence: str) -> None:
    if any(part in sentence for part in BEHAVIOUR):
        return
    rules = [holds for part, holds in HOLDS.items() if part in sentence]
    listed = re.search(r"[Nn]ot supported: |dyno refuses `", sentence)
    names = re.findall(r"`([^`]+)`", sentence) if listed else []
    assert rules or names, (
        f"{path.name}: add a rule for this statement to HOLDS: {sentence}"
    )
    assert [name for name in names if exists(name)] == [], (
        f"{path.name} says that these are not supported"
    )
    assert all(holds() for holds in rules), (
        f"{path.name} denies what the code has now: {sentence}"
    )


def test_each_rule_belongs_to_a_statement() -> None:
    said = "\n".join(sentence for _, sentence in DENIALS)
    assert [part for part in HOLDS if part not in said] == [], (
        "remove the rule, or the page has lost its statement"
    )


def test_a_statement_about_something_that_exists_would_fail() -> None:
    assert all(
        map(
            exists,
            (
                "hf",
                "sonnet",
                "--lora-modules",
                "openai-chat",
                "vllm",
                "dyno models quantize",
            ),
        )
    )
    assert not any(map(exists, ("random-video", "--fly", "openai-realtime", "dyno fly")))


def test_lines_of_reports_that_dyno_replaces_are_not_called_missing() -> None:
    page = (ROOT / "docs/report-lines.md").read_text()
    others = page.partition("## Other lines")[2]
    named = re.findall(r"`(dyno [a-z]+ [a-z]+)", others)
    assert {"dyno models pull", "dyno models quantize", "dyno engines install"} <= {*named}
    assert [name for name in named if not exists(name)] == [] and not DENIAL.search(others)


# ---- what ran where: docs/limits.md alone says it ----

LIMITS = (ROOT / "docs/limits.md").read_text()
NEVER_RAN = re.compile(r"not been run|never run|not run for real", re.I)


def _engines_of_limits() -> dict[str, str]:
    """Engines by their titles, with where each ran."""
    table = LIMITS.partition("\n## Engines\n")[2].partition("\n\n|")[0]
    rows = [line.strip("|").split(" | ") for line in table.splitlines()[3:]]
    return {row[0].strip(): row[1].strip() for row in rows if len(row) == 3}


def test_limits_has_every_engine_that_dyno_starts() -> None:
    started = {
        k.title.split()[0] for k in KINDS.values() if k.name not in ("openai", "fake")
    }
    assert started == {*_engines_of_limits()}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_an_engine_that_ran_is_not_called_one_that_never_ran(path: Path) -> None:
    """A page says so only of engines without a place in limits.md, and has no table of its own with what was tested."""
    if path.name == "limits.md":
        return
    ran = [title for title, where in _engines_of_limits().items() if where != "–"]
    sentences = [s for s in _sentences(path) if NEVER_RAN.search(s)]
    assert [s for s in sentences for title in ran if title in s.split("not")[0]] == []
    assert "| tested" not in path.read_text()


def test_the_readme_names_each_engine_that_never_ran() -> None:
    never = [title for title, where in _engines_of_limits().items() if where == "–"]
    limits = (ROOT / "README.md").read_text().partition("\n## Limits\n")[2]
    assert never and [t for t in never if t not in limits.partition("\n## ")[0]] == []


# ---- figures of a machine ----

_FIGURE = re.compile(r"\d[\d,.]*\s?(?:µs|chunks/s|tok/s)|tok/s \||chunks/s \|")
_MACHINE = re.compile(r"\bArm\b|H200|Xeon|MI300X|H100|Strix Halo|\[Accuracy\]")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_measured_speed_names_its_machine(path: Path) -> None:
    """Another processor gives other figures: the section that has them says where they come from."""
    text = PART.sub("", re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S))
    sections = re.split(r"\n(?=#+ )", text)
    assert [
        s.splitlines()[0] for s in sections if _FIGURE.search(s) and not _MACHINE.search(s)
    ] == []
