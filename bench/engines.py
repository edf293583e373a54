"""The same small model on three engines on this machine, measured alike: llama.cpp, vLLM's CPU build, transformers.

dyno's own model is a Hugging Face folder, and llama.cpp's GGUF is made from it. That it is the same model is checked
first: the tokens that llama.cpp continues some prompts with must be transformers' likeliest. vLLM and transformers
calculate in 32 bits, llama.cpp in 16 and in 32. Each engine chooses its number of threads.

    python bench/engines.py                   the table; engines that aren't installed are left out, and named
    python bench/engines.py --runs runs       keep the run folders
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from dyno.engines import environment, model
from dyno.errors import DynoError
from dyno.facts.engine import EngineSpec
from dyno.facts.load import LoadSpec
from dyno.facts.offline import OfflineSpec
from dyno.facts.target import TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.http import Client, Url
from dyno.probe import rig
from dyno.trial.engine_plan import EnginePlan
from dyno.trial.fleet import running
from dyno.trial.offline import conduct
from dyno.trial.online import Outcome
from dyno.workload.spec import WorkloadSpec

CONTEXT = 1024
PROMPTS, CONTINUED = 6, 24  # whose continuations are compared, by so many tokens
ATTEMPTS = 4  # of a trial during which others use the machine
TIE = 0.1  # below the best logit
HUB = {"HF_HUB_OFFLINE": "1"}
CPU = {**HUB, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
# (kind, tokens in, out, requests, measured iterations, before them)
TRIALS: tuple[tuple[Any, int, int, int, int, int], ...] = (
    ("micro", 128, 0, 1, 10, 2),
    ("micro", 0, 32, 1, 10, 2),
    ("throughput", 128, 32, 16, 5, 1),
    ("latency", 32, 32, 4, 10, 2),
)
COLUMNS = (
    "engine",
    "weights",
    "pp128 tok/s",
    "tg32 tok/s",
    "throughput, output tok/s",
    "latency of a batch, ms",
)
_LOGITS = """
import json, sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
gaps = []
with torch.inference_mode():
    for prompt, chosen in json.load(sys.stdin):
        logits = model(torch.tensor([prompt + chosen])).logits[0, len(prompt) - 1 : -1]
        gaps += (logits.max(-1).values - logits[range(len(chosen)), chosen]).tolist()
print(json.dumps(gaps))
"""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=Path, help="keep the run folders there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        print(same_model(folder), flush=True)
        settings = [
            EngineSpec("llamacpp", quantization="F16"),
            EngineSpec("llamacpp", quantization="F32"),
            EngineSpec(
                "vllm", model=model.NAME, dtype="fp32", max_model_len=CONTEXT, env=CPU
            ),
            EngineSpec("transformers", model=model.NAME, dtype="fp32", env=HUB),
        ]
        rows, left_out, doubts, peaks = [], [], [], None
        for setting in settings:
            try:
                outcomes = undisturbed(trials(setting), options.runs or folder / "runs")
            except DynoError as e:
                left_out.append(f"{setting.kind}: {e}")
                continue
            rows.append(row(outcomes))
            doubts += [
                f"? {rows[-1][0]}: {f.code} {f.text}"
                for o in outcomes
                for f in o.result.findings
                if _doubt(f)
            ]
            peaks = outcomes[0].manifest.peaks
        if not rows:
            print("\n".join(left_out), file=sys.stderr)
            return 1
        print(table(rows))
        if peaks:
            flops = ", ".join(
                f"{name} {rate / 1e9:,.0f} GFLOPS" for name, rate in peaks.flops.items()
            )
            sizes = ", ".join(
                f"{size >> 20} MiB {rate / 1e9:.1f} GB/s" for size, rate in _sizes(peaks)
            )
            print(
                f"\nShares are of what {peaks.name} was measured to do: {sizes}; {flops}."
            )
        print("\n".join(["", *doubts, *left_out]).rstrip())
    return 0


def same_model(folder: Path) -> str:
    """Each token that llama.cpp chose must be the likeliest by transformers' logits too, or as good as that: the two
    add up in another order. Raises where it isn't."""
    made = environment.find("transformers")
    if made is None:
        return "transformers isn't installed: not shown that the files hold the same model."
    rng = np.random.default_rng(11)
    prompts = [rng.integers(4, 2048, size=8 + 24 * i).tolist() for i in range(PROMPTS)]
    spec = EngineSpec(
        "llamacpp",
        quantization="F32",
        kv_cache_dtype="fp32",
        max_num_seqs=1,
        max_model_len=CONTEXT,
    )
    where = folder / "same"
    where.mkdir()
    with running(
        EnginePlan(spec, rig.read_machine()), where, {}, lambda _: None, lambda _: None
    ) as fleet:
        client = Client(Url(fleet.urls[0]), {})
        chosen = [(prompt, _continued(client, prompt)) for prompt in prompts]
        client.close()
    command = [made.python, "-c", _LOGITS, str(model.FOLDER)]
    told = subprocess.run(
        command, input=json.dumps(chosen), text=True, capture_output=True, check=False
    )
    if told.returncode:
        raise SystemExit(told.stderr[-2000:])
    gaps = json.loads(told.stdout)
    what = (
        f"{sum(gap == 0 for gap in gaps)} of the {len(gaps)} tokens that llama.cpp "
        "chooses are transformers' own choice"
    )
    if max(gaps) > TIE:
        raise SystemExit(
            f"Not the same model: {what}, and one is {max(gaps):.2f} below the best logit."
        )
    return f"The same model: {what}, and none is more than {max(gaps):.4f} below the best logit.\n"


def _continued(client: Client, prompt: list[int]) -> list[int]:
    body = {
        "prompt": prompt,
        "n_predict": CONTINUED,
        "temperature": 0.0,
        "return_tokens": True,
        "cache_prompt": False,
    }
    status, answer = client.call("/completion", body)
    assert status == 200, answer
    tokens: list[int] = answer["tokens"]
    return tokens


# ---- measured and told ----


def trials(setting: EngineSpec) -> list[TrialSpec]:
    return [
        TrialSpec(
            TargetSpec("", "openai", ""),
            WorkloadSpec(
                "random", input_len=given, output_len=output, num_prompts=requests
            ),
            LoadSpec(),
            kind=kind,
            offline=OfflineSpec(kind, iterations=iterations, warmup_iterations=before),
            engine=setting,
            ignore_eos=True,
        )
        for kind, given, output, requests, iterations, before in TRIALS
    ]


def undisturbed(wanted: list[TrialSpec], runs: Path) -> list[Outcome]:
    """Those during which others used the machine are measured again; the last attempt counts, whatever came of it."""
    done: dict[int, Outcome] = {}
    for _ in range(ATTEMPTS):
        left = [i for i in range(len(wanted)) if i not in done or _disturbed(done[i])]
        for outcome in conduct([wanted[i] for i in left], runs=runs):
            done[
                next(i for i in left if _key(wanted[i]) == _key(outcome.manifest.trial))
            ] = outcome
    return [done[i] for i in range(len(wanted))]


def _disturbed(outcome: Outcome) -> bool:
    return any(f.code == "client.others_cpu" for f in outcome.result.findings)


def _key(trial: TrialSpec) -> tuple[Any, ...]:
    return (
        trial.kind,
        trial.workload.input_len,
        trial.workload.output_len,
        trial.workload.num_prompts,
    )


def row(outcomes: list[Outcome]) -> list[str]:
    pp, tg, through, latency = outcomes
    facts, target = pp.run.engine(), pp.manifest.target
    weights = (
        (target.quantization or target.dtype or "")
        .replace("all ", "")
        .replace("(guessed)", "")
        .strip()
    )
    rates = [
        pp.result.offline,
        tg.result.offline,
        through.result.offline,
        latency.result.offline,
    ]
    assert all(rates) and facts is not None
    return [
        f"{facts.kind} {facts.version}",
        weights,
        f"{rates[0].prefill_speed.mean:,.0f} ({_share(pp, 'prefill', 'arithmetic')})",
        f"{rates[1].decode_speed.mean:,.0f} ({_share(tg, 'decode', 'bandwidth')})",
        f"{rates[2].output_throughput.mean:,.0f} ({_share(through, 'whole', 'arithmetic')})",
        f"{rates[3].latency.mean:,.1f} ({_share(latency, 'decode', 'bandwidth')})",
    ]


def _share(outcome: Outcome, what: str, of: str) -> str:
    roof = outcome.result.roofline
    value = (
        next((getattr(s, of) for s in roof.shares if s.what == what), None)
        if roof
        else None
    )
    name = {"bandwidth": "BW", "arithmetic": "FLOPS"}[of]
    mark = "" if outcome.result.verdict == "sound" else " ?"
    return ("–" if value is None else f"{value:.0%} {name}") + mark


def _doubt(finding: Any) -> bool:
    return str(finding.level) != "note"


def _sizes(peaks: Any) -> list[tuple[int, float]]:
    return sorted(peaks.bandwidth_by_size.items())


def table(rows: list[list[str]]) -> str:
    lines = [COLUMNS, ["---"] * len(COLUMNS), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
