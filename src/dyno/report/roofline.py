"""The roofline in a few printed lines. What isn't known has no line."""

from textwrap import wrap

from dyno.facts.roofline import Peaks, Roofline
from dyno.units import human_bytes


def lines(r: Roofline) -> list[tuple[str, str]]:
    """Label and value of each."""
    out = []
    for share in r.shares:
        for what, value in (("memory bandwidth", share.bandwidth), ("arithmetic", share.arithmetic)):
            if value is not None:
                out.append((f"Share of {what} ({share.what}):", f"{value:.1%}".replace("%", " %")))
    return [*out, ("  Peaks:", short(r.peaks, r.precision))] if out else []


def short(peaks: Peaks, precision: str) -> str:
    count = f"{peaks.count} × " if peaks.count > 1 else ""
    flops = f"{peaks.flops[precision] / 1e12:,.4g} T/s in {precision}"
    return f"{count}{peaks.name}: {peaks.bandwidth / 1e9:,.4g} GB/s, {flops}"


def peak_lines(peaks: Peaks) -> list[str]:
    """All that is known of them, for the doctor."""
    count = f"{peaks.count} × " if peaks.count > 1 else ""
    out = [f"{count}{peaks.name}"]
    if peaks.bandwidth_by_size:
        sizes = [f"{n >> 20} MiB {rate / 1e9:,.4g}" for n, rate in peaks.bandwidth_by_size.items()]
        told = f"bandwidth (GB/s) by what is read again and again: {', '.join(sizes)}"
        out += wrap(told, 100, initial_indent="  ", subsequent_indent="    ")
    else:
        cache = f", last cache {human_bytes(peaks.cache_bytes)}" if peaks.cache_bytes else ""
        out.append(f"  bandwidth {peaks.bandwidth / 1e9:,.4g} GB/s{cache}")
    flops = [f"{precision} {rate / 1e12:,.4g}" for precision, rate in peaks.flops.items()]
    out.append(f"  arithmetic (T operations/s): {', '.join(flops)}")
    return [*out, *wrap(peaks.source, 100, initial_indent="  ", subsequent_indent="    ")]
