"""Is the figure possible on this machine?"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from dyno.checks.evidence import Circumstances
from dyno.facts.finding import Finding, doubt, note, void
from dyno.facts.imported import Row
from dyno.facts.rig import Peaks, Roofline
from dyno.measure.points import (
    LEAST,
    bytes_each,
    input_each,
    locations,
    named,
    requests_per_s,
    subject,
)
from dyno.numbers import number, percent

ROUNDING = 0.02  # of a data sheet's figures
BOOST = 0.1  # clocks above those of the data sheet
UNSURE = 0.15  # a measured peak may be too low by that, on a busy machine
FAR_BELOW, ALONE = 0.05, 1.5  # of the peaks; requests in a step
PeaksOf = Callable[[str, int], Peaks | None]  # by an accelerator's name and their number
ABOVE, FAR = 1.05, 0.1
LONG, FEW = 2_000, 4  # tokens of a prompt; requests at once
_DEVICES = re.compile(
    r"\b(\d{1,2})\s?[x×]\s?(?:AMD |NVIDIA |Nvidia )?(?:Instinct )?((?:RTX )?[A-Z]{0,2}i?\d{2,4}[A-Za-z]{0,2})\b"
)
_MODELS = re.compile(r"\b([A-Z][A-Za-z]{2,12}[- ]?\d?(?:\.\d)?[- ]\d{1,4}B)")


def roofline(e: Circumstances) -> Iterator[Finding]:
    if e.roofline is not None:
        yield from _above(e.roofline)
        yield from _far_below(e.roofline)


def _above(roof: Roofline) -> Iterator[Finding]:
    """Yield a finding if lower bounds are above the peaks: the least that is read, the fastest arithmetic."""
    peaks = roof.peaks
    above, highest = [], 0.0
    for share in roof.shares:
        for what, value, more in (
            ("memory bandwidth", share.bandwidth_least, ROUNDING),
            ("arithmetic", share.arithmetic, BOOST),
        ):
            limit = 1.0 if peaks.measured else 1.0 + more
            if value is not None and value > limit:
                above.append(
                    f"{share.what} needs {percent(value)} of its {what} ({share.about})"
                )
                highest = max(highest, value)
    if not above:
        return
    text = f"More than {peaks.name} can do: {'; '.join(above)}."
    if not peaks.measured:
        yield void("physics.above_roofline", text)
        return
    advice = "The measured peak may be too low: repeat `dyno doctor --measure-peaks` on an idle machine."
    if highest > 1 + UNSURE:
        advice = f"Find out why: another model or quantization, cached prompts, or miscounted tokens. {advice}"
        yield void("physics.above_roofline", text, advice)
    else:
        yield doubt("physics.above_roofline", text, advice)


def _far_below(roof: Roofline) -> Iterator[Finding]:
    """A single stream should come near the bandwidth, or something else was measured."""
    decode = next((s for s in roof.shares if s.what == "decode"), None)
    if (
        roof.peaks.measured
        or decode is None
        or decode.streams is None
        or decode.streams > ALONE
    ):
        return
    bandwidth, arithmetic, count = decode.bandwidth, decode.arithmetic, roof.peaks.count
    # Layers that are spread over several accelerators work one after another.
    if (
        bandwidth is not None
        and arithmetic is not None
        and count * max(bandwidth, arithmetic) < FAR_BELOW
    ):
        text = (
            f"A single request used {percent(bandwidth)} of the memory bandwidth of {roof.peaks.name} and "
            f"{percent(arithmetic)} of its arithmetic ({decode.about})."
        )
        yield note("physics.far_below", text)


class Named(NamedTuple):
    """The one model or machine that a report's title names."""

    model: str | None = None
    accelerator: str | None = None
    accelerators: int | None = None


def titled(titles: Sequence[str]) -> Named:
    """Return the model and the machine that titles name, each if there is only one."""
    devices = {(int(n), name) for t in titles for n, name in _DEVICES.findall(t)}
    models = {name for t in titles for name in _MODELS.findall(t)}
    count, device = devices.pop() if len(devices) == 1 else (None, None)
    return Named(models.pop() if len(models) == 1 else None, device, count)


class Machines(NamedTuple):
    """Rows, and what is known of the machines that they were measured on."""

    rows: Sequence[Row]
    peaks_of: PeaksOf
    title: Named = Named()


def roofline_rows(known: Machines) -> Iterator[Finding]:
    """Judge rows by their own accelerator or the title's. By the title alone only `far_below` is judged: a row may
    belong to something else."""
    for row in known.rows:
        if row.kind == "quality":
            continue
        machine = _machine(row, known.title)
        peaks = known.peaks_of(*machine) if machine is not None else None
        if peaks is not None:
            yield from _judge(row, peaks, known.title.model)


def _machine(row: Row, title: Named) -> tuple[str, int] | None:
    """Return a row's accelerator and their number, from the title where the row has none."""
    own = row.setting("accelerator")
    name = own or title.accelerator
    if name is None:
        return None
    count = row.number("accelerators") or row.number("tensor_parallel")
    if not count and own is None:
        count = title.accelerators
    return str(name), int(count or 1)


def _judge(row: Row, peaks: Peaks, title: str | None) -> Iterator[Finding]:
    """Yield findings if a row is above the peaks of its machine, or far below. `title`: the model that it names."""
    model = _model(row, title)
    parameters, weights, dense = _weights(row, model)
    # With experts the bytes read are unknown.
    if parameters is None or weights is None or not dense or row.setting("speculative"):
        return
    bandwidth = _of_bandwidth(row, weights, peaks)
    may_be_above = (
        [bandwidth, _of_arithmetic(row, parameters, peaks)] if _names_both(row) else []
    )
    may_be_below = [bandwidth] if _reads_weights_only(row, model) else []
    may_be_below.append(_prompt(row, parameters, peaks))
    machine = f"{peaks.count} × {peaks.name}"
    for share in may_be_above:
        if share is not None and share.share > ABOVE:
            text = f"{subject(row)}: more than {machine} can do: {share.text}."
            yield void(
                "physics.above_roofline", text, locations=locations([row], share.figure)
            )
    for share in may_be_below:
        if share is not None and share.share < FAR:
            text = f"{subject(row)}: {share.text} of {machine}."
            yield note("physics.far_below", text, locations=locations([row], share.figure))


def _model(row: Row, title: str | None) -> str:
    """Return a row's model, or the title's where the row doesn't say how large it is."""
    model = str(row.setting("model") or row.label or "")
    if title and named(model).billions is None and not row.number("parameters"):
        return title
    return model


def _names_both(row: Row) -> bool:
    """Return whether the row itself names its accelerator and its model: else the bytes read are uncertain."""
    return row.setting("accelerator") is not None and bool(
        row.setting("model") or row.number("parameters")
    )


def _reads_weights_only(row: Row, model: str) -> bool:
    """Return whether a step does little more than read the weights, and their size is known."""
    return _few(row) and _weights_known(row, model)


class _Share(NamedTuple):
    """The part of a peak that a figure needs."""

    share: float
    text: str
    figure: str


def _of_bandwidth(row: Row, weights: float, peaks: Peaks) -> _Share | None:
    """Return the part of the memory bandwidth that decoding needs."""
    step_s, name = _step(row)
    if not step_s:
        return None
    share = weights / step_s / peaks.bandwidth
    text = f"{number(weights / 1e9)} GB of weights every {number(step_s * 1000)} ms"
    return _Share(share, f"{text} need {percent(share)} of the memory bandwidth", name)


def _of_arithmetic(row: Row, parameters: float, peaks: Peaks) -> _Share | None:
    """Return the part of the fastest arithmetic that all tokens need."""
    work = _tokens_per_s(row)
    if not work or not peaks.flops:
        return None
    share = 2 * parameters * work[0] / max(peaks.flops.values())
    text = f"{number(work[0])} tokens/s with {parameters / 1e9:,.0f} B parameters"
    return _Share(share, f"{text} need {percent(share)} of the arithmetic", work[1])


def _weights_known(row: Row, model: str) -> bool:
    return (
        bytes_each(
            row.setting("quantization"), row.setting("dtype"), f"{model} {row.series}"
        )
        > LEAST
    )


def _prompt(row: Row, parameters: float, peaks: Peaks) -> _Share | None:
    """Return the part of the arithmetic that a long prompt by itself uses: it should keep it busy."""
    read, first = input_each(row), row.get("mean_ttft_ms")
    alone = row.get("completed") == 1 or row.number("concurrency") == 1
    if row.kind != "serve" or not (alone and read and first) or read < LONG:
        return None
    flops = (
        peaks.flops.get("bf16")
        or peaks.flops.get("fp16")
        or max(peaks.flops.values(), default=0.0)
    )
    if not flops:
        return None
    share = 2 * parameters * read / (first / 1000) / flops
    text = f"a prompt of {read:,.0f} tokens took {number(first / 1000)} s, {percent(share)} of the 16-bit arithmetic"
    return _Share(share, text, "mean_ttft_ms")


def _weights(row: Row, name: str) -> tuple[float | None, float | None, bool | None]:
    """Return the parameters, the least bytes that they take, and whether each token reads them all."""
    model = named(name)
    parameters = row.number("parameters") or (
        model.billions * 1e9 if model.billions else None
    )
    size = row.number("model_bytes")
    if parameters is None:
        return None, None, model.dense
    each = bytes_each(
        row.setting("quantization"), row.setting("dtype"), f"{name} {row.series}"
    )
    return parameters, size or parameters * each, model.dense


def _step(row: Row) -> tuple[float | None, str]:
    """Return the longest time that a decoding step can have taken, and the figure it comes from."""
    if row.kind == "micro":
        speed = row.get("speed")
        if speed and str(row.setting("test") or "").startswith("tg"):
            return 1 / speed, "speed"
        return None, ""
    if row.kind in ("throughput", "latency"):
        latency, length = (
            row.get("mean_latency_ms") or (row.get("duration_s") or 0) * 1000,
            row.number("output_len"),
        )
        if latency and length:
            return latency / 1000 / length, "mean_latency_ms"
    for name in ("median_tpot_ms", "mean_tpot_ms"):
        figure = row.figures.get(name)
        if figure is None or figure.value <= 0:
            continue
        if figure.definition.partition(".")[0] in ("vllm", "sglang", "dyno"):
            return (figure.value + figure.half) / 1000, name
    return None, ""


def _tokens_per_s(row: Row) -> tuple[float, str] | None:
    """Return the tokens per second that were all processed, and the figure that says so."""
    if row.kind == "micro":
        test, speed = str(row.setting("test") or ""), row.get("speed")
        return (
            (speed, "speed")
            if test.startswith("pp") and speed and "+" not in test
            else None
        )
    total = row.get("total_token_throughput")
    return (
        (total, "total_token_throughput")
        if total and row.setting("prefix_caching") is not True
        else None
    )


def _few(row: Row) -> bool:
    """Return whether few requests ran at once."""
    if row.kind == "micro":
        return True
    asked = row.number("concurrency") or row.number("batch_size")
    if asked and asked <= FEW:
        return True
    rps, e2el = requests_per_s(row), row.get("mean_e2el_ms")
    return bool(rps and e2el and rps * e2el / 1000 < 1.5)
