"""Is the figure possible on this machine, and is it of this machine?"""

from collections.abc import Iterator

from dyno.checks.evidence import Circumstances
from dyno.facts.finding import Finding
from dyno.facts.roofline import Share

ROUNDING = 0.02  # of a data sheet's figures
BOOST = 0.1  # clocks above those for which a sheet tells the arithmetic
UNSURE = 0.15  # a measured peak may be too low by that, on a busy machine
FAR_BELOW, ALONE = 0.05, 1.5  # of the peaks; requests in a step


def above_roofline(e: Circumstances) -> Iterator[Finding]:
    """By what can't be otherwise: the least that is read, the fastest way to reckon."""
    if e.roofline is None:
        return
    peaks = e.roofline.peaks
    told, highest = [], 0.0
    for share in e.roofline.shares:
        for what, value, more in (
            ("memory bandwidth", share.bandwidth_least, ROUNDING),
            ("arithmetic", share.arithmetic, BOOST),
        ):
            if value is not None and value > (1.0 if peaks.measured else 1.0 + more):
                told.append(f"{share.what} amounts to {value:.0%} of the {what} ({share.about})")
                highest = max(highest, value)
    if told:
        certain = not peaks.measured or highest > 1 + UNSURE
        yield Finding(
            "physics.above_roofline",
            "void" if certain else "doubt",
            f"More than {peaks.name} can do: {'; '.join(told)}.",
            "The tokens weren't made as it is said: another model or quantization, prompts from a cache, answers held "
            "back and sent at once, fewer tokens than counted. Find out which before the figure is used."
            + (" Or the peak, measured here, is far too low: `dyno doctor --measure-peaks`." if peaks.measured else "")
            if certain
            else "The peak was measured here and may be too low. Measure it anew on an idle machine: `dyno doctor "
            "--measure-peaks`.",
        )


def far_below(e: Circumstances) -> Iterator[Finding]:
    """A single stream should come near the bandwidth, or something else was measured."""
    if e.roofline is None or e.roofline.peaks.measured:
        return
    decode = next((s for s in e.roofline.shares if s.what == "decode"), None)
    if decode is None or not _alone(decode):
        return
    bandwidth, arithmetic, count = decode.bandwidth, decode.arithmetic, e.roofline.peaks.count
    # Layers that are spread over several accelerators work one after another.
    if bandwidth is not None and arithmetic is not None and count * max(bandwidth, arithmetic) < FAR_BELOW:
        yield Finding(
            "physics.far_below",
            "note",
            f"A single stream used {bandwidth:.1%} of the memory bandwidth of {e.roofline.peaks.name} and "
            f"{arithmetic:.1%} of its arithmetic ({decode.about}).",
            "Something else was measured, perhaps: weights on the processor's side, a slow path of the engine, the "
            "network, the client. Look at the engine's log.",
        )


def _alone(share: Share) -> bool:
    return share.streams is not None and share.streams <= ALONE
