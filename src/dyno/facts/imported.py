"""Results as they were read: rows of figures with their lines, and the text around them.

A row is one result, whoever wrote it: a printed block, an object of a JSON file, a line of a CSV file or of a table,
and a run of dyno's own. Figures have vLLM's result keys as names (facts/metric.py), each with
the definition of the tool that calculated it (facts/metric.py): the same word means different numbers.
"""

from typing import Literal, NamedTuple, get_args

import msgspec

from dyno.facts.comparison import Estimate
from dyno.facts.correctness import GreedyAnswer
from dyno.facts.engine import EngineFacts
from dyno.facts.finding import Finding, Verdict
from dyno.facts.load import Scalar as Scalar
from dyno.facts.rig import Rig
from dyno.facts.study import Place
from dyno.facts.summary import Result

RowKind = Literal["serve", "throughput", "latency", "micro", "quality"]


class KindWords(NamedTuple):
    """What a kind of result is called."""

    title: str  # of its table
    measured: str  # in a sentence: 'A and B (served)'
    load: str  # of a load that has no other words


# In the order of tables.
KINDS: dict[RowKind, KindWords] = {
    "serve": KindWords("Serving", "served", "serving"),
    "throughput": KindWords("Offline throughput", "offline throughput", "offline"),
    "latency": KindWords("Offline latency", "offline latency", "offline batch"),
    "micro": KindWords("Micro tests", "micro tests", "micro"),
    "quality": KindWords("Quality", "quality", "task"),
}
# Where a setting is from. block: the result itself. command: a command line. namespace: a tool's dump of its arguments.
# heading: words above the result. environment: a dump of versions and devices. column: a column of its table.
# progress: a progress bar. file: the file's name. log: an engine's log. user: not the file, but who imported it;
# then there is no line.
By = Literal[
    "block",
    "command",
    "namespace",
    "heading",
    "environment",
    "column",
    "progress",
    "file",
    "log",
    "user",
]


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    value: float
    line: int  # of the file, from 1
    half: float = 0.0  # half a unit of its last printed digit: it may be off by so much
    # key in facts/metric.py; '' where the name says all (a count, a duration)
    definition: str = ""
    deviation: float | None = None  # printed with ±
    bold: bool = False


class Setting(msgspec.Struct, frozen=True, omit_defaults=True):
    value: Scalar
    line: int
    by: By = "block"


class Samples(msgspec.Struct, frozen=True, omit_defaults=True):
    """Samples of requests or iterations, in the file's order. Empty: unknown."""

    input_lens: list[int] = []
    output_lens: list[int] = []
    # Latencies by stem (facts/metric.py). itl: pooled. vllm_tpot: where dyno's own are others. latency: of iterations
    times_ms: dict[str, list[float]] = {}
    starts_s: list[float] = []
    errors: list[str] = []  # '' where there was none
    speeds: list[float] = []  # tokens/s of repetitions
    scores: dict[str, float] = {}  # of a quality test, by item

    def latencies(self, stem: str) -> list[float]:
        """Return a latency of each request, in milliseconds."""
        return self.times_ms.get(stem, [])


def place(file: str, line: int) -> str:
    """Return the place for a message. A run of dyno's own has no lines."""
    return f"{file}:{line}" if line else file


class RunFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run of dyno's own behind a row: what no file of another tool has."""

    place: Place | None = None  # in a study
    result: Result | None = None  # None: the trial failed
    engine: EngineFacts | None = None  # of one that dyno started


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    kind: RowKind
    # vllm, sglang, llama-bench, lm-eval, guidellm, aiperf, inference-perf, inference-benchmarker, dyno;
    # '' of a table that doesn't say
    tool: str
    form: Literal["block", "json", "csv", "table", "sql", "run"]
    file: str
    line: int  # its first
    end: int  # its last
    figures: dict[str, Figure]
    # by the names in facts/setting.py, else a flag as it was written (--swap-space)
    settings: dict[str, Setting] = {}
    label: str = ""  # as its author calls it: a heading, a first column
    series: str = ""  # what is compared: an engine, a model, a machine; '' where unknown
    section: str = ""  # the nearest heading above
    table: int | None = None  # index of its table in the document
    samples: Samples | None = None
    # by figure, as dyno calculated them from samples that the file lacks
    estimates: dict[str, Estimate] = {}
    # of its own run, by the tool that measured it: dyno alone has such
    findings: list[Finding] = []
    also: list["Row"] = []  # the same result, reported elsewhere
    failure: str = ""  # the trial has no result, and the row no figures: why
    rig: Rig | None = None  # None: not known, or the server is elsewhere
    prompts_sha256: str | None = None  # two rows with the same one sent the same prompts
    # by prompt of the correctness check, or by item of a quality test
    answers: dict[str, GreedyAnswer] = {}
    run: RunFacts | None = None  # None: another tool measured it

    @property
    def place(self) -> Place | None:
        return None if self.run is None else self.run.place

    @property
    def result(self) -> Result | None:
        return None if self.run is None else self.run.result

    @property
    def engine(self) -> EngineFacts | None:
        return None if self.run is None else self.run.engine

    @property
    def verdict(self) -> Verdict | None:
        """Return the verdict of the run or of dyno's result file. None: not judged."""
        return next((v for v in get_args(Verdict) if v == self.setting("verdict")), None)

    @property
    def complete(self) -> bool:
        """Return whether a setting that it lacks was not set: it is a run of dyno's own, or the result file of one."""
        return self.form == "run" or bool(self.estimates)

    def get(self, name: str) -> float | None:
        figure = self.figures.get(name)
        return None if figure is None else figure.value

    def setting(self, name: str) -> Scalar | None:
        setting = self.settings.get(name)
        return None if setting is None else setting.value

    def setting_location(self, name: str) -> str:
        """Return the line of a setting; the row's where the file doesn't have it."""
        setting = self.settings.get(name)
        return (
            place(self.file, setting.line)
            if setting is not None and setting.line
            else self.location
        )

    def number(self, name: str) -> float | None:
        """Return a setting, where it is one number."""
        value = self.setting(name)
        return (
            float(value)
            if isinstance(value, int | float) and not isinstance(value, bool)
            else None
        )

    @property
    def location(self) -> str:
        return place(self.file, self.line)


class Heading(msgspec.Struct, frozen=True, omit_defaults=True):
    line: int
    level: int  # 1 to 6; 0: a line in bold or a comment in a listing that serves as one
    text: str
    empty: bool = False  # nothing follows before the next one of its level or above


class DocumentCell(msgspec.Struct, frozen=True, omit_defaults=True):
    text: str  # without marks of emphasis
    bold: bool = False


class DocumentTable(msgspec.Struct, frozen=True, omit_defaults=True):
    line: int  # of its header
    header: list[str]
    rows: list[list[DocumentCell]]
    lines: list[int]  # of each row
    section: str = ""


class Passage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A paragraph, an item of a list, or a loose line of a listing: words that may claim something."""

    line: int
    text: str  # its lines joined; marks of emphasis and links taken out
    section: str = ""
    listing: bool = False  # inside a code block or a plain log


class Command(msgspec.Struct, frozen=True, omit_defaults=True):
    line: int
    role: Literal["server", "client", "offline", "micro", "quality", "other"]
    text: str  # joined, with secrets taken out
    settings: dict[str, Setting]
    program: str = ""  # vllm serve, benchmark_serving.py, llama-server, …
    env: dict[str, str] = {}
    section: str = ""


class Unread(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that no result came of, or a remark on something that was read."""

    line: int
    why: str
    # What holds numbers and was not read: a table, some of its columns, metrics or lines, a printed block, the file.
    part: Literal["", "columns", "table", "block", "lines", "file"] = ""
    what: str = ""  # its titles, or its first line's name

    @property
    def lost(self) -> bool:
        """Return whether it is a part with numbers. Others are remarks, on parts that were read or have no number."""
        return self.part != ""

    def describe(self, file: str) -> str:
        return ": ".join(filter(None, (place(file, self.line), self.what, self.why)))


class Document(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file, or one run or study of dyno's own."""

    file: str
    format: str  # as it was recognized: 'markdown', 'vllm serve json', …
    rows: list[Row] = []
    headings: list[Heading] = []
    tables: list[DocumentTable] = []
    passages: list[Passage] = []
    commands: list[Command] = []
    environments: list[dict[str, Setting]] = []  # dumps of versions and devices
    unread: list[Unread] = []
