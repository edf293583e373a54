"""Golden files of what a user sees: commands, what they print, their exit codes and the files they write.

A golden file is a transcript of several commands. Only the command line is used, never dyno's modules: those move, and
what the user sees stays. `UPDATE_GOLDEN=1` writes the files anew.
"""

import difflib
import html
import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
GOLDEN = Path(__file__).parent / "golden" / "cli"
RUNS = Path(__file__).parent / "fixtures" / "runs"
_FOLDERS = {
    "runs": RUNS,
    "imports": Path(__file__).parent / "fixtures" / "imports",
    "published": ROOT / "published",
    "studies": ROOT / "studies",
}
# Paths from the folder that the commands run in: the length of another would change how wide a table is.
IMPORTS = sorted(f"imports/{p.name}" for p in _FOLDERS["imports"].iterdir())
STUDIES = sorted(f"studies/{p.name}" for p in (ROOT / "studies").glob("*.toml"))
PUBLISHED = sorted(
    f"published/{p.name}" for p in (ROOT / "published").iterdir() if p.is_dir()
)
COLUMNS = "100"

# The run folders in fixtures/runs by short names.
SERVE, RATE, KILLED, THROUGHPUT, LATENCY, MICRO = (
    "2af4",
    "edfb",
    "4f28",
    "b4d7",
    "919f",
    "648d",
)


def check(name: str, text: str) -> None:
    """`text`, without what changes from run to run and from machine to machine, is that of the golden file."""
    path = GOLDEN / name
    text = text.rstrip("\n") + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    wanted = path.read_text() if path.exists() else ""
    if text != wanted:
        lines = difflib.unified_diff(
            wanted.splitlines(), text.splitlines(), "golden", "now", lineterm="", n=2
        )
        shown = [line if len(line) < 400 else line[:400] + "…" for line in lines]
        more = [f"… and {len(shown) - 80} lines more"] if len(shown) > 80 else []
        pytest.fail(
            "\n".join(
                [
                    f"{path.relative_to(ROOT)} (UPDATE_GOLDEN=1 rewrites it):",
                    *shown[:80],
                    *more,
                ]
            ),
            False,
        )


def normal(text: str, here: Path) -> str:
    """The one place that knows what is volatile."""
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    places = [(here, "HERE"), (here.resolve(), "HERE"), (sys.executable, "PYTHON"), (Path(sys.prefix), "VENV"),
              (ROOT, "REPO"), (cache, "CACHE"), (Path.home(), "HOME")]  # fmt: skip
    # one may lie in another
    for place, name in sorted(places, key=lambda p: -len(str(p[0]))):
        if str(place) != "/":
            text = re.sub(re.escape(str(place)) + r"(?![\w-])", name, text)
    if any(shlex.quote(str(place)) != str(place) for place, _ in places):
        text = re.sub(
            r"^(?:[A-Z_]+=\S+ )*(?:docker|podman|python3|'?PYTHON'?|'?VENV/\S+) .*",
            _unquoted,
            text,
            flags=re.M,
        )
    text = re.sub(r"PYTHON3?\b|VENV/bin/python[\d.]*", "PYTHON", text)
    text = re.sub(r"\b([Dd]yno) \d+\.\d+\.\d+\w*", r"\1 VERSION", text)
    text = re.sub(r'("(?:dyno|version)": ")\d+\.\d+\.\d+"', r'\1VERSION"', text)
    # a container's name and label
    text = re.sub(r"\bdyno(?:-\d+(?=-\d{4})|=\d+)", lambda m: m[0][:5] + "PID", text)
    # the last bits of a sum
    text = re.sub(r"-?\d+\.\d{8,}(?:e[+-]?\d+)?", lambda m: f"{float(m[0]):.9g}", text)
    # of scripts in a page
    text = re.sub(r"'nonce-[^']*'|(?:'|&#39;)sha256-[\w+/=]+(?:'|&#39;)", "SHA256", text)
    moment = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?:\+00:00)?"  # when a report was made
    text = re.sub(
        rf'<time datetime="{moment}">{moment}|{moment}(?= · (?:dyno|\d+ \w+) )',
        "NOW",
        text,
    )
    # Python 3.12 and later
    text = re.sub(r"\(choose from ([^)]*)\)", lambda m: m[0].replace("'", ""), text)
    text = re.sub(r"# this machine \(.*\)", "# this machine (CPU)", text)
    text = re.sub(r"[\d.,]+ \w+ free at [^\s;]+", "SIZE free at PLACE", text)
    text = re.sub(r"\bdyno-5m-[0-9a-f]{10}\b", "dyno-5m-REVISION", text)
    # What pip installed here, and what of it a preview tells.
    text = re.sub(r"the wheel xllamacpp [\d.]+", "the wheel xllamacpp BUILD", text)
    return re.sub(
        r"(llama\.cpp |comes with dyno, version |\"comes_with_dyno\": \")\d{4,}",
        r"\1BUILD",
        text,
    )


def _unquoted(command: re.Match[str]) -> str:
    """A command without the quotes that only a place needed, one with a space in its name."""
    return re.sub(
        r"(?<!\S)'([^' ]*)'(?!\S)",
        lambda m: m[1] if shlex.quote(m[1]) == m[1] else m[0],
        command[0],
    )


def indented(value: Any, indent: str = "", taken: int = 0) -> str:
    """JSON, so that a difference is a line: what fits on one stands on one."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(indent) + taken + len(flat) <= 118 or not isinstance(value, dict | list):
        return flat
    if isinstance(value, dict):
        named = [(json.dumps(k, ensure_ascii=False) + ": ", v) for k, v in value.items()]
    else:
        named = [("", v) for v in value]
    inner = indent + " "
    lines = [f"{inner}{name}{indented(v, inner, len(name))}" for name, v in named]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return first + "\n" + ",\n".join(lines) + f"\n{indent}{last}"


class Dyno:
    """`dyno` in a folder of its own, with copies of the fixtures in it."""

    def __init__(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.here = here
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        from dyno.cli.main import main

        try:
            code: Any = main(list(words))
        except SystemExit as e:  # argparse's way
            code = e.code or 0
        out, err = self._capsys.readouterr()
        return code, out, err

    def lines(self, *words: str, edit: Callable[[str], str] = str) -> str:
        """The command and what came of it, as it would stand on a terminal."""
        code, out, err = self(*words)
        with suppress(ValueError):
            if out.startswith(("{", "[")):
                out = indented(json.loads(out)) + "\n"
        shown = [f"$ dyno {shlex.join(words)}\n", out and f"{out.rstrip()}\n"]
        shown += [err and "--- stderr\n" + err.rstrip() + "\n", f"--- exit code {code}\n"]
        return edit(normal("".join(shown), self.here))

    def transcript(
        self, commands: Sequence[str | Sequence[str]], edit: Callable[[str], str] = str
    ) -> str:
        words = [shlex.split(c) if isinstance(c, str) else list(c) for c in commands]
        return "\n".join(self.lines(*w, edit=edit) for w in words)


@pytest.fixture
def dyno(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Dyno:
    """Nothing of this machine's settings comes through."""
    here = tmp_path / "here"
    here.mkdir()
    for name, folder in _FOLDERS.items():
        shutil.copytree(folder, here / name)
    monkeypatch.chdir(here)
    for name in [
        n
        for n in os.environ
        if n.startswith(("OPENAI_", "HF_", "NO_COLOR", "FORCE_COLOR", "LC_", "LANG"))
    ]:
        monkeypatch.delenv(name)
    here_only = {
        "COLUMNS": COLUMNS,
        "LINES": "40",
        "DYNO_HOME": str(here / "home"),
        "TZ": "UTC",
        "LANGUAGE": "C",
    }
    for name, value in here_only.items():
        monkeypatch.setenv(name, value)
    # Engines and images on this machine are none of the test's business, nor is the Hub.
    monkeypatch.setenv("PATH", str(here / "bin"))
    from dyno.models.sizes import RepoSize

    silent = RepoSize(unknown="the Hub was not asked")
    monkeypatch.setattr(
        "dyno.models.sizes.ask", lambda recipes, shapes=False: [silent for _ in recipes]
    )
    time.tzset()
    return Dyno(here, capsys)


def without_usage(text: str) -> str:
    """The flags that argparse lists before a message: the golden files of --help have them."""
    return re.sub(r"(?m)^usage: .*\n(?: .*\n)*", "usage: …\n", text)


# ---- a page ----


def page(text: str, whole: bool = True) -> str:
    """Everything of a page that is dyno's own, a tag a line: text, tables, charts' specs and data as indented JSON.
    Of the style and dyno's script a digest; the library that draws charts is left out. Unless it's to be whole: its
    words only, and digests of the charts."""
    found: list[str] = []

    def put_aside(m: "re.Match[str]") -> str:
        tag, attributes, inner = m.groups()
        if "json" in attributes and whole:
            found.append(indented(json.loads(inner)))
        elif len(inner) > 200_000:
            found.append("the charts' library")
        else:
            found.append(f"sha256 {sha256(inner.encode()).hexdigest()[:16]}")
        return f"<{tag}{attributes}>\0{len(found) - 1}\0</{tag}>"

    text = re.sub(r"<(script|style)([^>]*)>(.*?)</\1>", put_aside, text, flags=re.S)
    text = re.sub(r">\s*<", ">\n<", text)
    text = re.sub(r"(</t[dh]>)\n(<t[dh]\b)", r"\1\2", text)  # a row a line
    if not whole:
        text = re.sub(r"</t[dh]>\s*<t[dh]\b[^>]*>", " | ", text)
        text = re.sub(r"(?:\s*\n)+", "\n", re.sub(r"<[^>]*>", "", text))
    text = re.sub(r"\0(\d+)\0", lambda m: "\n" + found[int(m[1])] + "\n", text)
    return html.unescape(text)


# ---- the shape of what a command writes ----


def keys(value: Any, path: str = "") -> set[str]:
    """Return the names in a JSON value. A name whose parts depend on the machine, or on how busy it is, is listed
    without them."""
    inner: list[Any] = []
    if not path.endswith(_AT_TIMES + _BY_MACHINE):
        inner = list(value.items()) if isinstance(value, dict) else []
        inner += [("[]", v) for v in value] if isinstance(value, list) else []
    return (
        set().union(*(keys(v, f"{path}.{k}") for k, v in inner)) if inner else {path or "."}
    )


# On a quiet or on a busy machine only.
_AT_TIMES = (
    ".freezes", ".steady", ".unfrozen", ".ticks_late_ns", ".findings", ".bounds", ".telemetry", ".startup_s",
    ".unseen", ".unseen_since_ns",
)  # fmt: skip
# What the processor, kernel, container or installed tools decide: tests/probe/test_rig.py has the parts, by machine.
_BY_MACHINE = (
    ".rig.state", ".rig.details", ".rig.environment", ".rig.accelerators", ".rig.topology", ".rig.unknown",
    ".peaks.flops", ".peaks.bandwidth_by_size",
)  # fmt: skip


def shape(folder: Path) -> str:
    """Each file of a folder with the names in it."""
    out = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        out.append(str(path.relative_to(folder)))
        # perhaps no sample fell into the load
        if path.suffix in (".json", ".jsonl") and path.stem != "telemetry":
            text = path.read_text()
            values = (
                [json.loads(text)]
                if path.suffix == ".json"
                else [json.loads(t) for t in text.splitlines()]
            )
            out += [f"  {k}" for k in sorted(set().union(*(keys(v) for v in values)))]
    return "\n".join(out)
