"""A report: all that a page, a Markdown file or a picture is made of, and its charts. Values only; nothing is
calculated after this."""

from typing import Any, Literal

import msgspec

from dyno.facts.entry import Entry
from dyno.facts.finding import Basis, Finding, Verdict
from dyno.facts.imported import DocumentTable


class Contender(msgspec.Struct, frozen=True):
    """A row of the answer's table, with how far it is behind the best, which is the first row."""

    entry: str  # its id
    # of the best, as a share of this row's figure; None: it is the best, or nothing is compared
    lead: float | None = None
    low: float | None = None  # of the 95 % interval
    high: float | None = None
    word: str = ""  # how sure the lead is
    points: bool = False  # the lead is a difference of scores


# At which loads contenders are compared. one: all at one load. best: each at its best load of those that all were
# measured under. apart: each at its best load, since they share none. own: the loads of one series.
Loads = Literal["one", "best", "apart", "own"]


class Standing(msgspec.Struct, frozen=True):
    """The subject of the answer: one metric under one workload, shown as a small table and a chart."""

    metric: str
    workload: str  # in words
    contenders: list[Contender]  # the best first
    more: int = 0  # that the table has no room for
    loads: Loads = "one"
    remark: str = ""  # what a reader of these figures should know


class Words(msgspec.Struct, frozen=True):
    """A report in sentences."""

    compared: str
    on: str
    answer: list[str]  # who leads, by how much, how sure
    confidence: list[str]
    caveats: list[str]
    workloads: list[str] = []  # a paragraph each
    agreement: list[str] = []  # of greedy answers, with those of the first series
    cost: list[str] = []
    standing: Standing | None = None
    # with the other choice of loads; None: there is none, or it is the same
    alternative: Standing | None = None


class Best(msgspec.Struct, frozen=True):
    """The load with the highest throughput within the target, for one series and workload."""

    series: str
    workload: str  # in words
    entry: str | None  # its id; None: no load meets the target
    why: str = ""  # there is none: what came nearest, in words


class Sheet(msgspec.Struct, frozen=True):
    """A machine or an engine, as lines of name and value."""

    name: str
    facts: list[tuple[str, str]]
    entries: list[str] = []  # ids of what was measured on it


class CommandText(msgspec.Struct, frozen=True):
    """The commands that ran, recorded without secrets."""

    what: str  # server, client, study, …: for whom
    text: str
    entries: list[str] = []


class AuthorsTable(msgspec.Struct, frozen=True):
    """A table of another report, copied literally."""

    file: str
    table: DocumentTable


class Report(msgspec.Struct, frozen=True):
    title: str
    created: str  # date, ISO 8601
    dyno: str  # version
    verdict: Verdict
    words: Words
    entries: list[Entry]
    findings: list[Finding]  # worst first; of many alike, one
    basis: Basis = Basis()  # what the verdict rests on
    about: str = ""  # its author's description, as plain text
    sources: list[str] = []  # files, folders, pages
    target: dict[str, float] = {}  # 'p99_ttft_ms' → maximum in milliseconds
    # which statistic was taken where none was asked for, and why
    target_words: list[str] = []
    best: list[Best] = []
    prices: list[str] = []  # assumptions, in words
    tables: list[AuthorsTable] = []
    rigs: list[Sheet] = []
    engines: list[Sheet] = []  # the same, of engines: version, settings, how it was started
    commands: list[CommandText] = []
    definitions: dict[str, str] = {}  # facts/metric.py's key → words, those that are used
    again: str = ""  # the command that makes this report


DATA = "rows"
# The base of a throughput. measured: what was measured, as it is. accelerator, machine: one of them; a machine of
# which a part was measured is an estimate, as if nothing were lost, and drawn dashed. dollar: each that an hour costs.
PER = ("measured", "accelerator", "machine", "dollar")


class Chart(msgspec.Struct, frozen=True):
    name: str  # 'throughput-concurrency': anchor in the page and name of the picture
    group: str  # its heading: Throughput, Latency, Cost, …
    title: str
    about: str  # how to read it, in a sentence or two
    spec: dict[str, Any]
    rows: list[dict[str, Any]]
    per: list[str] = []  # of PER, those that its data has; [] or ['measured']: no switch
