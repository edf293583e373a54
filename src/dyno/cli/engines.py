"""`dyno engines`: what there is, installing and removing; start one in the foreground."""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dyno.cli import flags, settings
from dyno.errors import EngineError, UsageError
from dyno.numbers import human_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dyno.conduct.fleet import Fleet


def add(p: argparse.ArgumentParser) -> None:
    verbs = p.add_subparsers(title="verbs", required=True, metavar="VERB")
    start = verbs.add_parser("start", help="in the foreground, until Ctrl-C").add_subparsers(
        title="engines", required=True, metavar="KIND"
    )
    fake = start.add_parser("fake", help=settings.KINDS["fake"])
    fake.add_argument("--port", type=int, default=8000)
    fake.add_argument("--first-ms", type=float, default=50.0, help="to the first token (default: 50)")
    fake.add_argument("--gap-ms", type=float, default=10.0, help="between tokens (default: 10)")
    fake.add_argument("--model", default="fake")
    fake.add_argument("--max-model-len", type=int, default=131_072)
    fake.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="KIND[@N]",
        help="strikes every Nth request; --fault help lists them",
    )
    fake.set_defaults(command=start_fake)
    for kind, about in settings.KINDS.items():
        if kind not in ("fake", "openai"):
            p = start.add_parser(kind, help=about)
            p.add_argument("--model", help="default: dyno's own small one" if kind == "llamacpp" else "name or folder")
            p.add_argument("--served-model-name", metavar="NAME")
            settings.add_port(p, "default: 8000; further copies take the next ones", default=8000)
            p.add_argument("--dry-run", action="store_true", help=settings.DRY_RUN)
            settings.add_engine(p.add_argument_group("setting"))
            p.set_defaults(command=start_engine, kind=kind)
    _add_list(verbs)
    _add_install(verbs)
    _add_remove(verbs)


def start_fake(options: argparse.Namespace) -> int:
    from dyno.engines.fake import FAULTS, FakeSpec, parse_faults
    from dyno.engines.fake.server import serve

    if "help" in options.fault:
        for kind, what in FAULTS.items():
            print(f"{kind:<14} {what}")
        return 0
    spec = FakeSpec(
        first_ms=options.first_ms,
        gap_ms=options.gap_ms,
        model=options.model,
        max_model_len=options.max_model_len,
        faults=parse_faults(options.fault),
    )
    serve(spec, options.port, ready=lambda: _say_ready("fake", options.port, options.model))
    return 0


def start_engine(options: argparse.Namespace) -> int:
    from dyno.cli.progress import ProgressLine
    from dyno.conduct.engine_plan import EnginePlan
    from dyno.conduct.fleet import running
    from dyno.probe import rig

    plan = EnginePlan(settings.engine(options.kind, options), rig.look(), dry=options.dry_run)
    problems = plan.problems()
    if options.dry_run:
        print("\n".join(plan.lines()))
    if problems:
        raise UsageError(" ".join(problems))
    if options.dry_run:
        return 0
    folder = Path(tempfile.mkdtemp(prefix="dyno-"))
    progress = ProgressLine()
    try:
        with progress, running(plan, folder, {}, progress.phase, lambda _: None) as fleet:
            progress.over()
            for line in _lines(fleet):
                print(line, file=sys.stderr)
            for url in fleet.urls:
                print(f"{plan.kind.title}: {url}, model {plan.served_name}. Ctrl-C stops it.", file=sys.stderr)
            sys.stderr.flush()
            while not (death := fleet.death()):
                time.sleep(0.5)
            raise EngineError(death.replace(" under load", ""))
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)  # where it fails it stays: the message points there
        raise


def _lines(fleet: "Fleet") -> "Iterator[str]":
    """Describe the engine by what it reports of itself."""

    for name, value in msgspec.structs.asdict(fleet.target).items():
        if value is not None and name != "model":
            yield f"{name.replace('_', ' '):<22} {value}"


def _say_ready(what: str, port: int, model: str) -> None:
    print(f"{what}: http://127.0.0.1:{port}, model {model}. Ctrl-C stops it.", file=sys.stderr, flush=True)


def _add_list(verbs: Any) -> None:
    p = verbs.add_parser("list", help="the engines known, those installed, and those on PATH")
    p.add_argument("--json", action="store_true")
    p.set_defaults(command=show)


def _add_install(verbs: Any) -> None:
    p = verbs.add_parser(
        "install",
        help="into an environment of its own",
        description="Makes a virtual environment for the engine under $DYNO_HOME/engines (by default in "
        "$XDG_DATA_HOME/dyno or ~/.local/share/dyno), by pip. Its own configuration holds: "
        "indexes, proxies, find-links. What is there already stays.",
    )
    p.add_argument("kind", metavar="KIND", help="vllm, sglang, transformers, llamacpp")
    p.add_argument("--version", help="default: the newest that there is")
    p.add_argument("--variant", choices=("cpu", "cuda", "rocm"), help="default: by what this machine has")
    p.add_argument("--from", dest="source", metavar="WHEEL|URL|GIT", help="in place of the engine's package")
    p.add_argument("--python", metavar="P", help="an interpreter's path or version; default: the one dyno runs on")
    flags.add_ignored(p, "--no-uv")  # pip is the only way now
    p.set_defaults(command=install)


def _add_remove(verbs: Any) -> None:
    p = verbs.add_parser("remove", help="an installed engine, with its environment")
    p.add_argument("name", metavar="NAME", help="as `dyno engines list` shows it")
    p.set_defaults(command=remove)


def show(options: argparse.Namespace) -> int:
    from dyno.engines import environment
    from dyno.engines.kinds import KINDS

    kinds: dict[str, dict[str, Any]] = {}
    for kind in KINDS.values():
        if kind.starts:
            own = kind.own_program()
            on_path = next((path for name in kind.programs if (path := shutil.which(name))), None)
            kinds[kind.name] = {
                "installed": environment.installed(kind.name),
                "on_path": on_path,
                "comes_with_dyno": own and own.version,
            }
    if options.json:
        print(json.dumps({"home": str(environment.home()), "kinds": msgspec.to_builtins(kinds)}))
        return 0
    for name, has in kinds.items():
        lines = [f"comes with dyno: {has['comes_with_dyno']}"] if has["comes_with_dyno"] else []
        for env in has["installed"]:
            state = human_bytes(env.size_bytes) if env.whole else "broken: its Python or binary is gone; install anew"
            lines.append(f"{env.name}  {env.created[:10]}, Python {env.python_version}, {state}")
        if has["on_path"]:
            lines.append(f"on PATH: {has['on_path']}")
        for first, line in enumerate(lines or ["–"]):
            print(f"{'' if first else name:<13} {line}")
    return 0


def install(options: argparse.Namespace) -> int:
    from dyno.cli.progress import ProgressLine
    from dyno.engines import install as installing

    with ProgressLine() as line:
        env = installing.install(
            options.kind, options.version, options.variant, options.source, line.say, options.python, line.below
        )
    print(f"{env.name}  {env.binary or env.python}")
    return 0


def remove(options: argparse.Namespace) -> int:
    from dyno.engines import environment

    environment.remove(options.name)
    return 0
