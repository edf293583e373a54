"""The shape of the source: how much a function decides, how densely, and how many tokens a line has.

Complexity counts branches, boolean operators, conditional expressions, and the loops and conditions of comprehensions.
The figures of BASELINE may only fall: whoever lowers one writes the new figure here.
"""

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import dyno
from trees import nodes, parsed

SOURCE = Path(dyno.__file__).parent
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_BRANCH = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.IfExp,
    ast.Assert,
    ast.match_case,
)
_SPACE = {
    tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.ENCODING,
    tokenize.COMMENT,
}  # fmt: skip
BASELINE = {
    "complex": 5,
    "knots": 24,
    "dense": 1,
    "nested conditions": 1,
    "fmt: skip": 136,
    "fmt: skip outside tables": 0,
    "tokens a line": 8.4,  # a mean, which each new file moves by hundredths: 8.33 today
}

pytestmark = pytest.mark.usefixtures("no_collector")


class Function(NamedTuple):
    complexity: int
    lines: int
    name: str

    @property
    def dense(self) -> bool:
        return self.complexity >= 12 and self.complexity / self.lines > 0.8


def complexity(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return 1, and 1 for each branch. Functions and classes inside count for themselves."""
    found, todo = 1, list[ast.AST](function.body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.ClassDef, *_FUNCTION)):
            continue
        if isinstance(node, _BRANCH):
            found += 1
        if isinstance(node, ast.BoolOp):
            found += len(node.values) - 1
        if isinstance(node, ast.comprehension):
            found += 1 + len(node.ifs)
        todo.extend(ast.iter_child_nodes(node))
    return found


def functions(module: ast.Module, path: str) -> Iterator[Function]:
    for node in nodes(module):
        if isinstance(node, _FUNCTION):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield Function(complexity(node), lines, f"{path}:{node.lineno} {node.name}")


def nested_conditions(module: ast.Module) -> int:
    """Return how many conditional expressions are inside another one."""
    inside = [node for node in nodes(module) if isinstance(node, ast.IfExp)]
    return sum(
        isinstance(inner, ast.IfExp)
        for node in inside
        for inner in ast.walk(node)
        if inner is not node
    )


def docstring_lines(module: ast.Module) -> set[int]:
    found: set[int] = set()
    for node in nodes(module):
        if (
            isinstance(node, (ast.Module, ast.ClassDef, *_FUNCTION))
            and ast.get_docstring(node) is not None
        ):
            first = node.body[0]
            found.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return found


def tokens_and_lines(text: str, module: ast.Module) -> tuple[int, int]:
    """Count tokens and lines of code, without blank lines, comments and docstrings."""
    documented, tokens, lines = docstring_lines(module), 0, set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in _SPACE or (
            token.type == tokenize.STRING and token.start[0] in documented
        ):
            continue
        tokens += 1
        lines.update(range(token.start[0], token.end[0] + 1))
    return tokens, len(lines)


def is_table(node: ast.AST) -> bool:
    """Return whether a statement assigns rows and columns: a literal, or a call or a union of literals."""
    if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
        return False
    if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation).startswith(
        "Annotated"
    ):
        return False  # a field with its flag: one argument a line
    return _is_literal(node.value)


def _is_literal(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return any(map(_is_literal, [*value.args, *(k.value for k in value.keywords)]))
    if isinstance(value, ast.BinOp):
        return _is_literal(value.left) or _is_literal(value.right)
    if isinstance(value, (ast.GeneratorExp, ast.DictComp)):
        return _is_literal(value.generators[0].iter)
    return isinstance(value, (ast.Dict, ast.List, ast.Set, ast.Tuple, ast.Subscript))


def skips_outside_tables(text: str, module: ast.Module) -> Iterator[int]:
    """Yield the lines of `fmt: skip` that don't end a table of a module or a class."""
    bodies = [
        module.body,
        *(n.body for n in nodes(module) if isinstance(n, ast.ClassDef)),
    ]
    tables = {n.end_lineno for body in bodies for n in body if is_table(n)}
    for number, line in enumerate(text.splitlines(), 1):
        if "fmt: skip" in line and number not in tables:
            yield number


def shape(root: Path) -> tuple[dict[str, float], list[Function]]:
    found: list[Function] = []
    tokens = lines = skips = nested = outside = 0
    for path in sorted(root.rglob("*.py")):
        text = path.read_text()
        module = parsed(path)
        found += functions(module, path.relative_to(root).as_posix())
        nested += nested_conditions(module)
        skips += text.count("fmt: skip")
        outside += sum(1 for _ in skips_outside_tables(text, module))
        more_tokens, more_lines = tokens_and_lines(text, module)
        tokens, lines = tokens + more_tokens, lines + more_lines
    figures = {
        "complex": sum(f.complexity > 15 for f in found),
        "knots": max(f.complexity for f in found),
        "dense": sum(f.dense for f in found),
        "nested conditions": nested,
        "fmt: skip": skips,
        "fmt: skip outside tables": outside,
        "tokens a line": round(tokens / lines, 2),
    }
    return figures, found


def test_the_source_gets_no_denser() -> None:
    figures, found = shape(SOURCE)
    worst = sorted(found, reverse=True)[:5]
    assert {
        name: value for name, value in figures.items() if value > BASELINE[name]
    } == {}, (figures, worst)


def test_density_is_counted(tmp_path: Path) -> None:
    line = "    return [a if a and b else c if b else d for a in x for b in y if a if b]\n"
    (tmp_path / "a.py").write_text(f'def f(x, y):\n    """Docstring."""\n{line}')
    figures, found = shape(tmp_path)
    # Two conditional expressions, one `and`, two loops, two conditions.
    assert (
        found[0].complexity == 8
        and figures["nested conditions"] == 1
        and figures["dense"] == 0
    )


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("A = {1: 2}  # fmt: skip", []),
        ("A = frozenset({1,\n  2})  # fmt: skip", []),
        ("class A:\n    b = (1,\n      2)  # fmt: skip", []),
        ("class A:\n    b: Annotated[list, 1] = []  # fmt: skip", [2]),
        ("def f():\n    a = (1,\n      2)  # fmt: skip", [3]),
        ("f(1,\n  2)  # fmt: skip", [2]),
    ],
)
def test_only_tables_may_be_laid_out_by_hand(text: str, lines: list[int]) -> None:
    assert list(skips_outside_tables(text, ast.parse(text))) == lines
