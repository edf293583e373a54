"""What `dyno audit` finds in five public reports, held against what is known to be wrong with them.

Of the figures in published/ always; of the reports themselves, with their authors' words, where they are at hand
(DYNO_REPORTS, or ../shared/reports beside the project). `UPDATE_GOLDEN=1` writes the golden files anew.
"""

import os
from pathlib import Path

import pytest

from dyno.audit.audit import Audit, audit
from dyno.audit.document import read
from dyno.audit.printed import normal
from dyno.facts.imported import Document
from dyno.measure.cost import choose
from dyno.probe.peaks import of_name
from dyno.store.imports import load
from dyno.study.prices import about
from dyno.study.prices import read as read_prices

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parents[1] / "golden" / "audits"
REPORTS = Path(os.environ.get("DYNO_REPORTS", ROOT.parent / "shared" / "reports"))
NAMES = sorted(p.name for p in (ROOT / "published").iterdir() if p.is_dir())


def answered(found: Audit) -> str:
    """Verdict, then level, code and lines of each finding."""
    lines = sorted(
        f"{f.level} {f.code} {' '.join(f.locations)}".rstrip() for f in found.findings
    )
    return "\n".join([found.verdict, *lines]) + "\n"


def golden(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def published(name: str) -> list[Document]:
    return [load(path) for path in sorted((ROOT / "published" / name).glob("*.json"))]


def reported(name: str) -> list[Document]:
    """The same files, as they were published."""
    found = []
    for document in published(name):
        path = next(
            (
                p
                for p in (REPORTS / document.file, REPORTS / "data" / document.file)
                if p.exists()
            ),
            None,
        )
        if path is None:
            pytest.skip(f"{document.file} is not in {REPORTS}")
        found.append(read(path))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_figures_have_their_known_findings(name: str) -> None:
    golden(f"{name}.figures", answered(audit(published(name), of_name)))


@pytest.mark.parametrize("name", NAMES)
def test_the_reports_have_their_known_findings(name: str) -> None:
    golden(f"{name}.report", answered(audit(reported(name), of_name)))


@pytest.mark.parametrize("name", NAMES)
def test_the_published_figures_are_those_of_the_reports(name: str) -> None:
    for ours, theirs in zip(published(name), reported(name), strict=True):
        assert [(r.line, r.figures) for r in ours.rows] == [
            (r.line, r.figures) for r in theirs.rows
        ]


def codes(name: str) -> set[str]:
    return {f.code for f in audit(published(name), of_name).findings}


# What the reports' readers must learn, by the number of the defect in each.
KNOWN = {
    "h100-mi300x-llama-405b": {
        "requests.empty", "requests.zeros_in_mean", "comparability.work_differs", "load.rate_not_reached",
        "consistency.mean_tpot", "consistency.sums", "comparability.multiplied", "consistency.two_runs",
    },
    "mi300x-llama-405b-tgi-vllm": {"requests.failed", "load.queue", "load.saturated", "load.fell",
        "comparability.loads_differ"},
    "strix-halo-vllm-llamacpp": {
        "requests.failed", "comparability.success_differs", "comparability.work_differs", "consistency.twins",
        "comparability.model_differs", "cache.warm", "consistency.bold", "statistics.few_samples",
    },
    "mi300x-llama-70b-vllm": {"load.slots", "consistency.mean_tpot", "consistency.command",
        "statistics.ramp_and_drain"},
    "mi300x-vllm-fp8-procedure": {"statistics.within_error", "comparability.quality_elsewhere"},
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_known_defects_are_among_the_findings(name: str) -> None:
    assert KNOWN[name] <= codes(name)


def test_rows_that_are_sound_are_not_doubted() -> None:
    # Of the log on MI300X, tokens by duration close in all nine blocks, prompts are the same, samples enough.
    assert not codes("mi300x-llama-70b-vllm") & {
        "consistency.sums", "comparability.work_differs", "requests.failed", "statistics.few_samples",
        "consistency.percentiles",
        "consistency.twins", "cache.warm", "physics.above_roofline",
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_what_the_files_report_stays_and_the_rest_is_reported_by_user(name: str) -> None:
    for ours, theirs in zip(published(name), reported(name), strict=True):
        for mine, read_now in zip(ours.rows, theirs.rows, strict=True):
            assert {
                k: s for k, s in mine.settings.items() if s.by != "user"
            } == read_now.settings, mine.location


@pytest.mark.parametrize("name", NAMES)
def test_each_result_reports_its_engine_and_its_accelerators(name: str) -> None:
    for document in published(name):
        for row in document.rows:
            assert all(
                row.setting(n) for n in ("engine", "model", "accelerator", "accelerators")
            ), row.location


@pytest.mark.parametrize("name", NAMES)
def test_each_folder_says_what_it_is_and_has_a_price(name: str) -> None:
    answered = about(ROOT / "published" / name)
    assert answered.title and answered.about and answered.source
    rules = read_prices(ROOT / "published" / "prices.toml")
    for document in published(name):
        for row in document.rows:
            assert choose(rules, str(row.setting("accelerator"))) is not None, row.location


def test_the_prices_are_those_of_the_authors_own_file() -> None:
    rules = read_prices(ROOT / "published" / "prices.toml")
    (curve,) = [
        d for d in published("h100-mi300x-llama-405b") if d.file.endswith("curve.csv")
    ]
    for row in curve.rows:
        ours = normal(row, rules)
        assert ours.cost_per_million == pytest.approx(
            row.get("cost_per_million_tokens"), rel=1e-6
        ), row.location
        assert ours.price_per_hour == pytest.approx(row.number("price_per_hour"))
