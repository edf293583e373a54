"""`dyno engines`: start one in the foreground. (Installing and managing real engines comes with their own files.)"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


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
    embedded = start.add_parser("embedded", help="llama.cpp with dyno's own small model")
    embedded.add_argument("--port", type=int, default=8000)
    embedded.add_argument("--quantization", choices=("F16", "Q8_0", "Q4_0"), default="F16")
    embedded.add_argument("--parallel", type=int, default=16, help="slots (default: 16)")
    embedded.add_argument("--context", type=int, default=2048, help="tokens for each slot (default: 2048)")
    embedded.set_defaults(command=start_embedded)


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
