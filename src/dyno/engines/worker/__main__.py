"""The protocol: jobs come as JSON lines on stdin, answers go out as JSON lines on stdout.

What the engine itself prints goes to stderr, which is the log.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any


def load(name: str, flags: list[str]) -> tuple[Any, Any]:
    """Return this folder as a package, and the engine: the file of its name has it."""
    folder = Path(__file__).resolve().parent
    # `python FOLDER` put the folder itself here, and its vllm.py would be taken for vLLM.
    sys.path[0] = str(folder.parent)
    package = importlib.import_module(folder.name)
    engine = importlib.import_module(f"{folder.name}.{name.replace('-', '_')}").ENGINE
    del sys.path[0]
    return package, engine(flags)


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever an engine prints isn't an answer

    def say(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    package, engine = load(sys.argv[1], sys.argv[2:])
    last_ns = 0

    def progress(done: int) -> None:
        nonlocal last_ns
        if package.now_ns() - last_ns > 500_000_000:
            last_ns = package.now_ns()
            say({"progress": done})

    def begin() -> None:
        if job.get("common_start"):
            say({"prepared": True})
            sys.stdin.readline()

    engine.progress, engine.begin = progress, begin
    say({"ready": engine.facts()})  # other code wrote anything on stdout before this line
    for line in sys.stdin:
        job = json.loads(line)
        try:
            done = engine.micro(job) if job["do"] == "micro" else engine.generate(job)
            say({"iterations": done if isinstance(done, list) else [done]})
        except package.RefusedError as e:
            say({"refused": str(e)})
        except package.FailedError as e:
            say({"failed": str(e)})
    engine.close()


if __name__ == "__main__":
    main()
