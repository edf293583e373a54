"""Nothing that a user reads has one of these words: each has a plainer one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from trees import parsed

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("no_collector")
PLAINER = {
    r"told|tells?|telling|said|says? of": "reported, shown, unknown",
    r"reckon\w*": "calculated",
    r"h[eo]lds? against": "compared with",
    r"stands?|stood|lies?|lay|lain": "is",
    r"bears?|bore|borne|brings?|brought": "has, adds",
    r"(?:goe?s?|gone|went|going) on": "resumed, continues",
    r"so (?:many|long|often)(?! as| that)": "N; for S seconds; N times",
    r"(?:some|no|any|every)body": "the user, the server; unknown",
    r"(?<!there )(?:is|are|was|were) no(?! longer| more| less| later| other)": "is not a",
    r"""(?:(?<=^)|(?<=[.:;!|] )|(?<=["'(>]))what (?!to )[^.?!|"]*\.""": "begin with the noun",
}
_PATTERN = re.compile(
    "|".join(rf"(?<![\w.-])(?:{bad})(?![\w-])" for bad in PLAINER), re.I | re.M
)
# Words of others, and code.
_QUOTED = re.compile(
    r"""```.*?```|`[^`\n]*`|(?<!\w)'[^'\n]*'(?!\w)|“[^”\n]*”|"\w+"|\{[{%].*?[%}]\}|told +JSON"""
    # Stored by an earlier version, in tests/fixtures/runs.
    r"|single\s+run: what\s+differs\s+by\s+chance\s+from\s+run\s+to\s+run|processors\s+is\s+not\s+told",
    re.S,
)
_TEXTS = (
    *(
        "README.md",
        "METHOD.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "docs/**/*.*",
        "studies/*.*",
        "published/*.*",
    ),
    *(
        "published/*/*.toml",
        "tests/golden/**/*.txt",
        "src/dyno/**/*.py",
        "src/dyno/**/*.js",
        "src/dyno/**/*.html",
    ),
)


def words(text: str) -> Iterator[tuple[int, str]]:
    """Line and word."""
    text = _QUOTED.sub(lambda m: re.sub(r"[^\n]", "·", m[0]), text)
    for match in _PATTERN.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match[0]


def is_of_re(node: ast.expr) -> bool:
    """Whether it begins with `re.`, as re.compile("…").sub("…", text) does."""
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return isinstance(node, ast.Name) and node.id == "re"


def literals(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each literal that may reach a user: it has a space, and is not a docstring or pattern."""
    skipped: set[int] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        elif isinstance(node, ast.Call) and is_of_re(node):
            skipped |= {id(inner) for inner in ast.walk(node)}
        elif isinstance(node, ast.JoinedStr) and id(node) not in skipped:
            skipped |= {id(part) for part in node.values}
            yield (
                node.lineno,
                "".join(
                    part.value if isinstance(part, ast.Constant) else "…"
                    for part in node.values
                ),
            )
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in skipped
        ):
            yield from (
                [(node.lineno, node.value)]
                if " " in node.value and r"\b" not in node.value
                else []
            )


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each part of a file that a user reads."""
    if path.suffix == ".py":
        yield from literals(path)
    elif path.suffix == ".js":
        for number, line in enumerate(path.read_text().splitlines(), 1):
            yield from (
                (number, literal[1:-1])
                for literal in re.findall(r'"[^"]* [^"]*"|`[^`]* [^`]*`', line)
            )
    elif path.suffix in (".md", ".txt", ".toml", ".html", ".sh", ".yml"):
        yield 1, path.read_text()


def unplain(glob: str) -> list[str]:
    """File, line and word of each."""
    paths = sorted(path for path in ROOT.glob(glob) if path.is_file())
    return [
        f"{path.relative_to(ROOT)}:{first + line - 1} {word}"
        for path in paths
        for first, text in texts(path)
        for line, word in words(text)
    ]


@pytest.mark.parametrize("glob", _TEXTS)
def test_what_a_user_reads_is_in_plain_words(glob: str) -> None:
    assert unplain(glob) == []


@pytest.mark.parametrize(
    "text",
    [
        "The port is told.",
        "It was reckoned so.",
        "x is no number",
        "What differs is args.",
        "Single run: what differs is not known.",
        "at most so many trials",
        "by somebody who knows",
        "stopped, it goes on with the same command",
    ],
)
def test_a_word_to_avoid_is_seen(text: str) -> None:
    assert list(words(text))


@pytest.mark.parametrize(
    "text",
    [
        "There is no run.",
        "It is no longer there.",
        "The page quotes 'what the server said'.",
        "as so many as that",
        "What differs?",
        "Check what differs.",
        "a standalone page",
    ],
)
def test_plain_words_pass(text: str) -> None:
    assert not list(words(text))


# Of names of tests, which are sentences too.
_DIALECT = re.compile(
    r"_(?:told|tells?|telling|spoken_of|held_against|reckon\w*|nobody|somebody)(?:_|$)"
    r"|(?<!there)_(?:is|are)_no_(?!more_|longer_|heavier_)"
)


def test_names_of_tests_are_plain() -> None:
    written = "".join(path.read_text() for path in ROOT.glob("tests/**/test_*.py"))
    names = re.findall(r"def (test_\w+)", written)
    assert len(names) > 2000
    assert [name for name in names if _DIALECT.search(name)] == []
