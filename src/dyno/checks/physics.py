"""Is the figure possible on this machine?"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from dyno.checks.evidence import Circumstances
from dyno.facts.finding import Finding, note, void
from dyno.facts.imported import Row
from dyno.facts.rig import Peaks, Roofline
from dyno.measure.points import LEAST, bytes_each, input_each, locations, named, requests_per_s, subject
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
    """Uses lower bounds only: the least that is read, the fastest arithmetic."""
    peaks = roof.peaks
    above, highest = [], 0.0
    for share in roof.shares:
        for what, value, more in (
            ("memory bandwidth", share.bandwidth_least, ROUNDING),
            ("arithmetic", share.arithmetic, BOOST),
        ):
            if value is not None and value > (1.0 if peaks.measured else 1.0 + more):
                above.append(f"{share.what} needs {percent(value)} of its {what} ({share.about})")
                highest = max(highest, value)
    if above:
        certain, advice = not peaks.measured or highest > 1 + UNSURE, ""
        if peaks.measured:
            advice = "The measured peak may be too low: repeat `dyno doctor --measure-peaks` on an idle machine."
        if peaks.measured and certain:
            advice = f"Find out why: another model or quantization, cached prompts, or miscounted tokens. {advice}"
        text = f"More than {peaks.name} can do: {'; '.join(above)}."
        yield Finding("physics.above_roofline", "void" if certain else "doubt", text, advice)


def _far_below(roof: Roofline) -> Iterator[Finding]:
    """A single stream should come near the bandwidth, or something else was measured."""
    decode = next((s for s in roof.shares if s.what == "decode"), None)
    if roof.peaks.measured or decode is None or decode.streams is None or decode.streams > ALONE:
        return
    bandwidth, arithmetic, count = decode.bandwidth, decode.arithmetic, roof.peaks.count
    # Layers that are spread over several accelerators work one after another.
    if bandwidth is not None and arithmetic is not None and count * max(bandwidth, arithmetic) < FAR_BELOW:
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
    """By the title alone only `far_below` is judged: a row may belong to something else."""
    rows, peaks_of, title = known
    for row in rows:
        accelerator = row.setting("accelerator") or title.accelerator
        if accelerator is None or row.kind == "quality":
            continue
        own = row.setting("accelerator") is not None
        given = row.number("accelerators") or row.number("tensor_parallel")
        count = int(given or (1 if own else title.accelerators or 1))
        peaks = peaks_of(str(accelerator), count)
        if peaks is not None:
            certain = own and bool(row.setting("model") or row.number("parameters"))
            yield from _judge(row, peaks, str(row.setting("model") or row.label or ""), certain, title.model)


def _judge(row: Row, peaks: Peaks, model: str, certain: bool, title: str | None) -> Iterator[Finding]:
    if named(model).billions is None and not row.number("parameters") and title:
        model = title
    parameters, weights, dense = _weights(row, model)
    if parameters is None or weights is None or row.setting("speculative"):
        return
    shares: list[tuple[float, str, str]] = []
    step_s, name = _step(row)
    if step_s:
        share = weights / step_s / peaks.bandwidth
        text = f"{number(weights / 1e9)} GB of weights every {number(step_s * 1000)} ms"
        shares.append((share, f"{text} need {percent(share)} of the memory bandwidth", name))
    work = _tokens_per_s(row)
    if work and peaks.flops:
        share = 2 * parameters * work[0] / max(peaks.flops.values())
        text = f"{number(work[0])} tokens/s with {parameters / 1e9:,.0f} B parameters"
        shares.append((share, f"{text} need {percent(share)} of the arithmetic", work[1]))
    for share, text, name in shares:
        if share > ABOVE and dense and certain:  # with experts, or of an unknown model, the bytes read are unknown
            text = f"{subject(row)}: more than {peaks.count} × {peaks.name} can do: {text}."
            yield void("physics.above_roofline", text, locations=locations([row], name))
    low = [t for t in shares if "bandwidth" in t[1] and t[0] < FAR and _few(row) and _weights_known(row, model)]
    if prompt := _prompt(row, parameters, peaks):
        low.append(prompt)
    for _, text, name in low if dense else []:
        text = f"{subject(row)}: {text} of {peaks.count} × {peaks.name}."
        yield note("physics.far_below", text, locations=locations([row], name))


def _weights_known(row: Row, model: str) -> bool:
    return bytes_each(row.setting("quantization"), row.setting("dtype"), f"{model} {row.series}") > LEAST


def _prompt(row: Row, parameters: float, peaks: Peaks) -> tuple[float, str, str] | None:
    """A long prompt by itself should keep the arithmetic busy."""
    read, first = input_each(row), row.get("mean_ttft_ms")
    alone = row.get("completed") == 1 or row.number("concurrency") == 1
    if row.kind != "serve" or not (alone and read and first) or read < LONG:
        return None
    flops = peaks.flops.get("bf16") or peaks.flops.get("fp16") or max(peaks.flops.values(), default=0.0)
    share = 2 * parameters * read / (first / 1000) / flops if flops else 1.0
    text = f"a prompt of {read:,.0f} tokens took {number(first / 1000)} s, {percent(share)} of the 16-bit arithmetic"
    return (share, text, "mean_ttft_ms") if share < FAR else None


def _weights(row: Row, name: str) -> tuple[float | None, float | None, bool | None]:
    """Return the parameters, the least bytes that they take, and whether each token reads them all."""
    model = named(name)
    parameters = row.number("parameters") or (model.billions * 1e9 if model.billions else None)
    size = row.number("model_bytes")
    if parameters is None:
        return None, None, model.dense
    each = bytes_each(row.setting("quantization"), row.setting("dtype"), f"{name} {row.series}")
    return parameters, size or parameters * each, model.dense


def _step(row: Row) -> tuple[float | None, str]:
    """Return the longest time that a decoding step can have taken, and the figure it comes from."""
    if row.kind == "micro":
        test, speed = str(row.setting("test") or ""), row.get("speed")
        return (1 / speed, "speed") if test.startswith("tg") and speed else (None, "")
    latency, length = row.get("mean_latency_ms") or (row.get("duration_s") or 0) * 1000, row.number("output_len")
    if row.kind in ("throughput", "latency") and latency and length:
        return latency / 1000 / length, "mean_latency_ms"
    for name in ("median_tpot_ms", "mean_tpot_ms"):
        figure = row.figures.get(name)
        if (
            figure is not None
            and figure.value > 0
            and figure.definition.partition(".")[0] in ("vllm", "sglang", "dyno")
        ):
            return (figure.value + figure.half) / 1000, name
    return None, ""


def _tokens_per_s(row: Row) -> tuple[float, str] | None:
    if row.kind == "micro":
        test, speed = str(row.setting("test") or ""), row.get("speed")
        return (speed, "speed") if test.startswith("pp") and speed and "+" not in test else None
    total = row.get("total_token_throughput")
    return (total, "total_token_throughput") if total and row.setting("prefix_caching") is not True else None


def _few(row: Row) -> bool:
    """Few requests ran at once: then a step does little more than read the weights."""
    rps, e2el = requests_per_s(row), row.get("mean_e2el_ms")
    asked = row.number("concurrency") or row.number("batch_size")
    return row.kind == "micro" or (asked or FEW + 1) <= FEW or bool(rps and e2el and rps * e2el / 1000 < 1.5)
