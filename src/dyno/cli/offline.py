"""`dyno bench throughput` and `dyno bench latency`: vLLM's two offline benchmarks, for any engine that loads."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dyno.cli import exit_codes, flags, preparing, settings
from dyno.cli.flags import refuse
from dyno.cli.parser import Parser
from dyno.engines.kinds import FOR_GGUF, FOR_OTHERS, KINDS, kind_for, kind_of
from dyno.errors import Interrupted, StoreError, UsageError
from dyno.facts.engine import EngineSpec
from dyno.facts.load import LoadSpec
from dyno.facts.offline import OfflineSpec
from dyno.facts.target import TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.option import Option
from dyno.report.block import offline_block
from dyno.workload.datasets import DATASETS, DEFAULT, DEFAULT_OF_A_FILE
from dyno.workload.datasets.hf import HfSpec
from dyno.workload.spec import WorkloadSpec

if TYPE_CHECKING:
    from dyno.trial.outcome import Outcome

PERCENTILES = [10.0, 25.0, 50.0, 75.0, 90.0, 99.0]  # those that vLLM writes
_BACKENDS = {"vllm": "vllm", "hf": "transformers"}
_REFUSED = {  # reason → flags
    **settings.REFUSED,
    **settings.OFFLINE_REFUSED,
    "only `dyno bench serve` has it.": "--lora-modules --sonnet-input-len --sonnet-output-len --sonnet-prefix-len",
}

_ASYNC = "--async-engine"
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
  dyno bench latency --model NAME --enforce-eager --trust-remote-code         flags of the engine are passed on
  dyno bench latency --model NAME --draft-model NAME --draft-tokens 4
"""
_NOTE = """
As with vLLM, the prefix cache is off unless --enable-prefix-caching, and outputs have the requested length.
"""


def add_throughput(p: Parser) -> None:
    p.description = "Load an engine, send it all prompts at once, and measure the time to the last token."
    _add_engine(p, _THROUGHPUT)
    g = p.add_argument_group("prompts")
    flags.add(
        g,
        WorkloadSpec,
        "dataset",
        choices=settings.OFFLINE_DATASETS,
        help="kind of prompts (default: random; with a file: sharegpt)",
    )
    flags.add(g, WorkloadSpec, "path", also="--dataset")
    flags.add(
        g,
        WorkloadSpec,
        "num_prompts",
        default=None,
        help="number of prompts (default: 1000; with dyno's small model: 32)",
    )
    settings.add_lengths(g)
    flags.add(g, WorkloadSpec, "prefix_len", also="--prefix-len")
    flags.add(g, WorkloadSpec, "shuffle", "oversample", "skip_chat_template")
    flags.add(g, WorkloadSpec, "num_prefixes", default=None)
    settings.add_own_lengths(g, *settings.OFFLINE_DATASETS)
    flags.add(g, HfSpec, "hf_name", "hf_subset", "hf_split")
    flags.add_ignored(
        g, "--random-batch-size", nargs=None, reason=settings.EMBEDDINGS_ALONE
    )
    flags.add_ignored(
        g,
        "--hf-enable-torch-compile",
        reason="In vLLM it compiles nothing, either: generate() calls the model that isn't compiled.",
    )
    g = p.add_argument_group("procedure")
    flags.add(g, WorkloadSpec, "num_warmups", help="unmeasured prompts first")
    flags.add(g, OfflineSpec, "iterations", default=1, help="passes over all prompts")
    flags.add(
        g, OfflineSpec, "warmup_iterations", help="unmeasured passes first (default: 0)"
    )
    flags.add(g, OfflineSpec, "prequeue", "lora_path")
    flags.add(g, WorkloadSpec, "lora_assignment")
    g.add_argument(
        _ASYNC,
        action="store_true",
        help="with vLLM: use the engine of its server, which takes requests one by one",
    )
    flags.add_refused(
        p, {"vLLM's own has it for --batch-size runs alone, too.": "--use-beam-search"}
    )
    _add_rest(p, g)
    p.set_defaults(command=run, kind="throughput")


def add_latency(p: Parser) -> None:
    p.description = "Load an engine, run one batch of random prompts repeatedly, and measure how long each run takes."
    _add_engine(p, _LATENCY)
    g = p.add_argument_group("procedure")
    flags.number(g, int, Option("--input-len", "N", "tokens of each prompt", least=1), 32)
    flags.number(g, int, Option("--output-len", "N", "tokens to generate", least=1), 128)
    flags.add(g, OfflineSpec, "batch_size", default=8)
    flags.add(
        g, OfflineSpec, "warmup_iterations", default=10, help="unmeasured iterations first"
    )
    flags.add(g, OfflineSpec, "iterations", default=30)
    flags.add(g, OfflineSpec, "beam_search")
    _add_rest(p, g)
    p.set_defaults(command=run, kind="latency")


def _add_engine(p: Parser, examples: str) -> None:
    p.epilog = examples + _NOTE + settings.PASSED_ON + exit_codes.describe(exit_codes.VOID)
    p.passes_on = "always"
    p.lacks = settings.LACKS
    p.set_defaults(port=None)
    *others, last = (kind.name for kind in KINDS.values() if kind.offline)
    listed = f"{', '.join(others)} or {last}"
    g = p.add_argument_group("engine")
    g.add_argument(
        "--model",
        metavar="M",
        help="name, folder or GGUF file (default: a small model that comes with dyno)",
    )
    g.add_argument(
        "--engine",
        metavar="KIND",
        help=f"{listed} (default: {FOR_GGUF} for GGUF, else {FOR_OTHERS})",
    )
    g.add_argument(
        "--backend",
        choices=tuple(_BACKENDS),
        help="the engine in vLLM's words; hf: transformers (default: --engine)",
    )
    flags.number(
        g,
        int,
        Option(
            "--hf-max-batch-size", "N", "same as --max-num-seqs (default: none)", least=1
        ),
    )
    flags.add(
        g,
        TrialSpec,
        "tokenizer",
        help="tokenizer that counts prompt tokens (default: the model's)",
    )
    g.add_argument("--served-model-name", metavar="NAME", help=argparse.SUPPRESS)
    settings.add_engine(p.add_argument_group("engine settings"))
    flags.add_refused(p, _REFUSED)


def _add_rest(p: argparse.ArgumentParser, g: argparse._ArgumentGroup) -> None:
    flags.add(g, OfflineSpec, "sequences")
    flags.add(g, WorkloadSpec, "seed")
    flags.add(g, OfflineSpec, "detokenize")
    g.add_argument(
        "--temperature",
        type=float,
        metavar="X",
        help="sampling temperature; 0: greedy (default: 1)",
    )
    flags.add(g, OfflineSpec, "timeout_s")
    flags.add(g, TrialSpec, "profile")
    g.add_argument("--dry-run", action="store_true", help=settings.DRY_RUN)
    g = p.add_argument_group("result")
    g.add_argument(
        "--output-json",
        type=Path,
        metavar="FILE",
        help="write a JSON file with vLLM's keys (default: none)",
    )
    g.add_argument("--json", action="store_true", help="print the result as JSON")
    flags.add(g, TrialSpec, "label", "metadata")
    settings.add_runs(g)
    exit_codes.add(g)


def run(options: argparse.Namespace) -> int:
    flags.check_refused(options)
    trial = spec(options)
    if options.dry_run:
        return dry_run([trial])
    if options.output_json:
        _check_writable(options.output_json)

    from dyno.api import measuring
    from dyno.cli.progress import ProgressLine

    preparing.for_engines([trial], options)
    outcomes = list(measuring.offline([trial], runs=options.runs, watcher=ProgressLine()))
    if not outcomes:
        raise Interrupted("interrupted during the first iteration. Nothing was measured.")
    [outcome] = outcomes
    print(json.dumps(result_file(outcome)) if options.json else printed(outcome))
    if options.output_json:
        _save(options.output_json, outcome)
    print(f"Run: {outcome.run.path}", file=sys.stderr)
    return exit_code(outcome, options)


def dry_run(trials: list[TrialSpec]) -> int:
    """Print each engine's setting once, however many trials are made with it."""
    from dyno.probe import rig
    from dyno.trial import offline

    machine = rig.read_machine()
    settings.print_plan(
        dict.fromkeys(line for trial in trials for line in offline.lines(trial, machine))
    )
    problems = dict.fromkeys(
        problem for trial in trials for problem in offline.problems(trial, machine)
    )
    return settings.report_problems(problems)


def printed(outcome: "Outcome") -> str:
    return offline_block(
        outcome.result, outcome.manifest.trial, sum(i.warmup for i in outcome.iterations)
    )


def result_file(outcome: "Outcome") -> dict[str, Any]:
    from dyno.report import result_json
    from dyno.store.rows import read_row

    row = read_row(outcome.run)
    return result_json.build(
        outcome.result, outcome.manifest, row, iterations=outcome.iterations
    )


def exit_code(outcome: "Outcome", options: argparse.Namespace) -> int:
    assert outcome.result.offline is not None
    if outcome.interrupted:
        return Interrupted.exit_code
    if not outcome.result.offline.completed:
        return exit_codes.FAILED
    return exit_codes.from_verdicts([outcome.result.verdict], options)


def _save(path: Path, outcome: "Outcome") -> None:
    try:
        path.write_text(json.dumps(result_file(outcome), indent=4))
    except OSError as e:
        raise StoreError(
            f"{path} can't be written: {e.strerror}. The run itself is kept in {outcome.run.path}."
        ) from e
    print(f"Result: {path}", file=sys.stderr)


def _check_writable(path: Path) -> None:
    """Check before an hour of measuring, not after."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise StoreError(
            f"--output-json {path}: {path.parent} can't be made: {e.strerror}. Nothing was run."
        ) from None
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise StoreError(
            f"--output-json {path} can't be written. Nothing was run. Choose another file."
        )


def spec(o: argparse.Namespace) -> TrialSpec:
    setting = _engine(o)
    return TrialSpec(
        target=TargetSpec("", kind_of(setting.kind).backend, "", model=o.model),
        workload=_workload(o),
        load=LoadSpec(seed=o.seed),
        ignore_eos=True,  # as vLLM does: a length is asked for, and is meant
        sampling={} if o.temperature is None else {"temperature": o.temperature},
        percentiles=PERCENTILES,
        kind=o.kind,
        offline=OfflineSpec(o.kind, **flags.values(o, OfflineSpec)),
        engine=setting,
        **flags.values(o, TrialSpec),
    )


def _check_async(o: argparse.Namespace, kind: str) -> None:
    if not getattr(o, "async_engine", False):
        return
    refuse(
        _ASYNC not in kind_of(kind).offline_flags.values(),
        f"{_ASYNC}: {kind_of(kind).title} has one engine only. Remove it, or use vLLM.",
    )
    refuse(
        o.prequeue_requests,
        f"{_ASYNC} begins as soon as a request comes: remove --prequeue-requests.",
    )


class _Size(NamedTuple):
    """How much a throughput benchmark measures by default."""

    prompts: int
    input_len: int
    output_len: int


_VLLM = _Size(1000, 1024, 128)
# a first try on a processor: vLLM's defaults would take it an hour
_SMALL = _Size(32, 128, 32)


def _workload(o: argparse.Namespace) -> WorkloadSpec:
    if o.kind == "latency":
        return WorkloadSpec(
            DEFAULT,
            num_prompts=o.batch_size,
            seed=o.seed,
            input_len=o.input_len,
            output_len=o.output_len,
        )
    dataset = o.dataset_name or (DEFAULT_OF_A_FILE if o.dataset_path else DEFAULT)
    _check_dataset(o, dataset)
    usual = _SMALL if o.model is None else _VLLM
    count = (
        usual.prompts if o.num_prompts is None else max(o.num_prompts, 0)
    )  # -1: all, as 0 of a trace
    input_len = o.random_input_len or o.input_len or usual.input_len
    if DATASETS[dataset].traits.exact:  # where both are given, vLLM prefers the longer name
        output_len = o.random_output_len or o.output_len or usual.output_len
        return settings.workload(o, dataset, count, input_len, output_len)
    own = settings.own_lengths(o, dataset)
    if o.output_len:
        own |= {"output_len": o.output_len}
    work = settings.workload(o, dataset, count, input_len, None)
    return msgspec.structs.replace(work, **own)


def _check_dataset(o: argparse.Namespace, dataset: str) -> None:
    """Refuse a file that the dataset doesn't take, and report lengths that change nothing."""
    declared = DATASETS[dataset]
    refuse(
        declared.needs_file and not o.dataset_path,
        f"--dataset-name {dataset} is read from a file: give --dataset-path FILE.",
    )
    refuse(
        not declared.traits.file and o.dataset_path,
        f"--dataset-name {dataset} needs no file: remove --dataset-path.",
    )
    lengths = ("--input-len", "--random-input-len", "--random-prefix-len")
    given = [f for f in lengths if getattr(o, f[2:].replace("-", "_"))]
    if not declared.traits.exact:  # its prompts have their own, in vLLM, too
        flags.report_ignored(given)
    if (
        o.dataset_path
        and not declared.hub_name  # perhaps a name in the Hub's cache
        and not o.dataset_path.startswith("hub:")
        and not Path(o.dataset_path).expanduser().exists()
    ):
        raise UsageError(f"--dataset-path {o.dataset_path}: there is no such file.")


def _engine(o: argparse.Namespace) -> EngineSpec:
    kind = o.engine or _BACKENDS.get(o.backend) or kind_for(o.model)
    if o.engine and o.backend and _BACKENDS[o.backend] != o.engine:
        raise UsageError(
            f"--engine {o.engine} and --backend {o.backend} name two engines. Remove one."
        )
    o.max_num_seqs = o.max_num_seqs or o.hf_max_batch_size
    setting = settings.engine(kind, o)
    own: list[str] = []
    for name, flag in kind_of(kind).offline_flags.items():
        value = getattr(o, name, None)
        if value is True:
            own.append(flag)
        elif value:
            own += [flag, str(value)]
    _check_async(o, kind)
    return msgspec.structs.replace(setting, args=[*own, *setting.args])
