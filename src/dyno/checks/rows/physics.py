"""Is a figure possible on the machine that is named? By the model's name alone, so only what can't be otherwise."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from dyno.facts.finding import Finding
from dyno.facts.imported import Row
from dyno.facts.roofline import Peaks
from dyno.measure.model_name import LEAST, bytes_each, named
from dyno.measure.points import at, input_each, requests_per_s, subject

PeaksOf = Callable[[str, int], Peaks | None]  # by an accelerator's name and their number
ABOVE, FAR = 1.05, 0.1
LONG, FEW = 2_000, 4  # tokens of a prompt; requests at once
_DEVICES = re.compile(
    r"\b(\d{1,2})\s?[x×]\s?(?:AMD |NVIDIA |Nvidia )?(?:Instinct )?((?:RTX )?[A-Z]{0,2}i?\d{2,4}[A-Za-z]{0,2})\b"
)
_MODELS = re.compile(r"\b([A-Z][A-Za-z]{2,12}[- ]?\d?(?:\.\d)?[- ]\d{1,4}B)")


class Named(NamedTuple):
    """What a report's title says that all is of, where it names one alone."""

    model: str | None = None
    accelerator: str | None = None
    accelerators: int | None = None


NOTHING = Named()


def titled(titles: Sequence[str]) -> Named:
    devices = {(int(n), name) for t in titles for n, name in _DEVICES.findall(t)}
    models = {name for t in titles for name in _MODELS.findall(t)}
    count, device = devices.pop() if len(devices) == 1 else (None, None)
    return Named(models.pop() if len(models) == 1 else None, device, count)


def roofline(rows: Sequence[Row], peaks_of: PeaksOf, title: Named = NOTHING) -> Iterator[Finding]:
    """By `title` only what lies far below is said: it may be of something else."""
    for row in rows:
        accelerator = row.setting("accelerator") or title.accelerator
        if accelerator is None or row.kind == "quality":
            continue
        own = row.setting("accelerator") is not None
        told = row.number("accelerators") or row.number("tensor_parallel")
        count = int(told or (1 if own else title.accelerators or 1))
        peaks = peaks_of(str(accelerator), count)
        if peaks is not None:
            certain = own and bool(row.setting("model") or row.number("parameters"))
            yield from _held(row, peaks, str(row.setting("model") or row.label or ""), certain, title.model)


def _held(row: Row, peaks: Peaks, model: str, certain: bool, title: str | None) -> Iterator[Finding]:
    if named(model).billions is None and not row.number("parameters") and title:
        model = title
    parameters, weights, dense = _weights(row, model)
    if parameters is None or weights is None or row.setting("speculative"):
        return
    told: list[tuple[float, str, str]] = []
    step_s, name = _step(row)
    if step_s:
        share = weights / step_s / peaks.bandwidth
        told.append((share, f"a token every {step_s * 1000:,.2f} ms reads {weights / 1e9:,.1f} GB of weights, "
                            f"{share:.0%} of the memory bandwidth", name))  # fmt: skip
    work = _tokens_per_s(row)
    if work and peaks.flops:
        share = 2 * parameters * work[0] / max(peaks.flops.values())
        told.append((share, f"{work[0]:,.0f} tokens/s with {parameters / 1e9:,.0f} B parameters are {share:.0%} of the "
                            "arithmetic", work[1]))  # fmt: skip
    for share, text, name in told:
        if share > ABOVE and dense and certain:  # of a model with experts, or an unknown one, nobody knows what is read
            yield Finding(
                "physics.above_roofline",
                "void",
                f"More than {peaks.count} × {peaks.name} can do: {text} ({subject(row)}).",
                "Another model or quantization was served, prompts came from a cache, or tokens were counted wrongly.",
                at([row], name),
            )
    low = [t for t in told if "bandwidth" in t[1] and t[0] < FAR and _few(row) and _told_weights(row, model)]
    if prompt := _prompt(row, parameters, peaks):
        low.append(prompt)
    for _, text, name in low if dense else []:
        yield Finding(
            "physics.far_below",
            "note",
            f"{subject(row)}: {text} of {peaks.count} × {peaks.name}.",
            "Something else was measured, perhaps: a slow path or setting of the engine, the network, the client.",
            at([row], name),
        )


def _told_weights(row: Row, model: str) -> bool:
    return bytes_each(row.setting("quantization"), row.setting("dtype"), f"{model} {row.series}") > LEAST


def _prompt(row: Row, parameters: float, peaks: Peaks) -> tuple[float, str, str] | None:
    """A long prompt by itself should keep the arithmetic busy."""
    read, first = input_each(row), row.get("mean_ttft_ms")
    alone = row.get("completed") == 1 or row.number("concurrency") == 1
    if row.kind != "serve" or not (alone and read and first) or read < LONG:
        return None
    flops = peaks.flops.get("bf16") or peaks.flops.get("fp16") or max(peaks.flops.values(), default=0.0)
    share = 2 * parameters * read / (first / 1000) / flops if flops else 1.0
    text = f"a prompt of {read:,.0f} tokens took {first / 1000:,.1f} s, {share:.1%} of the arithmetic (16 bit)"
    return (share, text, "mean_ttft_ms") if share < FAR else None


def _weights(row: Row, name: str) -> tuple[float | None, float | None, bool | None]:
    """Parameters, bytes of them at least, and whether all are read for each token."""
    model = named(name)
    parameters = row.number("parameters") or (model.billions * 1e9 if model.billions else None)
    size = row.number("model_bytes")
    if parameters is None:
        return None, None, model.dense
    each = bytes_each(row.setting("quantization"), row.setting("dtype"), f"{name} {row.series}")
    return parameters, size or parameters * each, model.dense


def _step(row: Row) -> tuple[float | None, str]:
    """Seconds of a decoding step, at most: every token of a request needs one."""
    if row.kind == "micro":
        test, speed = str(row.setting("test") or ""), row.get("speed")
        return (1 / speed, "speed") if test.startswith("tg") and speed else (None, "")
    latency, made = row.get("mean_latency_ms") or (row.get("duration_s") or 0) * 1000, row.number("output_len")
    if row.kind in ("throughput", "latency") and latency and made:
        return latency / 1000 / made, "mean_latency_ms"
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
    """Requests at once: with few, a step does little more than read the weights."""
    rps, e2el = requests_per_s(row), row.get("mean_e2el_ms")
    asked = row.number("concurrency") or row.number("batch_size")
    return row.kind == "micro" or (asked or FEW + 1) <= FEW or bool(rps and e2el and rps * e2el / 1000 < 1.5)
