"""The structure of the source: one name for one class, plain names, no circles, and a true ARCHITECTURE.md."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import dyno
from test_imports_point_down import imported
from trees import parsed

SOURCE = Path(dyno.__file__).parent
PAGE = Path(__file__).parents[2] / "ARCHITECTURE.md"
# Participles and prepositions say nothing as names.
VAGUE = {"told", "found", "kept", "made", "of", "at", "there", "apart"}

pytestmark = pytest.mark.usefixtures("no_collector")


def modules(root: Path) -> dict[str, Path]:
    """Module name → file."""
    names = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        names[".".join(["dyno", *(parts[:-1] if parts[-1] == "__init__" else parts)])] = (
            path
        )
    return names


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of every variable, argument, attribute, function and class that is defined."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def vague(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}:{line} {name}"
        for path in modules(root).values()
        for line, name in names(parsed(path))
        if name.strip("_").lower() in VAGUE
    ]


def test_names_say_what_they_hold() -> None:
    assert vague(SOURCE) == []


def test_a_vague_name_is_found(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(
        "class Told: ...\ndef f(of: int) -> int:\n    self.found = made = of\n    return made"
    )
    assert sorted(vague(tmp_path)) == [
        "x.py:1 Told",
        "x.py:2 of",
        "x.py:3 found",
        "x.py:3 made",
    ]


def test_one_name_is_one_class() -> None:
    places: dict[str, list[str]] = {}
    for module, path in modules(SOURCE).items():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


# Names that said something else in each file → how many functions of modules and classes still have them.
MANY_MEANINGS = {
    "look": 3,
    "held": 0,
    "hold": 1,
    "say": 1,
    "_read": 3,
    "_settings": 1,
    "_words": 1,
}


def functions_named(root: Path, asked: set[str]) -> Counter[str]:
    """Count functions by name; a function inside another one is clear where it is used."""
    counted: Counter[str] = Counter(dict.fromkeys(asked, 0))
    for path in modules(root).values():
        tree = parsed(path)
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        for node in (inner for scope in (tree, *classes) for inner in scope.body):
            if isinstance(node, ast.FunctionDef) and node.name in asked:
                counted[node.name] += 1
    return counted


def test_functions_are_called_by_what_they_do() -> None:
    counted = functions_named(SOURCE, {*MANY_MEANINGS})
    assert {name: n for name, n in counted.items() if n > MANY_MEANINGS[name]} == {}


# A worker is an engine that is loaded in a process of its own, for offline trials.
WORKERS = ("engines/", "trial/offline", "trial/engine_plan.py", "conduct/study.py")


def test_a_worker_is_an_engine_in_its_own_process() -> None:
    named = [
        f"{file}:{line} {name}"
        for path in modules(SOURCE).values()
        if not (file := path.relative_to(SOURCE).as_posix()).startswith(WORKERS)
        for line, name in names(parsed(path))
        if "worker" in name.lower()
    ]
    assert named == []


# Docstrings of functions begin with a verb or name the thing. How many begin with one of these words:
NO_SENTENCE = {"Whether": 12, "Of": 0, "Around": 1}


def first_words(root: Path) -> Counter[str]:
    """Count the first words of docstrings of functions."""
    return Counter(
        text.split(maxsplit=1)[0]
        for path in modules(root).values()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef) and (text := ast.get_docstring(node))
    )


def test_docstrings_are_sentences() -> None:
    counted = first_words(SOURCE)
    assert {
        word: counted[word] for word, most in NO_SENTENCE.items() if counted[word] > most
    } == {}


def circle(root: Path) -> list[str]:
    """Modules that import one another, also inside functions."""
    known = modules(root)
    graph = {}
    for module, path in known.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        tree = parsed(path)
        needs = set(imported(tree, package))
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.ImportFrom)
                and not node.level
                and (node.module or "").startswith("dyno")
            ):
                needs |= {f"{node.module}.{alias.name}" for alias in node.names}
        graph[module] = {
            name
            for name in needs
            if name in known and name != module and not module.startswith(f"{name}.")
        }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        return list(e.args[1])
    return []


def test_no_modules_import_one_another() -> None:
    assert circle(SOURCE) == []


def test_a_circle_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from dyno import b")
    (tmp_path / "b.py").write_text("def f():\n    from dyno.a import x")
    assert set(circle(tmp_path)) == {"dyno.a", "dyno.b"}


def test_architecture_describes_every_folder() -> None:
    rows = re.findall(r"^\| `([\w/]+)/` \|", PAGE.read_text(), flags=re.MULTILINE)
    folders = [
        p.parent.relative_to(SOURCE).as_posix() for p in SOURCE.glob("*/__init__.py")
    ]
    assert sorted(rows) == sorted(folders)


def test_architecture_names_modules_of_their_folder() -> None:
    rows = re.findall(r"^\| `(\w+)/` \|(.*)", PAGE.read_text(), flags=re.MULTILINE)
    names = [
        (folder, name.strip("/"))
        for folder, text in rows
        for name in re.findall(r"`([\w/]+)`", text)
    ]
    known = {m.removeprefix("dyno.").replace(".", "/") for m in modules(SOURCE)}
    assert [
        (folder, name) for folder, name in names if not {f"{folder}/{name}", name} & known
    ] == []


def test_architecture_is_short() -> None:
    assert len(PAGE.read_text().splitlines()) < 100


WALKS = PAGE.with_name("CONTRIBUTING.md")


@pytest.mark.parametrize(
    "name",
    re.findall(r"`(\w+/[\w/]+(?:\.py|\.md)?)`", PAGE.read_text() + WALKS.read_text()),
)
def test_pages_for_contributors_name_files_that_exist(name: str) -> None:
    assert any(
        path.exists() for path in (SOURCE / name, SOURCE / f"{name}.py", PAGE.parent / name)
    )


def test_the_walks_name_things_that_exist() -> None:
    """Names in backticks that look like names of the source: constants, classes, fields and functions."""
    source = "".join(path.read_text() for path in SOURCE.rglob("*.py"))
    example = {"EchoSpec", "ECHO", "TTST"}
    names = set(re.findall(r"`([A-Z][A-Za-z_]+)[`(]", WALKS.read_text())) - example
    assert len(names) > 8
    assert sorted(name for name in names if not re.search(rf"\b{name}\b", source)) == []
