"""`dyno engines`: start one in the foreground. (Installing and managing real engines comes with their own files.)"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dyno.cli import engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dyno.experiment.fleet import Fleet

_ABOUT = {
    "vllm": "vLLM",
    "tgi": "Text Generation Inference",
    "llamacpp": "llama.cpp: a llama-server, or the one that comes with dyno",
    "sglang": "SGLang",
    "transformers": "transformers serve",
}


def add(commands: Any) -> None:
    p = commands.add_parser("engines", help="start the fake or the embedded engine")
    verbs = p.add_subparsers(title="verbs", required=True, metavar="VERB")
    start = verbs.add_parser("start", help="in the foreground, until Ctrl-C").add_subparsers(
        title="engines", required=True, metavar="KIND"
    )
    fake = start.add_parser(
        "fake", help="known times, and faults on demand", formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    for kind in engine.KINDS:
        if kind not in ("fake", "openai"):
            p = start.add_parser(kind, help=_ABOUT[kind])
            p.add_argument("--model", help="default: dyno's own small one" if kind == "llamacpp" else "name or folder")
            p.add_argument("--served-model-name", metavar="NAME")
            p.add_argument("--port", type=int, default=8000, help="default: 8000; further copies take the next ones")
            p.add_argument("--dry-run", action="store_true", help="print what would be run, and what is wrong with it")
            engine.add(p.add_argument_group("setting"))
            p.set_defaults(command=start_engine, kind=kind)


def start_fake(options: argparse.Namespace) -> int:
    from dyno.engines.fake import FAULTS
    from dyno.engines.fake.server import serve
    from dyno.engines.fake.spec import FakeSpec, parse_faults

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
    from dyno.errors import EngineError, UsageError
    from dyno.experiment.fleet import Plan, running
    from dyno.probe import rig

    plan = Plan(engine.spec(options.kind, options), rig.look(), port=options.port, dry=options.dry_run)
    problems = plan.problems()
    if options.dry_run:
        print("\n".join(plan.lines()))
    if problems:
        raise UsageError(" ".join(problems))
    if options.dry_run:
        return 0
    with tempfile.TemporaryDirectory(prefix="dyno-") as folder:
        say = lambda text: print(f"{text} …", file=sys.stderr, flush=True)  # noqa: E731
        with running(plan, Path(folder), {}, say, lambda _: None) as fleet:
            for line in _told(fleet):
                print(line, file=sys.stderr)
            for url in fleet.urls:
                print(f"{plan.kind.title}: {url}, model {plan.served_name}. Ctrl-C stops it.", file=sys.stderr)
            sys.stderr.flush()
            while not (death := fleet.death()):
                time.sleep(0.5)
            raise EngineError(death.replace(" under load", ""))


def _told(fleet: "Fleet") -> "Iterator[str]":
    """What the engine says of itself, as far as it does."""
    import msgspec

    yield f"ready after {fleet.facts.ready_s:.1f} s" + "".join(
        f", {k} {v:g} s" for k, v in fleet.facts.startup_s.items()
    )
    for name, value in msgspec.structs.asdict(fleet.target).items():
        if value is not None and name != "model":
            yield f"{name.replace('_', ' '):<22} {value}"


def _say_ready(what: str, port: int, model: str) -> None:
    print(f"{what}: http://127.0.0.1:{port}, model {model}. Ctrl-C stops it.", file=sys.stderr, flush=True)
