"""One number on every surface: printed block, result file, table, page, CSV and SQL show the same figures.

The surfaces are read back from what the commands print and write. Each figure of facts/metric.py that a surface has
must be the same number, to the digits that are printed.
"""

import contextlib
import csv
import io
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import pytest

from dyno.cli.main import main
from dyno.facts.metric import METRICS, STEMS, latency, metric

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

RUNS = Path(__file__).parents[1] / "fixtures" / "runs"
STUDY = """
name = "talk"
[engines.fake]
kind = "fake"
args = ["first_ms=40", "gap_ms=20", "fault=reset@17"]  # far apart: a busy machine times them, too
[workloads.chat]
dataset = "chat"
turns = "2"
turn_input_len = "20"
turn_output_len = "4"
think_time_s = ["0", "0.05"]
num_sessions = 8
[loads.closed]
max_concurrency = 4
[trial]
cache = ["empty", "keep"]
correctness_check = false
goodput_ms = {ttft = 500, e2el = 103}
"""
# a figure's name → its value; a text where digits were cut off
Shown = dict[str, float | str]


class Result(NamedTuple):
    """One entry as the surfaces show it."""

    runs: list[str]
    surfaces: dict[str, Shown]


def say(*words: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = main(list(words))
    assert code in (0, 3), out.getvalue()
    return out.getvalue()


# ---- reading each surface ----


def _statistics() -> Iterator[str]:
    for stem in STEMS:
        yield from (
            f"{statistic}_{stem}_ms"
            for statistic in ("mean", "median", "std", "p50", "p90", "p95", "p99")
        )


_BY_LABEL = {label: m.name for m in METRICS.values() for label in m.labels}
_BY_LABEL |= {f"{name.partition('_')[0]} {metric(name).column.split(' ', 1)[1]} (ms)".lower(): name
              for name in _statistics()}  # fmt: skip
_BY_LABEL |= {"completed sessions": "sessions_completed", "failed sessions": "sessions_failed",
              "session throughput (sessions/s)": "session_throughput", "skipped requests (session failed)": "skipped",
              "reasoning tokens": "reasoning_tokens", "answer tokens": "answer_tokens"}  # fmt: skip
_BY_TITLE = {m.column: m.name for m in METRICS.values() if m.column}
_BY_TITLE |= {
    metric(name).column: name for name in _statistics() if not name.startswith("p50")
}
_BY_TITLE |= {"completed": "completed", "failed": "failed"}
_TABLE = {
    "completed": "completed", "failed": "failed", "tok/s": "output_throughput", "req/s": "request_throughput",
    "sessions/s": "session_throughput", "duration s": "duration_s", "session p50": "median_session_ms",
    "later TTFT p50": "median_later_turn_ttft_ms", "TTFT p50": "median_ttft_ms", "TPOT p50": "median_tpot_ms",
    "TTFT mean": "mean_ttft_ms", "TPOT mean": "mean_tpot_ms", "TTFT p99": "p99_ttft_ms", "TPOT p99": "p99_tpot_ms",
}  # fmt: skip


def block(text: str) -> Shown:
    """`Mean TTFT (ms):   5.16`. Of a session's latencies, percentiles are below their median."""
    shown: Shown = {}
    stem = ""
    for label, value in re.findall(
        r"^( *[A-Z ][^:]*): +([\d,.]+) *$", text.partition("dyno---")[0], re.M
    ):
        words = label.strip().lower()
        if match := re.fullmatch(r"(.+), p50 \(ms\)", words):
            stem = next(name for name, s in STEMS.items() if s.words.lower() == match[1])
            shown[f"median_{stem}_ms"] = value
        elif stem and re.fullmatch(r"p\d+", words):
            shown[f"{words}_{stem}_ms"] = value
        elif words in _BY_LABEL:
            shown[_BY_LABEL[words]] = value
    own = text.partition("dyno---")[2]
    if skipped := re.search(r"Skipped requests \(session failed\): +(\d+)", own):
        shown["skipped"] = skipped[1]
    return shown


def result_file(text: str) -> Shown:
    """vLLM's keys, and dyno's own by their place."""
    file = json.loads(text)
    flat = {
        **file,
        **{f"sessions.{k}": v for k, v in (file["dyno"].get("sessions") or {}).items()},
    }
    flat |= {k: v for k, v in (file["dyno"].get("sessions") or {}).items() if latency(k)}
    flat |= {f"client.{k}": v for k, v in file["dyno"]["client"].items()}
    flat |= {
        k: v
        for k, v in file["dyno"].items()
        if k in ("cancelled", "skipped", "cached_input_tokens")
    }
    flat |= {k: v for k, v in file["dyno"]["response"].items() if k.endswith("_queue_ms")}
    shown: Shown = {}
    for name in [*METRICS, *_statistics()]:
        m = metric(name)
        places = [
            key
            for key in (name, m.field, *m.keys)
            if key and isinstance(flat.get(key), int | float)
        ]
        if places:
            shown[name] = float(flat[places[0]])
    return shown


def columns(values: Mapping[str, Any]) -> Shown:
    """Of CSV and SQL: by the figures' names."""
    known = {name: values.get(name) for name in [*METRICS, *_statistics()]}
    return {name: float(value) for name, value in known.items() if value not in (None, "")}


class _Tables(HTMLParser):
    """The tables of a page: rows of cells, each with its text and the full value in its title."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[list[list[tuple[str, str]]]] = []
        self._cell: list[str] | None = None
        self._title, self._aside = "", False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.tables.append([])
        elif tag == "tr" and self.tables:
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self._cell, self._title = [], dict(attrs).get("title") or ""
        elif tag in ("i", "small"):
            self._aside = True  # an interval, a unit

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self._cell is not None:
            self.tables[-1][-1].append(("".join(self._cell).strip(), self._title))
            self._cell = None
        elif tag in ("i", "small"):
            self._aside = False

    def handle_data(self, data: str) -> None:
        if self._cell is not None and not self._aside:
            self._cell.append(data)


def page(text: str) -> list[Shown]:
    """The rows of the table of results, as they are printed."""
    parser = _Tables()
    parser.feed(re.sub(r"<script.*?</script>", "", text, flags=re.S))
    table = next(
        t
        for t in parser.tables
        if t and {"completed", "req/s"} <= {title for title, _ in t[0]}
    )
    names = [_BY_TITLE.get(title, "") for title, _ in table[0]]
    rows = [zip(names, row, strict=True) for row in table[1:]]
    return [
        {name: cell for name, (cell, _) in row if name and re.search(r"\d", cell)}
        for row in rows
    ]


def terminal(text: str) -> list[Shown]:
    """A table with titles of two lines: what ends in one column belongs together."""
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if line.rstrip().endswith("verdict"))
    heads = [list(re.finditer(r"\S+(?: \S+)*", line)) for line in lines[at - 1 : at + 1]]
    rows = []
    for line in lines[at + 1 :]:
        if not re.search(r" (sound|doubtful|void)$", line):
            break
        shown: Shown = {}
        for cell in re.finditer(r"\S+(?: \S+)*", line):
            title = " ".join(
                word[0] for head in heads for word in head if word.end() == cell.end()
            )
            if title in _TABLE and re.search(r"\d", cell[0]):
                shown[_TABLE[title]] = cell[0].partition(" ± ")[0]
        rows.append(shown)
    return rows


# ---- the surfaces of some results ----


def together(name: str, values: Sequence[float]) -> float:
    """Of repeats: totals of counts, means of the rest."""
    return sum(values) if metric(name).sums else mean(values)


def joined(each: Sequence[Shown]) -> Shown:
    if len(each) == 1:
        return each[0]
    names = [name for name in each[0] if all(name in one for one in each)]
    return {
        name: together(name, [float(str(one[name]).replace(",", "")) for one in each])
        for name in names
    }


def results(word: str, folder: Path, study: bool) -> list[Result]:
    """Each entry of a report on this run or study, with what every surface shows of it."""
    say(
        "report",
        word,
        "-o",
        str(folder / "r.csv"),
        "-o",
        str(folder / "r.html"),
        "--allow-void",
    )
    rows = list(csv.DictReader((folder / "r.csv").read_text().splitlines()))
    asked = {
        row["run"]: row
        for row in json.loads(
            say("sql", "select * from trials", "--json", "--runs", "runs")
        )
    }
    pages = page((folder / "r.html").read_text())
    table = terminal(say("runs", "show", word)) if study else []
    found = []
    for row, shown in zip(rows, pages, strict=True):
        if row.get("failure"):
            continue
        runs = row["at"].split()
        surfaces = {
            "result file": joined(
                [result_file(say("runs", "show", run, "--json")) for run in runs]
            ),
            "SQL": joined([columns(asked[run]) for run in runs]),
            "CSV": columns(row),
            "page": shown,
        }
        if len(runs) == 1:
            surfaces["block"] = block(say("runs", "show", runs[0]))
        found.append(Result(runs, surfaces))
    if study:
        assert len(table) == len(found)  # a row of the table is an entry of the page
        for shown in table:
            open_ = [r for r in found if "table" not in r.surfaces]
            wrong = [differing({**r.surfaces, "table": shown}) for r in open_]
            nearest = min(wrong, key=len)
            assert not nearest, f"No entry has the figures of this row: {nearest}"
            open_[wrong.index(nearest)].surfaces["table"] = shown
    return found


def digits(text: str) -> float:
    """Half a unit of the last printed digit."""
    _, _, after = text.partition(".")
    return 0.5 * 10 ** -len(after)


def differing(surfaces: Mapping[str, Shown]) -> list[str]:
    """Describe the figures that two surfaces show differently."""
    wrong = []
    for name in dict.fromkeys(name for shown in surfaces.values() for name in shown):
        exact = {
            s: shown[name]
            for s, shown in surfaces.items()
            if isinstance(shown.get(name), float)
        }
        true = next(iter(exact.values()), None)
        for surface, shown in surfaces.items():
            value = shown.get(name)
            if value is None or true is None:
                continue
            number = float(str(value).replace(",", ""))
            most = (
                abs(float(true)) * 1e-8
                if isinstance(value, float)
                else digits(value) * (1 + 1e-6)
            )
            if abs(number - float(true)) > most + 1e-12:
                wrong.append(f"{name}: {surface} has {value}, {next(iter(exact))} {true}")
    return wrong


# Figures that each surface must have, so that a reader that finds nothing is noticed.
_SERVING = {
    "completed",
    "failed",
    "request_throughput",
    "output_throughput",
    "median_ttft_ms",
    "mean_tpot_ms",
}
_EVERYWHERE = {
    "result file": _SERVING
    | {"duration_s", "peak_concurrency", "total_token_throughput", "p99_itl_ms"},
    "SQL": _SERVING
    | {
        "duration_s",
        "peak_concurrency",
        "total_token_throughput",
        "p99_itl_ms",
        "concurrency_mean",
    },
    "CSV": _SERVING
    | {
        "duration_s",
        "peak_concurrency",
        "total_token_throughput",
        "p99_itl_ms",
        "concurrency_mean",
    },
    "page": (_SERVING | {"duration_s", "total_token_throughput", "mean_e2el_ms"}),
    "block": _SERVING | {"duration_s", "peak_concurrency", "total_token_throughput"},
    "table": _SERVING,
}
_GOOD = {
    surface: {"request_goodput"}
    for surface in ("result file", "SQL", "CSV", "page", "block")
}
_SESSIONS = {
    **{surface: {"session_throughput", "median_session_ms", "sessions_failed"}
       for surface in ("result file", "SQL", "CSV")},
    "block": {"session_throughput", "median_session_ms", "sessions_completed"},
    "table": {"session_throughput", "median_session_ms"},
}  # fmt: skip


def check(
    found: Sequence[Result], *also: Mapping[str, set[str]], measured_here: bool = False
) -> None:
    """`measured_here`: beside other tests, where what a late client can't know has no number."""
    for result in found:
        for surface, shown in result.surfaces.items():
            wanted = _EVERYWHERE[surface].union(
                *(more.get(surface, set()) for more in also)
            )
            if measured_here:
                known = result.surfaces["result file"]
                wanted = {
                    n
                    for n in wanted
                    if n in known or not (n.endswith("_ms") or n == "request_goodput")
                }
            assert wanted <= shown.keys(), (surface, wanted - shown.keys())
        assert not differing(result.surfaces)


# ---- stored runs ----


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    shutil.copytree(RUNS, tmp_path / "runs")
    return tmp_path


@pytest.mark.parametrize(("word", "study", "also"), [
    ("runs/20261116-115039-serve-fake-c3-2af4", False, ()),
    ("runs/20261116-115138-serve-fake-r60-edfb", False, (_GOOD,)),
    ("runs/two", True, ()), ("runs/broken", True, ()),
])  # fmt: skip
def test_a_figure_of_a_stored_run_is_the_same_number_on_every_surface(
    word: str, study: bool, also: tuple[dict[str, set[str]], ...], here: Path
) -> None:
    found = results(word, here, study)
    assert found
    check(found, *also)


def test_a_figure_that_a_busy_client_lost_in_one_repeat_has_no_mean_of_the_others_on_any_surface(
    here: Path,
) -> None:
    path = here / "runs" / "two" / "trials" / "quick-w-c-1-r1-246f76502d" / "summary.json"
    file = json.loads(path.read_text())
    file["summary"]["ttft"] |= {"mean": None, "bounds": {"mean": [1.0, 9.0]}}
    path.write_text(json.dumps(file))
    spoilt, *others = results("runs/two", here, study=True)
    assert path.parent.name in spoilt.runs[0]
    assert not any("mean_ttft_ms" in shown for shown in spoilt.surfaces.values())
    assert all(
        "mean_ttft_ms" in shown for result in others for shown in result.surfaces.values()
    )


def test_a_figure_that_one_surface_shows_differently_is_found(here: Path) -> None:
    surfaces = results("runs/20261116-115138-serve-fake-r60-edfb", here, study=False)[
        0
    ].surfaces
    for surface, shown in surfaces.items():
        for name, value in shown.items():
            number = float(str(value).replace(",", ""))
            step: Callable[[float], float | str] = lambda x: x * (1 + 1e-6)  # noqa: E731
            changed: float | str = (
                step(number)
                if isinstance(value, float)
                else f"{number + 2 * digits(value):.4f}"
            )
            known = [
                s
                for s in surfaces
                if name in surfaces[s] and isinstance(surfaces[s][name], float)
            ]
            if number and len({*known, surface}) > 1:
                assert differing({**surfaces, surface: {**shown, name: changed}}), (
                    surface,
                    name,
                )


# ---- offline runs: the same figures under the names of their own summary ----

_OFFLINE = {  # in SQL and in the file's summary: a figure's name
    "duration_s": "duration_s", "completed": "completed", "failed": "failed", "input_tokens": "total_input_tokens",
    "output_tokens": "total_output_tokens", "in_flight_mean": "concurrency_mean", "tpot_ms_mean": "mean_tpot_ms",
    **{f"{name}_mean": name for name in ("request_throughput", "output_throughput", "total_token_throughput")},
}  # fmt: skip
_OFFLINE_LABELS = {
    "tpot, mean (ms)": "mean_tpot_ms",
    "concurrency, mean": "concurrency_mean",
}


def offline_block(text: str) -> Shown:
    shown: Shown = {}
    for label, value in re.findall(
        r"^ *([A-Z][^:]*): +([\d,.]+)(?: ± \S+)? *$", text, re.M
    ):
        words = label.lower()
        latencies = re.fullmatch(r"(mean|p\d+) latency \(ms\)", words)
        name = (
            f"{latencies[1]}_latency_ms"
            if latencies
            else _OFFLINE_LABELS.get(words) or _BY_LABEL.get(words)
        )
        if name:
            shown[name] = value
    return shown


def flattened(summary: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in summary.items():
        inner = value if isinstance(value, dict) else None
        flat |= (
            {key: value} if inner is None else {f"{key}_{k}": v for k, v in inner.items()}
        )
    return flat


def offline_figures(flat: Mapping[str, Any]) -> Shown:
    return {
        name: float(flat[key])
        for key, name in _OFFLINE.items()
        if flat.get(key) is not None
    }


@pytest.mark.parametrize(("word", "kind"), [
    ("20261116-115040-throughput-dyno-tiny-F16-4-16-8-b4d7", "throughput"),
    ("20261116-115042-latency-dyno-tiny-F16-b2-16-8-919f", "latency"),
])  # fmt: skip
def test_a_figure_of_an_offline_run_is_the_same_number_on_every_surface(
    word: str, kind: str, here: Path
) -> None:
    run = f"runs/{word}"
    say("report", run, "-o", "r.csv", "-o", "r.html")
    file = json.loads(say("runs", "show", run, "--json"))
    [asked] = json.loads(
        say(
            "sql",
            f"select * from trials where run = 'runs/{word}'",
            "--json",
            "--runs",
            "runs",
        )
    )
    [row] = csv.DictReader(Path("r.csv").read_text().splitlines())
    [shown] = page(Path("r.html").read_text())
    surfaces = {
        "result file": offline_figures(flattened(file["dyno"]["summary"])),
        "SQL": offline_figures({k.removeprefix("offline_"): v for k, v in asked.items()}),
        "CSV": columns(row)
        | {
            k: float(v)
            for k, v in row.items()
            if re.fullmatch(r"(mean|p\d+)_latency_ms", k)
        },
        "page": shown,
        "block": offline_block(say("runs", "show", run)),
    }
    if kind == "throughput":  # vLLM's own keys
        assert file["requests_per_second"] == surfaces["result file"]["request_throughput"]
    else:
        assert file["avg_latency"] * 1000 == pytest.approx(
            surfaces["CSV"]["mean_latency_ms"]
        )
        assert {"mean_latency_ms", "p99_latency_ms"} <= surfaces["block"].keys()
    for surface, found in surfaces.items():
        wanted = {
            "completed",
            "failed",
            "duration_s",
            "request_throughput",
            "output_throughput",
            "mean_tpot_ms",
        }
        assert wanted <= found.keys(), (surface, wanted - found.keys())
    assert not differing(surfaces)


def test_the_speed_of_a_micro_test_is_the_same_number_on_every_surface(here: Path) -> None:
    word = "20261116-115045-micro-dyno-tiny-F16-16-4-beaa"
    say("report", f"runs/{word}", "-o", "r.csv", "-o", "r.md")
    [file] = json.loads(say("runs", "show", f"runs/{word}", "--json"))
    [asked] = json.loads(
        say(
            "sql",
            f"select * from trials where run = 'runs/{word}'",
            "--json",
            "--runs",
            "runs",
        )
    )
    [row] = csv.DictReader(Path("r.csv").read_text().splitlines())
    [line] = [
        line
        for line in say("runs", "show", f"runs/{word}").splitlines()
        if "pp16+tg4" in line
    ]
    printed = re.search(r"([\d.]+) ± ", line)
    assert printed
    speed = float(row["speed"])
    assert asked["offline_speed"] == speed and file["avg_ts"] == pytest.approx(
        speed, rel=1e-6
    )
    assert printed[1] == f"{speed:.2f}" and f"{speed:.1f}" in Path("r.md").read_text()


# ---- a real run ----


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A study of conversations on the fake engine, with failures and a target; and what `dyno run` printed."""
    folder = tmp_path_factory.mktemp("talk")
    (folder / "talk.toml").write_text(STUDY)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "400")
        yield folder, say("run", "talk.toml", "--plain", "--allow-void")


def test_each_trial_of_a_study_is_one_entry_of_its_report_with_the_speed_that_dyno_run_printed(
    talk: tuple[Path, str],
) -> None:
    folder, printed = talk
    rows = terminal(printed)
    say("report", "talk", "-o", str(folder / "talk.csv"), "--allow-void")
    entries = list(csv.DictReader((folder / "talk.csv").read_text().splitlines()))
    assert len(rows) == 4 and [e["repeats"] for e in entries] == ["1"] * 4
    speeds = [f"{float(e['request_throughput']):.4g}" for e in entries]
    assert sorted(speeds) == sorted(
        f"{float(str(row['request_throughput'])):.4g}" for row in rows
    )
    assert {(e["load.--think-time"], "keep" in e["series"]) for e in entries} == {
        (think, keep) for think in ("", "0.05") for keep in (True, False)
    }


def test_a_figure_of_a_real_run_is_the_same_number_on_every_surface(
    talk: tuple[Path, str],
) -> None:
    folder, _ = talk
    found = results("runs/talk", folder, study=True)
    assert sum(float(r.surfaces["CSV"]["failed"]) for r in found) > 0
    check(found, _GOOD, _SESSIONS, measured_here=True)
