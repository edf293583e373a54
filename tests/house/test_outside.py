"""A name from outside becomes a path in one way. The source is walked: any other way to join one is refused."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dyno
from dyno.outside import OutsideName, UnsafeName, is_safe
from path_joins import INSIDE, OWN
from trees import parsed

pytestmark = pytest.mark.usefixtures("no_collector")
SOURCE = Path(dyno.__file__).parent
JOINS = ("joinpath", "with_name", "with_stem", "with_suffix")
# Names that are a path in one place and a number in another.
NUMBERS = {"a", "b", "value", "values", "other", "log", "low", "output", "start"}
# their `name` is that of a path
LISTED = {"path", "p", "file", "folder", "probe", "source", "archive", "tokenizer"}


# ---- the source ----


@functools.cache
def modules() -> dict[str, ast.Module]:
    return {
        p.relative_to(SOURCE).as_posix(): parsed(p) for p in sorted(SOURCE.rglob("*.py"))
    }


def is_path_type(node: ast.expr | None) -> bool:
    return (
        node is not None and "Path" in ast.unparse(node) and "dict" not in ast.unparse(node)
    )


@functools.cache
def path_names() -> frozenset[str]:
    """Names of functions that return a path, and of parameters, fields and variables that are one."""
    names = {"Path", "parent", "absolute", "resolve", "expanduser"}
    for module in modules().values():
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef) and is_path_type(node.returns):
                names.add(node.name)
            elif isinstance(node, ast.arg) and is_path_type(node.annotation):
                names.add(node.arg)
            elif isinstance(node, ast.AnnAssign) and is_path_type(node.annotation):
                names.add(ast.unparse(node.target).rpartition(".")[2])
            elif (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.BinOp)
                and _is_text(node.value.right)
            ):
                names.update(
                    ast.unparse(target).rpartition(".")[2] for target in node.targets
                )
    return frozenset(names - NUMBERS)


def is_path(node: ast.expr) -> bool:
    """Whether an expression looks like a path: by its name, its type, or a text that is joined to it."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return (
            isinstance(node.right, ast.JoinedStr)
            or _is_text(node.right)
            or is_path(node.left)
        )
    if isinstance(node, ast.Call):
        return is_path(node.func)
    return last_name(node) in path_names()


def last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def is_own(node: ast.expr) -> bool:
    """A text in the source, a constant, or the name of a path that is there: not from outside."""
    if _is_text(node):
        return True
    if isinstance(node, ast.Name):
        return node.id.lstrip("_").isupper()
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "name"
        and ast.unparse(node.value) in LISTED
    )


def joins(module: ast.Module) -> Iterator[str]:
    """Each place where something that isn't written in the source becomes part of a path."""
    for node in ast.walk(module):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            if is_path(node) and not is_own(node.right):
                yield ast.unparse(node)
        elif isinstance(node, ast.Call):
            name = last_name(node.func)
            joined = name in JOINS or (
                name == "join" and ast.unparse(node.func) == "os.path.join"
            )
            parts = node.args if joined else node.args[1:] if name == "Path" else []
            if not all(map(is_own, parts)):
                yield ast.unparse(node)


def test_a_name_from_outside_becomes_a_path_in_one_way_only() -> None:
    """A new way to join names fails here: use `OutsideName`, or say in path_joins.py who makes the name."""
    other = {
        f"{name}: {join}"
        for name, module in modules().items()
        if not name.startswith(tuple(INSIDE))
        for join in joins(module)
        if join not in OWN.get(name, ("", set()))[1]
    }
    assert other == set()


def test_the_list_of_joins_has_no_line_that_the_source_lost() -> None:
    stale = {
        f"{name}: {join}"
        for name, (_, listed) in OWN.items()
        for join in listed - set(joins(modules()[name]))
    }
    assert stale == set()


@pytest.mark.parametrize(
    "line",
    [
        "def f(folder: Path, name: str): return folder / name",
        "def f(folder: Path, name: str): return folder / 'snapshots' / name",
        "def f(folder: Path, name: str): return folder / f'{name}.json'",
        "def f(folder: Path, names: list[str]): return folder.joinpath(*names)",
        "def f(folder: Path, name: str): return folder.with_name(name)",
        "def f(folder: Path, name: str): return Path(folder, name)",
        "def f(folder: str, name: str): return os.path.join(folder, name)",
        "def f(tag: str): return home() / tag",
        "def f(run: Run, probe: Probe): return run.path / probe.run",
    ],
)
def test_the_walk_sees_each_way_to_join_a_name(line: str) -> None:
    assert list(joins(ast.parse(line)))


# ---- the type ----

UNSAFE = [
    "", ".", "..", "/", "a/", "/a", "a//b", "../a", "a/..", "a/../b", "./a", "a/./b", "a\\b", "a\0b", "a\nb", "\x1b[2J",
    "a\u202eb", "x" * 256, "ä" * 128, "/".join("a" * 17), "\ud800", "a\x7f", "a/\x85", "x" * 2000,
]  # fmt: skip


@pytest.mark.parametrize("text", UNSAFE)
def test_a_name_that_may_lead_elsewhere_is_refused(text: str) -> None:
    with pytest.raises(UnsafeName):
        OutsideName(text)
    assert not is_safe(text)


@pytest.mark.parametrize(
    "text",
    ["config.json", "Q4_K_M/model-00001-of-00002.gguf", "..a", "a..b/c", "Ünïcode 1.txt"],
)
def test_a_plain_name_is_a_path_below_its_folder(text: str, tmp_path: Path) -> None:
    assert OutsideName(text).below(tmp_path) == tmp_path / text
    assert str(OutsideName(text)) == text


def test_a_name_is_neither_a_text_nor_a_path(tmp_path: Path) -> None:
    name: object = OutsideName("a")
    with pytest.raises(TypeError):
        tmp_path / name  # type: ignore[operator]
    with pytest.raises(TypeError):
        Path(name)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        open(name)  # type: ignore[call-overload]  # noqa: PTH123, SIM115


def test_a_hidden_name_a_second_part_and_a_false_digest_are_refused() -> None:
    for text in (".a", "a/b", ""):
        with pytest.raises(UnsafeName):
            OutsideName.single(text)
    for text in ("a" * 39, "A" * 40, "g" * 40, "a" * 41, "a" * 40 + "\n", "../" + "a" * 37):
        with pytest.raises(UnsafeName):
            OutsideName.digest(text)


def test_a_link_that_leads_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "in" / "away").symlink_to(tmp_path / "out")
    (tmp_path / "in" / "near").symlink_to(tmp_path / "in")
    with pytest.raises(UnsafeName):
        OutsideName("away/a").below(tmp_path / "in")
    assert OutsideName("near/a").below(tmp_path / "in").parent.name == "near"


@given(st.text(max_size=40) | st.text("./\\a\0\n~", max_size=20))
def test_any_text_is_refused_or_stays_below_its_folder(text: str) -> None:
    folder = Path("/nonexistent/folder")
    try:
        path = OutsideName(text).below(folder)
    except UnsafeName:
        return
    assert folder in path.parents
    assert ".." not in path.parts
    assert path == Path(str(path)).resolve()
