"""What is known of an engine is in its file in engines/kinds: elsewhere its name is a literal only for a reason."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dyno
from dyno.engines.kinds import KINDS
from trees import parsed

SOURCE = Path(dyno.__file__).parent

pytestmark = pytest.mark.usefixtures("no_collector")

# Where an engine's name is a literal all the same, and why.
NAMED = {
    "audit/forms.py": "tools whose printed blocks are read: a client, not the engine that answered it",
    "audit/commands.py": "transformers as a library, whose version a dump has",
    "audit/text.py": "tools again, and how a commented-out command may begin",
    "checks/consistency.py": "tools whose figures are defined alike",
    "checks/physics.py": "definitions of figures, by tool",
    "checks/tokens.py": "the default of a tool's data set",
    "cli/audit.py": "help: formats of other tools, and examples",
    "cli/compare.py": "an example in a help text",
    "cli/eval.py": "an example in a help text",
    "cli/forward.py": "vLLM's own program, which the command runs",
    "cli/micro.py": "an example in a help text",
    "cli/models.py": "llama.cpp as a tool that quantizes",
    "cli/offline.py": "--backend takes the words of vLLM's own benchmark; examples",
    "cli/serve.py": "an example in a help text",
    "cli/settings.py": "values of vLLM's own --backend that dyno lacks",
    "engines/fake/server.py": "the fake engine writes the metrics of one that dyno reads",
    "engines/llama_build.py": "builds the program of kinds/llamacpp.py, and tools of the same sources",
    "engines/tools.py": "packages that tools need",
    "engines/worker/llamacpp.py": "an engine's own worker, which runs where dyno isn't installed",
    "engines/worker/transformers.py": "an engine's own worker",
    "engines/worker/vllm.py": "an engine's own worker",
    "facts/metric.py": "definitions of figures, by tool",
    "facts/recipe.py": "llama.cpp as a tool that quantizes",
    "load/protocols/__init__.py": "protocols of requests, by the names that --backend takes",
    "models/gguf.py": "llama.cpp as a tool that quantizes",
    "models/quantize.py": "llama.cpp as a tool that quantizes",
    "models/sizes.py": "llama.cpp as a tool that quantizes",
    "models/steps.py": "llama.cpp as a tool that quantizes",
    "probe/software.py": "transformers as a library that engines use",
    "results/tables.py": "tools by the columns that they write",
    "results/tools/llama_bench.py": "a tool's results",
    "results/tools/sglang.py": "a tool's results",
    "results/tools/vllm.py": "a tool's results",
    "store/sql.py": "an example in the description of a column",
}


def literals(path: Path) -> Iterator[tuple[int, str]]:
    """Texts of a file that are not its documentation."""
    module = parsed(path)
    documentation = {
        id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)
    }
    for node in ast.walk(module):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in documentation
        ):
            yield node.lineno, node.value


SPELLINGS = {
    word: kind.name
    for kind in KINDS.values()
    if kind.in_documents
    for word in (kind.name, *kind.aliases)
}
NAME = re.compile(
    rf"(?<![\w.])(?:{'|'.join(map(re.escape, SPELLINGS))})(?!\w)", re.IGNORECASE
)


def named_engines(text: str) -> set[str]:
    """The engines that a text decides by or lists. One name in a sentence only explains something."""
    engines = {SPELLINGS[word.lower()] for word in NAME.findall(text)}
    return engines if len(engines) > 1 or not re.search(r"\s", text) else set()


def places_that_name_engines(root: Path) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not name.startswith("engines/kinds/") and NAME.search(path.read_text()):
            for line, text in literals(path):
                if named_engines(text):
                    out.setdefault(name, []).append(f"{name}:{line} {text[:60]!r}")
    return out


def test_no_other_file_names_an_engine_without_a_reason() -> None:
    places = places_that_name_engines(SOURCE)
    assert [
        line for name, lines in places.items() if name not in NAMED for line in lines
    ] == []
    # a reason that is no longer needed
    assert [name for name in NAMED if name not in places] == []


def test_no_other_file_compares_a_kind_with_a_name() -> None:
    kind = re.compile(
        r"\bkind(?:\.name)?\s*(?:[!=]=|(?:not )?in)\s*[(\"'{\[].*?[\"']([\w.-]+)[\"']"
    )
    wrong = [
        f"{path.relative_to(SOURCE)}:{number} {line.strip()}"
        for path in sorted(SOURCE.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if any(name in KINDS for name in kind.findall(line))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("code", "names_one"),
    [
        ('if spec.kind == "vllm": pass', True),
        ('_TUNED = ("vllm", "tgi")', True),
        ('HELP = "vllm, sglang or tgi"', True),
        ('name = "sglang:num_running_reqs"', True),
        ('text = "vLLM\'s TPOT takes the first chunk for one token."', False),
        ('"""vllm and sglang are alike."""', False),
        ('figure = "vllm_tpot"', False),
    ],
)
def test_a_file_that_names_an_engine_is_found(
    tmp_path: Path, code: str, names_one: bool
) -> None:
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "load.py").write_text(code)
    assert (places_that_name_engines(tmp_path) != {}) is names_one
