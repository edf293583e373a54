"""`dyno demo`: the main job on the embedded engine, in under a minute. It is the study demo.toml."""

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    p = commands.add_parser("demo", help="start here: a small comparison on an engine that comes with dyno")
    p.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="default: runs")
    p.set_defaults(command=run, study="demo", set=[], only=[], limit=None, rig=None, any_rig=False, plain=False,
                   keep_raw=False, no_report=False)  # fmt: skip


def run(options: argparse.Namespace) -> int:
    from dyno.cli.run import conduct, found_study
    from dyno.conduct import study_plan
    from dyno.probe import rig

    study, text = study_plan.read(found_study(options.study))
    folder = study_plan.folder_for(options.runs, study, again=True)
    with folder.held():
        code = conduct(study, text, folder, study.trials, rig.look(), options)
    if (folder.path / "report.html").exists():
        print(f"\nThe page, for a browser: {folder.path}/report.html")
    print(f"Facts of each trial: {folder.path}/ (`dyno runs` lists, `dyno runs show FOLDER` prints one in full)")
    print("Your own server:     dyno bench serve --base-url http://HOST:PORT --max-concurrency 16 --num-prompts 200")
    print("Your own comparison: dyno run STUDY.toml (studies/README.md has the format)")
    return code
