"""Draws charts in a process of its own: vl_convert is a browser's engine, and under a limit it ends its whole process.

Each line on stdin is a job in JSON; each answer is a line with its length and whether it is an error, then its bytes.
"""

import json
import os
import sys
from typing import Any


def main() -> None:
    import vl_convert  # here: a failure to load it is this process's

    out = os.dup(1)  # what the library prints is no answer
    os.dup2(2, 1)
    for line in sys.stdin.buffer:
        job: dict[str, Any] = json.loads(line)
        try:
            data, failed = (
                getattr(vl_convert, job["function"])(*job["words"], **job["options"]),
                False,
            )
        except (
            BaseException
        ) as e:  # also the panic of a library in Rust, which is not an Exception
            data, failed = f"{type(e).__name__}: {e}", True
        answer = data if isinstance(data, bytes) else data.encode()
        _write(out, b"%d %d\n" % (len(answer), failed) + answer)


def _write(out: int, data: bytes) -> None:
    while data:
        data = data[os.write(out, data) :]


if __name__ == "__main__":
    main()
