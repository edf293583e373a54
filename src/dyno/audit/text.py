"""A text of any kind, Markdown, a log or a console's output, walked line by line: results, commands, tables, words.

What stands around a result belongs to it as far as its author's own order says so: a command holds for the listing in
which both stand, or, in a listing of its own, for what follows under the same heading until the next command.
"""

import re
from collections.abc import Iterable
from typing import Literal

import msgspec

from dyno.audit import block, html_table, listing, markup
from dyno.audit.commands import (
    QUANTIZATION,
    command,
    in_words,
    model_args,
    namespace,
    program_in,
    scalar,
    without_prompt,
    without_secrets,
)
from dyno.audit.environment import Environments
from dyno.audit.markup import plain
from dyno.audit.scope import Scope
from dyno.facts.imported import Cell, Command, Document, Figure, Heading, Passage, Row, Setting, Table, Unread
from dyno.facts.setting import LABELS
from dyno.results import tables
from dyno.results.lines import Line

MOST_ROWS, MOST_PASSAGES, MOST_COMMANDS, MOST_HEADINGS, MOST_UNREAD = 10_000, 4_000, 2_000, 20_000, 1_000
MOST_TABLES, MOST_CELLS = 5_000, 300_000  # cells of all tables
_MOST_TOLD, _MOST_PARSED = 4_000_000, 20_000  # characters of all commands, and commands
_MOST_LINES = 20_000  # of a table
_LONGEST_PASSAGE = 20_000
_ITEM_LENGTH = 120  # characters of a list's item that is nothing but a figure
_SHORT = 2_000  # characters of a line that is a setting, a heading or a figure
_FENCE = re.compile(r"^\s{0,12}(```|~~~)")
_HEADING = re.compile(r"^\s{0,3}(#{1,6})\s+(\S.*)$")
_UNDERLINE = re.compile(r"\s{0,3}(={3,}|-{3,})")
_HTML_HEADING = re.compile(r"<h([1-6])[^>]{0,100}>(.{1,200}?)</h\1>", re.I)
_BOLD_LINE = re.compile(r"^\s{0,3}(?:\*\*|__)([^*_].{0,150}?)(?:\*\*|__):?\s*$")
_COMMENT = re.compile(r"^\s{0,8}#{1,6}\s+(\S.{0,200})$")
_PROGRESS = re.compile(r"\b(\d{1,7})/(\d{1,7}) \[\d")
_LABELS = "|".join(re.escape(label).replace(r"\ ", "[ _]") for label in LABELS)
_LOAD = re.compile(rf"^\W{{0,4}}({_LABELS})\s*[:=]\s*([\d.]+|inf)\b(?!\s*,)", re.I)
_BUILD = re.compile(r"^\s{0,8}build:\s*([0-9a-f]{6,40}|unknown)\s*\((\d+)\)")
_EVALUATED = re.compile(
    r"^\s{0,4}(?:#\s{1,2})?([\w-]{2,30}) \((pretrained=|model=|base_url=)(.{0,2000}?)\),"
    r".{0,200}?(?:num_fewshot|batch_size):"
)
_ASSIGNMENT = re.compile(r"^\s{0,12}(?:export\s+)?([A-Za-z_]\w{0,40})=(\"[^\"]*\"|'[^']*'|[^\s#;|&]*)\s*(?:#.*)?$")
_ITEM = re.compile(r"^\s{0,12}(?:[-*+•]|\d{1,3}[.)])\s+")
_RECKONS = re.compile(r"\d\s*[*×x/+÷-]\s*\d|=\s*\d|^\s*(?:>>>|\d[\d.,]*\s*$)")
# A line that stands alone above results as their name: 'tgi', 'fp8 -tp 4'.
_LOOSE = re.compile(r"[\w +/()=,-][\w .+/()=,-]{0,60}[\w)]")
_NO_LABELS = {
    "client", "server", "run", "output", "result", "results", "benchmark", "command", "log", "example", "usage",
    "benchmark result", "benchmark results", "raw results", "results:", "test results", "serving script",
}  # fmt: skip
_NO_TITLE = re.compile(r"\s{0,12}<|\s{0,12}(?:[-*+•>]|\d{1,3}[.)])\s|\w{1,30}:\s|.{0,120}[.:;,]$")
_ADMONITION = re.compile(r"^(?:\?\?\?\+?|!!!|===)\s")


class Walk:
    def __init__(self, file: str, markdown: bool) -> None:
        self.file, self.markdown = file, markdown
        self.rows: list[Row] = []
        self.headings: list[Heading] = []
        self.tables: list[Table] = []
        self.passages: list[Passage] = []
        self.commands: list[Command] = []
        self.environments = Environments()
        self.unread: list[Unread] = []
        self._scope = Scope()
        self._variables: dict[str, str] = {}
        self._pending: dict[str, Setting] = {}  # lines right before a block
        self._label: tuple[int, str] | None = None  # what the next results are called, by a comment or a line above
        self._loose = False  # the label is a line that only looks like one
        self._recent_words: tuple[int, str] | None = None  # a short paragraph right before
        self._fence: str | None = None
        self._listing = 0
        self._listings = 0
        self._listing_rows = False
        self._level = 0
        self._block: block.Block | None = None
        self._table: list[Line] = []
        self._bare = False  # the table's lines don't begin with a bar
        self._cells, self._tables_full = 0, False
        self._boxed = False  # the table's lines are printed with box-drawing characters
        self._aligned: listing.Aligned | None = None  # a table in aligned columns
        self._code = False  # the listing is a program or a configuration
        self._names: list[tuple[int, str]] = []  # figures with a number behind them, since the last heading or fence
        self._html: list[Line] | None = None  # a table in HTML
        self._before = Line(0, "")
        self._paragraph: list[Line] = []
        self._joined: tuple[int, str] | None = None  # a command that goes on in the next line
        self._spent = 0  # characters of commands
        self._offline: tuple[int, int, dict[str, Figure]] | None = None
        self._content = True  # since the last heading
        self.full = False

    # ---- the walk ----

    def go(self, lines: Iterable[Line]) -> None:
        for line in lines:
            if self.full:
                break
            self.take(line)
        self.finish()

    def take(self, line: Line) -> None:
        number, text = line
        if self._block is not None and self._in_block(number, text):
            return
        if self._joined is not None and self._continue(number, text):
            return
        if self._html is not None and self._in_html(number, text):
            return
        if self._aligned is not None and self._in_aligned(line):
            return
        plainer = markup.unboxed(text)
        if plainer is not text:
            line = Line(number, plainer)
        boxed, text = plainer is not text, plainer
        if self._table and not self._in_table(text):
            self._end_table()
        self._boxed = boxed or (self._boxed and bool(self._table))
        before, self._before = self._before, line
        if not text or text.isspace():
            self._end_paragraph()
            return
        if ("```" in text or "~~~" in text) and _FENCE.match(text):
            self._toggle(text)
        elif "===" in text and (found := block.header(text)):
            self._begin(block.Block(found[1], number))
        elif "Successful requests" in text and block.STARTS.search(text):
            self._begin(block.Block("", number))
            self._in_block(number, text)
        elif boxed and markup.is_rule(text):
            self._table.append(line)
        elif not self._known(number, text, before):
            self._words(number, text)

    def _known(self, number: int, text: str, before: Line) -> bool:
        """A line that means something by itself."""
        if "|" in text and self._is_table(number, text, before):
            return True
        if "<table" in text and self._fence is None:
            self._end_paragraph()
            self._content = True
            self._html = []
            return self._in_html(number, text)
        if "=" in text and " (" in text and self._is_evaluated(number, text[:_SHORT]):
            return True
        if self._is_heading(number, text):
            return True
        if "Namespace(" in text:
            self._tell(namespace(text, number), "namespace")
            return True
        if self._is_command(number, text):
            return True
        if "/" in text and (found := _PROGRESS.search(text[-_SHORT:])):
            self._pending["progress"] = Setting(int(found[2]), number, "progress")
            return True
        if (":" in text or "=" in text) and self._is_setting(number, text[:_SHORT]):
            return True
        return self._is_figure(number, text[:_SHORT])

    def _is_table(self, number: int, text: str, before: Line) -> bool:
        row = markup.row(text)
        if (
            row is None
            and not self._table
            and "|" in before.text
            and markup.is_rule(text)
            and before.number == number - 1
        ):
            # The line before was a header without bars at its ends.
            if self._paragraph and self._paragraph[-1].number == before.number:
                self._paragraph.pop()
            self._end_paragraph()
            self._bare, self._table = True, [Line(before.number, before.text[: markup.LONGEST_ROW])]
        elif row is None and not (self._table and (self._bare or markup.is_rule(text))):
            return False
        if not self._table:
            self._end_paragraph()
            self._bare = False
        self._content = True
        if len(self._table) < _MOST_LINES:
            self._table.append(Line(number, (row or text)[: markup.LONGEST_ROW]))
        return True

    def _is_evaluated(self, number: int, text: str) -> bool:
        """What lm-eval says of its model, above its tables."""
        found = _EVALUATED.match(text)
        if found is None:
            return False
        self._end_paragraph()
        told = found[2] + found[3]
        settings = model_args(told, number)
        settings["--model_args"] = Setting(without_secrets(told[:500]), number, "command")
        self._tell(settings, "quality")
        return True

    def _in_table(self, text: str) -> bool:
        if "|" in text and (self._bare or markup.row(text)):
            return True
        return len(self._table) == 1 and markup.is_rule(text)

    def _in_html(self, number: int, text: str) -> bool:
        """Whether the line is the table's. A listing in a cell is read as one, and then the table isn't."""
        assert self._html is not None
        if "```" in text or "Benchmark Result" in text or len(self._html) > _MOST_LINES:
            self._html = None
            return False
        self._html.append(Line(number, text))
        if "</table" in text:
            self._end_html()
        return True

    def _end_html(self) -> None:
        held, self._html = html_table.rows(self._html or []), None
        if len(held) >= 2:
            self._put_table(
                held[0][0], [markup.cell(t) for t in held[0][1]], [(n, list(map(markup.cell, r))) for n, r in held[1:]]
            )

    def _in_aligned(self, line: Line) -> bool:
        """Whether the line is the table's. The first that isn't ends it."""
        held = self._aligned
        assert held is not None
        if line.text and not line.text.isspace() and held.take(line):
            return True
        self._aligned = None
        if held.body:
            self._put_table(held.line, list(map(Cell, held.header)), [(n, list(map(Cell, r))) for n, r in held.body])
        if held.misses(line.text):
            what = without_secrets(", ".join(held.header))
            self._miss(line.number, "not below the titles", "lines" if held.body else "block", what)
        return False

    def _is_setting(self, number: int, text: str) -> bool:
        if found := _LOAD.match(text):
            self._pending[LABELS[found[1].lower().replace("_", " ")]] = Setting(scalar(found[2]), number, "block")
            return True
        if self.environments.take(number, text):
            self._content = True
            return True
        if found := _BUILD.match(text):
            self._built(found[1], found[2], number)
            return True
        if self._listing and (found := _ASSIGNMENT.match(text)) and not text.lstrip().startswith("#"):
            if len(self._variables) < MOST_COMMANDS:
                self._variables[found[1]] = found[2].strip("'\"")
            return len(found[2]) > 0
        return False

    def _is_figure(self, number: int, text: str) -> bool:
        if ":" not in text or not any(word in text for word in block.OFFLINE_WORDS):
            return False
        told = None
        for reading in (block.throughput_line, block.latency_line, block.total_line):
            if told := reading(text, number):
                break
        if told is None:
            return False
        self._content = True
        if self._offline is not None and (set(told) & set(self._offline[2]) or number - self._offline[1] > 40):
            self._end_offline()
        first, _, figures = self._offline or (number, number, {})
        self._offline = (first, number, {**figures, **told})
        return True

    # ---- blocks ----

    def _begin(self, begun: block.Block) -> None:
        self._end_paragraph()
        self._content = True
        self._block = begun

    def _in_block(self, number: int, text: str) -> bool:
        """Whether the line was the block's."""
        current = self._block
        assert current is not None
        again = block.header(text) if "===" in text else None
        if again is None and current.ends(text):
            self._end_block(closed=True)
            return True
        if again is None and current.take(number, text):
            return True
        self._end_block(closed=False)
        return False

    def _end_block(self, closed: bool) -> None:
        current, self._block = self._block, None
        assert current is not None
        row = current.row(self.file, self._tool(), self._section())
        if row is None:
            self._miss(
                current.line, "A result's heading without figures that can be read.", "block" if current.figures else ""
            )
        else:
            if not closed and "mean_ttft_ms" not in row.figures and "completed" in row.figures and current.title:
                self._miss(row.end, "The block ends here, without its latencies and its last line.")
            self._add(row)

    def _miss(self, line: int, why: str, part: Literal["", "block", "lines"] = "", what: str = "") -> None:
        if len(self.unread) < MOST_UNREAD:
            self.unread.append(Unread(line, why, part, what))

    def _end_offline(self) -> None:
        if self._offline is None:
            return
        first, last, figures = self._offline
        self._offline = None
        if set(figures) <= {"total_input_tokens", "total_output_tokens"}:
            return
        kind = "latency" if "mean_latency_ms" in figures else "throughput"
        self._add(Row(
            kind="latency" if kind == "latency" else "throughput", tool="vllm", form="block", file=self.file,
            line=first, end=last, figures=figures, section=self._section(),
        ))  # fmt: skip

    def _tool(self) -> str | None:
        told = self._scope.client()
        return told if told in ("vllm", "sglang", "dyno") else None

    def _add(self, row: Row) -> None:
        if len(self.rows) >= MOST_ROWS:
            if not self.full:
                self.unread.append(
                    Unread(row.line, f"More than {MOST_ROWS:,} results: those from here on are left out.", "lines")
                )
            self.full = True
            return
        self._listing_rows = True
        settings: dict[str, Setting] = {}
        label = ""
        if (row.form == "block" or row.tool) and self.headings:
            settings |= in_words(self.headings[-1].text, self.headings[-1].line)
        if self._label is not None:
            label = self._label[1]
            settings |= in_words(label, self._label[0])
        if "quantization" in settings and QUANTIZATION.search(row.label):  # its own name goes before words above it
            del settings["quantization"]
            own = in_words(row.label, row.line, "column")
            settings |= {name: told for name, told in own.items() if name == "quantization"}
        settings |= self._scope.of(row.kind)
        pending = dict(self._pending)
        progress = pending.pop("progress", None)
        settings |= pending
        if progress is not None and "num_prompts" not in settings and row.kind == "serve":
            settings["num_prompts"] = progress
        settings |= row.settings
        self._pending.clear()
        self.rows.append(msgspec.structs.replace(row, settings=settings, label=row.label or label))

    # ---- what is told before ----

    def _tell(self, settings: dict[str, Setting], role: str, tool: str = "") -> None:
        self._content = True
        self._scope.tell(settings, role, tool, self._level, self._listing)
        self._pending.clear()

    def _is_command(self, number: int, text: str) -> bool:
        found = program_in(text)
        if found is None:
            return False
        stripped = text.strip()
        if not self._listing:
            # Words may speak of a program; a command begins with it, and has flags.
            bare = without_prompt(stripped).strip("`")
            at = found[3] - (len(stripped) - len(bare)) if len(stripped) > len(bare) else found[3]
            begins = re.match(r"(?:[A-Z_]+=\S*\s+)*(?:python\d?\S*\s+(?:-m\s+)?)?\S*$", bare[: max(at, 0)])
            if begins is None or not re.search(r"\s--?[A-Za-z]", bare) or self._paragraph:
                return False
        elif re.match(r"^\s*(?:INFO|WARNING|ERROR|DEBUG|\[|\()", text) and not re.search(r"\s--[a-z]", text):
            return False
        elif re.match(r"^\s*#", text) and not re.match(r"^\s*#\s*(?:[A-Z_]+=\S+\s+)*(?:python|vllm|\./|llama)", text):
            return False  # a comment that speaks of one
        self._end_paragraph()
        self._joined = (number, "")
        self._continue(number, without_prompt(text))
        return True

    def _continue(self, number: int, text: str) -> bool:
        """A command that ends with a backslash, or was broken inside a flag or a quote, goes on in the next line."""
        assert self._joined is not None
        line, before = self._joined
        if not before:
            self._joined = (line, text.strip()[:16_000])
            return True
        joined = None
        if before.endswith("\\"):
            joined = before[:-1].rstrip() + " " + text.strip()
        elif (at := before.rfind("'{")) >= 0 and "'" not in before[at + 1 :] and before[at - 1] in " =$":
            # JSON in quotes that are still open
            joined = f"{before} {text.strip()}" if text.strip() and "===" not in text and len(before) < 4_000 else None
        elif re.match(r"[a-z_]{1,30}=\S+(?:\s+-|\s*$)", text) and re.search(r"\s--[a-z][\w-]*$", before):
            joined = before + text.strip()
        if joined is None or len(joined) > 16_000 or _FENCE.match(text):
            self._end_command()
            return False
        self._joined = (line, joined)
        return True

    def _end_command(self) -> None:
        if self._joined is None:
            return
        line, text = self._joined
        self._joined = None
        self._spent += len(text) + _MOST_TOLD // _MOST_PARSED
        found = command(text.rstrip("\\"), line, self._variables, self._section()) if self._spent < _MOST_TOLD else None
        if found is None:
            return
        self._content = True
        if len(self.commands) < MOST_COMMANDS:
            self.commands.append(found)
        told = program_in(text)
        self._tell(found.settings, found.role, told[2] if told else "")

    def _built(self, commit: str, number: str, line: int) -> None:
        """llama-bench says its build below the table."""
        version = f"{number} ({commit})" if number != "0" else commit
        for i in range(len(self.rows) - 1, -1, -1):
            row = self.rows[i]
            if row.tool != "llama-bench" or "engine_version" in row.settings:
                break
            settings = row.settings | {"engine_version": Setting(version, line, "block")}
            self.rows[i] = msgspec.structs.replace(row, settings=settings)

    # ---- structure ----

    def _toggle(self, text: str) -> None:
        self._end_paragraph()
        self._end_offline()
        self._end_names()
        self._content = True
        self._code = self._fence is None and listing.is_code(text)
        mark = text.strip()[:3]
        if self._fence is None:
            self._fence = mark
            self._listings += 1
            self._listing = self._listings
            self._listing_rows = False
            if self._recent_words:
                self._label, self._loose = self._recent_words, False
        elif self._fence == mark:
            self._fence = None
            if self._listing_rows:  # a listing with both is closed in itself
                self._scope.end_listing(self._listing)
            self._listing = 0
            self._label = None
            self._pending.clear()

    def _is_heading(self, number: int, text: str) -> bool:
        if self._fence is None and self.markdown:
            if found := _HEADING.match(text[:_SHORT]):
                self._head(number, len(found[1]), markup.title(found[2]))
                return True
            if self._paragraph and text.lstrip()[:3] in ("===", "---") and _UNDERLINE.fullmatch(text):
                return self._underlined(number, 1 if "=" in text else 2)
            if "<" in text and (found := _HTML_HEADING.search(text[:_SHORT])):
                self._head(number, int(found[1]), found[2])
                return True
            if found := _BOLD_LINE.match(text):
                self._end_paragraph()
                self._content = True
                self._label = self._recent_words = (number, plain(found[1]))
                self._loose = False
                return True
        elif found := _COMMENT.match(text):
            if program_in(text) and re.search(r"\s--?[a-z]", text):
                return False
            if found[1].strip().lower().rstrip(":") not in _NO_LABELS:
                self._label, self._loose = (number, plain(found[1])), False
            self._pending.clear()
            self._content = True
            return True
        return False

    def _underlined(self, number: int, level: int) -> bool:
        """A paragraph of one line above a line of dashes is a heading."""
        held = self._paragraph
        if len(held) > 1 or held[0].number != number - 1 or len(held[0].text) > 120 or _NO_TITLE.match(held[0].text):
            return False
        self._paragraph = []
        self._head(held[0].number, level, held[0].text.strip())
        return True

    def _head(self, number: int, level: int, text: str) -> None:
        self._end_paragraph()
        self._end_offline()
        self._end_names()
        self._mark_empty(level)
        if len(self.headings) >= MOST_HEADINGS:
            self.headings.pop()
        self.headings.append(Heading(number, level, plain(text)))
        self._scope.end_sections(level)
        self._level, self._content = level, False
        self._label = self._recent_words = None
        self._pending.clear()

    def _mark_empty(self, level: int) -> None:
        """The last heading, if nothing came after it and the next is not below it."""
        if self.headings and not self._content and level <= self.headings[-1].level:
            self.headings[-1] = msgspec.structs.replace(self.headings[-1], empty=True)

    def _section(self) -> str:
        return self.headings[-1].text if self.headings else ""

    def _words(self, number: int, text: str) -> None:
        if self._listing or not self.markdown:
            if ":" in text or "=" in text or "  " in text:
                self._figures(number, text)
            if len(self.passages) < MOST_PASSAGES and len(text) < 400 and _RECKONS.search(text):
                self._pass(Passage(number, without_secrets(text.strip()), self._section(), listing=True))
            elif (self._label is None or self._loose) and len(text) < 80 and _is_loose(text):
                self._label, self._loose = (number, without_secrets(text.strip())), True
            return
        if _ITEM.match(text) or _ADMONITION.match(text):
            self._end_paragraph()
            if ":" in text and len(text) < _ITEM_LENGTH:
                self._figures(number, _ITEM.sub("", text).replace("*", ""))
        self._content = True
        self._paragraph.append(Line(number, text))
        if len(self._paragraph) > 200 or len(text) > _LONGEST_PASSAGE:
            self._end_paragraph()

    def _figures(self, number: int, text: str) -> None:
        """Figures outside of blocks and of tables with bars: aligned columns are read, names with numbers are not."""
        if self._code or not listing.is_measured(text):
            return
        if self._fence is not None or not self.markdown:
            self._aligned = listing.aligned(number, text)
        if self._aligned is None:
            self._name(number, text)

    def _name(self, number: int, text: str) -> None:
        if len(self._names) < 2 and listing.is_measured(text):
            self._names += [(number, name) for name in listing.measured(text)]

    def _end_names(self) -> None:
        held, self._names = self._names, []
        if len(held) > 1:
            self._miss(held[0][0], "printed figures in a form that is not known", "block", without_secrets(held[0][1]))

    def _end_paragraph(self) -> None:
        if not self._paragraph:
            return
        held, self._paragraph = self._paragraph, []
        if len(self.passages) >= MOST_PASSAGES and len(held) > 2:
            return  # no title, and words enough
        text = plain(" ".join(_ITEM.sub("", line.text.strip().lstrip(">")) for line in held)[:_LONGEST_PASSAGE])
        if text:
            # The last item of a list is no title of what follows, unless it says so.
            title = len(text) < 160 and len(held) <= 2 and (text.endswith(":") or not _ITEM.match(held[0].text))
            self._recent_words = _title(held[0].number, text) if title else None
            self._pass(Passage(held[0].number, text, self._section()))

    def _pass(self, passage: Passage) -> None:
        if len(self.passages) < MOST_PASSAGES:
            self.passages.append(passage)

    def _end_table(self) -> None:
        held, self._table = self._table, []
        while held and markup.is_rule(held[0].text):
            held = held[1:]  # the upper edge of a box
        if len(held) > 3 and markup.is_rule(held[1].text) and len(markup.cells(held[0].text)) == 1 and self._boxed:
            held = held[2:]  # its title
        if len(held) < 3 or not markup.is_rule(held[1].text):
            for line in held:  # lines between bars, and no table
                self._name(line.number, line.text.strip("| "))
            return
        if self._tables_full:
            return
        body = [(line.number, markup.cells(line.text)) for line in held[2:] if not markup.is_rule(line.text)]
        self._put_table(held[0].number, markup.cells(held[0].text), _unwrapped(body) if self._boxed else body)

    def _put_table(self, line: int, header: list[Cell], body: list[tuple[int, list[Cell]]]) -> None:
        self._cells += sum(len(cells) for _, cells in body)
        if self._cells > MOST_CELLS or len(self.tables) >= MOST_TABLES:
            self._tables_full = True
            self._miss(line, "More tables than are read of one file: those from here on are left out.", "lines")
            return
        titles = [cell.text for cell in header]
        table = Table(line, titles, [cells for _, cells in body], [n for n, _ in body], self._section())
        self.tables.append(table)
        words = self._recent_words
        if words is not None and not self._listing and (self._label is None or self._label[0] < words[0]):
            self._label, self._loose = words, False  # the nearest words above name the table
        found = tables.rows_of(table, len(self.tables) - 1, self.file, "table")
        for row in found:
            self._add(row)
        missed = tables.unread(table, found)
        if missed is not None and len(self.unread) < MOST_UNREAD:
            self.unread.append(missed)

    def finish(self) -> None:
        self._end_command()
        if self._block is not None:
            self._end_block(closed=False)
        if self._table:
            self._end_table()
        if self._html is not None:
            self._end_html()
        if self._aligned is not None:
            self._in_aligned(Line(0, ""))
        self._end_paragraph()
        self._end_offline()
        self._end_names()
        self._mark_empty(0)

    def document(self, format: str) -> Document:
        return Document(
            file=self.file, format=format, rows=self.rows, headings=self.headings, tables=self.tables,
            passages=self.passages, commands=self.commands, environments=self.environments.found, unread=self.unread,
        )  # fmt: skip


def _title(number: int, text: str) -> tuple[int, str] | None:
    """Words above a listing as its name: of a foldable part ('??? info "FP8"') what is quoted."""
    if found := _ADMONITION.match(text):
        quoted = re.search(r"\"([^\"]{2,100})\"", text[found.end() :])
        text = quoted[1] if quoted else ""
    return (number, text) if text and text.lower().rstrip(":") not in _NO_LABELS else None


def _unwrapped(body: list[tuple[int, list[Cell]]]) -> list[tuple[int, list[Cell]]]:
    """In a printed box, a line without a number goes on with the cells of the line above it."""
    out: list[tuple[int, list[Cell]]] = []
    for number, cells in body:
        wrapped = any(not cell.text for cell in cells) and not any(
            re.match(r"\W{0,2}\d", cell.text) for cell in cells[1:]
        )
        if out and wrapped and len(cells) == len(out[-1][1]):
            out[-1] = (
                out[-1][0],
                [Cell(f"{a.text} {b.text}".strip(), a.bold) for a, b in zip(out[-1][1], cells, strict=True)],
            )
        else:
            out.append((number, cells))
    return out


def _is_loose(text: str) -> bool:
    return _LOOSE.fullmatch(text.strip()) is not None and len(text.split()) <= 5
