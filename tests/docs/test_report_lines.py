"""The command lines of five public reports, typed into dyno as printed. docs/report-lines.md has what came out."""

import os
import re
import shlex

import pytest

from dry_runs import DryRun, dry_run
from dyno.cli import serve
from dyno.cli.main import parse, parser
from dyno.cli.parser import Parser
from dyno.engines.kinds import KINDS
from dyno.errors import UsageError
from reference import ROOT, code, table
from report_lines import CONTAINERS, OTHERS, REPORTS, flags, printed, typed

__all__ = ["dry_run"]
PAGE = ROOT / "docs/report-lines.md"
PART = re.compile(r"(<!-- lines -->\n).*?(<!-- end -->)", re.DOTALL)
# What dyno adds to each command.
OURS = {"--host": "127.0.0.1", "--port": "8000", "--metrics": "", "--alias": None, "--no-enable-prefix-caching": "",
        "--shard-uds-path": None, "--master-port": None, "--hostname": "127.0.0.1"}  # fmt: skip
DEFAULTS = {"--tensor-parallel-size": "1"}  # of all engines: needs no flag


def client(line: str) -> str:
    """The result of a client's command: it has no --dry-run, since it starts nothing."""
    try:
        options = parse(shlex.split(typed(line).command))
        _, options = next(serve.loads(options))
        serve.flags.check_refused(options)
        serve.spec(options)
    except UsageError as e:
        return f"refused: {e}"
    return "works"


def engine(line: str, version: str, dry_run: DryRun) -> str:
    """The result of a command that starts an engine: its own flags are compared with the printed ones."""
    command = typed(line).command
    shown = dry_run(command, version)
    if shown.startswith("dyno: "):
        return "refused: " + shown.replace("\n", " ").replace("dyno: ", "")
    words = shlex.split(re.sub(r"^(?:\S+=\S+ )*(?:vllm serve|vllm|llama-server|llama-bench llama-bench|llamacpp|"
                               r"text-generation-launcher) ?", "", shown))  # fmt: skip
    given, got = printed(line), flags(words)
    known = {*got} | {*given} - _own_flags(command)
    lost = {
        f: v
        for f, v in given.items()
        if f in known and got.get(f) != v and DEFAULTS.get(f) != v
    }
    new = {
        f: v
        for f, v in got.items()
        if given.get(f) != v and (f not in OURS or OURS[f] not in (None, v))
    }
    if not lost and not new:
        return "works"
    if "MODEL_ID" in line:
        lost = {"MODEL_ID": "", **lost}
    return f"translated: {code(_words(lost))} → {code(_words(new)) or 'nothing'}"


def _words(those: dict[str, str]) -> str:
    return " ".join(f"{flag} {value}".strip() for flag, value in those.items())


def _own_flags(command: str) -> set[str]:
    """The flags of a command that dyno applies itself: they are no engine's."""
    inner: Parser = parser()
    words = command.split()
    while inner.commands():
        inner = inner.commands()[words.pop(0)]
    engine_flags = {a.option_strings[0] for group in inner._action_groups if group.title == "engine settings"
                    for a in group._group_actions}  # fmt: skip
    shared = {"--model", "--host", "--port", "--served-model-name", *engine_flags}
    return {
        flag
        for a in inner._actions
        if not shared & {*a.option_strings}
        for flag in a.option_strings
    }


def lines(dry_run: DryRun, monkeypatch: pytest.MonkeyPatch) -> str:
    """The tables of the page. Lines that differ in the model and the concurrency alone are one."""
    parts = []
    for report in REPORTS:
        rows: dict[str, list[tuple[str, ...]]] = {}
        for line in report.lines:
            with monkeypatch.context() as patch:
                for name, value in typed(line).env.items():
                    patch.setenv(name, value)
                key = (
                    re.sub(r"(-m|--model|--max-concurrency) \S+", "", line)
                    if "gguf" in str(report.lines)
                    else line
                )
                rows.setdefault(key, []).append(
                    (line, *results(line, report.versions, dry_run))
                )
        versions = " and ".join(
            f"{KINDS[name].title} {version}" for name, version in report.versions.items()
        )
        shown = [_row(each) for each in rows.values()]
        parts.append(
            f"## {report.title}\n\n"
            + table(("as printed", versions, "newest flags"), shown)
        )
    boxes = [
        (code(line), f"translated: {code('dyno ' + command)}")
        for line, command in CONTAINERS
    ]
    others = [(code(line), about) for line, about in OTHERS]
    return "\n\n".join(
        [
            *parts,
            "## Other lines\n\n" + table(("as printed", "with dyno"), [*boxes, *others]),
        ]
    )


def results(line: str, versions: dict[str, str], dry_run: DryRun) -> tuple[str, str]:
    if typed(line).is_client:
        return client(line), ""
    kind = typed(line).engine
    newest = "99999" if kind == "llamacpp" else ""  # not the one that comes with dyno
    return engine(line, versions[kind], dry_run), engine(line, newest, dry_run)


def _row(each: list[tuple[str, ...]]) -> tuple[str, ...]:
    first, *_ = each
    assert {row[1:] for row in each} == {first[1:]}, (
        "lines that differ in their results need rows of their own"
    )
    more = (
        f" and {len(each) - 1} more with other models and concurrencies"
        if len(each) > 1
        else ""
    )
    return (code(first[0]) + more, *first[1:])


def test_the_page_has_what_dyno_does_with_each_line(
    dry_run: DryRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = PAGE.read_text()
    renewed = PART.sub(
        lambda part: f"{part[1]}\n{lines(dry_run, monkeypatch)}\n\n{part[2]}", text
    )
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(renewed)
    assert PAGE.read_text() == renewed, "UPDATE_GOLDEN=1 rewrites it"


@pytest.mark.parametrize(
    ("line", "command"), CONTAINERS, ids=[line[-40:] for line, _ in CONTAINERS]
)
def test_a_container_has_all_options_of_the_printed_command(
    line: str, command: str, dry_run: DryRun
) -> None:
    long = {"-v": "--volume", "-e": "--env"}
    line = line.replace("CAP_SYS_ADMIN", "SYS_ADMIN")  # the same capability
    words = re.sub(r"(-v|-e|--device|--security-opt|--group-add) (?=\S)",
                   lambda m: f"{long.get(m[1], m[1])}=", line).split()  # fmt: skip
    shown = dry_run(command, "0.6.3").replace("--security-opt ", "--security-opt=").split()
    # its value
    assert [w for w in words if w.startswith("--") and w not in shown] in (
        [],
        ["--env=HF_TOKEN=<token>"],
    )


def test_other_lines_name_commands_that_dyno_has() -> None:
    known = parser().commands()
    for _, ours in OTHERS:
        for command in re.findall(r"`dyno (\w+)", ours):
            assert command in known, ours
    (asked,) = [ours for printed_line, ours in OTHERS if printed_line.startswith("lm_eval")]
    options = parse(shlex.split(asked.split("`")[1])[1:])
    assert (options.tasks, options.num_fewshot, options.tensor_parallel_size) == (
        ["mmlu_pro_biology"],
        5,
        8,
    )


def test_each_report_has_commands_for_each_engine_it_names() -> None:
    for report in REPORTS:
        assert {typed(line).engine for line in report.lines} == {*report.versions}
