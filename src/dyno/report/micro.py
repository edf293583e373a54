"""Rows of a micro benchmark, in llama-bench's five formats: its columns and keys in its order, dyno's after them."""

import datetime
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dyno.engines.kinds import KINDS
from dyno.facts import llama
from dyno.facts.engine import EngineFacts, EngineSpec
from dyno.facts.finding import Finding
from dyno.facts.offline import Iteration
from dyno.facts.rig import Accelerator, Share
from dyno.facts.summary import Result
from dyno.facts.trial import TrialSpec, micro_name
from dyno.measure.offline import micro_sample
from dyno.report.block import finding_lines
from dyno.screen import SCREEN, styled, verdict_style, wrapped
from dyno.store.run import Manifest
from dyno.units import NS_PER_S

# llama-bench's keys, build 11434, and what its SQL calls their types.
FIELDS = {
    "build_commit": "TEXT", "build_number": "INTEGER", "cpu_info": "TEXT", "gpu_info": "TEXT", "backends": "TEXT",
    "model_filename": "TEXT", "model_type": "TEXT", "model_size": "INTEGER", "model_n_params": "INTEGER",
    "n_batch": "INTEGER", "n_ubatch": "INTEGER", "n_threads": "INTEGER", "cpu_mask": "TEXT", "cpu_strict": "INTEGER",
    "poll": "INTEGER", "type_k": "TEXT", "type_v": "TEXT", "n_gpu_layers": "INTEGER", "n_cpu_moe": "INTEGER",
    "split_mode": "TEXT", "main_gpu": "INTEGER", "no_kv_offload": "INTEGER", "flash_attn": "INTEGER",
    "devices": "TEXT", "tensor_split": "TEXT", "tensor_buft_overrides": "TEXT", "load_mode": "TEXT",
    "lazy_mode": "TEXT", "embeddings": "INTEGER", "no_op_offload": "INTEGER", "no_host": "INTEGER",
    "repack": "INTEGER", "fit_target": "INTEGER", "fit_min_ctx": "INTEGER", "n_prompt": "INTEGER", "n_gen": "INTEGER",
    "n_depth": "INTEGER", "test_time": "TEXT", "avg_ns": "INTEGER", "stddev_ns": "INTEGER", "avg_ts": "REAL",
    "stddev_ts": "REAL",
}  # fmt: skip
SAMPLES = ("samples_ns", "samples_ts")  # in JSON alone
OWN = {
    "engine": "TEXT", "engine_version": "TEXT", "bandwidth_share": "REAL", "flops_share": "REAL", "peaks": "TEXT",
    "verdict": "TEXT", "findings": "TEXT", "run": "TEXT",
}  # fmt: skip

# llama.cpp's settings that a grid may vary, in the order of llama-bench's columns → the default.
KNOBS: dict[str, Any] = {
    "n_gpu_layers": -1, "n_cpu_moe": 0, "n_threads": None,  # as many as it finds; which, it doesn't say
    "cpu_mask": "0x0", "cpu_strict": False, "poll": 50, "n_batch": 2048, "n_ubatch": 512, "type_k": "f16",
    "type_v": "f16", "split_mode": "layer", "no_kv_offload": False, "flash_attn": -1, "tensor_split": "0.00",
    "tensor_buft_overrides": "none", "load_mode": "auto", "no_op_offload": 0, "no_host": False,
}  # fmt: skip
_TYPES = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "fp32": "F32",
    "fp16": "F16",
    "bf16": "BF16",
}
# What dyno leaves as llama-bench has it.
_FIXED = {
    "main_gpu": 0,
    "devices": "auto",
    "lazy_mode": "auto",
    "embeddings": False,
    "repack": True,
    "fit_target": 0,
    "fit_min_ctx": 0,
}

# In a table: the column's name, its width (below 0: to the left).
_COLUMNS = {
    "model": ("model", -30), "size": ("size", 10), "params": ("params", 10), "backend": ("backend", -10),
    "engine": ("engine", -12), "n_gpu_layers": ("ngl", 3), "n_cpu_moe": ("n_cpu_moe", 10), "n_threads": ("threads", 7),
    "cpu_mask": ("cpu_mask", -10), "cpu_strict": ("cpu_strict", 10), "poll": ("poll", 10), "n_batch": ("n_batch", 7),
    "n_ubatch": ("n_ubatch", 8), "type_k": ("type_k", 6), "type_v": ("type_v", 6), "split_mode": ("sm", 6),
    "no_kv_offload": ("nkvo", 13), "flash_attn": ("fa", 3), "tensor_split": ("ts", -12),
    "tensor_buft_overrides": ("ot", -21), "load_mode": ("lm", 10), "no_op_offload": ("nopo", 4), "no_host": ("noh", 4),
    "test": ("test", 15), "t/s": ("t/s", 20), "% BW": ("% BW", 6), "% FLOPS": ("% FLOPS", 7),
}  # fmt: skip

# In a narrow terminal: widths, then columns to hide, in this order.
_NARROW = {"model": -18, "t/s": 16, "test": 10}
_HIDDEN_FIRST = ("params", "backend", "size", "% FLOPS", "% BW")

_FIGURES = ("size", "params", "backend", "t/s", "% BW", "% FLOPS")

Row = dict[str, Any]


def row(
    result: Result,
    manifest: Manifest,
    iterations: Sequence[Iteration],
    run: Path,
    engine: EngineFacts | None,
) -> Row:
    trial = manifest.trial
    spec, how, work = trial.engine, trial.offline, trial.workload
    assert spec is not None and how is not None
    accelerators = _accelerators(manifest)
    version = engine.version if engine is not None else manifest.target.version
    own = _of_llama_bench(spec.kind)
    model, size, parameters = _model(manifest)
    share = _share(trial, result)
    values: dict[str, Any] = {
        "build_commit": "unknown",
        "build_number": _build_number(version) if own else 0,
        "cpu_info": manifest.rig.cpu,
        "gpu_info": ", ".join(a.name for a in accelerators),
        "backends": _backend(accelerators),
        "model_filename": manifest.target.model_path or spec.model or manifest.target.model,
        "model_type": model,
        "model_size": size,
        "model_n_params": parameters,
    }
    if own:
        values |= {**_FIXED, **_knobs(spec, engine)}
    values |= {
        "n_prompt": work.input_len,
        "n_gen": work.output_len or 0,
        "n_depth": how.depth or 0,
    }
    # llama-bench says itself what it ran with
    values.update(llama.completed(_reported(iterations)))
    values["test_time"] = _utc(manifest.started)
    samples = list(_samples(trial, iterations))
    values |= _speeds(samples)
    return {
        **{name: values.get(name) for name in FIELDS},
        "samples_ns": [t for _, t in samples],
        "samples_ts": [_rate(*sample) for sample in samples],
        "engine": spec.kind,
        "engine_version": version,
        "bandwidth_share": getattr(share, "bandwidth", None),
        "flops_share": getattr(share, "arithmetic", None),
        "peaks": _peaks(result),
        "verdict": result.verdict,
        "findings": msgspec.to_builtins(result.findings),
        "run": str(run),
    }


def _build_number(version: str | None) -> int:
    return int(version) if version and version.isdecimal() else 0


def _samples(
    trial: TrialSpec, iterations: Sequence[Iteration]
) -> Iterator[tuple[int, int]]:
    """Yield tokens and nanoseconds of each measured answer."""
    for iteration in iterations:
        if not iteration.warmup:
            for answer in iteration.answers:
                sample = micro_sample(trial, answer)
                if sample is not None:
                    yield sample


def _speeds(samples: Sequence[tuple[int, int]]) -> dict[str, Any]:
    if not samples:
        return {}
    ns = [t for _, t in samples]
    rates = [_rate(*sample) for sample in samples]
    return {
        "avg_ns": int(statistics.fmean(ns)),
        "stddev_ns": int(_deviation(ns)),
        "avg_ts": statistics.fmean(rates),
        "stddev_ts": _deviation(rates),
    }


def _rate(tokens: int, ns: int) -> float:
    return tokens * NS_PER_S / ns


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _utc(started: str) -> str:
    return (
        datetime.datetime.fromisoformat(started)
        .astimezone(datetime.UTC)
        .strftime("%Y-%m-%dT%H:%M:%SZ")
    )


def _share(trial: TrialSpec, result: Result) -> Share | None:
    if result.roofline is None:
        return None
    work = trial.workload
    what = "whole"
    if not work.output_len:
        what = "prefill"
    elif not work.input_len:
        what = "decode"
    return next((s for s in result.roofline.shares if s.what == what), None)


def _peaks(result: Result) -> str | None:
    """Describe the peaks that shares refer to."""
    if result.roofline is None:
        return None
    peaks = result.roofline.peaks
    return f"{peaks.name}, {result.roofline.precision}, {'measured here' if peaks.measured else 'its maker says'}"


def _accelerators(manifest: Manifest) -> list[Accelerator]:
    """Return those that the engine runs on; none: the processor."""
    spec = manifest.trial.engine
    cards = [a for a in manifest.rig.accelerators if a.engine is not False]
    if spec is not None and spec.devices is not None:
        cards = [a for a in cards if a.index in spec.devices]
    if manifest.peaks is not None:  # what was taken for the roofline knows best
        cards = [a for a in cards if a.name in manifest.peaks.name]
    return cards


def _backend(accelerators: Sequence[Accelerator]) -> str:
    names = {"nvidia": "CUDA", "amd": "ROCm"}
    return (
        ",".join(dict.fromkeys(names.get(a.vendor, a.vendor) for a in accelerators))
        or "CPU"
    )


def _model(manifest: Manifest) -> tuple[str, int | None, int | None]:
    """Describe a model as llama.cpp does: architecture, size, quantization."""
    m, target = manifest.model, manifest.target
    if m is None:
        return Path(target.model_path or target.model).name, target.weights_bytes, None
    dtype = target.dtype or m.dtype or ""
    kind = target.quantization or m.quantization or _TYPES.get(dtype, dtype)
    name = m.architecture
    if m.format != "gguf":  # a folder's config says LlamaForCausalLM, a GGUF file llama
        name = (m.architecture or "").removesuffix("ForCausalLM").lower()
    words = f"{name or Path(m.path).stem} {_model_size(m.parameters)} {kind}"
    return words.strip(), target.weights_bytes or m.weights_bytes, m.parameters


def _model_size(parameters: int | None) -> str:
    # Its own names follow the number of layers, and it has none for a model that it wasn't made for.
    if not parameters:
        return "?B"
    return (
        f"{parameters / 1e9:.0f}B" if parameters >= 0.95e9 else f"{parameters / 1e6:.0f}M"
    )


def _knobs(spec: EngineSpec, engine: EngineFacts | None) -> dict[str, Any]:
    """Return settings as given, or from the command that ran."""
    ran = _given(engine.launches[0].argv if engine is not None and engine.launches else [])
    out = {}
    for name, default in KNOBS.items():
        value = said_of(spec, name)
        if value is None:
            value = ran.get(name)
        if value is None:
            value = default
        out[name] = bool(value) if isinstance(default, bool) else value
    return out


def _reported(iterations: Sequence[Iteration]) -> llama.Report:
    return next((i.reported for i in iterations if i.reported), {})


def _given(args: Sequence[str]) -> llama.Report:
    return llama.completed({key: g.value for key, g in llama.given(args).items()})


def said_of(spec: EngineSpec, knob: str) -> Any:
    """Return the value of a llama.cpp setting; None: not set."""
    if (said := _given(spec.args).get(knob)) is not None:
        return said
    if knob in ("type_k", "type_v") and spec.kv_cache_dtype:
        return {"fp16": "f16", "fp32": "f32", "auto": "f16"}.get(
            spec.kv_cache_dtype, spec.kv_cache_dtype
        )
    return spec.max_batched_tokens if knob in ("n_batch", "n_ubatch") else None


# ---- formats: a head with the first row, each row as it comes, a foot ----


class Markdown:
    def __init__(self, trials: Sequence[TrialSpec]) -> None:
        self._trials = trials
        self._columns: list[str] = []
        self._rows: list[Row] = []
        self._widths: dict[str, int] = {}
        self._hidden: list[str] = []

    def head(self, first: Row) -> Iterator[str]:
        self._columns = list(self._chosen(first))
        self._widths = {name: _COLUMNS[name][1] for name in self._columns}
        self._fit()
        yield _joined(
            _cell(_COLUMNS[name][0], self._widths[name]) for name in self._columns
        )
        widths = [self._widths[name] for name in self._columns]
        yield _joined("-" * (abs(w) - 1) + (":" if w > 0 else "-") for w in widths)

    def _fit(self) -> None:
        """Make columns narrower and hide some in a narrow terminal. In a pipe the table is as llama-bench has it."""
        screen = SCREEN.get()

        def too_wide() -> bool:
            return (
                screen.fits
                and 1 + sum(abs(self._widths[name]) + 3 for name in self._columns)
                > screen.width
            )

        for name, width in _NARROW.items():
            if too_wide() and name in self._columns:
                self._widths[name] = width
        for name in _HIDDEN_FIRST:
            if too_wide() and name in self._columns:
                self._columns.remove(name)
                self._hidden.append(name)

    def _chosen(self, first: Row) -> Iterator[str]:
        """Yield the columns. A knob is shown where it varies or isn't as llama-bench has it."""
        specs = [t.engine for t in self._trials if t.engine is not None]
        yield from ("model", "size", "params", "backend")
        if len({s.kind for s in specs}) > 1:
            yield "engine"
        always = "n_threads" if first["backends"] == "CPU" else "n_gpu_layers"
        yield from _shown_knobs([s for s in specs if _of_llama_bench(s.kind)], always)
        yield from ("test", "t/s")
        if first["bandwidth_share"] is not None or first["flops_share"] is not None:
            yield from ("% BW", "% FLOPS")

    def row(self, row: Row) -> Iterator[str]:
        self._rows.append(row)
        yield _joined(
            _cell(_shown(row, name), self._widths[name]) for name in self._columns
        )

    def foot(self) -> Iterator[str]:
        yield ""
        if self._hidden:
            yield from wrapped(
                f"Not shown: {', '.join(self._hidden)}. A wider terminal or -o json shows all columns."
            )
            yield ""
        if "% BW" in self._columns:
            peaks = "; ".join(
                dict.fromkeys(row["peaks"] for row in self._rows if row["peaks"])
            )
            yield from wrapped(
                f"Hardware utilization (% BW, % FLOPS) is relative to {peaks}."
            )
            yield ""
        for verdict in ("void", "doubtful"):
            rows = [row for row in self._rows if row["verdict"] == verdict]
            if rows:
                yield from self._unsound(verdict, rows)
                yield ""
        # What holds for all of them: a note that would change what is concluded.
        notes = {
            f["text"]: f
            for row in self._rows
            for f in row["findings"]
            if f["code"] == "engine.generic_build"
        }
        for note in notes.values():
            yield from finding_lines(msgspec.convert(note, Finding))
            yield ""
        yield f"build: {', '.join(dict.fromkeys(_build(row) for row in self._rows))}"

    def _unsound(self, verdict: str, rows: Sequence[Row]) -> Iterator[str]:
        names = ", ".join(dict.fromkeys(map(self._named, rows)))
        head, *others = wrapped(f"{verdict}: {names}", rest="  ")
        yield styled(verdict.capitalize(), verdict_style(verdict)) + head.removeprefix(
            verdict
        )
        yield from others
        # Most rows have the same ones: print each once, with the numbers of its first row.
        first = {
            f["code"]: (f, row)
            for row in reversed(rows)
            for f in row["findings"]
            if f["level"] != "note"
        }
        for finding, row in first.values():
            yield from finding_lines(
                _named_finding(self._named(row), msgspec.convert(finding, Finding))
            )

    def _named(self, row: Row) -> str:
        """Name a row by its test, and by what distinguishes it from other rows."""
        chosen = ["test"]
        others = [name for name in self._columns if name not in (*_FIGURES, "test")]
        for name in sorted(others, key=lambda name: name != "engine"):
            alike = [
                r for r in self._rows if all(_shown(r, n) == _shown(row, n) for n in chosen)
            ]
            if len({_shown(r, name) for r in alike}) > 1:
                chosen.insert(-1, name)
        plain = ("test", "engine", "model")
        return " ".join(
            _shown(row, n) if n in plain else f"{_COLUMNS[n][0]}={_shown(row, n)}"
            for n in chosen
        )


def _shown_knobs(specs: Sequence[EngineSpec], always: str) -> Iterator[str]:
    if not specs:
        return
    for knob, default in KNOBS.items():
        if knob == always or {said_of(spec, knob) for spec in specs} - {None, default}:
            yield knob


def _named_finding(name: str, finding: Finding) -> Finding:
    return msgspec.structs.replace(finding, text=f"{name}: {finding.text}")


class Json:
    def __init__(self, trials: Sequence[TrialSpec]) -> None:
        self._open = ""  # a row's last brace waits to know whether another follows

    def head(self, first: Row) -> Iterator[str]:
        yield "["

    def row(self, row: Row) -> Iterator[str]:
        if self._open:
            yield self._open + ","
        yield "  {"
        yield ",\n".join(f"    {key}" for key in _pairs(row))
        self._open = "  }"

    def foot(self) -> Iterator[str]:
        if self._open:
            yield self._open
        yield "]"


class _Lines:
    """A head, and a line for each row."""

    def __init__(self, line: Callable[[Row], str], head: Sequence[str] = ()) -> None:
        self._line, self._head = line, head

    def head(self, first: Row) -> Iterator[str]:
        yield from self._head

    def row(self, row: Row) -> Iterator[str]:
        yield self._line(row)

    def foot(self) -> Iterator[str]:
        yield from ()


def _csv(row: Row) -> str:
    return ",".join('"' + _plain(name, row[name]).replace('"', '""') + '"' for name in _ALL)


def _insert(row: Row) -> str:
    """Insert into llama-bench's table, with columns of dyno's own at its end: its compare script reads that."""
    values = ", ".join(_quoted(name, row[name]) for name in _ALL)
    return f"INSERT INTO llama_bench ({', '.join(_ALL)}) VALUES ({values});"


_ALL = {**FIELDS, **OWN}
_CREATE = (
    "CREATE TABLE IF NOT EXISTS llama_bench (",
    ",\n".join(f"  {name} {kind}" for name, kind in _ALL.items()),
    ");",
    "",
)
FORMATS: dict[str, Callable[[Sequence[TrialSpec]], Markdown | Json | _Lines]] = {
    "md": Markdown,
    "json": Json,
    "jsonl": lambda trials: _Lines(lambda row: "{" + ", ".join(_pairs(row)) + "}"),
    "csv": lambda trials: _Lines(_csv, [",".join(_ALL)]),
    "sql": lambda trials: _Lines(_insert, _CREATE),
}


def _cell(text: str, width: int) -> str:
    return text.rjust(width) if width > 0 else text.ljust(-width)


def _joined(cells: Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _shown(row: Row, column: str) -> str:
    if column in _SHOWN:
        return _SHOWN[column](row)
    value = row.get(column)
    # threads that llama.cpp chose itself; a knob that another engine doesn't have
    if value is None:
        return "auto" if _of_llama_bench(row["engine"]) else "-"
    return str(int(value) if isinstance(value, bool) else value)


def _size(n: int | None) -> str:
    if n is None:
        return "-"
    return f"{n / 2**20:.2f} MiB" if n < 2**30 else f"{n / 2**30:.2f} GiB"


def _parameters(n: int | None) -> str:
    if n is None:
        return "-"
    return f"{n / 1e6:.2f} M" if n < 1e9 else f"{n / 1e9:.2f} B"


def _speed(row: Row) -> str:
    return (
        "failed"
        if row["avg_ts"] is None
        else f"{row['avg_ts']:.2f} ± {row['stddev_ts']:.2f}"
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


# Columns that are made of other fields.
_SHOWN: dict[str, Callable[[Row], str]] = {
    "model": lambda row: str(row["model_type"]).replace("|", "\\|"),
    "size": lambda row: _size(row["model_size"]),
    "params": lambda row: _parameters(row["model_n_params"]),
    "backend": lambda row: str(row["backends"]),
    "test": lambda row: micro_name(row["n_prompt"], row["n_gen"], row["n_depth"]),
    "t/s": _speed,
    "% BW": lambda row: _percent(row["bandwidth_share"]),
    "% FLOPS": lambda row: _percent(row["flops_share"]),
}


def _of_llama_bench(engine: str) -> bool:
    """Return whether llama-bench measures it, whose table this is."""
    kind = KINDS.get(engine)
    return kind is not None and kind.has_llama_bench


def _build(row: Row) -> str:
    if _of_llama_bench(row["engine"]):
        return f"{row['build_commit']} ({row['build_number']})"
    return f"{row['engine']} {row['engine_version'] or 'unknown'}"


def _pairs(row: Row) -> Iterator[str]:
    """Yield each key as llama-bench writes it."""
    for name in (*FIELDS, *SAMPLES, *OWN):
        yield f'"{name}": {_json(name, row[name])}'


def _json(name: str, value: Any) -> str:
    if name in SAMPLES:
        return f"[ {', '.join(f'{v:.6g}' if isinstance(v, float) else str(v) for v in value)} ]"
    if isinstance(value, float) and name in FIELDS:
        return f"{value:.6f}"
    return json.dumps(value, ensure_ascii=False)


def _quoted(name: str, value: Any) -> str:
    return "NULL" if value is None else "'" + _plain(name, value).replace("'", "''") + "'"


def _plain(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name == "findings":
        return " ".join(f["code"] for f in value)
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:.6f}" if isinstance(value, float) else str(value)
