"""A text of any kind, Markdown, a log or a console's output, walked line by line: results, commands, tables, words.

What surrounds a result belongs to it as far as its author's own order says so: a command holds for the listing in
which both stand, or, in a listing of its own, for what follows under the same heading until the next command.
"""

import re
from collections.abc import Iterable
from typing import Literal

import msgspec

from dyno.audit import commands, forms
from dyno.audit.forms import plain
from dyno.facts.imported import (
    Command,
    Document,
    DocumentCell,
    DocumentTable,
    Figure,
    Heading,
    Passage,
    Row,
    Setting,
    Unread,
)
from dyno.facts.setting import LABELS
from dyno.results import tables
from dyno.results.lines import TextLine

MOST_ROWS, MOST_PASSAGES, MOST_COMMANDS, MOST_HEADINGS, MOST_UNREAD = (
    10_000,
    4_000,
    2_000,
    20_000,
    1_000,
)
MOST_TABLES, MOST_CELLS = 5_000, 300_000  # cells of all tables
# characters of all commands, and commands
_MOST_CHARACTERS, _MOST_PARSED = 4_000_000, 20_000
_MOST_LINES = 20_000  # of a table
_LONGEST_PASSAGE = 20_000
_LONGEST_COMMAND = 16_000
_ITEM_LENGTH = 120  # characters of a list's item that is nothing but a figure
_NAMED = 60  # characters of an unread listing's line that name it
_SHORT = 2_000  # characters of a line that is a setting, a heading or a figure
_FENCE = re.compile(r"^\s{0,12}(```|~~~)")
_HEADING = re.compile(r"^\s{0,3}(#{1,6})\s+(\S.*)$")
_UNDERLINE = re.compile(r"\s{0,3}(={3,}|-{3,})")
_HTML_HEADING = re.compile(r"<h([1-6])[^>]{0,100}>(.{1,200}?)</h\1>", re.I)
_BOLD_LINE = re.compile(r"^\s{0,3}(?:\*\*|__)([^*_].{0,150}?)(?:\*\*|__):?\s*$")
_COMMENT = re.compile(r"^\s{0,8}#{1,6}\s+(\S.{0,200})$")
_PROGRESS = re.compile(r"\b(\d{1,7})/(\d{1,7}) \[\d")
# Names of bars that count other things than the measured requests.
_OTHER_BAR = re.compile(
    r"warm|test request|test run|load|captur|download|fetch|tokeniz|shard|compil|graph|layer|epoch|convert|quantiz|"
    r"preprocess|prepar|sampl",
    re.I,
)
_LABELS = "|".join(re.escape(label).replace(r"\ ", "[ _]") for label in LABELS)
_LOAD = re.compile(rf"^\W{{0,4}}({_LABELS})\s*[:=]\s*([\d.]+|inf)\b(?!\s*,)", re.I)
_BUILD = re.compile(r"^\s{0,8}build:\s*([0-9a-f]{6,40}|unknown)\s*\((\d+)\)")
_EVALUATED = re.compile(
    r"^\s{0,4}(?:#\s{1,2})?([\w-]{2,30}) \((pretrained=|model=|base_url=)(.{0,2000}?)\),"
    r".{0,200}?(?:num_fewshot|batch_size):"
)
_ASSIGNMENT = re.compile(
    r"^\s{0,12}(?:export\s+)?([A-Za-z_]\w{0,40})=(\"[^\"]*\"|'[^']*'|[^\s#;|&]*)\s*(?:#.*)?$"
)
_ITEM = re.compile(r"^\s{0,12}(?:[-*+•]|\d{1,3}[.)])\s+")
_CALCULATES = re.compile(r"\d\s*[*×x/+÷-]\s*\d|=\s*\d|^\s*(?:>>>|\d[\d.,]*\s*$)")
# A line of its own above results that names them: 'tgi', 'fp8 -tp 4'.
_LOOSE = re.compile(r"[\w +/()=,-][\w .+/()=,-]{0,60}[\w)]")
_NO_LABELS = {
    "client", "server", "run", "output", "result", "results", "benchmark", "command", "log", "example", "usage",
    "benchmark result", "benchmark results", "raw results", "results:", "test results", "serving script",
}  # fmt: skip
_NO_TITLE = re.compile(
    r"\s{0,12}<|\s{0,12}(?:[-*+•>]|\d{1,3}[.)])\s|\w{1,30}:\s|.{0,120}[.:;,]$"
)
_ADMONITION = re.compile(r"^(?:\?\?\?\+?|!!!|===)\s")

_Numbered = tuple[int, str]  # a line's number, and words


class Walk:
    def __init__(self, file: str, markdown: bool) -> None:
        self.file, self.markdown = file, markdown
        self.rows: list[Row] = []
        self.headings: list[Heading] = []
        self.tables: list[DocumentTable] = []
        self.passages: list[Passage] = []
        self.commands: list[Command] = []
        self.environments = commands.Environments()
        self.unread: list[Unread] = []
        self.full = False
        self._scope = commands.Scope()
        self._variables: dict[str, str] = {}
        self._pending: dict[str, Setting] = {}  # lines right before a block
        # the name of the next results, by a comment or a line above
        self._label: _Numbered | None = None
        self._loose = False  # the label is a line that only looks like one
        self._recent_words: _Numbered | None = None  # a short paragraph right before
        self._fence: str | None = None
        self._numbers_in = forms.numbers_reader("")
        self._listing = self._listings = 0  # the number of this one; 0: outside
        self._listing_rows = False
        # of this listing: numbers that nothing read
        self._listing_line, self._loose_numbers = 0, list[_Numbered]()
        self._level = 0
        self._content = True  # since the last heading
        self._code = False  # the listing is a program or a configuration
        self._block: forms.ResultBlock | None = None
        self._table: list[TextLine] = []
        self._bare = False  # the table's lines don't begin with a bar
        self._boxed = False  # the table's lines are printed with box-drawing characters
        self._cells, self._tables_full = 0, False
        self._aligned: forms.Aligned | None = None  # a table in aligned columns
        self._html: list[TextLine] | None = None  # a table in HTML
        # figures with a number behind them, since the last heading or fence
        self._names: list[_Numbered] = []
        self._before = TextLine(0, "")
        self._paragraph: list[TextLine] = []
        self._joined: _Numbered | None = None  # a command that continues on the next line
        self._spent = 0  # characters of commands
        self._offline: tuple[int, int, dict[str, Figure]] | None = None

    # ---- the walk ----

    def go(self, lines: Iterable[TextLine]) -> None:
        for line in lines:
            if self.full:
                break
            self.take(line)
        self.finish()

    def take(self, line: TextLine) -> None:
        """Read the next line."""
        if self._goes_on(line):
            return
        number, raw = line
        text = forms.unboxed(raw)
        boxed = text is not raw
        if boxed:
            line = TextLine(number, text)
        if self._table and not self._in_table(text):
            self._end_table()
        self._boxed = boxed or (self._boxed and bool(self._table))
        before, self._before = self._before, line
        if not text or text.isspace():
            self._end_paragraph()
        elif boxed and forms.is_rule(text):
            self._table.append(line)
        elif not self._begins(number, text) and not self._known(number, text, before):
            self._read_plain_line(number, text)

    def _begins(self, number: int, text: str) -> bool:
        """Return whether a listing begins or ends here, or a printed block begins."""
        if ("```" in text or "~~~" in text) and _FENCE.match(text):
            self._toggle(number, text)
            return True
        if "===" in text and (match := forms.header(text)):
            self._begin(forms.ResultBlock(match[1], number))
            return True
        if "Successful requests" in text and forms.STARTS.search(text):
            self._begin(forms.ResultBlock("", number))
            self._in_block(number, text)
            return True
        return False

    def _goes_on(self, line: TextLine) -> bool:
        """Return whether the line belongs to what began above it."""
        return (
            (self._block is not None and self._in_block(*line))
            or (self._joined is not None and self._continue(*line))
            or (self._html is not None and self._in_html(*line))
            or (self._aligned is not None and self._in_aligned(line))
        )

    def _known(self, number: int, text: str, before: TextLine) -> bool:
        """Return whether a line means something by itself, and read it if so."""
        if "|" in text and self._is_table(number, text, before):
            return True
        if "<table" in text and self._fence is None:
            return self._begin_html(number, text)
        if "=" in text and " (" in text and self._is_evaluated(number, text[:_SHORT]):
            return True
        return self._is_heading(number, text) or self._is_statement(number, text)

    def _is_statement(self, number: int, text: str) -> bool:
        """Return whether a line says how results were made, or is one of a few lines that are a result."""
        if "Namespace(" in text:
            self._state(commands.namespace(text, number), "namespace")
            return True
        if self._is_command(number, text):
            return True
        if "/" in text and self._is_progress(number, text[-_SHORT:]):
            return True
        text = text[:_SHORT]
        if (":" in text or "=" in text) and self._is_setting(number, text):
            return True
        return ":" in text and self._is_offline(number, text)

    def finish(self) -> None:
        self._end_command()
        if self._block is not None:
            self._end_block(closed=False)
        if self._table:
            self._end_table()
        if self._html is not None:
            self._end_html()
        if self._aligned is not None:
            self._in_aligned(TextLine(0, ""))
        self._end_part()
        self._end_listing()
        self._mark_empty(0)

    def document(self, format: str) -> Document:
        return Document(
            file=self.file,
            format=format,
            rows=self.rows,
            headings=self.headings,
            tables=self.tables,
            passages=self.passages,
            commands=self.commands,
            environments=self.environments.dumps,
            unread=self.unread,
        )

    def _miss(
        self,
        line: int,
        why: str,
        part: Literal["", "block", "columns", "lines"] = "",
        what: str = "",
    ) -> None:
        if len(self.unread) < MOST_UNREAD:
            self.unread.append(Unread(line, why, part, what))

    # ---- results ----

    def _begin(self, block: forms.ResultBlock) -> None:
        self._end_paragraph()
        self._content = True
        self._block = block

    def _in_block(self, number: int, text: str) -> bool:
        """Return whether the line was the block's."""
        current = self._block
        assert current is not None
        again = forms.header(text) if "===" in text else None
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
        client = self._scope.client()
        row = current.row(
            self.file,
            client if client in ("vllm", "sglang", "dyno") else None,
            self._section(),
        )
        if row is None:
            why = "a result's heading without readable figures"
            self._miss(current.line, why, "block" if current.figures else "")
            return
        if (
            not closed
            and current.title
            and "completed" in row.figures
            and "mean_ttft_ms" not in row.figures
        ):
            self._miss(
                row.end, "the block ends early, without latencies and closing line", "lines"
            )
        # Below the block's last figure there may be anything.
        unknown = [entry for entry in current.unknown if entry[0] < row.end]
        if unknown:
            first_line = unknown[0][0]
            labels = ", ".join(dict.fromkeys(label for _, label in unknown))
            self._miss(
                first_line,
                "meaning unknown",
                "columns",
                commands.without_secrets(labels[:_SHORT]),
            )
        self._add(row)

    def _is_offline(self, number: int, text: str) -> bool:
        figures = forms.offline_figures(text, number)
        if not figures:
            return False
        self._content = True
        if self._offline is not None and (
            set(figures) & set(self._offline[2]) or number - self._offline[1] > 40
        ):
            self._end_offline()
        first, _, others = self._offline or (number, number, {})
        self._offline = (first, number, {**others, **figures})
        return True

    def _end_offline(self) -> None:
        if self._offline is None:
            return
        first, last, figures = self._offline
        self._offline = None
        if set(figures) <= {"total_input_tokens", "total_output_tokens"}:
            return
        row = Row(
            kind="latency" if "mean_latency_ms" in figures else "throughput",
            tool="vllm",
            form="block",
            file=self.file,
            line=first,
            end=last,
            figures=figures,
            section=self._section(),
        )
        self._add(row)

    def _add(self, row: Row) -> None:
        """Add a result, with the settings that surround it."""
        if len(self.rows) >= MOST_ROWS:
            if not self.full:
                why = f"more than {MOST_ROWS:,} results; the rest was not read"
                self.unread.append(Unread(row.line, why, "lines"))
            self.full = True
            return
        self._listing_rows = True
        settings = self._settings_in_words(row)
        settings |= self._scope.settings(row.kind)
        progress = self._pending.pop("progress", None)
        settings |= self._pending
        if (
            progress is not None
            and "num_prompts" not in settings
            and _counts_requests(progress, row)
        ):
            settings["num_prompts"] = progress
        settings |= row.settings
        self._pending.clear()
        label = self._label[1] if self._label is not None else ""
        self.rows.append(
            msgspec.structs.replace(row, settings=settings, label=row.label or label)
        )

    def _settings_in_words(self, row: Row) -> dict[str, Setting]:
        """Return settings that the heading and the words above a result name."""
        settings: dict[str, Setting] = {}
        if (row.form == "block" or row.tool) and self.headings:
            settings |= commands.in_words(self.headings[-1].text, self.headings[-1].line)
        if self._label is not None:
            line, label = self._label
            settings |= commands.in_words(label, line)
        # The row's own name takes precedence over words above it.
        if "quantization" in settings and commands.QUANTIZATION.search(row.label):
            del settings["quantization"]
            own = commands.in_words(row.label, row.line, "column")
            if "quantization" in own:
                settings["quantization"] = own["quantization"]
        return settings

    # ---- settings before results ----

    def _state(self, settings: dict[str, Setting], role: str, tool: str = "") -> None:
        self._content = True
        self._scope.add(
            commands.Statement(settings, role, tool, self._level, self._listing)
        )
        self._pending.clear()

    def _is_evaluated(self, number: int, text: str) -> bool:
        """Return whether it is lm-eval's line on its model, above its tables."""
        match = _EVALUATED.match(text)
        if match is None:
            return False
        self._end_paragraph()
        args = match[2] + match[3]
        settings = commands.model_args(args, number)
        settings["--model_args"] = Setting(
            commands.without_secrets(args[:500]), number, "command"
        )
        self._state(settings, "quality")
        return True

    def _is_progress(self, number: int, text: str) -> bool:
        """Return whether it is a progress bar. It may count the requests of the next result."""
        match = _PROGRESS.search(text)
        if match is None:
            return False
        if not _OTHER_BAR.search(text.partition("|")[0]):
            self._pending["progress"] = Setting(int(match[2]), number, "progress")
        return True

    def _is_setting(self, number: int, text: str) -> bool:
        if match := _LOAD.match(text):
            name = LABELS[match[1].lower().replace("_", " ")]
            self._pending[name] = Setting(commands.scalar(match[2]), number, "block")
            return True
        if self.environments.take(number, text):
            self._content = True
            return True
        if match := _BUILD.match(text):
            self._built(match[1], match[2], number)
            return True
        if (
            self._listing
            and (match := _ASSIGNMENT.match(text))
            and not text.lstrip().startswith("#")
        ):
            if len(self._variables) < MOST_COMMANDS:
                self._variables[match[1]] = match[2].strip("'\"")
            return len(match[2]) > 0
        return False

    def _built(self, commit: str, number: str, line: int) -> None:
        """Add llama-bench's build to the results above it: it is printed below the table."""
        version = f"{number} ({commit})" if number != "0" else commit
        for i in range(len(self.rows) - 1, -1, -1):
            row = self.rows[i]
            if row.tool != "llama-bench" or "engine_version" in row.settings:
                break
            settings = row.settings | {"engine_version": Setting(version, line, "block")}
            self.rows[i] = msgspec.structs.replace(row, settings=settings)

    def _is_command(self, number: int, text: str) -> bool:
        """Return whether a command begins here."""
        program = commands.program_in(text)
        if program is None:
            return False
        if not self._listing:
            if self._paragraph or not _is_command_alone(text.strip(), program[3]):
                return False
        elif _only_mentions_program(text):
            return False
        self._end_paragraph()
        self._joined = (number, commands.without_prompt(text).strip()[:_LONGEST_COMMAND])
        return True

    def _continue(self, number: int, text: str) -> bool:
        """Return whether a command continues: it ends with a backslash, or was broken inside a flag or a quote."""
        assert self._joined is not None
        line, before = self._joined
        joined = _joined(before, text)
        if joined is None or len(joined) > _LONGEST_COMMAND or _FENCE.match(text):
            self._end_command()
            return False
        self._joined = (line, joined)
        return True

    def _end_command(self) -> None:
        if self._joined is None:
            return
        line, text = self._joined
        self._joined = None
        self._spent += len(text) + _MOST_CHARACTERS // _MOST_PARSED
        if self._spent >= _MOST_CHARACTERS:
            return
        one = commands.command(text.rstrip("\\"), line, self._variables, self._section())
        if one is None:
            return
        if len(self.commands) < MOST_COMMANDS:
            self.commands.append(one)
        program = commands.program_in(text)
        self._state(one.settings, one.role, program[2] if program else "")

    # ---- structure ----

    def _toggle(self, number: int, text: str) -> None:
        self._end_part()
        self._content = True
        self._code = self._fence is None and forms.is_code(text)
        mark = text.strip()[:3]
        if self._fence is None:
            self._fence = mark
            self._listing_line, self._loose_numbers = number, []
            self._numbers_in = forms.numbers_reader(text)
            self._listings += 1
            self._listing = self._listings
            self._listing_rows = False
            if self._recent_words:
                self._label, self._loose = self._recent_words, False
        elif self._fence == mark:
            self._fence = None
            self._end_listing()
            if self._listing_rows:  # a listing with both is closed in itself
                self._scope.end_listing(self._listing)
            self._listing = 0
            self._label = None
            self._pending.clear()

    def _is_heading(self, number: int, text: str) -> bool:
        """Return whether it is a heading, or a line that names what follows."""
        if self._fence is None and self.markdown:
            return self._is_markdown_heading(number, text)
        match = _COMMENT.match(text)
        if match is None or (commands.program_in(text) and re.search(r"\s--?[a-z]", text)):
            return False
        if match[1].strip().lower().rstrip(":") not in _NO_LABELS:
            self._label, self._loose = (number, plain(match[1])), False
        self._pending.clear()
        self._content = True
        return True

    def _is_markdown_heading(self, number: int, text: str) -> bool:
        if match := _HEADING.match(text[:_SHORT]):
            self._head(number, len(match[1]), forms.title(match[2]))
            return True
        if (
            self._paragraph
            and text.lstrip()[:3] in ("===", "---")
            and _UNDERLINE.fullmatch(text)
        ):
            return self._underlined(number, 1 if "=" in text else 2)
        if "<" in text and (match := _HTML_HEADING.search(text[:_SHORT])):
            self._head(number, int(match[1]), match[2])
            return True
        if match := _BOLD_LINE.match(text):
            self._end_paragraph()
            self._content = True
            self._label = self._recent_words = (number, plain(match[1]))
            self._loose = False
            return True
        return False

    def _underlined(self, number: int, level: int) -> bool:
        """Return whether a heading was underlined: a paragraph of one line above a line of dashes."""
        first, *more = self._paragraph
        if (
            more
            or first.number != number - 1
            or len(first.text) > 120
            or _NO_TITLE.match(first.text)
        ):
            return False
        self._paragraph = []
        self._head(first.number, level, first.text.strip())
        return True

    def _head(self, number: int, level: int, text: str) -> None:
        self._end_part()
        self._mark_empty(level)
        if len(self.headings) >= MOST_HEADINGS:
            self.headings.pop()
        self.headings.append(Heading(number, level, plain(text)))
        self._scope.end_sections(level)
        self._level, self._content = level, False
        self._label = self._recent_words = None
        self._pending.clear()

    def _mark_empty(self, level: int) -> None:
        """Mark the last heading if nothing came after it and the next is not below it."""
        if self.headings and not self._content and level <= self.headings[-1].level:
            self.headings[-1] = msgspec.structs.replace(self.headings[-1], empty=True)

    def _section(self) -> str:
        return self.headings[-1].text if self.headings else ""

    def _end_part(self) -> None:
        """End what came before a heading or a fence."""
        self._end_paragraph()
        self._end_offline()
        names, self._names = self._names, []
        if len(names) > 1:
            line, name = names[0]
            self._miss(
                line,
                "printed figures in an unknown format",
                "block",
                commands.without_secrets(name),
            )

    def _end_listing(self) -> None:
        """List a listing as unread if its numbers gave no result, and nothing of it is listed yet."""
        numbers, self._loose_numbers = self._loose_numbers, []
        listed = any(u.lost and u.line > self._listing_line for u in self.unread)
        if len(numbers) > 1 and not self._listing_rows and not listed:
            line, text = numbers[0]
            self._miss(
                line,
                "a listing in an unknown format",
                "block",
                commands.without_secrets(text.strip()[:_NAMED]),
            )

    # ---- words ----

    def _read_plain_line(self, number: int, text: str) -> None:
        """Read a line that is nothing else: of a listing, or of a paragraph."""
        if self._fence is not None and len(self._loose_numbers) < 2:
            count = self._numbers_in(text)
            self._loose_numbers += [(number, text)] * count
        if self._listing or not self.markdown:
            self._words_of_listing(number, text)
            return
        if _ITEM.match(text) or _ADMONITION.match(text):
            self._end_paragraph()
            if ":" in text and len(text) < _ITEM_LENGTH:
                self._figures(number, _ITEM.sub("", text).replace("*", ""))
        self._content = True
        self._paragraph.append(TextLine(number, text))
        if len(self._paragraph) > 200 or len(text) > _LONGEST_PASSAGE:
            self._end_paragraph()

    def _words_of_listing(self, number: int, text: str) -> None:
        if ":" in text or "=" in text or "  " in text:
            self._figures(number, text)
        if (
            len(self.passages) < MOST_PASSAGES
            and len(text) < 400
            and _CALCULATES.search(text)
        ):
            self._pass(
                Passage(
                    number,
                    commands.without_secrets(text.strip()),
                    self._section(),
                    listing=True,
                )
            )
        elif (self._label is None or self._loose) and len(text) < 80 and _is_loose(text):
            self._label, self._loose = (
                (number, commands.without_secrets(text.strip())),
                True,
            )

    def _figures(self, number: int, text: str) -> None:
        """Take figures outside of blocks and of tables with bars: aligned columns are read, names with numbers are
        not."""
        if self._code or not forms.is_measured(text):
            return
        if self._fence is not None or not self.markdown:
            self._aligned = forms.aligned(number, text)
        if self._aligned is None:
            self._name(number, text)

    def _name(self, number: int, text: str) -> None:
        if len(self._names) < 2 and forms.is_measured(text):
            self._names += [(number, name) for name in forms.measured(text)]

    def _end_paragraph(self) -> None:
        if not self._paragraph:
            return
        lines, self._paragraph = self._paragraph, []
        if len(self.passages) >= MOST_PASSAGES and len(lines) > 2:
            return  # not a title, and words enough
        words = " ".join(_ITEM.sub("", line.text.strip().lstrip(">")) for line in lines)
        text = plain(words[:_LONGEST_PASSAGE])
        if not text:
            return
        first = lines[0]
        # The last item of a list is not a title of what follows, unless it looks like one.
        may_be_title = text.endswith(":") or not _ITEM.match(first.text)
        short = len(text) < 160 and len(lines) <= 2
        self._recent_words = _title(first.number, text) if short and may_be_title else None
        self._pass(Passage(first.number, text, self._section()))

    def _pass(self, passage: Passage) -> None:
        if len(self.passages) < MOST_PASSAGES:
            self.passages.append(passage)

    # ---- tables ----

    def _is_table(self, number: int, text: str, before: TextLine) -> bool:
        """Return whether it is a line of a table."""
        row = forms.row(text)
        if row is None and not self._is_bare_row(number, text, before):
            return False
        if not self._table:
            self._end_paragraph()
            self._bare = False
        self._content = True
        if len(self._table) < _MOST_LINES:
            self._table.append(TextLine(number, (row or text)[: forms.LONGEST_ROW]))
        return True

    def _is_bare_row(self, number: int, text: str, before: TextLine) -> bool:
        """Return whether a line without bars at its ends is a table's: its rule, or a row below such a rule."""
        rule = forms.is_rule(text)
        if not rule or self._table:
            return bool(self._table) and (self._bare or rule)
        if "|" not in before.text or before.number != number - 1:
            return False
        # The line before was a header without bars at its ends.
        if self._paragraph and self._paragraph[-1].number == before.number:
            self._paragraph.pop()
        self._end_paragraph()
        self._bare, self._table = (
            True,
            [TextLine(before.number, before.text[: forms.LONGEST_ROW])],
        )
        return True

    def _in_table(self, text: str) -> bool:
        if "|" in text and (self._bare or forms.row(text)):
            return True
        return len(self._table) == 1 and forms.is_rule(text)

    def _end_table(self) -> None:
        lines, self._table = self._table, []
        while lines and forms.is_rule(lines[0].text):
            lines = lines[1:]  # the upper edge of a box
        if self._boxed and _has_title(lines):
            lines = lines[2:]
        if len(lines) < 3 or not forms.is_rule(lines[1].text):
            for line in lines:  # lines between bars, and not a table
                self._name(line.number, line.text.strip("| "))
            return
        if self._tables_full:
            return
        body = [
            (line.number, forms.cells(line.text))
            for line in lines[2:]
            if not forms.is_rule(line.text)
        ]
        if self._boxed:
            body = forms.unwrapped(body)
        self._put_table(lines[0].number, forms.cells(lines[0].text), body)

    def _begin_html(self, number: int, text: str) -> bool:
        self._end_paragraph()
        self._content = True
        self._html = []
        return self._in_html(number, text)

    def _in_html(self, number: int, text: str) -> bool:
        """Return whether the line is the table's. A listing in a cell is read as one, and then the table isn't."""
        assert self._html is not None
        if "```" in text or "Benchmark Result" in text or len(self._html) > _MOST_LINES:
            self._html = None
            return False
        self._html.append(TextLine(number, text))
        if "</table" in text:
            self._end_html()
        return True

    def _end_html(self) -> None:
        rows, self._html = forms.html_rows(self._html or []), None
        if len(rows) >= 2:
            self._put_table(*rows[0], rows[1:])

    def _in_aligned(self, line: TextLine) -> bool:
        """Return whether the line is the table's. The first that isn't ends it."""
        table = self._aligned
        assert table is not None
        if line.text and not line.text.isspace() and table.take(line):
            return True
        self._aligned = None
        if table.body:
            header = list(map(DocumentCell, table.header))
            self._put_table(
                table.line, header, [(n, list(map(DocumentCell, r))) for n, r in table.body]
            )
        if table.misses(line.text):
            what = commands.without_secrets(", ".join(table.header))
            self._miss(
                line.number,
                "cells don't line up with the titles",
                "lines" if table.body else "block",
                what,
            )
        return False

    def _put_table(
        self,
        line: int,
        header: list[DocumentCell],
        body: list[tuple[int, list[DocumentCell]]],
    ) -> None:
        self._cells += sum(len(cells) for _, cells in body)
        if self._cells > MOST_CELLS or len(self.tables) >= MOST_TABLES:
            self._tables_full = True
            self._miss(line, "too many tables; the rest was not read", "lines")
            return
        titles = [cell.text for cell in header]
        table = DocumentTable(
            line,
            titles,
            [cells for _, cells in body],
            [n for n, _ in body],
            self._section(),
        )
        self.tables.append(table)
        words = self._recent_words
        if (
            words is not None
            and not self._listing
            and (self._label is None or self._label[0] < words[0])
        ):
            # the nearest words above name the table
            self._label, self._loose = words, False
        rows = tables.rows_of(table, len(self.tables) - 1, self.file, "table")
        for row in rows:
            self._add(row)
        self.unread += tables.unread(table, rows)[: MOST_UNREAD - len(self.unread)]


def _title(number: int, text: str) -> _Numbered | None:
    """Return words above a listing as its name: of a foldable part ('??? info "FP8"') what is quoted."""
    if match := _ADMONITION.match(text):
        quoted = re.search(r"\"([^\"]{2,100})\"", text[match.end() :])
        text = quoted[1] if quoted else ""
    return (number, text) if text and text.lower().rstrip(":") not in _NO_LABELS else None


def _counts_requests(progress: Setting, row: Row) -> bool:
    """Return whether a progress bar counts a result's requests. One of fewer than completed is another phase's."""
    if row.kind != "serve" or not isinstance(progress.value, int):
        return False
    return progress.value >= (row.get("completed") or 0)


def _is_command_alone(text: str, start: int) -> bool:
    """Return whether a line begins with a program, and has flags: words may mention one. `start`: where it is named."""
    bare = commands.without_prompt(text).strip("`")
    start = max(start - max(len(text) - len(bare), 0), 0)
    begins = re.match(
        r"(?:[A-Z_]+=\S*\s+)*(?:python\d?\S*\s+(?:-m\s+)?)?\S*$", bare[:start]
    )
    return begins is not None and re.search(r"\s--?[A-Za-z]", bare) is not None


def _only_mentions_program(text: str) -> bool:
    """Return whether a listing's line is a log's or a comment that mentions a program."""
    if re.match(r"^\s*(?:INFO|WARNING|ERROR|DEBUG|\[|\()", text) and not re.search(
        r"\s--[a-z]", text
    ):
        return True
    is_comment = re.match(r"^\s*#", text) is not None
    return is_comment and not re.match(
        r"^\s*#\s*(?:[A-Z_]+=\S+\s+)*(?:python|vllm|\./|llama)", text
    )


def _joined(before: str, text: str) -> str | None:
    """Return a command with the next line, if it continues there."""
    if before.endswith("\\"):
        return before[:-1].rstrip() + " " + text.strip()
    quote = before.rfind("'{")
    if quote >= 0 and "'" not in before[quote + 1 :] and before[quote - 1] in " =$":
        # JSON in quotes that are still open
        ends = not text.strip() or "===" in text or len(before) >= 4_000
        return None if ends else f"{before} {text.strip()}"
    if re.match(r"[a-z_]{1,30}=\S+(?:\s+-|\s*$)", text) and re.search(
        r"\s--[a-z][\w-]*$", before
    ):
        return before + text.strip()
    return None


def _has_title(lines: list[TextLine]) -> bool:
    """Return whether the first line of a box has a single cell, above a rule."""
    return (
        len(lines) > 3
        and forms.is_rule(lines[1].text)
        and len(forms.cells(lines[0].text)) == 1
    )


def _is_loose(text: str) -> bool:
    return _LOOSE.fullmatch(text.strip()) is not None and len(text.split()) <= 5
