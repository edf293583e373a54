"""What a user sees of commands that start processes or use sockets, compared with golden files: see goldens.py.

Numbers that are measured are replaced; the words around them, and the names in the files written, are not.
"""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dyno.probe import rig
from goldens import Dyno, check, dyno, keys, shape, without_usage
from machines import arm_cloud, bare_kernel, in_a_container, xeon

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

__all__ = ["dyno"]  # the fixture

URL = "--base-url http://127.0.0.1:9"
MISTAKES = [
    f"bench serve {URL}", f"bench serve {URL} --num-prompts 0", f"bench serve {URL} --num-prompts -3",
    f"bench serve {URL} --num-prompts many", f"bench serve {URL} --request-rate -1",
    f"bench serve {URL} --request-rate nan", f"bench serve {URL} --max-concurrency 0",
    f"bench serve {URL} --burstiness 0", f"bench serve {URL} --goodput ttft", f"bench serve {URL} --goodput x:1",
    f"bench serve {URL} --goodput ttft:-1", f"bench serve {URL} --metric-percentiles 50,101",
    f"bench serve {URL} --percentile-metrics nothing", f"bench serve {URL} --dataset-name nothing",
    f"bench serve {URL} --dataset-name sharegpt",
    f"bench serve {URL} --dataset-name custom --dataset-path no.jsonl",
    f"bench serve {URL} --backend nothing", f"bench serve {URL} --random-range-ratio 2",
    f"bench serve {URL} --header nothing", f"bench serve {URL} --metadata nothing", f"bench serve {URL} --seed x",
    f"bench serve {URL} --ramp-up-strategy linear", f"bench serve {URL} --extra-body nothing",
    f"bench serve {URL} --engine fake", "bench serve --base-url ftp://x", "bench serve --engine nothing",
    "bench serve --engine fake --engine-args=nothing=1", "bench serve --engine fake --engine-args=first_ms=x",
    "bench serve --engine fake --tensor-parallel-size 2", "bench serve --engine vllm",
    "bench serve --engine vllm --model org/model", "bench throughput --model no.gguf",
    "bench throughput --num-prompts 0", "bench latency --batch-size 0", "bench latency --num-iters 0",
    "bench latency --input-len x", "bench micro -p x", "bench micro -p 0 -n 0", "bench micro -pg 1",
    "bench micro -m no.gguf", "bench micro -o nothing", "bench micro --engine fake", "bench micro -r 0",
]  # fmt: skip


def test_mistakes(dyno: Dyno) -> None:
    check("mistakes/bench.txt", dyno.transcript(MISTAKES, edit=without_usage))


def measured(text: str) -> str:
    """Without numbers and what follows from them: findings, and lines that a busy or a quiet machine has alone."""
    text = re.sub(
        r"\n(Verdict:|Hardware utilization \(%)(.|\n)*?(?=\n--- )", "\n(findings)", text
    )
    text = re.sub(r"(?m)^(?:note|doubt) .*\n(?: +\S.*\n)*", "", text)
    text = re.sub(
        r"(?m)^(Host: |Engine: |Client CPU |Steady window|  \w.* throughput|  Concurrency, mean).*\n",
        "",
        text,
    )
    text = re.sub(r"\d{8}-\d{6}-([\w.-]+)-[0-9a-f]{4}\b", r"TIME-\1-ID", text)
    text = re.sub(r"\b(sound|doubtful)\b", "VERDICT", text)
    # over several lines
    text = re.sub(r"(?m)^(  Peaks:|Not sampled:).*\n(?: +\S.*\n)*", r"\1 MACHINE\n", text)
    return "\n".join(
        line if line.startswith(("$", "--- ")) else _without_numbers(line)
        for line in text.splitlines()
    )


def _without_numbers(line: str) -> str:
    line = re.sub(r"(?<![\w.-])\d[\d,]*(\.\d+)?(e-?\d+)?(?![\w.]*\w)", "#", line)
    # a busy client knows some figures within bounds only
    line = line.replace("# to #", "#")
    if line.endswith("VERDICT"):  # the row of a table, which has a dash for these
        line = line.replace("–", "#")
    return re.sub(r" {2,}", "  ", line).rstrip()


def written(dyno: Dyno, before: set[Path]) -> list[Path]:
    """By their subjects: two of one second would be in either order."""
    return sorted(
        set((dyno.here / "runs").iterdir()) - before,
        key=lambda path: path.name.split("-", 2)[2],
    )


BENCHES = {
    "serve": "bench serve --engine fake --engine-args='first_ms=5 gap_ms=1' --num-prompts 12 --max-concurrency 3 "
    "--random-input-len 20 --random-output-len 8 --label x --metadata team=a",
    "serve-rate": "bench serve --engine fake --engine-args='first_ms=5 gap_ms=1' --num-prompts 12 --request-rate 60 "
    "--goodput ttft:100 --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,90,99 --random-output-len 4",
    "throughput": "bench throughput --num-prompts 4 --input-len 16 --output-len 4 --max-model-len 256 --num-iters 2",
    "latency": "bench latency --batch-size 2 --num-iters 2 --num-iters-warmup 1 --input-len 16 --output-len 4 "
    "--max-model-len 256",
    "micro": "bench micro -p 16 -n 4 -r 2",
}


@pytest.mark.parametrize("name", BENCHES)
def test_bench(dyno: Dyno, name: str) -> None:
    before = set((dyno.here / "runs").iterdir())
    said = dyno.transcript([BENCHES[name]], edit=measured)
    files = "\n\n".join(shape(folder) for folder in written(dyno, before))
    check(f"bench/{name}.txt", f"{said}\n\n{files}")


@pytest.mark.parametrize(
    "lay_out",
    [
        arm_cloud,
        bare_kernel,
        *(
            pytest.param(other, marks=pytest.mark.nightly)
            for other in (xeon, in_a_container)
        ),
    ],
)
def test_what_a_bench_writes_has_the_same_shape_on_any_machine(
    dyno: Dyno,
    lay_out: Callable[[Path], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Processor, kernel and container as recorded; the load is real."""
    recorded = lay_out(tmp_path / "machine")
    monkeypatch.setattr(
        "dyno.probe.rig.read_machine", partial(rig.read_machine, root=recorded, environ={})
    )
    test_bench(dyno, "serve")


STUDY = """
name = "small"
[engines.quick]
kind = "fake"
args = ["first_ms=2", "gap_ms=1"]
[engines.dead]
kind = "fake"
before = ["false"]
[workloads.w]
input_len = 16
output_len = 3
[loads.c]
max_concurrency = [1, 2]
requests_per_stream = 4
"""


def test_run(dyno: Dyno) -> None:
    (dyno.here / "s.toml").write_text(STUDY)
    said = dyno.transcript(["run s.toml --only quick --no-report"] * 2, edit=measured)
    (dyno.here / "s.toml").write_text(STUDY.replace("[1, 2]", "[1]"))
    said += "\n" + dyno.transcript(
        ["run s.toml --no-report", "run s.toml --new --only dead --no-report"],
        edit=measured,
    )
    check("bench/study.txt", f"{said}\n\n{shape(dyno.here / 'runs' / 'small')}")


def test_doctor(dyno: Dyno) -> None:
    code, out, err = dyno("doctor", "--quick", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    # known of some accelerators, and of a processor that was measured
    answer["peaks"] = None
    check("doctor.txt", "\n".join(sorted(keys(answer))))


def test_previews(dyno: Dyno) -> None:
    check("previews-embedded.txt", dyno.transcript([
        "bench serve --engine fake --engine-args=first_ms=5 --dry-run", "bench serve --engine llamacpp --dry-run",
        "bench throughput --dry-run", "bench latency --dry-run", "bench micro --dry-run", "run demo --dry-run",
        "bench micro -t 1,2 -fa on,off -p 16 -n 0 --dry-run",
    ]))  # fmt: skip


def test_pictures(dyno: Dyno) -> None:
    said = dyno.transcript(
        [
            "report two -o p.svg",
            "report two --chart throughput-concurrency --dark -o one.svg",
        ]
    )
    files = sorted(p.name for p in dyno.here.glob("*.svg"))
    words = re.findall(r"<text[^>]*>([^<]+)</text>", (dyno.here / "one.svg").read_text())
    check("report/pictures.txt", "\n".join([said, *files, "", *words]))
