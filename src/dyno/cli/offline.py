"""`dyno bench throughput` and `dyno bench latency`: vLLM's two offline benchmarks, for any engine that loads."""

import argparse
import json
import os
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dyno.cli import engine, refused
from dyno.cli.values import pairs, range_ratio
from dyno.errors import Interrupted, StoreError, UsageError

if TYPE_CHECKING:
    from dyno.conduct.offline import OfflineOutcome
    from dyno.facts.engine import EngineSpec
    from dyno.facts.offline import OfflineSpec
    from dyno.facts.trial import TrialSpec
    from dyno.facts.workload import WorkloadSpec

DATASETS = ("random", "sharegpt", "sharegpt-shaped", "custom")
PERCENTILES = [10.0, 25.0, 50.0, 75.0, 90.0, 99.0]  # those that vLLM writes
_BACKENDS = {"vllm": "vllm", "hf": "transformers"}
_REFUSED = {
    "--async-engine": "dyno hands prompts to vLLM's synchronous engine; the other one is what `dyno bench serve` "
    "measures. Leave it out.",
    "--use-beam-search": "dyno measures plain sampling. Leave it out, or use vLLM itself.",
    "--profile": "a profiler slows what is measured; profile with vLLM itself.",
    "--lora-path --lora-assignment": "dyno assigns no LoRA adapters.",
    "--prequeue-requests": "dyno leaves queueing to the engine. Leave it out.",
    "--hf-enable-torch-compile": "dyno runs transformers as it is. Leave it out.",
    "--hf-subset --hf-split --hf-name": "dyno loads no dataset from a hub; save it and give --dataset-path FILE.",
}
# Near to a flag of ours, and an engine's own all the same.
_NEAR = ("--ubatch-size", "--device")

_THROUGHPUT = """examples:
  dyno bench throughput --input-len 64 --output-len 32 --num-prompts 100      dyno's own small model, on llama.cpp
  dyno bench throughput --model FOLDER|NAME --input-len 512 --output-len 128 --output-json result.json
  dyno bench throughput --model NAME --dataset-path ShareGPT.json --num-prompts 500 --num-iters 3
  dyno bench throughput --model NAME -tp 4 --quantization fp8 --kv-cache-dtype fp8 --dry-run
  dyno bench throughput --backend hf --hf-max-batch-size 8 --model FOLDER --input-len 32 --output-len 32
"""
_LATENCY = """examples:
  dyno bench latency --batch-size 1 --num-iters 10                            dyno's own small model, on llama.cpp
  dyno bench latency --model FOLDER|NAME --input-len 128 --output-len 128 --batch-size 16 --output-json result.json
  dyno bench latency --model NAME --enforce-eager --trust-remote-code         flags of the engine's own are handed on
  dyno bench latency --model NAME --draft-model NAME --draft-tokens 4
"""
_EXIT = """
As with vLLM, the prefix cache is off unless --enable-prefix-caching, and outputs are as long as asked.
Flags that dyno doesn't know go to the engine untouched, which refuses what it doesn't know either.
Exit codes: 0 measured, 1 failed, 2 wrong usage, 130 interrupted."""


def add(commands: Any) -> None:
    p = _parser(
        commands, "throughput", "an offline benchmark: all prompts at once, how many tokens a second",
        "Load an engine, hand it all prompts at once, and measure the time to the last token.", _THROUGHPUT,
    )  # fmt: skip
    g = p.add_argument_group("prompts")
    g.add_argument("--dataset-name", choices=DATASETS, help="default: random; with a file: sharegpt")
    g.add_argument("--dataset-path", "--dataset", metavar="FILE")
    g.add_argument("--num-prompts", type=int, metavar="N", help="default: 1000; of dyno's own small model: 32")
    g.add_argument("--input-len", type=int, metavar="N", help="same as --random-input-len")
    g.add_argument("--output-len", type=int, metavar="N", help="output length for any dataset")
    g.add_argument("--random-input-len", type=int, metavar="N", help="default: 1024")
    g.add_argument("--random-output-len", type=int, metavar="N", help="default: 128")
    g.add_argument(
        "--random-range-ratio", default="0.0", metavar="R",
        help='lengths from len×(1−R) to len×(1+R); or {"input": R, "output": R}',
    )  # fmt: skip
    g.add_argument(
        "--random-prefix-len", "--prefix-len", type=int, default=0, metavar="N",
        help="shared by all, before the random part",
    )  # fmt: skip
    g.add_argument("--custom-output-len", type=int, metavar="N", help="-1: as in the file (default: 256)")
    g.add_argument("--disable-shuffle", action="store_true")
    g.add_argument("--no-oversample", action="store_true", help="don't repeat prompts of a small dataset")
    g = p.add_argument_group("procedure")
    g.add_argument("--num-warmups", type=int, default=0, metavar="N", help="prompts before the first (default: 0)")
    g.add_argument("--num-iters", type=int, default=1, metavar="N", help="all prompts so often (default: 1)")
    g.add_argument("--num-iters-warmup", type=int, metavar="N", help="unmeasured ones first (default: 0)")
    _rest(p, g)
    p.set_defaults(command=run, kind="throughput", batch_size=None)

    p = _parser(
        commands, "latency", "an offline benchmark: one batch, again and again, how long it takes",
        "Load an engine, hand it one batch of random prompts again and again, and measure how long each takes.",
        _LATENCY,
    )  # fmt: skip
    g = p.add_argument_group("procedure")
    g.add_argument("--input-len", type=int, default=32, metavar="N", help="default: 32")
    g.add_argument("--output-len", type=int, default=128, metavar="N", help="default: 128")
    g.add_argument("--batch-size", type=int, default=8, metavar="N", help="requests worked on together (default: 8)")
    g.add_argument("--num-iters-warmup", type=int, default=10, metavar="N", help="unmeasured ones first (default: 10)")
    g.add_argument("--num-iters", type=int, default=30, metavar="N", help="measured ones (default: 30)")
    _rest(p, g)
    p.set_defaults(command=run, kind="latency")


def _parser(commands: Any, name: str, does: str, description: str, examples: str) -> argparse.ArgumentParser:
    p: argparse.ArgumentParser = commands.add_parser(
        name,
        help=does,
        description=description,
        epilog=examples + _EXIT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # an engine's own flag may be how one of ours begins
    )
    p.set_defaults(hands_on=True, port=None, ours=p._option_string_actions)
    g = p.add_argument_group("engine")
    g.add_argument("--model", metavar="M", help="a name, a folder or a GGUF file (default: dyno's own small one)")
    g.add_argument(
        "--engine", metavar="KIND", help="llamacpp, vllm, transformers (default: by the model: GGUF is llama.cpp's)"
    )
    g.add_argument("--backend", choices=tuple(_BACKENDS), help="as vLLM calls them: vllm, or hf for transformers")
    g.add_argument("--hf-max-batch-size", type=int, metavar="N", help="same as --max-num-seqs")
    g.add_argument("--tokenizer", metavar="PATH|NAME", help="default: the model's own")
    g.add_argument("--served-model-name", metavar="NAME", help=argparse.SUPPRESS)
    engine.add(p.add_argument_group("setting of the engine"))
    refused.add(p, _REFUSED)
    return p


def _rest(p: argparse.ArgumentParser, g: argparse._ArgumentGroup) -> None:
    g.add_argument("--n", type=int, default=1, help="sequences for each prompt: 1")
    g.add_argument("--seed", type=int, default=0)
    g.add_argument("--disable-detokenize", action="store_true", help="make no text of the tokens")
    g.add_argument("--temperature", type=float, metavar="X", help="default: 1, as vLLM's; 0: the likeliest token")
    g.add_argument("--iteration-timeout-sec", type=float, default=6 * 3600, metavar="S", help="default: 6 hours")
    g.add_argument("--dry-run", action="store_true", help="print what would be run, and what is wrong with it")
    g = p.add_argument_group("result")
    g.add_argument("--output-json", type=Path, metavar="FILE", help="vLLM's keys, and everything else under `dyno`")
    g.add_argument("--json", action="store_true", help="print the same")
    g.add_argument("--label")
    g.add_argument("--metadata", nargs="*", metavar="KEY=VALUE", default=[])
    g.add_argument(
        "--runs", type=Path, default=Path("runs"), metavar="DIR", help="where run folders go (default: runs)"
    )


def run(options: argparse.Namespace) -> int:
    refused.check(options)
    trial = spec(options)
    from dyno.conduct import offline

    if options.dry_run:
        return dry_run([trial])
    if options.output_json:
        _check_writable(options.output_json)

    from dyno.cli.progress import Line

    outcomes = list(offline.conduct([trial], runs=options.runs, watcher=Line()))
    if not outcomes:
        raise Interrupted("interrupted before the first iteration was over. Nothing was measured.")
    [outcome] = outcomes
    print(json.dumps(result_file(outcome)) if options.json else printed(outcome))
    if options.output_json:
        _save(options.output_json, outcome)
    print(f"Run: {outcome.run.path}", file=sys.stderr)
    return exit_code(outcome)


def dry_run(trials: "list[TrialSpec]") -> int:
    """Each engine's setting once, however many trials are made with it."""
    from dyno.conduct import offline
    from dyno.probe import rig

    found = rig.look()
    told: list[str] = []
    for trial in trials:
        for line in offline.lines(trial, found):
            if line not in told:
                told.append(line)
                print(line)
    problems = dict.fromkeys(problem for trial in trials for problem in offline.problems(trial, found))
    for problem in problems:
        print(f"dyno: {problem}", file=sys.stderr)
    return UsageError.exit_code if problems else 0


def printed(outcome: "OfflineOutcome") -> str:
    from dyno.report.block import offline_block as block

    return block(outcome.result, outcome.manifest.trial, sum(i.warmup for i in outcome.iterations))


def result_file(outcome: "OfflineOutcome") -> dict[str, Any]:
    from dyno.report import result_json

    run = outcome.run
    return result_json.build(outcome.result, outcome.manifest, run.path, run.engine(), iterations=outcome.iterations)


def exit_code(outcome: "OfflineOutcome") -> int:
    assert outcome.result.offline is not None
    if outcome.interrupted:
        return Interrupted.exit_code
    return 0 if outcome.result.offline.completed else 1


def _save(path: Path, outcome: "OfflineOutcome") -> None:
    try:
        path.write_text(json.dumps(result_file(outcome), indent=4))
    except OSError as e:
        raise StoreError(f"{path} can't be written: {e.strerror}. The run itself is kept in {outcome.run.path}.") from e
    print(f"Result: {path}", file=sys.stderr)


def _check_writable(path: Path) -> None:
    """Before an hour of measuring, not after."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise StoreError(f"--output-json {path}: {path.parent} can't be made: {e.strerror}. Nothing was run.") from None
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise StoreError(f"--output-json {path} can't be written. Nothing was run. Choose another file.")


def spec(o: argparse.Namespace) -> "TrialSpec":
    _check_flags(o)
    from dyno.engines.kinds import kind_of
    from dyno.facts.load import LoadSpec
    from dyno.facts.target import TargetSpec
    from dyno.facts.trial import TrialSpec

    setting = _engine(o)
    return TrialSpec(
        target=TargetSpec("", kind_of(setting.kind).backend, "", model=o.model),
        workload=_workload(o),
        load=LoadSpec(seed=o.seed),
        tokenizer=o.tokenizer,
        ignore_eos=True,  # as vLLM does: a length is asked for, and is meant
        sampling={} if o.temperature is None else {"temperature": o.temperature},
        percentiles=PERCENTILES,
        label=o.label,
        metadata=pairs(o.metadata, "--metadata"),
        kind=o.kind,
        offline=_procedure(o),
        engine=setting,
    )


def _procedure(o: argparse.Namespace) -> "OfflineSpec":
    from dyno.facts.offline import OfflineSpec

    return OfflineSpec(
        o.kind,
        batch_size=o.batch_size,
        iterations=o.num_iters,
        warmup_iterations=o.num_iters_warmup,
        detokenize=not o.disable_detokenize,
        timeout_s=o.iteration_timeout_sec,
    )


def _workload(o: argparse.Namespace) -> "WorkloadSpec":
    from dyno.facts.workload import WorkloadSpec

    if o.kind == "latency":
        return WorkloadSpec(
            "random", num_prompts=o.batch_size, seed=o.seed, input_len=o.input_len, output_len=o.output_len
        )
    dataset = o.dataset_name or ("sharegpt" if o.dataset_path else "random")
    if dataset != "random" and (o.random_input_len or o.input_len or o.random_prefix_len):
        raise UsageError(
            f"--dataset-name {dataset} has prompts of its own lengths: --input-len and --random-prefix-len are for "
            "random ones."
        )
    if o.dataset_path and not Path(o.dataset_path).expanduser().exists():
        raise UsageError(f"--dataset-path {o.dataset_path}: there is no such file.")
    ratio_in, ratio_out = range_ratio(o.random_range_ratio)
    small = o.model is None  # a first try on a processor: vLLM's defaults would take it an hour
    own_length = {
        # Where both are said, vLLM prefers the longer name.
        "random": o.random_output_len or o.output_len or (32 if small else 128),
        "custom": o.output_len or o.custom_output_len or 256,
    }
    return WorkloadSpec(
        dataset,
        path=o.dataset_path,
        num_prompts=o.num_prompts or (32 if small else 1000),
        num_warmups=o.num_warmups,
        seed=o.seed,
        input_len=o.random_input_len or o.input_len or (128 if small else 1024),
        output_len=own_length.get(dataset, o.output_len),
        range_ratio_input=ratio_in,
        range_ratio_output=ratio_out,
        prefix_len=o.random_prefix_len,
        shuffle=not o.disable_shuffle,
        oversample=not o.no_oversample,
    )


def _engine(o: argparse.Namespace) -> "EngineSpec":
    import msgspec

    kind = o.engine or _BACKENDS.get(o.backend) or kind_for(o.model)
    if o.engine and o.backend and _BACKENDS[o.backend] != o.engine:
        raise UsageError(f"--engine {o.engine} and --backend {o.backend} name two engines. Leave one out.")
    o.max_num_seqs = o.max_num_seqs or o.hf_max_batch_size
    setting = engine.spec(kind, o)
    own = []
    if kind == "vllm":  # flags of its own that are dyno's too
        own += ["--tokenizer", o.tokenizer] if o.tokenizer else []
        own += ["--seed", str(o.seed)] if o.seed else []
    return msgspec.structs.replace(setting, args=[*setting.args, *own, *handed_on(o.rest, o.ours)])


def kind_for(model: str | None) -> str:
    return "llamacpp" if model is None or model.endswith(".gguf") else "vllm"


def handed_on(words: list[str], ours: Any) -> list[str]:
    """An engine's own flags. What looks like a slip in one of ours isn't among them."""
    if words and not words[0].startswith("-"):
        raise UsageError(f"{words[0]!r} stands alone: it follows no flag. Quote values that have spaces.")
    for word in words:
        name = word.partition("=")[0]
        if not name.startswith("--") or name in _NEAR:
            continue
        known = [flag for flag in ours if flag.startswith("--")]
        if near := get_close_matches(name, known, n=1, cutoff=0.87):
            raise UsageError(
                f"There is no {name}. Did you mean {near[0]}? If it is the engine's own: --engine-args='{name} …'."
            )
    return words


def _check_flags(o: argparse.Namespace) -> None:
    def refuse(condition: bool, message: str) -> None:
        if condition:
            raise UsageError(message)

    refuse(o.n != 1, f"--n {o.n}: dyno measures one sequence for each prompt. Leave it out, or use more prompts.")
    for name in ("num_prompts", "batch_size", "num_iters", "input_len", "output_len", "random_input_len",
                 "random_output_len", "hf_max_batch_size"):  # fmt: skip
        value = getattr(o, name, None)
        refuse(value is not None and value < 1, f"--{name.replace('_', '-')} must be at least 1.")
    for name in ("num_iters_warmup", "num_warmups", "random_prefix_len", "seed"):
        refuse((getattr(o, name, None) or 0) < 0, f"--{name.replace('_', '-')} can't be negative.")
    if o.kind == "throughput":
        refuse(
            o.dataset_name in ("sharegpt", "custom") and not o.dataset_path,
            f"--dataset-name {o.dataset_name} is read from a file: give --dataset-path FILE.",
        )
        refuse(
            o.dataset_name in ("random", "sharegpt-shaped") and bool(o.dataset_path),
            f"--dataset-name {o.dataset_name} needs no file: leave --dataset-path out.",
        )
