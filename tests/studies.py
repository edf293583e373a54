"""Shipped studies as the tests read them, and their twins: the same file scaled down until it runs here in seconds.

A twin is made from the file's own tree, so that it can't drift from it. It replaces, and nothing else:

- engines: the llama.cpp that comes with dyno, with small slots. Settings that it can't have go into its environment
  (AS_TENSOR_PARALLEL=4), so that every setting is still one of its own.
- models: the GGUF file in the repository of the same name (report_hub.py), in place of its safetensors. What a tool of
  gigabytes would make of a model (convert, quantize) is another GGUF file there. A name in the study that claims a
  precision which that file doesn't have is without it: dyno would notice.
- sizes: numbers become small ones in the same order, and long axes keep their ends and their middle.
- tasks of lm-eval, another such tool: dyno's own tasks.
- a rig's commands (`before`, `after`), which need its hardware.

Data sets, tokenizers, rigs, prices and rules stay. `dyno run TWIN --any-rig` runs it with HF_ENDPOINT at such a Hub.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import report_hub
from dyno.conduct.study_plan import known
from dyno.facts.study import Study
from dyno.study.file import read

FOLDER = Path(__file__).parent.parent / "studies"
SHIPPED = sorted(FOLDER.glob("*.toml"))
REPORTS = [
    path for path in SHIPPED if path.stem not in ("demo", "quantized", "speculative")
]

Tree = dict[str, Any]

# What an engine's table keeps; `env` takes the rest.
_KEPT = ("like", "rigs", "workloads", "loads", "workload", "load", "trial", "env")
_MODELS = ("model", "draft_model")
_DROPPED = (
    "kind",
    "zip",
    "backend",
    "container",
    "version",
    "accepts",
    "draft_tokens",
    *_MODELS,
)
# the engine that comes with dyno
_TWIN = {"kind": "llamacpp", "max_num_seqs": 4, "max_model_len": 512}
_QUALITY = {"tasks": ["builtin"], "limit": 1, "max_tokens": 16, "concurrency": [2]}
_RIG_COMMANDS = ("before", "after")
_OTHER_PRECISION = re.compile(r"-?(FP8|GPTQ|quantized\.w8a8)")  # of safetensors
_OTHER_TYPES = {"Q4_K_M": "Q4_1"}  # of GGUF, that dyno can't write
# A number's twin, by its rank from 1 among all that the file has for this key.
_SMALL = {
    "input_len": lambda rank: 8 * rank,
    "output_len": lambda rank: 2 + 2 * rank,
    "num_prompts": lambda rank: 3 + rank,
    "max_concurrency": lambda rank: rank,
    "request_rate_rps": lambda rank: 20 * rank,
    "requests_per_stream": lambda rank: 2,
    "batch_size": lambda rank: rank,
    "iterations": lambda rank: 1,
    "warmup_iterations": lambda rank: 1,
}
_VARIABLE = re.compile(r"\$\{(\w+)\}")


def study(text: str, path: Path, given: Mapping[str, str] | None = None) -> Study:
    return read(text, path, known(), given)


def shipped(name: str, given: Mapping[str, str] | None = None) -> Study:
    path = FOLDER / f"{name}.toml"
    return study(path.read_text(), path, given)


def twin(path: Path, keep: int = 3) -> str:
    """The text of a study that `dyno run` can run here. `keep`: how many values of an axis stay."""
    text = path.read_text()
    for theirs, ours in _OTHER_TYPES.items():
        text = text.replace(theirs, ours)
    tree = tomllib.loads(text)
    variables = tree.setdefault("variables", {})
    ranks = {key: _ranks(key, tree) for key in _SMALL}
    # What a rule names stays, or the rule would be about nothing.
    rules = [*tree.get("exclude", []), *tree.get("include", [])]
    named = {
        _small(key, value[0] if isinstance(value, list) else value, ranks)
        for rule in rules
        for cells in rule.values()
        if isinstance(cells, dict)
        for key, value in cells.items()
    }
    for name, value in variables.items():  # by the first key that takes it whole
        keys = [
            key for key, cell in _cells(tree) if cell == f"${{{name}}}" and key in _SMALL
        ]
        small = _small(keys[0], value, ranks) if keys else value
        variables[name] = _thinned(small, keep, named)
    models = {
        name: _own_model(table, tree) for name, table in tree.get("models", {}).items()
    }
    for name, engine in list(tree["engines"].items()):
        models |= _hub_models(engine, models, variables)
        tree["engines"][name] = _engine(name, engine, tree["engines"], variables, keep)
    for part in ("workloads", "loads"):
        for name, table in tree[part].items():
            tree[part][name] = _scaled(table, ranks, keep, named)
    for rule in (*tree.get("exclude", []), *tree.get("include", [])):
        for part, cells in rule.items():
            rule[part] = (
                _scaled(cells, ranks, 999, named) if isinstance(cells, dict) else cells
            )
    for rig in tree.get("rigs", {}).values():
        for key in _RIG_COMMANDS:
            rig.pop(key, None)
    for load in tree["loads"].values():
        if load.get("kind") == "latency":  # else 30 after 10 to warm up
            load.setdefault("iterations", 2)
            load.setdefault("warmup_iterations", 1)
    if "quality" in tree:
        tree["quality"] |= _QUALITY
    return dumped({**tree, "models": models, "name": path.stem, "repeats": 1})


def dumped(tree: Tree) -> str:
    """As TOML: top keys, tables of tables with their headers, and everything below them inline."""
    tables = {k: v for k, v in tree.items() if isinstance(v, dict)}
    rules = {k: v for k, v in tree.items() if k in ("include", "exclude")}
    lines = [f"{k} = {_value(v)}" for k, v in tree.items() if k not in {*tables, *rules}]
    for name, table in tables.items():
        inner = all(isinstance(v, dict) for v in table.values())
        for header, cells in (
            [(f"{name}.{_key(k)}", v) for k, v in table.items()]
            if inner
            else [(name, table)]
        ):
            lines += ["", f"[{header}]", *(f"{k} = {_value(v)}" for k, v in cells.items())]
    for name, several in rules.items():
        for rule in several:
            lines += ["", f"[[{name}]]", *(f"{k} = {_value(v)}" for k, v in rule.items())]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name) else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return (
            "{ " + ", ".join(f"{k} = {_value(v)}" for k, v in value.items()) + " }"
            if value
            else "{}"
        )
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return (
        json.dumps(value, ensure_ascii=False)
        if isinstance(value, str | bool)
        else repr(value)
    )


def _cells(tree: Tree) -> Iterator[tuple[str, Any]]:
    """Every key of the file's tables and rules, with its value."""
    own = [
        engine.get(part, {})
        for engine in tree["engines"].values()
        for part in ("workload", "load")
    ]
    rules = [
        c
        for r in (*tree.get("exclude", []), *tree.get("include", []))
        for c in r.values()
        if isinstance(c, dict)
    ]
    for table in (*tree["workloads"].values(), *tree["loads"].values(), *own, *rules):
        yield from table.items()


def _ranks(key: str, tree: Tree) -> dict[float, int]:
    values: set[float] = set()
    for name, cell in _cells(tree):
        if name == key:
            whole = _VARIABLE.fullmatch(cell) if isinstance(cell, str) else None
            value = tree["variables"][whole[1]] if whole else cell
            values |= {*(value if isinstance(value, list) else [value])}
    return {value: rank for rank, value in enumerate(sorted(values - {0}), 1)}


def _small(key: str, value: Any, ranks: dict[str, dict[float, int]]) -> Any:
    if isinstance(value, list):
        return [_small(key, v, ranks) for v in value]
    rank = ranks.get(key, {}).get(value) if isinstance(value, int | float) else None
    return value if rank is None else _SMALL[key](rank)


def _scaled(
    table: Tree, ranks: dict[str, dict[float, int]], keep: int, named: set[Any]
) -> Tree:
    names = ("zip", "loads", "workloads")
    # lists that go together stay of one length
    zipped = max(keep + 1, 3) if "zip" in table else keep
    return {
        k: v if k in names else _thinned(_small(k, v, ranks), zipped, named)
        for k, v in table.items()
    }


def _thinned(value: Any, keep: int, named: set[Any] = frozenset()) -> Any:  # type: ignore[assignment]
    if not isinstance(value, list) or len(value) <= keep:
        return value
    if keep > 2:
        return [value[0], value[(len(value) - 1) // 2], value[-1]]
    ends = (0, len(value) - 1)[:keep]
    return [
        v
        for i, v in enumerate(value)
        if i in ends or (isinstance(v, int | float) and v in named)
    ]


# ---- models ----


def _own_model(table: Tree, tree: Tree) -> Tree:
    """A study's own model, fetched where it would be made: its repository has what a tool would make as a file."""
    first = table
    while first["from"] in tree["models"]:
        first = tree["models"][first["from"]]
    repository = _resolved(first["from"], tree["variables"]).removeprefix("hub:")
    step = table.get("quantize") or table.get("convert") or ""
    return _fetched(repository, report_hub.file_of(repository, step))


def _hub_models(engine: Tree, own: Tree, variables: Tree) -> Tree:
    """The models that an engine's table names by their repositories."""
    repositories = [
        name
        for key in _MODELS
        for name in _names(engine.get(key), variables)
        if name not in own
    ]
    return {_name(name): _fetched(name, report_hub.file_of(name)) for name in repositories}


def _fetched(repository: str, file: str) -> Tree:
    return {"from": f"hub:{repository}", "include": [file, "tokenizer*.json"]}


def _names(value: Any, variables: Tree) -> list[str]:
    whole = _resolved(value, variables)
    return (
        [_resolved(name, variables) for name in whole]
        if isinstance(whole, list)
        else [whole]
        if whole
        else []
    )


def _resolved(value: Any, variables: Tree) -> Any:
    whole = _VARIABLE.fullmatch(value) if isinstance(value, str) else None
    return variables[whole[1]] if whole else value


def _name(repository: str) -> str:
    """The name of a repository's model in the twin; a name of the study's own stays."""
    return _OTHER_PRECISION.sub("", repository.replace("/", "."))


# ---- engines ----


def _engine(name: str, table: Tree, engines: Tree, variables: Tree, keep: int) -> Tree:
    """`variables` gets one for each axis that moves into the environment."""
    own = {k: v for k, v in table.items() if k in _KEPT} | (
        _TWIN if "kind" in table else {}
    )
    moved: Tree = {}
    together = (
        [key for key in table.get("zip", []) if key != "model"]
        if "model" in table.get("zip", [])
        else []
    )
    for key, value in table.items():
        if key in (*_KEPT, *_DROPPED, *together):
            continue
        if isinstance(value, list) and key not in ("args", "devices", "before", "after"):
            group = table["zip"] if key in table.get("zip", []) else [key]
            axis = f"{name}-{'-'.join(group)}"
            columns = zip(*(table[k] for k in group), strict=True)
            variables[axis] = _thinned(
                [" ".join(map(str, column)) for column in columns], keep
            )
            moved[f"AS_{key.upper()}"] = f"${{{axis}}}"
        else:
            moved[f"AS_{key.upper()}"] = (
                " ".join(map(str, value)) if isinstance(value, list) else str(value)
            )
    inherited = engines[table["like"]]["env"] if "like" in table else {}
    env = table.get("env", inherited)
    env = [{**one, **moved} for one in env] if isinstance(env, list) else {**env, **moved}
    if together:  # they walk with the models
        rows = zip(*(table[key] for key in together), strict=True)
        env = [
            {**env, **{f"AS_{k.upper()}": v for k, v in zip(together, row, strict=True)}}
            for row in rows
        ]
        own["zip"] = ["model", "env"]
    for key in _MODELS:
        if key in table:
            own[key] = _model(table[key], variables)
    if "draft_model" in table:
        own["draft_tokens"] = table["draft_tokens"]
    return {**own, "env": env}


def _model(value: Any, variables: Tree) -> Any:
    """The names of the twin's models for those that the file gives. A variable with a list is an axis, and stays."""
    if isinstance(value, list):
        return [_name(_resolved(name, variables)) for name in value]
    whole = _resolved(value, variables)
    return value if isinstance(whole, list) else _name(whole)
