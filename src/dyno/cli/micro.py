"""`dyno bench micro`: llama-bench's flags, grid and table, for llama.cpp and for engines that it doesn't know."""

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

import msgspec

from dyno.cli import exit_codes, flags, preparing, settings
from dyno.cli.flags import refuse
from dyno.cli.offline import dry_run
from dyno.engines import model as own_model
from dyno.engines.kinds import KINDS, kind_for, kind_of
from dyno.errors import Interrupted, UsageError
from dyno.facts import llama
from dyno.facts.engine import EngineSpec
from dyno.facts.load import LoadSpec
from dyno.facts.offline import OfflineSpec
from dyno.facts.target import TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.option import Option
from dyno.workload.datasets import DEFAULT
from dyno.workload.spec import WorkloadSpec

if TYPE_CHECKING:
    from dyno.report.micro import Row
    from dyno.trial.outcome import Outcome

# as report/micro.py has them, which is not loaded for a help text
OUTPUTS = ("md", "json", "jsonl", "csv", "sql")
# From the outermost loop to the innermost, as llama-bench nests them → help, default; 0|1: a switch.
_KNOBS = {
    "n_gpu_layers": ("layers on the accelerator", "the engine's"),
    "n_cpu_moe": ("layers whose experts stay on the CPU", "0"),
    "split_mode": ("how accelerators share the model: none, layer, row", "layer"),
    "load_mode": ("how the file is loaded: auto, none, mmap, mlock, …", "the engine's"),
    "use_mmap": ("load mode none or mmap: 0|1", "the engine's"),
    "tensor_split": ("share of each accelerator, as 3/1", "by their memory"),
    "tensor_buft_overrides": ("where tensors are stored, as PATTERN=CPU;…", "none"),
    "no_host": ("don't use the host's buffers: 0|1", "0"),
    "no_op_offload": ("keep operations on the CPU: 0|1", "0"),
    "n_batch": ("logical batch size", "2048"),
    "n_ubatch": ("physical batch size", "512"),
    "type_k": ("data type of keys in the KV cache", "f16"),
    "type_v": ("data type of values in the KV cache", "f16"),
    "no_kv_offload": ("keep the KV cache in the host's memory: 0|1", "0"),
    "flash_attn": ("flash attention: on, off, auto (1, 0, -1)", "the engine's"),
    "defrag_thold": (
        "defragmentation of the KV cache, builds 5361 to 6244",
        "the engine's",
    ),
    "n_threads": ("threads", "the engine's"),
    "cpu_mask": ("cores to use, in hexadecimal", "all"),
    "cpu_strict": ("bind threads to cores: 0|1", "0"),
    "numa": ("distribute, isolate or numactl", "off"),
    "poll": ("how eagerly threads wait, 0 to 100", "50"),
}
_NUMBERS = ("n_gpu_layers", "n_cpu_moe", "n_batch", "n_ubatch", "n_threads", "poll")
_SINGLE_ENGINE = (
    "--engine-version", "--engine-python", "--engine-binary", "--engine-environment", "--engine-image",
)  # fmt: skip
_REFUSED = {  # reason → flags
    "dyno does not download models; give a file with -m.": "-hf -hfr --hf-repo -hff --hf-file -hft --hf-token",
    "dyno does not download models. Remove it.": "--offline",
    "dyno does not vary it; pass it to the server with --engine-args and --by timers.": "-fitt --fit-target -fitc "
    "--fit-ctx -lzm --lazy-mode --repack",
    "use --load-mode dio.": "-dio --direct-io",
    "dyno uses only accelerators of this machine. Remove it.": "-rpc --rpc",
    "only builds of 2023 have it. Remove it.": "-mmq --mul-mat-q -lv --low-vram -mf32 --memory-f32",
    "dyno does not change priorities; start dyno under `nice`.": "--prio",
    "`dyno doctor` lists the accelerators.": "--list-devices",
    "name the accelerators with --devices.": "-mg --main-gpu -dev --device",
    "dyno measures generation, not embeddings.": "-embd --embeddings",
}
_EXAMPLES = """examples:
  dyno bench micro                                         dyno's own small model: pp512 and tg128, five times each
  dyno bench micro -m model-Q4_0.gguf -p 512,1024 -n 128 -d 0,4096
  dyno bench micro -m a.gguf -m b.gguf -p 0 -n 64 -t 1-8*2 -fa 0,1 -o csv
  dyno bench micro -m model.gguf -m FOLDER --engine llamacpp,vllm,transformers -pg 512,128
  dyno bench micro -m NAME --engine vllm --dtype bf16 -p 2048 -n 128 -r 10 -o json

Values with commas, ranges (first-last, first-last+step, first-last*mult) and repeated flags make a grid, in
llama-bench's order. Each cell is a run folder.

"""


def add(p: argparse.ArgumentParser) -> None:
    p.description = (
        "Measure prompt processing (pp), token generation (tg) or both (pg) of a single request, in "
        "tokens per second, over a grid of settings."
    )
    p.epilog = _EXAMPLES + exit_codes.describe(exit_codes.VOID)
    p.allow_abbrev = False
    g = p.add_argument_group("test")

    def several(*names: str, kind: Any, default: str, help: str = "", **more: Any) -> None:
        text = f"{help} (default: {default})".strip()
        g.add_argument(
            *names, type=kind, action="extend", metavar="LIST", help=text, **more
        )

    g.add_argument(
        "-m",
        "--model",
        type=words,
        action="extend",
        metavar="M",
        help="GGUF files; for the other engines folders or names (default: dyno's small model)",
    )
    several(
        "-p",
        "--n-prompt",
        kind=numbers,
        default="512",
        help="prompt lengths; 0 skips this test",
    )
    several(
        "-n",
        "--n-gen",
        kind=numbers,
        default="128",
        help="tokens to generate; 0 skips this test",
    )
    g.add_argument(
        "-pg",
        type=pair,
        action="append",
        default=[],
        metavar="PP,TG",
        help="prompt then generation",
    )
    several(
        "-d",
        "--n-depth",
        kind=numbers,
        default="0",
        help="tokens in the context before the test",
    )
    flags.number(
        g,
        int,
        Option("-r --repetitions", "N", "repetitions of each test (default: 5)", least=1),
        5,
    )
    g.add_argument("--no-warmup", action="store_true", help="skip the warm-up repetition")
    flags.number(
        g, float, Option("--delay", "S", "pause between tests (default: 0)", least=0), 0
    )
    flags.add(g, WorkloadSpec, "seed")
    g = p.add_argument_group("llama.cpp's knobs")
    for key, (about, default) in _KNOBS.items():
        # as llama-server's before build 6325
        alone = {"nargs": "?", "const": ["on"]} if key == "flash_attn" else {}
        several(
            *llama.NAMES[key],
            kind=_reader(key),
            default=default,
            help=about,
            dest=key,
            **alone,
        )
    g.add_argument(
        "--by",
        choices=("llama-bench", "timers"),
        help="measure with the llama-bench program, or by the server's timers (default: llama-bench if installed)",
    )
    g = p.add_argument_group("engine")
    g.add_argument(
        "--engine",
        type=words,
        action="extend",
        metavar="KINDS",
        help=f"{', '.join(kind.name for kind in KINDS.values() if kind.offline)}; several: each gets the models it "
        "supports (default: by the model)",
    )
    settings.add_engine(p.add_argument_group("engine settings"))
    # refused: a test is a single request
    p._option_string_actions["--replicas"].help = argparse.SUPPRESS
    g = p.add_argument_group("result")
    g.add_argument(
        "-o", "--output", choices=OUTPUTS, default="md", help="format of the table"
    )
    g.add_argument(
        "-oe",
        "--output-err",
        choices=OUTPUTS,
        help="print to stderr, too, in this format (default: no)",
    )
    g.add_argument(
        "--progress", action="store_true", help="print each finished test to stderr"
    )
    flags.add_ignored(g, "-v --verbose")  # the engine's log is always kept
    g.add_argument("--dry-run", action="store_true", help=settings.DRY_RUN)
    flags.add(g, TrialSpec, "label")
    settings.add_runs(g)
    exit_codes.add(g)
    flags.add_refused(p, _REFUSED)
    p.set_defaults(command=run, port=None, served_model_name=None)


# ---- values of flags ----


def words(text: str) -> list[str]:
    out = [word.strip() for word in text.split(",") if word.strip()]
    if not out:
        raise argparse.ArgumentTypeError(f"{text!r} contains no value")
    return out


def numbers(text: str) -> list[int]:
    """Read 7 or 1,2,3 or 1-4 or 0-512+128 or 1-8*2, and these with commas between."""
    return [n for word in text.split(",") for n in _range(word)]


def _range(word: str) -> Iterator[int]:
    if re.fullmatch(r"-?\d+", word):
        yield int(word)
        return
    match = re.fullmatch(r"(\d+)-(\d+)(?:([+*])(\d+))?", word)
    if not match:
        raise argparse.ArgumentTypeError(
            f"{word!r} is neither a number nor a range such as 1-4, 0-512+128 or 1-8*2"
        )
    n, last = int(match[1]), int(match[2])
    multiplied, by = match[3] == "*", int(match[4] or 1)
    rises = (n > 0 and by > 1) if multiplied else by > 0
    if n > last or not rises:
        raise argparse.ArgumentTypeError(
            f"{word!r} never ends: it must rise from the first to the last value"
        )
    while n <= last:
        yield n
        n = n * by if multiplied else n + by


def pair(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+),(\d+)", text)
    if not match or 0 in (int(match[1]), int(match[2])):
        raise argparse.ArgumentTypeError(
            f"{text!r}: write PROMPT,GENERATED, such as 512,128"
        )
    return int(match[1]), int(match[2])


def _reader(key: str) -> Callable[[str], list[Any]]:
    """Return the function that reads a knob's values."""
    if key in _NUMBERS:
        return numbers
    return switches(key) if _switch(key) else words


def _switch(key: str) -> bool:
    return key == "flash_attn" or _KNOBS[key][0].endswith("0|1")


def switches(key: str) -> Callable[[str], list[str]]:
    """Read 0,1 in any of llama.cpp's words."""
    shown = (
        {1: "on", 0: "off", llama.AUTO: "auto"} if key == "flash_attn" else {1: "1", 0: "0"}
    )

    def read(text: str) -> list[str]:
        values = []
        for word in words(text):
            value = llama.truth(key, word)
            if value is None:
                raise argparse.ArgumentTypeError(
                    f"{word!r} is not one of {', '.join(shown.values())}"
                )
            values.append(shown[value])
        return values

    return read


# ---- the grid ----


def trials(o: argparse.Namespace) -> list[TrialSpec]:
    _check_flags(o)
    prompts = [(tokens, 0) for tokens in o.n_prompt or [512] if tokens]
    generations = [(0, tokens) for tokens in o.n_gen or [128] if tokens]
    tests = prompts + generations + o.pg
    if not tests:
        raise UsageError("Nothing to test: -p and -n are 0, and there is no -pg.")
    out = []
    for setting in _engine_settings(o):
        for depth, (prompt, generated) in product(o.n_depth or [0], tests):
            out.append(_trial(o, setting, prompt, generated, depth))
    return out


def _engine_settings(o: argparse.Namespace) -> Iterator[EngineSpec]:
    """Yield each engine's settings, one for each cell of its knobs' grid."""
    engines = _engines(o)
    for model, kind in engines:
        engine = kind_of(kind)
        setting = settings.engine(
            kind, _options_of_one(o, model, kind, [other for _, other in engines])
        )
        if engine.threads_variable and o.n_threads:
            advice = f"Set its threads with --engine-env {engine.threads_variable}=N."
            raise UsageError(f"-t does not apply to {engine.title}. {advice}")
        knobs = [knob for knob in _KNOBS if knob in engine.knobs]
        values = [getattr(o, knob) or [None] for knob in knobs]
        for cell in product(*values):
            yield msgspec.structs.replace(
                setting, args=[*setting.args, *_knob_args(knobs, cell)]
            )


def _options_of_one(
    o: argparse.Namespace, model: str | None, kind: str, kinds: list[str]
) -> argparse.Namespace:
    """Return the options with those values that are meant for this engine. `kinds`: of all engines."""
    own: dict[str, Any] = {"model": model}
    if kind_of(kind).reads_gguf and not all(kind_of(other).reads_gguf for other in kinds):
        own["dtype"] = None  # the others': a GGUF file says its own
    if len(set(kinds)) > 1:  # each is for the engine that it names
        parts = [text.partition(":") for text in o.engine_args]
        own["engine_args"] = [rest for name, _, rest in parts if name == kind]
    return argparse.Namespace(**{**vars(o), **own})


def _knob_args(knobs: list[str], cell: tuple[Any, ...]) -> Iterator[str]:
    """Yield the flags of the knobs that are set, each with its value."""
    for knob, value in zip(knobs, cell, strict=True):
        if value is not None:
            yield llama.NAMES[knob][-1]
            yield str(value)


def _engines(o: argparse.Namespace) -> list[tuple[str | None, str]]:
    """Pair each model with the engines that can load it."""
    models: list[str | None] = o.model or [None]
    named = list(dict.fromkeys(o.engine or []))
    if not named:
        return [(model, kind_for(model)) for model in models]
    out = [(model, kind) for model in models for kind in _suitable(model, named)]
    used = {kind for _, kind in out}
    for kind in named:
        if kind not in used:
            wants = "a GGUF file" if kind_of(kind).reads_gguf else "a folder or a name"
            raise UsageError(
                f"--engine {kind}: it supports none of the models. Give {wants} with -m."
            )
    return out


def _suitable(model: str | None, named: list[str]) -> list[str]:
    """Return the engines that can load the model; that there are none is an error."""
    if model in own_model.FOLDERS:
        return named
    is_gguf = kind_of(kind_for(model)).reads_gguf
    suits = [kind for kind in named if kind_of(kind).reads_gguf == is_gguf]
    if not suits and model is None:
        raise UsageError(
            f"--engine {','.join(named)} needs a model. Give one with -m: {own_model.NAME} is dyno's own."
        )
    if not suits:
        raise UsageError(
            f"-m {model}: none of {', '.join(named)} supports it. Add --engine {_readers(is_gguf)}, or remove --engine."
        )
    return suits


def _readers(gguf: bool) -> str:
    """Name the engines that read GGUF files, or the others."""
    return " or ".join(
        kind.name for kind in KINDS.values() if kind.offline and kind.reads_gguf == gguf
    )


def _trial(
    o: argparse.Namespace, setting: EngineSpec, prompt: int, generated: int, depth: int
) -> TrialSpec:
    return TrialSpec(
        target=TargetSpec("", kind_of(setting.kind).backend, "", model=setting.model),
        workload=WorkloadSpec(
            DEFAULT, num_prompts=1, seed=o.seed, input_len=prompt, output_len=generated
        ),
        load=LoadSpec(seed=o.seed),
        ignore_eos=True,
        label=o.label,
        kind="micro",
        offline=OfflineSpec(
            "micro",
            iterations=o.repetitions,
            warmup_iterations=0 if o.no_warmup else 1,
            depth=depth,
            by=o.by if kind_of(setting.kind).has_llama_bench else None,
        ),
        engine=setting,
    )


def _check_flags(o: argparse.Namespace) -> None:
    for flag, values in (("-p", o.n_prompt), ("-n", o.n_gen), ("-d", o.n_depth)):
        refuse(min(values or [0]) < 0, f"{flag}: a number of tokens can't be negative.")
    for flag, values in (("-b", o.n_batch), ("-ub", o.n_ubatch), ("-t", o.n_threads)):
        refuse(min(values or [1]) < 1, f"{flag} must be at least 1.")
    refuse(
        (o.n_batch or o.n_ubatch) and o.max_num_batched_tokens,
        "-b, -ub and --max-num-batched-tokens set the same thing twice. Remove one.",
    )
    refuse(
        (o.type_k or o.type_v) and o.kv_cache_dtype,
        "-ctk, -ctv and --kv-cache-dtype set the same thing twice. Remove one.",
    )
    kinds = {kind for _, kind in _engines(o)}
    _check_knobs(o, kinds)
    refuse(
        o.draft_model or o.draft_tokens,
        "llama-bench's tests exclude speculative decoding. Measure it with `dyno bench latency`.",
    )
    if len(kinds) > 1:
        _check_several(o, kinds)


def _check_knobs(o: argparse.Namespace, kinds: set[str]) -> None:
    """Refuse llama.cpp's flags where it is not among the engines."""
    if any(kind_of(kind).has_llama_bench for kind in kinds):
        return
    others = [
        knob for knob in _KNOBS if not any(knob in kind_of(kind).knobs for kind in kinds)
    ]
    llama_only = [llama.NAMES[knob][-1] for knob in others if getattr(o, knob)]
    if o.by:
        llama_only.append("--by")
    refuse(
        llama_only,
        f"{', '.join(llama_only)}: only for llama.cpp, which is not among the engines.",
    )


def _check_several(o: argparse.Namespace, kinds: set[str]) -> None:
    """Refuse what must name one of several engines."""
    astray = [text for text in o.engine_args if text.partition(":")[0] not in kinds]
    refuse(
        astray,
        f"--engine-args={' '.join(astray)!r}: name the engine that it is for, as {min(kinds)}:'--flag 1'.",
    )
    single = [flag for flag in settings.given_engine(o) if flag in _SINGLE_ENGINE]
    refuse(
        single,
        f"{', '.join(single)}: only for one engine, but there are {len(kinds)} ({', '.join(sorted(kinds))}). "
        "Measure them one after the other.",
    )


# ---- run and print ----


def run(options: argparse.Namespace) -> int:
    flags.check_refused(options)
    wanted = trials(options)
    if options.dry_run:
        return dry_run(wanted)

    from dyno.api import measuring
    from dyno.cli.progress import ProgressLine

    preparing.for_engines(wanted, options)
    printers = [Printer(options.output, wanted, sys.stdout)]
    if options.output_err:
        printers.append(Printer(options.output_err, wanted, sys.stderr))
    done, failed, cut, verdicts = 0, 0, False, []
    try:
        for outcome in measuring.offline(wanted, runs=options.runs, watcher=ProgressLine()):
            row = result_row(outcome)
            done += 1
            failed += row["avg_ts"] is None
            cut = outcome.interrupted
            verdicts.append(outcome.result.verdict)
            if options.progress:
                print(
                    f"dyno: test {done}/{len(wanted)}: {outcome.run.path}", file=sys.stderr
                )
            for printer in printers:
                printer.row(row)
            if options.delay and done < len(wanted):
                time.sleep(options.delay)
    finally:  # what was measured is a whole table, however it ends
        for printer in printers:
            printer.close()
    if cut or done < len(wanted):
        raise Interrupted(f"interrupted: {done} of {len(wanted)} tests were measured.")
    return (
        exit_codes.FAILED if failed else exit_codes.from_verdicts(verdicts, options, "test")
    )


def result_row(outcome: "Outcome") -> "Row":
    from dyno.report import micro

    return micro.row(
        outcome.result,
        outcome.manifest,
        outcome.iterations,
        outcome.run.path,
        outcome.run.engine(),
    )


class Printer:
    """A table that grows: its head comes with the first row."""

    def __init__(self, form: str, wanted: list[TrialSpec], file: Any) -> None:
        from dyno.report.micro import FORMATS

        self._form, self._file, self._begun = FORMATS[form](wanted), file, False

    def row(self, row: "Row") -> None:
        if not self._begun:
            self._begun = True
            self._print(self._form.head(row))
        self._print(self._form.row(row))

    def close(self) -> None:
        if self._begun:
            self._print(self._form.foot())

    def _print(self, lines: Iterator[str]) -> None:
        for line in lines:
            print(line, file=self._file, flush=True)
