"""Quality beside speed in a report: scores, losses against a reference, the front, and the sentence in its answer."""

import re

import msgspec

import reports
from dyno.facts.entry import Cost, Entry, Number
from dyno.facts.load import Load
from dyno.measure.paired import score_interval
from dyno.measure.points import load_of
from dyno.report import tables
from dyno.report.charts import charts
from dyno.report.conclusion import conclude
from dyno.report.front import front_sentences, with_quality
from dyno.report.text import csv
from rows import row
from test_scores import rows

# Right of 100 items of each of two tasks, output tokens/s, price of a million, and the weights.
SETTINGS = {
    "F16": (90, 100.0, 3.0, "F16"), "Q8_0": (90, 150.0, 2.0, "Q8_0"), "Q4_0": (87, 200.0, 1.5, "Q4_0"),
    "Q2_K": (40, 300.0, 1.0, "Q2_K"),
}  # fmt: skip


def scored(series: str, right: int, weights: str = "", ids: str = "q") -> list[Entry]:
    out = []
    for i, one in enumerate(rows(100 - right)):
        score, items = one.get("score") or 0.0, one.number("samples") or 0.0
        low, high = score_interval(score, items, one.get("stderr")) or (None, None)
        settings = {
            k: s.value
            for k, s in one.settings.items()
            if k not in ("quantization", "dtype", "model")
        }
        settings |= {"quantization": weights} if weights else {}
        out.append(Entry(f"{ids}{series}{i}", series, "quality", load_of(one), "sound", settings=settings, rows=[one],
                         figures={"score": Number(score, low, high)}))  # fmt: skip
    return out


def timed(series: str, speed: float, price: float = 0.0) -> Entry:
    load = Load({"concurrency": 8, "dataset": "random", "input_len": 32, "output_len": 32})
    return Entry(f"s{series}", series, "serve", load, "sound", figures={"output_throughput": Number(speed)},
                 rows=[row({"output_throughput": speed})],
                 cost=Cost("USD", 1.0, per_million_output=price) if price else None)  # fmt: skip


def entries(known: bool = True) -> list[Entry]:
    each = [(name, *facts) for name, facts in SETTINGS.items()]
    return [e for name, right, speed, price, weights in each
            for e in (timed(name, speed, price), *scored(name, right, weights if known else ""))]  # fmt: skip


def test_the_fastest_setting_without_a_detectable_loss_is_named() -> None:
    sentences = list(front_sentences(with_quality(entries(), {})))
    assert sentences[0].startswith(
        "The fastest setting with no detectable loss of quality is Q8_0 (150.0 output tokens/s at concurrency 8; score "
        "90 %, 0 pt against F16, 95 % interval "
    )
    # A loss of 3 points in the same direction on 6 items of 200 is beyond chance.
    assert re.fullmatch(
        r"Faster, but with a loss of quality: Q2_K \(300\.0 output tokens/s at concurrency 8, -50 pt against F16, 95 % "
        r"interval .* pt\); Q4_0 \(200\.0 output tokens/s at concurrency 8, -3 pt against F16, 95 % interval .* pt\)\.",
        sentences[1],
    )
    assert (
        sentences[2]
        == "The smallest detectable loss is 4.4 pt (200 items of all 2 tasks, exact_match, 0-shot)."
    )
    assert sentences[3:] == [
        "The reference for quality is F16: it has the highest precision."
    ]


def test_without_a_known_precision_the_best_score_is_the_reference() -> None:
    some = with_quality(entries(known=False), {})
    assert list(front_sentences(some))[-1] == (
        "The reference for quality is F16: it has the highest score, and no precision is known."
    )


def test_a_series_without_a_score_is_named_and_one_score_alone_has_no_front() -> None:
    some = with_quality([*entries(), timed("IQ1", 400.0)], {})
    assert list(front_sentences(some))[-1] == "Without a score: IQ1."
    assert not list(
        front_sentences(
            with_quality([timed("F16", 1.0), timed("Q8_0", 2.0), *scored("F16", 90)], {})
        )
    )
    assert with_quality([timed("F16", 1.0)], {}) == [timed("F16", 1.0)]


def test_the_answer_has_speed_and_quality_and_tables_the_columns() -> None:
    some = with_quality(entries(), {})
    words = conclude(some, [], [], {}, lambda row: None)
    assert words.answer[0].startswith(
        "The fastest setting with no detectable loss of quality is Q8_0"
    )
    assert (
        "Q2_K has the highest throughput: 300.0 output tokens/s at concurrency 8."
        in words.answer
    )
    assert (
        "3 runs and 4 results" in words.compared and "with 32 in, 32 out" in words.compared
    )
    report = reports.of(some, best=[])
    serving, quality = tables.results(report)
    titles = [c.title for c in serving.columns]
    assert titles[-4:] == ["output tok/s", "score", "against F16", "detectable"]
    last = dict(zip(titles, serving.lines[-1].cells, strict=True))
    assert (last["score"].text, last["against F16"].text) == ("40 %", "-50 pt")
    assert last["against F16"].interval.endswith("worse") and last[
        "detectable"
    ].text.endswith(" pt")
    by_task = {
        (line.series, line.cells[1].text): line.cells[-2].text for line in quality.lines
    }
    assert by_task["Q4_0", "sort"] == "-3 pt" and by_task["F16", "sort"] == "–"
    line = next(line for line in csv(report).splitlines() if line.startswith("sQ4_0"))
    assert ",0.87,0.81" in line and ",F16,-0.03" in line and "worse" in line


def test_the_chart_marks_what_nothing_else_beats_in_both() -> None:
    report = reports.of(with_quality(entries(), {}), best=[])
    chart = next(c for c in charts(report) if c.name == "quality-front")
    front = {
        row["series"]: (row.get("speed_front"), row.get("cost_front")) for row in chart.rows
    }
    # F16 is slower than Q8_0 and scores no higher.
    assert front == {"F16": (None, None), "Q8_0": (1, 1), "Q4_0": (1, 1), "Q2_K": (1, 1)}
    assert (
        chart.group == "Quality"
        and next(r for r in chart.rows if r["series"] == "Q2_K")["cost"] == 1
    )
    params = {p["name"]: p.get("bind", {}).get("options") for p in chart.spec["params"]}
    assert params["against"] == ["speed", "cost"]


def test_a_void_speed_or_score_takes_no_part() -> None:

    some = [
        msgspec.structs.replace(e, verdict="void") if e.series == "Q8_0" else e
        for e in entries()
    ]
    first, *rest = front_sentences(with_quality(some, {}))
    assert "loss of quality is F16, the reference itself (100.0" in first
    # the others have a loss: nothing was left undetected
    assert not any("detectable loss is" in s for s in rest)


def _repeated(e: Entry, speeds: tuple[float, ...]) -> Entry:
    rows = [
        row({"output_throughput": v}, file=f"{e.series}-run{i}.json", form="json")
        for i, v in enumerate(speeds)
    ]
    return msgspec.structs.replace(e, rows=rows, repeats=len(rows))


def _answer(speeds: dict[str, tuple[float, ...]], right: dict[str, int]) -> list[str]:
    some = [
        e
        for name, each in speeds.items()
        for e in (
            _repeated(timed(name, sum(each) / len(each)), each),
            *scored(name, right[name], name),
        )
    ]
    return conclude(with_quality(some, {}), [], [], {}, lambda row: None).answer


def test_no_setting_is_called_the_fastest_where_speeds_cannot_be_separated() -> None:
    equal = {"F16": 90, "Q8_0": 90}
    answer = _answer({"F16": (150.0, 130.0, 140.0), "Q8_0": (151.0, 129.0, 143.0)}, equal)
    said = " ".join(answer)
    assert not re.search(
        r"fastest|highest|best|leads", said.replace("highest precision", "")
    )
    assert answer[0].startswith(
        "Q8_0 and F16 can't be separated in speed; none has a detectable loss of quality: "
    )


def test_the_gain_over_the_reference_has_an_interval() -> None:
    equal = {"F16": 90, "Q8_0": 90}
    first, gain, *_ = _answer(
        {"F16": (100.0, 101.0, 99.0), "Q8_0": (150.0, 149.0, 151.0)}, equal
    )
    assert first.startswith(
        "The fastest setting with no detectable loss of quality is Q8_0"
    )
    assert re.fullmatch(
        r"Its speed against F16 \(100\.0\): \+50 % (± [\d.]+|\(.* to .* %\))\.", gain
    )


def test_a_loss_of_quality_comes_first_where_speeds_cannot_be_separated() -> None:
    """A busy machine makes speeds doubtful, and no score."""
    answer = _answer(
        {
            "F16": (150.0, 130.0, 140.0),
            "Q8_0": (151.0, 129.0, 143.0),
            "Q2_K": (140.0, 125.0, 150.0),
        },
        {"F16": 90, "Q8_0": 90, "Q2_K": 40},
    )
    assert answer[0].startswith(
        "A loss of quality is detected: Q2_K (138.3 output tokens/s"
    )
    assert "-50 pt against F16, 95 % interval" in answer[0]
    assert "can't be separated in speed" in answer[1]


def test_an_answer_about_two_settings_has_the_lead_of_one_once() -> None:
    def repeated(series: str, speed: float) -> Entry:
        own = [
            row({"output_throughput": speed + i}, {"concurrency": 8}, file=f"{series}{i}")
            for i in range(5)
        ]
        load = load_of(own[0])
        figures = {"output_throughput": Number(speed, speed - 2, speed + 6, "repeats")}
        return Entry(
            f"s{series}", series, "serve", load, "sound", figures=figures, rows=own
        )

    two = [
        *(repeated("F16", 100.0), *scored("F16", 90, "F16")),
        *(repeated("Q8_0", 150.0), *scored("Q8_0", 90, "Q8_0")),
    ]
    answer = conclude(with_quality(two, {}), [], [], {}, lambda row: None).answer
    assert answer[0].startswith(
        "The fastest setting with no detectable loss of quality is Q8_0"
    )
    assert answer[1].startswith("Its speed against F16 (100.0): +49")
    assert not [s for s in answer if "highest throughput" in s or "difference is real" in s]
