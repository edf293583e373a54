"""Is a figure possible on the machine that is named? By the model's name alone, so only what can't be otherwise."""

from collections.abc import Callable, Iterator, Sequence

from dyno.facts.finding import Finding
from dyno.facts.imported import Row
from dyno.facts.roofline import Peaks
from dyno.measure.model_name import LEAST, bytes_each, named
from dyno.measure.points import at, requests_per_s, subject

PeaksOf = Callable[[str, int], Peaks | None]  # by an accelerator's name and their number
ABOVE, FAR = 1.05, 0.1


def roofline(rows: Sequence[Row], peaks_of: PeaksOf) -> Iterator[Finding]:
    for row in rows:
        accelerator = row.told("accelerator")
        if accelerator is None or row.kind == "quality":
            continue
        count = int(row.number("accelerators") or row.number("tensor_parallel") or 1)
        peaks = peaks_of(str(accelerator), count)
        if peaks is not None:
            yield from _above(row, peaks)


def _above(row: Row, peaks: Peaks) -> Iterator[Finding]:
    parameters, weights, dense = _weights(row)
    if parameters is None or weights is None or row.told("speculative"):
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
        if share > ABOVE and dense:  # of a model with experts, or an unknown one, nobody knows what is read
            yield Finding(
                "physics.above_roofline",
                "void",
                f"More than {peaks.count} × {peaks.name} can do: {text} ({subject(row)}).",
                "Another model or quantization was served, prompts came from a cache, or tokens were counted wrongly.",
                at([row], name),
            )
    bandwidth = [s for s in told if "bandwidth" in s[1]]
    if bandwidth and dense and bandwidth[0][0] < FAR and _alone(row) and bytes_each(
        row.told("quantization"), row.told("dtype"), str(row.told("model") or "")) > LEAST:  # fmt: skip
        yield Finding(
            "physics.far_below",
            "note",
            f"{subject(row)}: {bandwidth[0][1]} of {peaks.count} × {peaks.name}.",
            "Something else was measured, perhaps: a slow path of the engine, the network, the client.",
            at([row], bandwidth[0][2]),
        )


def _weights(row: Row) -> tuple[float | None, float | None, bool | None]:
    """Parameters, bytes of them at least, and whether all are read for each token."""
    model = named(str(row.told("model") or row.label or ""))
    parameters = row.number("parameters") or (model.billions * 1e9 if model.billions else None)
    size = row.number("model_bytes")
    if parameters is None:
        return None, None, model.dense
    each = bytes_each(row.told("quantization"), row.told("dtype"), str(row.told("model") or row.label))
    return parameters, size or parameters * each, model.dense


def _step(row: Row) -> tuple[float | None, str]:
    """Seconds of a decoding step, at most: every token of a request needs one."""
    if row.kind == "micro":
        test, speed = str(row.told("test") or ""), row.get("speed")
        return (1 / speed, "speed") if test.startswith("tg") and speed else (None, "")
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
        test, speed = str(row.told("test") or ""), row.get("speed")
        return (speed, "speed") if test.startswith("pp") and speed and "+" not in test else None
    total = row.get("total_token_throughput")
    return (total, "total_token_throughput") if total and row.told("prefix_caching") is not True else None


def _alone(row: Row) -> bool:
    rps, e2el = requests_per_s(row), row.get("mean_e2el_ms")
    asked = row.number("concurrency") or row.number("batch_size")
    return row.kind == "micro" or asked == 1 or bool(rps and e2el and rps * e2el / 1000 < 1.5)
