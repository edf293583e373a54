"""The list of findings, made from the lists of checks."""

from dyno.audit.audit import REPORT_CHECKS
from dyno.checks import CHECKS, FindingGuide

ALL = (*CHECKS, *REPORT_CHECKS)
_PLACES = {
    "server": "runs", "offline": "runs", "quality": "runs", "run": "runs", "rig": "runs", "host": "runs",
    "repeats": "studies", "row": "results", "any_row": "results", "rows": "results", "roofline": "results",
    "duplicates": "results", "pair": "comparisons", "documents": "documents",
}  # fmt: skip


def reference() -> list[tuple[str, FindingGuide, str]]:
    """Each code with what is said about it, and where it is found: runs, results, comparisons, documents."""
    rows = []
    for check in ALL:
        places = dict.fromkeys(_PLACES[need] for need in check.judges)
        for code, about in check.about.items():
            family = "comparisons" if code.startswith("comparability.") else "studies"
            rows.append((code, about, ", ".join(places) or family))
    order = list(dict.fromkeys(code.partition(".")[0] for code, _, _ in rows))
    return sorted(rows, key=lambda row: order.index(row[0].partition(".")[0]))
