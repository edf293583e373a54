"""`dyno engines`: what there is, installing and removing; start one in the foreground."""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    p = commands.add_parser("engines", help="list, install and remove engines; start the fake or the embedded one")
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
    embedded = start.add_parser("embedded", help="llama.cpp with dyno's own small model")
    embedded.add_argument("--port", type=int, default=8000)
    embedded.add_argument("--quantization", choices=("F16", "Q8_0", "Q4_0"), default="F16")
    embedded.add_argument("--parallel", type=int, default=16, help="slots (default: 16)")
    embedded.add_argument("--context", type=int, default=2048, help="tokens for each slot (default: 2048)")
    embedded.set_defaults(command=start_embedded)
    _add_list(verbs)
    _add_install(verbs)
    _add_remove(verbs)


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


def start_embedded(options: argparse.Namespace) -> int:
    from dyno.engines import model
    from dyno.engines.embedded import Embedded
    from dyno.errors import EngineError

    path = model.build(options.quantization)
    alias = f"dyno-tiny-{options.quantization}"
    with tempfile.TemporaryDirectory(prefix="dyno-") as folder:
        log = Path(folder) / "engine.log"
        with Embedded.start(path, alias, options.parallel, options.context, log, port=options.port) as engine:
            _say_ready(f"embedded ({engine.version})", options.port, alias)
            while engine.process.alive():
                time.sleep(0.5)
            raise EngineError(f"The embedded engine ended: {' | '.join(engine.process.last_lines())}")


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
        "$XDG_DATA_HOME/dyno or ~/.local/share/dyno), by uv where it is on PATH, else by pip. Their own configuration "
        "holds: indexes, proxies, find-links. What is there already stays.",
    )
    p.add_argument("kind", metavar="KIND", help="vllm, sglang, transformers, llamacpp")
    p.add_argument("--version", help="default: the newest that there is")
    p.add_argument("--variant", choices=("cpu", "cuda", "rocm"), help="default: by what this machine has")
    p.add_argument("--from", dest="source", metavar="WHEEL|URL|GIT", help="in place of the engine's package")
    p.add_argument("--python", metavar="P", help="an interpreter's path or version; default: the one dyno runs on")
    p.add_argument("--no-uv", dest="uv", action="store_false", default=None, help="pip also where uv is on PATH")
    p.set_defaults(command=install)


def _add_remove(verbs: Any) -> None:
    p = verbs.add_parser("remove", help="an installed engine, with its environment")
    p.add_argument("name", metavar="NAME", help="as `dyno engines list` shows it")
    p.set_defaults(command=remove)


def show(options: argparse.Namespace) -> int:
    import msgspec

    from dyno.engines import environment
    from dyno.engines.recipe import COMMANDS
    from dyno.units import human_bytes

    kinds: dict[str, dict[str, Any]] = {kind: {"comes_with_dyno": True} for kind in ("embedded", "fake")}
    for kind, command in COMMANDS.items():
        kinds[kind] = {"installed": environment.installed(kind), "on_path": shutil.which(command)}
    if options.json:
        print(json.dumps({"home": str(environment.home()), "kinds": msgspec.to_builtins(kinds)}))
        return 0
    for kind, has in kinds.items():
        lines = ["comes with dyno"] if "comes_with_dyno" in has else []
        for env in has.get("installed", ()):
            state = human_bytes(env.size_bytes) if env.whole else "broken: its Python or binary is gone; install anew"
            lines.append(f"{env.name}  {env.made[:10]}, Python {env.python_version}, {state}")
        if has.get("on_path"):
            lines.append(f"on PATH: {has['on_path']}")
        for first, line in enumerate(lines or ["–"]):
            print(f"{'' if first else kind:<13} {line}")
    return 0


def install(options: argparse.Namespace) -> int:
    from dyno.engines import environment

    env = environment.install(
        options.kind,
        options.version,
        options.variant,
        options.source,
        lambda text: print(text, file=sys.stderr, flush=True),
        python=options.python,
        uv=options.uv,
    )
    print(f"{env.name}  {env.binary or env.python}")
    return 0


def remove(options: argparse.Namespace) -> int:
    from dyno.engines import environment

    environment.remove(options.name)
    return 0
