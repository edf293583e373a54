"""`dyno bench serve`: the flags of `vllm bench serve`, with the same meanings and defaults."""

import argparse
import itertools
import json
import math
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dyno.api import vocabulary
from dyno.api.headers import proxied, request_headers
from dyno.cli import exit_codes, flags, preparing, settings
from dyno.cli.flags import refuse
from dyno.cli.parser import Parser
from dyno.engines.kinds import KINDS, kind_of, starts
from dyno.errors import StoreError, UsageError
from dyno.facts import rules, schedule, template
from dyno.facts.client import ClientSpec
from dyno.facts.load import LoadSpec
from dyno.facts.target import TargetSpec
from dyno.facts.trial import TEMPLATE, TrialSpec
from dyno.http import Url, check_certificates
from dyno.load.protocols import PROTOCOLS
from dyno.option import Option, opposite
from dyno.report.block import block
from dyno.transport import Transport
from dyno.workload.common import CommonSpec
from dyno.workload.datasets import DATASETS, DEFAULT, DEFAULT_OF_CLASSES
from dyno.workload.spec import TrafficClass, WorkloadSpec

if TYPE_CHECKING:
    from dyno.facts.study import PlannedTrial
    from dyno.facts.summary import Result
    from dyno.store.study import StudyFolder
    from dyno.trial.outcome import Outcome

SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
)  # fmt: skip
# an engine has them, too
_FOR_ENGINE = ("--trust-remote-code", "--tokenizer-mode", "--skip-tokenizer-init")
_REFUSED = {  # reason → flags
    **settings.REFUSED,
    "write --dataset-name sharegpt --dataset-path FILE.": "--dataset",
    "start a server that has the adapter and name it with --lora-modules.": "--lora-path",
}

_EXAMPLES = """examples:
  dyno bench serve --base-url http://127.0.0.1:8000 --max-concurrency 16 --num-prompts 200
  dyno bench serve --backend openai-chat --port 8080 --dataset-name sharegpt-shaped --request-rate 4
  dyno bench serve --engine llamacpp --quantization Q8_0 --max-num-seqs 8 --max-model-len 1024 --max-concurrency 8
  dyno bench serve --engine vllm --model FOLDER|NAME --tensor-parallel-size 4 --max-concurrency 64 --dry-run
  dyno bench serve --port 8000 --random-input-len 512 --random-output-len 128 --max-concurrency 64 \\
      --goodput ttft:500 tpot:30 --metric-percentiles 50,90,99 --save-result
  dyno bench serve --base-url http://127.0.0.1:8000 http://127.0.0.1:8001 --max-concurrency 64

The API key is read from OPENAI_API_KEY and written to no file.

"""


def add(p: Parser) -> None:
    p.passes_on = "--engine"
    p.description = (
        "Put a server under a known load, measure it, and check the measurement. With --engine dyno starts "
        "the server, verifies that it serves what was asked for, and stops it."
    )
    p.epilog = (
        _EXAMPLES
        + "With --engine: "
        + settings.PASSED_ON[0].lower()
        + settings.PASSED_ON[1:]
        + exit_codes.describe(exit_codes.VOID)
    )
    g = p.add_argument_group("server")
    target_flags(g)
    flags.add(g, TrialSpec, "reset_cache", "correctness_check", "stream")
    settings.add_engine(p.add_argument_group("engine settings (with --engine)"))
    _workload_flags(p.add_argument_group("prompts"))
    load = p.add_argument_group("load")
    flags.add_list(
        load,
        LoadSpec,
        "max_concurrency",
        help="most requests in flight, or users with a session each; 1,4,16 measures each in turn (default: no limit)",
    )
    flags.add_list(
        load,
        LoadSpec,
        "request_rate_rps",
        default=[math.inf],
        help="requests per second, or sessions begun per second; 1,2,inf measures each in turn (default: inf, no rate)",
    )
    flags.add(
        load, LoadSpec, "burstiness", "ramp", "ramp_start_rps", "ramp_end_rps", "duration_s"
    )
    flags.add(load, LoadSpec, "rate_schedule", "concurrency_schedule")
    load.add_argument(
        "--self-timed",
        action=argparse.BooleanOptionalAction,
        help="send the requests of a trace at their recorded times (default: unless a rate is given)",
    )
    flags.add_list(
        load,
        LoadSpec,
        "speedup",
        default=[1.0],
        help="replay recorded times, and waits between requests, X times as fast; 1,2,4 measures each in turn",
    )
    flags.add(
        load,
        LoadSpec,
        "cancel_rate",
        "cancel_after_s",
        "probe_rate_rps",
        "request_timeout_s",
        "response_bytes_max",
    )
    flags.add(load, ClientSpec)
    repeats = Option(
        "--repeats",
        "N",
        "measure each load N times, with new prompts each time (default: 1)",
        least=1,
        most=1000,
    )
    flags.number(load, int, repeats, 1)
    flags.add(load, TrialSpec, "profile")
    _sampling_flags(p.add_argument_group("sampling (sent only where given)"))
    _result_flags(p.add_argument_group("result"))
    flags.add_refused(p, _REFUSED)
    p.set_defaults(command=run)


def target_flags(g: argparse._ArgumentGroup) -> None:
    g.add_argument(
        "--engine",
        metavar="KIND",
        help=f"start this engine: {', '.join(KINDS)}; openai: check the running server against the settings "
        "(default: measure a running server)",
    )
    g.add_argument("--dry-run", action="store_true", help=settings.DRY_RUN)
    g.add_argument(
        "--backend",
        choices=tuple(PROTOCOLS),
        help="the server's API (default: the engine's, or openai)",
    )
    g.add_argument(
        "--endpoint-type", choices=tuple(PROTOCOLS), help=argparse.SUPPRESS
    )  # decides before --backend in 0.10
    g.add_argument(
        "--base-url",
        nargs="+",
        metavar="URL",
        help="address of the server, or unix:///PATH; several: copies, requests go to the least busy "
        "(default: --host and --port)",
    )
    g.add_argument(
        "--host",
        help="address of the server; of an engine: 127.0.0.1 or 0.0.0.0 (default: 127.0.0.1)",
    )
    settings.add_port(
        g, "port of the server (default: 8000; of an engine that dyno starts: a free one)"
    )
    g.add_argument(
        "--request-template",
        type=Path,
        metavar="FILE",
        help=f"--backend {TEMPLATE}: body of a request, and the places of text and counts in an answer "
        "(default: none)",
    )
    g.add_argument(
        "--endpoint", metavar="PATH", help="path of the API (default: the backend's)"
    )
    settings.add_model(g, "model to ask for (default: the first that the server lists)")
    g.add_argument(
        "--served-model-name",
        metavar="NAME",
        help="model name in the API (default: --model)",
    )
    flags.add(
        g,
        TrialSpec,
        "tokenizer",
        help="tokenizer that counts prompt tokens (default: the server's /tokenize)",
    )
    g.add_argument(
        "--header",
        nargs="*",
        metavar="KEY=VALUE",
        default=[],
        help="headers to send with each request",
    )
    flags.add(g, Transport)
    flags.add(g, TrialSpec, "ready_check_timeout_s")


def _workload_flags(g: argparse._ArgumentGroup) -> None:
    flags.add(g, WorkloadSpec, "dataset", choices=tuple(DATASETS), default=DEFAULT)
    flags.add(g, WorkloadSpec, "path")
    flags.add(
        g,
        WorkloadSpec,
        "num_prompts",
        default=None,
        help="number of requests (default: 1000, or what --duration needs; of a trace: all)",
    )
    flags.add(g, WorkloadSpec, "num_sessions", "num_warmups", "seed")
    settings.add_lengths(g, default=(1024, 128))
    flags.add(g, WorkloadSpec, "prefix_len", also="--system-prompt-len")
    flags.add(g, WorkloadSpec, "num_prefixes", default=None)
    flags.add_rest(g, CommonSpec)
    settings.add_own(g)
    g.add_argument(
        "--class",
        action="append",
        default=[],
        dest="classes",
        metavar="'NAME: KEY=VALUE …'",
        help=f"a class of traffic with its own keys, once for each: {settings.CLASS_EXAMPLE} (default: none)",
    )


def _sampling_flags(g: argparse._ArgumentGroup) -> None:
    for name in SAMPLING:
        kind, text = (
            int if name == "top_k" else float,
            f"{name} of each request (default: the server's)",
        )
        g.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="X", help=text)
    flags.add(g, TrialSpec, "ignore_eos")
    g.add_argument(
        "--logprobs",
        type=int,
        metavar="N",
        help="log probabilities to ask for (default: none)",
    )
    g.add_argument(
        "--extra-body",
        metavar="JSON",
        help="more fields for each request's body (default: none)",
    )
    g.add_argument(
        "--chat-template-kwargs",
        metavar="JSON",
        help="variables of the chat template, such as '{\"enable_thinking\": false}' (default: none)",
    )
    flags.add(g, TrialSpec, "request_id_prefix")


def _result_flags(g: argparse._ArgumentGroup) -> None:
    g.add_argument(
        "--percentile-metrics",
        default="ttft,tpot,itl",
        metavar="LIST",
        help="latencies to show percentiles of",
    )
    g.add_argument(
        "--metric-percentiles", default="99", metavar="LIST", help="percentiles to show"
    )
    g.add_argument(
        "--goodput",
        nargs="+",
        metavar="KEY:LIMIT",
        help="count requests within these latencies, such as ttft:500ms e2el:2s, in ms without a unit (default: none)",
    )
    g.add_argument(
        "--save-result",
        action="store_true",
        help="write a JSON file with vLLM's keys; for several loads or repeats, one file each",
    )
    g.add_argument(
        "--save-detailed",
        action="store_true",
        help="include each request's lengths, times and text",
    )
    g.add_argument(
        "--append-result",
        action="store_true",
        help="append one JSON object per line to the file",
    )
    g.add_argument(
        "--result-dir",
        metavar="DIR",
        help="folder for the JSON file (default: the current one)",
    )
    g.add_argument(
        "--result-filename",
        metavar="NAME",
        help="name of the JSON file (default: from model, load and date)",
    )
    g.add_argument(
        "--plot-timeline",
        action="store_true",
        help="write a page with a bar for each request beside the JSON file",
    )
    g.add_argument(
        "--timeline-itl-thresholds",
        default="25,50",
        metavar="MS,MS",
        help="ITLs at which its colours change",
    )
    g.add_argument(
        "--plot-dataset-stats",
        action="store_true",
        help="write a picture of the lengths of prompts and outputs beside the JSON file",
    )
    flags.add(g, TrialSpec, "metadata", "label")
    g.add_argument("--disable-tqdm", action="store_true", help="no progress bar")
    settings.add_runs(g)
    exit_codes.add(g)
    g.add_argument(
        "--keep-raw", action="store_true", help="keep all received bytes with their times"
    )
    g.add_argument(
        "--json",
        action="store_true",
        help="print the result as JSON; for several loads or repeats, a list",
    )
    flags.add_ignored(
        g, "--no-stream", reason="It is about how vLLM loads a dataset of the Hub."
    )
    flags.add_ignored(
        g,
        "--enable-multimodal-chat",
        reason="dyno sends images as parts of a chat's message in any case.",
    )
    flags.add_ignored(
        g,
        "--custom-ensure-client-side-data",
        reason="dyno sends the bytes of a file in any case.",
    )
    flags.add_ignored(
        g, "--use-beam-search", reason="vLLM's client reads it and sends nothing, too."
    )
    for flag in _FOR_ENGINE:
        action = "store" if flag == "--tokenizer-mode" else argparse.BooleanOptionalAction
        g.add_argument(flag, action=action, help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    flags.check_refused(options)
    _hand_over(options)
    each = list(loads(options))
    shown = flags.metrics(options.percentile_metrics)
    if options.result_dir and not options.dry_run:
        _check_writable(Path(options.result_dir))
    if len(each) > 1 or options.repeats > 1:
        return _several(each, options)
    trial, headers = spec(each[0][1])
    from dyno.api import measuring

    trial = measuring.planned(trial)
    if options.dry_run:
        return dry_run(trial)

    from dyno.cli.progress import ProgressLine

    preparing.for_engines([trial], options)
    with ProgressLine(bar=not options.disable_tqdm) as watcher:
        outcome = measuring.on_server(
            trial,
            runs=options.runs,
            headers=headers,
            watcher=watcher,
            keep_raw=options.keep_raw,
        )
    written = _writes(options)
    file = result_file(outcome, options.save_detailed) if options.json or written else {}
    if options.json:
        print(json.dumps(file))
    else:
        print(block(outcome.result, trial, shown, outcome.manifest.answers))
    for path in _save(file, outcome, options) if written else ():
        print(f"Result: {path}", file=sys.stderr)
    if options.keep_raw and not outcome.run.spool_path.exists():
        print(
            "dyno: the received bytes are not kept, because they contain a key.",
            file=sys.stderr,
        )
    print(f"Run: {outcome.run.path}", file=sys.stderr)
    code = exit_code(outcome, options)
    if code == exit_codes.INTERRUPTED:
        print(
            "dyno: interrupted. The requests until then are measured and kept.",
            file=sys.stderr,
        )
    elif outcome.result.verdict != "void":
        again = flags.command(options, "--repeats", "5")
        print(f"Repeat it to measure run-to-run variation:\n  {again}", file=sys.stderr)
    return code


def _hand_over(o: argparse.Namespace) -> None:
    """Give an engine that dyno starts the client's flags that it has, too. A running one can't get them."""
    given = {
        flag: value
        for flag in _FOR_ENGINE
        if (value := getattr(o, flag[2:].replace("-", "_"))) is not None
    }
    if o.engine is None or not kind_of(o.engine).starts:
        flags.report_ignored(given)
        return
    for flag, value in given.items():
        if isinstance(value, str):
            o.own_args = [*o.own_args, flag, value]
        else:
            o.own_args = [*o.own_args, flag if value else opposite(flag)]


def _writes(o: argparse.Namespace) -> bool:
    """Return whether a result file or pictures are asked for."""
    return bool(_saves(o) or o.plot_timeline or o.plot_dataset_stats)


def _saves(o: argparse.Namespace) -> bool:
    return bool(o.save_result or o.append_result)


def _save(
    file: dict[str, Any], outcome: "Outcome", options: argparse.Namespace, ending: str = ""
) -> Iterator[Path]:
    """Write the result file and its pictures, and yield their paths. `ending`: makes their names differ from those of
    other trials."""
    from dyno.report import result_json
    from dyno.store.run import write

    name = Path(
        options.result_filename
        or result_json.filename(outcome.manifest.trial, file["model_id"], file["date"])
    )
    path = Path(options.result_dir or ".") / (
        name if options.append_result else name.with_stem(name.stem + ending)
    )
    try:
        if _saves(options):
            result_json.save(path, file, options.append_result)
            yield path
        for picture, data in _pictures(path, outcome, options):
            write(picture, data, mode=0o666)
            yield picture
    except StoreError as e:
        raise StoreError(f"{e} The run itself is kept in {outcome.run.path}.") from None


def _pictures(
    path: Path, outcome: "Outcome", options: argparse.Namespace
) -> Iterator[tuple[Path, bytes]]:
    """Yield the names and bytes of the pictures that vLLM's client would write beside its result file."""
    from dyno.report import picture

    completed = [r for r in outcome.run.records() if r.error is None]
    if options.plot_timeline:
        limits = _thresholds(options.timeline_itl_thresholds)
        page = picture.timeline_html(completed, limits)
        yield path.with_suffix(".timeline.html"), page.encode()
    if options.plot_dataset_stats:
        yield path.with_suffix(".dataset_stats.png"), picture.lengths_png(completed)


def _thresholds(text: str) -> list[float]:
    try:
        limits = [float(part) for part in text.split(",")]
    except ValueError:
        limits = []
    refuse(
        len(limits) != 2 or not 0 < limits[0] < limits[1] < math.inf,
        f"--timeline-itl-thresholds {text!r} must be two times in ms, the smaller first, such as 25,50.",
    )
    return limits


# ---- several loads, or one several times: a study without a file ----


def loads(o: argparse.Namespace) -> Iterator[tuple[dict[str, Any], argparse.Namespace]]:
    """Yield the flags of each load, and the values that distinguish it from the others."""
    levels, rates = o.max_concurrency or [None], o.request_rate
    for level, rate, speedup in itertools.product(levels, rates, o.speedup):
        varying: dict[str, Any] = {}
        if len(levels) > 1:
            varying["load.max_concurrency"] = level
        if len(rates) > 1:
            varying["load.request_rate_rps"] = "inf" if math.isinf(rate) else rate
        if len(o.speedup) > 1:
            varying["load.speedup"] = speedup
        own = {"max_concurrency": level, "request_rate": rate, "speedup": speedup}
        yield varying, argparse.Namespace(**{**vars(o), **own})


def _several(
    each: list[tuple[dict[str, Any], argparse.Namespace]], options: argparse.Namespace
) -> int:
    from dyno.cli.run import conduct, preview
    from dyno.conduct import study_plan
    from dyno.facts.study import Place
    from dyno.load.progress import Stop
    from dyno.probe import rig
    from dyno.store.run import slug
    from dyno.trial.session import attach
    from dyno.trial.watcher import Watcher

    specs = [(varying, *spec(one)) for varying, one in each]
    _, first, headers = specs[0]
    server = first.label or options.engine or Url(first.target.base_url).netloc
    trials = []
    for varying, trial, _ in specs:
        # The study's seed makes one for each load and repeat.
        work, load = (
            msgspec.structs.replace(trial.workload, seed=0),
            msgspec.structs.replace(trial.load, seed=0),
        )
        name = "closed" if load.closed_loop else "open"
        place = Place(
            "",
            "",
            server,
            work.dataset,
            name,
            varying,
            sessions=work.traits.sessions,
            by_flags=True,
        )
        trials.append((place, msgspec.structs.replace(trial, workload=work, load=load)))
    slugs = "-".join(trial.load.slug for _, trial in trials)
    study = study_plan.repeated(
        slug(f"serve-{server}-{slugs}"), trials, options.seed, options.repeats
    )
    if options.dry_run:
        return preview(study, study.trials, rig.read_machine(), options.runs)
    if not starting(options):  # a wrong key or model ends it here, before there is a folder
        attach(first, headers, Watcher(), Stop()).test(first)
    for name, value in (
        ("limit", None),
        ("any_rig", False),
        ("plain", options.disable_tqdm),
    ):
        setattr(options, name, value)
    options.no_report = options.json
    preparing.for_engines([trial for _, trial in trials], options)
    folder = study_plan.folder_for(options.runs, study, again=True)
    text = f"# {flags.command(options)}\n"
    with folder.lock():
        return conduct(
            study,
            text,
            folder,
            study.trials,
            rig.read_machine(),
            options,
            lambda _: headers,
            partial(_show, options=options),
        )


def _show(
    folder: "StudyFolder",
    wanted: list["PlannedTrial"],
    done: dict[str, "Result"],
    options: argparse.Namespace,
) -> None:
    """Print one table of all trials, or a JSON list; save the result of each."""
    from dyno.report import study
    from dyno.trial.outcome import Outcome

    runs = [(p.place, folder.run(p.place)) for p in wanted if p.place.id in done]
    outcomes = [
        (place, Outcome(run, run.manifest(), done[place.id])) for place, run in runs
    ]
    files = [result_file(outcome, options.save_detailed) for _, outcome in outcomes]
    saved: dict[Path, None] = {}
    for (place, outcome), file in zip(outcomes, files, strict=True):
        if _writes(options):
            ending = f"-r{place.repeat}" if place.repeats > 1 else ""
            if options.result_filename and place.settings:
                ending = f"-{outcome.manifest.trial.load.slug}{ending}"
            saved |= dict.fromkeys(_save(file, outcome, options, ending))
    for path in saved:
        print(f"Result: {path}", file=sys.stderr)
    if options.json:
        print(json.dumps(files))
    else:
        print("\n".join(study.lines(wanted, done, folder.path)))


# ---- one trial ----


def dry_run(trial: TrialSpec) -> int:
    from dyno.probe import rig
    from dyno.trial.engine_plan import EnginePlan
    from dyno.trial.prepare import longest

    if not starts(trial.engine):
        raise UsageError(
            "--dry-run needs --engine KIND or several loads: one load on a running server starts nothing."
        )
    assert trial.engine is not None
    plan = EnginePlan(trial.engine, rig.read_machine(), dry=True)
    settings.print_plan(
        [*plan.lines(), *(f"# {note}" for note in plan.notes(trial.load.max_concurrency))]
    )
    return settings.report_problems(plan.problems([longest(trial)]))


def exit_code(outcome: "Outcome", options: argparse.Namespace) -> int:
    from dyno.trial.outcome import ended_early

    served = outcome.result.served
    if served.outcome == "interrupted":
        return exit_codes.INTERRUPTED
    why = ended_early(outcome.run, outcome.result)
    if why:
        print(f"dyno: {why} Results until then are kept.", file=sys.stderr)
    if why or not served.completed:
        return exit_codes.FAILED
    return exit_codes.from_verdicts([outcome.result.verdict], options)


def result_file(outcome: "Outcome", detailed: bool) -> dict[str, Any]:
    from dyno.report import result_json
    from dyno.store.rows import read_row

    return result_json.build(
        outcome.result,
        outcome.manifest,
        read_row(outcome.run),
        records=outcome.run.records(),
        detailed=detailed,
    )


def spec(o: argparse.Namespace) -> tuple[TrialSpec, dict[str, str]]:
    """Read the flags into one frozen value; keys and headers stay outside it."""
    parts = settings.classes(o.classes)
    refuse(
        parts and o.dataset_name not in (DEFAULT, DEFAULT_OF_CLASSES),
        "--class: each has its dataset. Remove --dataset-name.",
    )
    if parts:
        o.dataset_name = DEFAULT_OF_CLASSES
    _check_flags(o)
    starts = starting(o)
    aim, headers = target(o)
    load = _load(o)
    work = _workload(o, load, parts)
    own = {
        "target": aim,
        "workload": work,
        "load": load,
        "client": ClientSpec(**flags.values(o, ClientSpec)),
        "ignore_eos": o.ignore_eos or work.traits.endless,  # as vLLM for random prompts
        **_body(o, aim.backend),
        "template": _template(o, aim.backend),
        "percentiles": flags.percentiles(o.metric_percentiles),
        "goodput_ms": flags.goodput(o.goodput or []),
        "reset_cache": o.reset_prefix_cache or starts,
        "engine": settings.engine(o.engine, o) if o.engine else None,
    }
    return TrialSpec(**{**flags.values(o, TrialSpec), **own}), headers


def _load(o: argparse.Namespace) -> LoadSpec:
    own = {
        "request_rate_rps": None if math.isinf(o.request_rate) else o.request_rate,
        "burstiness": None if math.isinf(o.burstiness) else o.burstiness,
        "arrivals": "recorded" if _recorded(o) else None,
        "seed": o.seed,
    }
    for name in ("rate_schedule", "concurrency_schedule"):
        text = getattr(o, name)
        if text:
            own[name] = schedule.located(text, Path())
    return LoadSpec(**{**flags.values(o, LoadSpec), **own})


def _workload(
    o: argparse.Namespace, load: LoadSpec, parts: dict[str, TrafficClass]
) -> WorkloadSpec:
    from dyno.load.plan import prompts_needed

    dataset = DATASETS[o.dataset_name]
    drawn = "output_len" in dataset.needs and not dataset.lengths
    output_len = o.output_len or (o.random_output_len if drawn else None)
    work = settings.workload(
        o, dataset.name, 1, o.input_len or o.random_input_len, output_len
    )
    own = settings.own_lengths(o, dataset.name)
    if o.output_len:
        own |= {"output_len": o.output_len}
    work = msgspec.structs.replace(work, **own, classes=parts)
    count = o.num_prompts
    if count is None:
        count = prompts_needed(load, work) or _default_prompts(o)
    count = max(count, 0)  # -1: all, as 0 of a trace
    sessions = o.num_sessions
    if parts and o.num_prompts is None:
        sessions = sessions or count  # of a mix the classes' rates are those of sessions
    return msgspec.structs.replace(work, num_prompts=count, num_sessions=sessions)


def target(o: argparse.Namespace) -> tuple[TargetSpec, dict[str, str]]:
    from dyno.http import check_plain

    given = {"model": o.model, "served_name": o.served_model_name, "endpoint": o.endpoint}
    for mistake in rules.mistakes(
        rules.TARGET, rules.GivenSettings(given, DATASETS[DEFAULT]), "flags"
    ):
        raise UsageError(vocabulary.sentence(mistake))
    backend = o.endpoint_type or o.backend or "openai"
    protocol, described = PROTOCOLS[backend], _template(o, backend).get("path")
    streamed = flags.values(o, TrialSpec).get("stream", True)
    path = protocol.path if streamed else protocol.path_in_one_piece
    endpoint = o.endpoint or described or path
    base_url, *more_urls = _urls(o, endpoint)
    headers = request_headers(flags.pairs(o.header, "--header"))
    check_plain(endpoint, f"--endpoint {endpoint!r}")
    aim, proxy_login = proxied(
        TargetSpec(
            base_url=base_url,
            more_urls=more_urls,
            backend=backend,
            endpoint=endpoint,
            model=o.model,
            served_model_name=o.served_model_name,
            header_names=sorted(headers),
            **flags.values(o, Transport),
        )
    )
    check_certificates([aim])
    return aim, headers | proxy_login


def _template(o: argparse.Namespace, backend: str) -> dict[str, Any]:
    """Read the template that describes a JSON endpoint."""
    if (o.request_template is None) == (backend == TEMPLATE):
        raise UsageError(
            f"--backend {TEMPLATE} and --request-template belong together. Give both, or none."
        )
    return {} if o.request_template is None else template.read(o.request_template)


def _urls(o: argparse.Namespace, endpoint: str) -> list[str]:
    host = o.host or "127.0.0.1"
    address = f"[{host}]" if ":" in host else host
    urls = [Url(text) for text in o.base_url or [f"http://{address}:{o.port or 8000}"]]
    for url in urls:
        if url.prefix.endswith("/v1") and endpoint.startswith("/v1/"):
            # a base URL as the OpenAI client takes it
            url.prefix = url.prefix.removesuffix("/v1")
    texts = [str(url) for url in urls]
    if len(set(texts)) < len(texts):
        raise UsageError("--base-url names a server twice. Give each replica once.")
    return texts


def _body(o: argparse.Namespace, backend: str) -> dict[str, Any]:
    extra_body = flags.json_object(o.extra_body)
    if o.logprobs is not None:
        chat = {"logprobs": True, "top_logprobs": o.logprobs}  # a number is refused there
        asked = chat if PROTOCOLS[backend].chat else {"logprobs": o.logprobs}
        extra_body = asked | extra_body
    sampling = {name: value for name in SAMPLING if (value := getattr(o, name)) is not None}
    fields = PROTOCOLS[backend].fields
    if fields is not None and (unknown := sorted({*sampling, *extra_body} - fields)):
        raise UsageError(
            f"--backend {backend} has no {', '.join(unknown)}: the server would silently ignore it. Remove it. "
            f"It has: {', '.join(sorted(fields))}."
        )
    variables = flags.json_object(o.chat_template_kwargs, "--chat-template-kwargs")
    return {
        "sampling": sampling,
        "extra_body": extra_body,
        "chat_template_kwargs": variables,
    }


def starting(o: argparse.Namespace) -> bool:
    """Return whether an engine is to be started; else a server is attached to."""
    if o.engine is None:
        if used := settings.given_engine(o):
            raise UsageError(
                f"{', '.join(used)}: only for engines. Add --engine KIND to start one "
                f"({', '.join(KINDS)}), or --engine openai to check the running server against them."
            )
        return False
    starts = kind_of(o.engine).starts
    if starts and o.base_url:
        raise UsageError(
            "--engine starts a server, but --base-url names a running one. Give one of them, or "
            "--engine openai for the running server."
        )
    if starts:
        o.backend = o.backend or kind_of(o.engine).backend
    return starts


def _recorded(o: argparse.Namespace) -> bool:
    """Return whether requests are sent at the times of the trace."""
    if o.self_timed is not None:
        return bool(o.self_timed)
    if (
        not math.isinf(o.request_rate)
        or o.ramp_up_strategy
        or o.rate_schedule
        or o.concurrency_schedule
    ):
        return False
    return DATASETS[o.dataset_name].traits.paced or any(
        c.request_rate_rps for c in settings.classes(o.classes).values()
    )


def _default_prompts(o: argparse.Namespace) -> int:
    if DATASETS[o.dataset_name].traits.trace:
        return 0  # all of it
    return max(1000, 20 * (o.max_concurrency or 1)) if o.duration else 1000


def _check_flags(o: argparse.Namespace) -> None:
    given = rules.GivenSettings(_given(o), DATASETS[o.dataset_name], _recorded(o))
    for mistake in rules.mistakes(
        [*rules.LOAD, *rules.WORKLOAD, *rules.TRIAL], given, "flags"
    ):
        raise UsageError(vocabulary.sentence(mistake))
    refuse(
        o.result_filename is not None and not _writes(o),
        "--result-filename needs --save-result or --append-result; otherwise nothing is written.",
    )
    _thresholds(o.timeline_itl_thresholds)


def _given(o: argparse.Namespace) -> dict[str, Any]:
    """Return the settings whose flags were used, by field, and those that rules of a trial are about."""
    given = flags.given_values(o, WorkloadSpec) | flags.given_values(o, LoadSpec)
    given |= {
        "percentiles": flags.percentiles(o.metric_percentiles),
        "goodput_ms": flags.goodput(o.goodput or []),
        "extra_body": flags.json_object(o.extra_body),
    }
    if math.isinf(o.request_rate):
        del given["request_rate_rps"]
    if o.self_timed is not None:
        given["arrivals"] = "recorded" if o.self_timed else None
    return given


def _check_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".dyno-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as e:
        raise StoreError(
            f"--result-dir {folder} can't be written: {e.strerror}. Nothing was run. Choose another folder."
        ) from None
