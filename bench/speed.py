"""What a chunk costs dyno, beside a bare reader in C on the same machine in the same run.

The reader (bench/reader.c) opens the same connections to the same fake engine, reads and drops. Each figure is CPU time
of the client alone. `wire`: while the load runs. `in all`: with decoding, records and figures. `result after`: from the
last byte to the result.

    python bench/speed.py                    64, 256 and 1,024 streams
    python bench/speed.py --pairs 5          also without decoding while the load runs, in turn
    python bench/speed.py --streams 10000    where so many files may be open
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from dyno.conduct.calibration import Shape, calibrate
from dyno.engines.fake import FakeSpec
from dyno.engines.fake.engine import Fake
from dyno.http import Url

# Goals, µs of CPU for each chunk at 1,024 streams on an x86 of 2.5 GHz; and against the reader.
WIRE_US, ALL_US, TIMES_READER = 8.0, 14.0, 1.5
RESULT_S = 2.0  # for 512,000 chunks
_HEAD = (
    f"{'streams':>7} {'chunks/s':>9} {'C reader':>9} {'chunks a read':>13} {'wire':>6} {'in all':>7} "
    f"{'wire / C':>9} {'result after':>13} {'unseen':>7} {'MB':>5}"
)


class Read(NamedTuple):
    """What the reader in C needed."""

    us_per_chunk: float
    chunks_per_read: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--gap-ms", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--after", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        shape = Shape(**json.loads(options.one))
        print(json.dumps(_one(shape, ahead=not options.after)))
        return 0
    print("CPU of the client, us for each chunk\n" + _HEAD)
    kept = []
    with tempfile.TemporaryDirectory(prefix="dyno-bench-") as folder:
        reader = _compiled(Path(folder))
        for streams in options.streams:
            shape = Shape(streams, rounds=options.rounds, gap_ms=options.gap_ms)
            read = _read(reader, shape, Path(folder)) if reader else None
            if options.pairs:
                kept.append(_pairs(shape, read, options.pairs))
            else:
                kept.append(_judged(shape, read, _row(shape, read)))
    print("\n" + "\n".join(kept))
    return int(any("NOT KEPT" in line for line in kept))


def _compiled(folder: Path) -> Path | None:
    compiler = shutil.which("cc")
    if compiler is None:
        print("There is no C compiler (cc) here: dyno is measured without the reader.")
        return None
    program = folder / "reader"
    source = Path(__file__).with_name("reader.c")
    subprocess.run([compiler, "-O2", "-o", program, source], check=True)
    return program


def _read(reader: Path, shape: Shape, folder: Path) -> Read:
    spec = FakeSpec(first_ms=shape.first_ms, gap_ms=shape.gap_ms)
    requests = shape.streams * shape.rounds
    with Fake.start(spec, folder / "fake.log") as fake:
        url = Url(fake.base_url)
        command = [str(reader), str(url.port), str(shape.streams), str(requests)]
        done = subprocess.run(
            command, input=_request(shape), stdout=subprocess.PIPE, check=True
        )
    cpu_s, reads, _, _ = map(float, done.stdout.split())
    chunks = requests * shape.chunks
    return Read(cpu_s / chunks * 1e6, chunks / reads)


def _request(shape: Shape) -> bytes:
    asked = {
        "model": "fake",
        "prompt": "to be or not to be " * 8,
        "max_tokens": shape.chunks,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    body = json.dumps(asked).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _one(shape: Shape, ahead: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="dyno-bench-") as folder:
        c = calibrate(shape, Path(folder), decode_ahead=ahead)
    return {
        "chunks_per_s": c.chunks_per_s,
        "wire_us": c.wire_us_per_chunk,
        "cpu_us": c.cpu_us_per_chunk,
        "result_s": c.result_s,
        "unseen": c.unseen_share,
        "mb": c.memory_bytes / 1e6,
    }


def _pairs(shape: Shape, read: Read | None, count: int) -> str:
    """Measure with and without decoding while the load runs, in turn, and return the ratio of each figure."""
    ratios = []
    for i in range(count):
        rows = {}
        for ahead in (True, False) if i % 2 else (False, True):
            rows[ahead] = _row(shape, read, ahead)
        ratios.append(
            [rows[True][name] / rows[False][name] for name in ("wire_us", "result_s")]
        )
    wire, result = (sorted(each) for each in zip(*ratios, strict=True))
    return (
        f"{shape.streams:,} streams, decoded while the load runs / after it, {count} pairs, median (least to most): "
        f"wire {_spread(wire)}, result after {_spread(result)}"
    )


def _spread(ratios: list[float]) -> str:
    middle = ratios[len(ratios) // 2]
    return f"{middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def _row(shape: Shape, read: Read | None, ahead: bool = True) -> dict[str, float]:
    """Measure dyno in a process of its own, print the row and return it."""
    spec = json.dumps({name: getattr(shape, name) for name in shape.__struct_fields__})
    done = subprocess.run(
        [sys.executable, __file__, "--one", spec, *([] if ahead else ["--after"])],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    row = json.loads(done.stdout.splitlines()[-1])
    times = row["wire_us"] / read.us_per_chunk if read else None
    print(
        f"{shape.streams:>7,} {row['chunks_per_s']:>9,.0f} "
        f"{format(read.us_per_chunk, '.1f') if read else '-':>9} "
        f"{format(read.chunks_per_read, '.2f') if read else '-':>13} "
        f"{row['wire_us']:>6.1f} {row['cpu_us']:>7.1f} "
        f"{format(times, '.2f') if times else '-':>9} {row['result_s']:>11.2f} s "
        f"{row['unseen']:>7.2%} {row['mb']:>5.0f}{'' if ahead else '  decoded after the load'}",
        flush=True,
    )
    return dict(row)


def _judged(shape: Shape, read: Read | None, row: dict[str, float]) -> str:
    """Return the verdict on a row."""
    times = row["wire_us"] / read.us_per_chunk if read else None
    if shape.streams != 1024:
        return f"{shape.streams:,} streams: no goal"
    good = row["wire_us"] <= WIRE_US and row["cpu_us"] <= ALL_US
    good = good and row["result_s"] <= RESULT_S and (times is None or times <= TIMES_READER)
    return (
        f"1,024 streams: {'kept' if good else 'NOT KEPT'} (wire ≤ {WIRE_US:g} us and ≤ {TIMES_READER:g} times the "
        f"reader, in all ≤ {ALL_US:g} us, result after ≤ {RESULT_S:g} s)"
    )


if __name__ == "__main__":
    raise SystemExit(main())
