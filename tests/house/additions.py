"""A copy of dyno's source with a data set, a setting and a rule more. `python additions.py FOLDER` uses it.

It prints one JSON object: what each command and surface of that dyno has. Tests read it.
"""

import contextlib
import io
import json
import os
import shutil
import sys
from pathlib import Path

DATASET = '''
"""Prompts that say a word again and again."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from dyno.option import Option
from dyno.workload.common import CommonSpec
from dyno.workload.dataset import Dataset
from dyno.workload.request import Request

if TYPE_CHECKING:
    from dyno.workload.tokenizer import Tokenizer


class EchoSpec(CommonSpec, frozen=True):
    echo_word: Annotated[str, Option("--echo-word", "WORD", "word of each echo")] = "hello"


def echoes(spec: EchoSpec, tokenizer: "Tokenizer") -> Iterator[Request]:
    for number in range(1, 1000):
        prompt = f"{number} " + " ".join([spec.echo_word] * 8)
        yield Request(prompt, tokenizer.count(prompt), spec.output_len or 4)


ECHO = Dataset(name="echo", about="a word, again and again: `--echo-word`", make=echoes, spec=EchoSpec)
'''
SETTING = """
    loudness: Annotated[int, Option("--loudness", "N", "how loud prompts are", least=0)] = 0
"""
RULE = """
LOAD.append(_excludes("loudness", "request_rate_rps"))
"""
# File → what is put before which line of it.
CHANGES = {
    "workload/datasets/echo.py": [(DATASET, "")],
    "workload/datasets/__init__.py": [
        (
            "from dyno.workload.datasets.echo import ECHO\n",
            "from dyno.workload.datasets.hf",
        ),
        ("        ECHO,\n", "        MIX,\n"),
    ],
    "workload/common.py": [(SETTING.lstrip("\n"), "    shuffle: Annotated[")],
    "facts/rules.py": [(RULE, "\n# ---- of a workload ----")],
}
STUDY = """
[engines.quick]
kind = "fake"

[workloads.words]
dataset = "echo"
echo_word = ["ping", "pong"]
loudness = 3
num_prompts = 4

[loads.two]
max_concurrency = 2
"""


def copy(source: Path, folder: Path) -> Path:
    """Make the copy in `folder`/dyno: unchanged files are links."""
    package = folder / "dyno"
    shutil.copytree(
        source,
        package,
        copy_function=os.symlink,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    for name, insertions in CHANGES.items():
        path = package / name
        text = path.read_text() if path.exists() else ""
        for more, line in insertions:
            assert line in text, f"{name} has no {line!r}"
            text = text.replace(line, more + line, 1) if line else more.lstrip()
        path.unlink(missing_ok=True)
        path.write_text(text)
    return package


def changed(source: Path, package: Path) -> dict[str, int]:
    """Return the lines that each file has more than dyno's own."""
    lines = {}
    for path in sorted(package.rglob("*.py")):
        own = source / path.relative_to(package)
        before = own.read_text() if own.exists() else ""
        if path.read_text() != before:
            lines[path.relative_to(package).as_posix()] = path.read_text().count(
                "\n"
            ) - before.count("\n")
    return lines


def surfaces(folder: Path) -> dict[str, object]:
    """Use the copied dyno: commands with a fake engine, a study, its tables."""
    import dyno
    from dyno.cli.main import main
    from dyno.conduct import study_plan
    from dyno.measure.pairs import groups
    from dyno.store.rows import read_row
    from dyno.store.run import Run
    from reference import datasets, study_keys

    def said(*words: str) -> str:
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            contextlib.suppress(SystemExit),
        ):
            main(words)
        return out.getvalue() + err.getvalue()

    runs = folder / "runs"
    serve = ("bench", "serve", "--engine", "fake", "--runs", str(runs), "--disable-tqdm")
    echo = (
        *serve,
        "--dataset-name",
        "echo",
        "--num-prompts",
        "2",
        "--num-warmups",
        "0",
        "--max-concurrency",
        "1",
    )
    printed = [
        said(*echo, "--echo-word", word, "--loudness", n)
        for word, n in (("ping", "0"), ("pong", "0"), ("ping", "3"))
    ]
    stored = sorted(
        (Run(path) for path in runs.iterdir()), key=lambda run: run.manifest().started
    )
    rows = [read_row(run) for run in stored]
    (folder / "s.toml").write_text(STUDY)
    study, _ = study_plan.read(folder / "s.toml")
    (folder / "rule.toml").write_text(
        STUDY.replace("max_concurrency = 2", "request_rate_rps = 2")
    )
    (folder / "foreign.toml").write_text(STUDY.replace('"echo"', '"tasks"'))
    names = "workload_dataset, workload_echo_word, workload_loudness"
    return {
        "source": dyno.__file__,
        "help": said("bench", "serve", "--help"),
        "printed": printed,
        "prompts": [str(request.prompt) for request in stored[1].requests()],
        "settings": [
            {n: row.setting(n) for n in ("dataset", "--echo-word", "--loudness")}
            for row in rows
        ],
        "entries": len(groups(rows)),
        "repeats": len(groups([rows[0], rows[0]])),
        "sql": said(
            "sql",
            "--runs",
            str(runs),
            "--csv",
            f"select {names} from trials order by started",
        ),
        "docs": datasets(),
        "keys": study_keys("workload"),
        "trials": [
            [p.trial.workload.echo_word, p.trial.workload.loudness, p.place.id]
            for p in study.trials
        ],
        "refused_flag": said(*serve, "--echo-word", "x"),
        "refused_key": said("run", str(folder / "foreign.toml"), "--dry-run"),
        "rule_of_flags": said(*serve, "--loudness", "3", "--request-rate", "2"),
        "rule_of_keys": said("run", str(folder / "rule.toml"), "--dry-run"),
    }


if __name__ == "__main__":
    print(json.dumps(surfaces(Path(sys.argv[1])), default=str))
