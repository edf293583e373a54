"""Compare when the requests of a trace reach the fake engine with the times of the trace.

Server and client share this machine's cores, perhaps with other processes. Errors are those of the client's sends
(its own clock) and of the arrivals (the server's log), both against the recorded times.

    python bench/replay.py                         traces made here, in the shape of Mooncake's and Azure's
    python bench/replay.py --mooncake FILE --azure FILE   the real ones
    python bench/replay.py --speedups 1 10 50 --procs 2
"""

import argparse
import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from dyno.engines.fake import FakeSpec
from dyno.engines.fake.engine import Fake
from dyno.facts.client import ClientSpec
from dyno.facts.load import LoadSpec
from dyno.facts.target import TargetFacts, TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.load.progress import Stop
from dyno.store.run import create
from dyno.trial.online import finish, measure
from dyno.trial.prepare import Prepared, Prompts
from dyno.trial.session import Session
from dyno.workload.prompts import make
from dyno.workload.spec import Workload, WorkloadSpec
from dyno.workload.tokenizer import ApproximateTokenizer

MOST_S = 20  # a replay is cut where it would take longer
PROMISED_MS = 1.0  # p99 of the send error of a trace without bursts


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mooncake", type=Path)
    parser.add_argument("--azure", type=Path)
    parser.add_argument("--speedups", type=float, nargs="+", default=[1, 10, 50])
    parser.add_argument("--procs", type=int, default=1)
    options = parser.parse_args()
    titles = (
        "trace",
        "speedup",
        "requests",
        "req/s",
        "at once",
        "send p50 / p99 / max",
        "arrival p50 / p99 / max",
    )
    print(
        f"sent and arrived, minus recorded, in ms; at once: most requests due at the same moment\n{_line(*titles)}"
    )
    good = True
    with tempfile.TemporaryDirectory(prefix="dyno-bench-") as text:
        folder = Path(text)
        traces = {
            "mooncake": options.mooncake or _mooncake(folder),
            "azure": options.azure or _azure(folder),
        }
        for name, path in traces.items():
            for speedup in options.speedups:
                p99 = _replay(name, path, speedup, options.procs, folder)
                good = good and (name == "mooncake" or p99 <= PROMISED_MS)
    print(
        f"\nAzure's shape: {'kept' if good else 'NOT KEPT'} (p99 of the send error ≤ {PROMISED_MS:g} ms)"
    )
    return int(not good)


def _replay(name: str, path: Path, speedup: float, procs: int, folder: Path) -> float:
    """Print the errors of one replay; return p99 of the sends."""
    spec = WorkloadSpec(
        name, str(path), num_prompts=0, output_len=4, trace_end_s=MOST_S * speedup
    )
    work = make(spec, ApproximateTokenizer())
    with Fake.start(FakeSpec(first_ms=5, gap_ms=1), folder / "fake.log") as fake:
        run = create(folder, "replay")
        session = Session(
            TargetFacts(model="fake", models_listed=["fake"]), {}, stop=Stop()
        )
        measure(
            run,
            session,
            Prepared(_trial(fake.base_url, work, speedup, procs), Prompts(work)),
        )
        finish(run)
        arrived = sorted(entry[0] for entry in fake.log()["streams"])
    records = sorted(run.records(), key=lambda r: r.index)
    due = np.array([r.due_ns for r in records])
    late_ms = (np.array([r.sent_ns for r in records]) - due) / 1e6
    # Requests that are due together arrive in any order: the k-th arrival belongs to the k-th time.
    client = run.client()
    assert client is not None and len(arrived) >= len(due), (
        f"the server has seen {len(arrived)} of {len(due)} requests"
    )
    arrival_ms = (np.array(arrived[-len(due) :]) - client.start_ns - np.sort(due)) / 1e6
    burst = int(np.unique(due, return_counts=True)[1].max())
    rate = (len(due) - 1) / (np.ptp(due) / 1e9)
    errors = [
        " / ".join(f"{v:.3f}" for v in (*np.percentile(e, [50, 99]), e.max()))
        for e in (late_ms, arrival_ms)
    ]
    print(_line(name, f"{speedup:g}", len(due), f"{rate:.1f}", burst, *errors), flush=True)
    return float(np.percentile(late_ms, 99))


def _line(*cells: object) -> str:
    return "  ".join(
        str(c).rjust(w) for c, w in zip(cells, (8, 7, 8, 7, 7, 24, 24), strict=True)
    )


def _trial(url: str, work: Workload, speedup: float, procs: int) -> TrialSpec:
    return TrialSpec(
        target=TargetSpec(url, backend="openai", endpoint="/v1/completions", model="fake"),
        workload=replace(work.spec, num_prompts=len(work.requests)),
        load=LoadSpec(arrivals="recorded", speedup=speedup),
        client=ClientSpec(procs),
        ignore_eos=True,
        percentiles=[50.0, 99.0],
        correctness_check=False,
    )


def _mooncake(folder: Path) -> Path:
    """17 requests every 3 s, long prompts, a third of whose blocks other ones have."""
    rng, rows, fresh = random.Random(0), [], 10
    for i in range(1000):
        tokens = max(891, min(120_000, round(rng.lognormvariate(8.8, 0.8))))
        count = -(-tokens // 512)
        known = min(count - 1, rng.choice((1, 2, 8)))
        rows.append({"timestamp": i // 17 * 3054, "input_length": tokens, "output_length": rng.randint(1, 800),
                     "hash_ids": [*range(known), *range(fresh, fresh + count - known)]})  # fmt: skip
        fresh += count
    return _write(folder / "mooncake.jsonl", [json.dumps(row) for row in rows])


def _azure(folder: Path) -> Path:
    """Poisson arrivals at 5.5/s, prompts of 1,155 tokens on average."""
    rng, at, lines = random.Random(1), 0.0, ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for _ in range(19_366):
        at += rng.expovariate(5.53)
        minute, second = divmod(at, 60)
        when = f"2023-11-16 {18 + int(minute) // 60}:{int(minute) % 60:02}:{second:010.7f}"
        lines.append(
            f"{when},{max(2, min(14_050, round(rng.lognormvariate(6.6, 0.95))))},{rng.randint(7, 400)}"
        )
    return _write(folder / "azure.csv", lines)


def _write(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


if __name__ == "__main__":
    raise SystemExit(main())
