"""`dyno models`: pull, convert, quantize, list, describe, verify, export, import and remove models."""

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dyno.cli import flags
from dyno.engines.kinds import kind_for
from dyno.errors import ModelError, NotFound, UsageError
from dyno.facts.recipe import ModelRecipe
from dyno.numbers import UNKNOWN, count, human_bytes
from dyno.option import fields
from dyno.report.table import terminal, text_table

if TYPE_CHECKING:
    from dyno.models.library import ModelEntry

_PULL = (
    "Fetch a model or a data set from the Hugging Face Hub into the Hub's own cache, and verify its checksums. "
    "HF_TOKEN gives access to gated models, HF_ENDPOINT names a mirror, HF_HOME another folder. A stopped download "
    "continues with the same command. With a local folder or GGUF file, dyno only records it."
)

_CONVERT = (
    "Convert a model in safetensors to one GGUF file with llama.cpp's converter, which dyno installs on first use. "
    "dyno verifies types, values and metadata of the file, and generates text with it. A model that is there already "
    "is not made again. docs/models.md has the types."
)

_QUANTIZE = (
    "Quantize a model with llm-compressor, AMD Quark or llama.cpp, each in an environment of its own that dyno "
    "installs on first use. dyno verifies types and scales in the files, and generates text with the result. "
    "A model that is there already is not made again. docs/models.md has the schemes."
)

_SHOWN = (
    *(
        "name",
        "step",
        "from",
        "files",
        "size",
        "verified",
        "path",
        "format",
        "architecture",
        "layers",
        "hidden",
    ),
    *(
        "context",
        "dtype",
        "quantization",
        "weights",
        "parameters",
        "bytes_by_type",
        "experts",
        "experts_used",
    ),
)


def add(p: argparse.ArgumentParser) -> None:
    verbs = p.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_pull(verbs)
    _add_convert(verbs)
    _add_quantize(verbs)
    p = _verb(
        verbs, "list", show, "list models and data sets: by dyno, and in the Hub's cache"
    )
    p.add_argument("--json", action="store_true", help="print JSON")
    p = _verb(
        verbs,
        "info",
        info,
        "describe a model by its files: type, size, parameters, context",
    )
    p.add_argument(
        "model",
        metavar="NAME|PATH",
        help="name in `dyno models list`, OWNER/NAME, folder or GGUF file",
    )
    p.add_argument("--json", action="store_true", help="print JSON")
    p = _verb(
        verbs, "verify", verify, "read a model's files again and compare their checksums"
    )
    p.add_argument(
        "model", metavar="NAME", help="name in `dyno models list`, or OWNER/NAME"
    )
    p = _verb(
        verbs, "export", export, "write models to one file, for a machine without a network"
    )
    p.add_argument(
        "model",
        metavar="NAME",
        nargs="+",
        help="names in `dyno models list`, or OWNER/NAME",
    )
    p.add_argument("file", type=Path, metavar="FILE.tar", help="file to write")
    p = _verb(verbs, "import", import_file, "read models from a file, and verify them")
    p.add_argument(
        "file", type=Path, metavar="FILE.tar", help="file of `dyno models export`"
    )
    p = _verb(verbs, "remove", remove, "remove models, with their files in the Hub's cache")
    p.add_argument(
        "model",
        metavar="NAME",
        nargs="+",
        help="names in `dyno models list`, or OWNER/NAME",
    )


def _verb(verbs: Any, name: str, command: Any, words: str) -> argparse.ArgumentParser:
    p: argparse.ArgumentParser = verbs.add_parser(
        name, help=words, description=f"{words[0].upper()}{words[1:]}."
    )
    p.set_defaults(command=command)
    return p


def _add_pull(verbs: Any) -> None:
    p = _verb(verbs, "pull", pull, "fetch a model or a data set, and verify it")
    p.description = _PULL
    p.add_argument(
        "source", metavar="OWNER/NAME[@REV]", help="name on the Hub, or file:PATH"
    )
    p.add_argument(
        "--revision", metavar="REV", help="branch, tag or commit (default: main)"
    )
    p.add_argument("--dataset", action="store_true", help="it is a data set")
    flags.add(p, ModelRecipe, "include", "exclude")


def pull(options: argparse.Namespace) -> int:
    from dyno.cli.progress import ProgressLine
    from dyno.models import hub

    source = hub.source_text(options.source, options.dataset, options.revision)
    with ProgressLine() as line:
        entry = hub.pull(
            ModelRecipe(source, options.include, options.exclude), line.say, line.below
        )
    print(f"{entry.name}  {entry.path}")
    return 0


def _add_convert(verbs: Any) -> None:
    p = _verb(verbs, "convert", convert, "convert a model to GGUF, and verify the result")
    p.description = _CONVERT
    p.add_argument(
        "source",
        metavar="SOURCE",
        help="OWNER/NAME[@REV] on the Hub, or a folder with safetensors",
    )
    p.add_argument(
        "target",
        metavar="gguf:TYPE",
        help="gguf:F16, gguf:BF16, gguf:F32, gguf:Q8_0 or gguf:auto",
    )
    flags.add(p, ModelRecipe, "include", "exclude")


def convert(options: argparse.Namespace) -> int:
    from dyno.models import gguf, hub

    recipe = ModelRecipe(
        hub.source_text(options.source),
        convert=options.target,
        **flags.values(options, ModelRecipe),
    )
    gguf.check(recipe)
    return _make(recipe)


def _add_quantize(verbs: Any) -> None:
    p = _verb(verbs, "quantize", quantize, "quantize a model, and verify the result")
    p.description = _QUANTIZE
    p.add_argument(
        "source",
        metavar="SOURCE",
        help="OWNER/NAME[@REV] on the Hub, folder, or GGUF file for llama.cpp",
    )
    p.add_argument(
        "scheme", metavar="TOOL:SCHEME", help=fields(ModelRecipe)["quantize"].option.help
    )
    flags.add(
        p,
        ModelRecipe,
        "kv_cache",
        "calibration",
        "samples",
        "length",
        "ignore",
        "include",
        "exclude",
    )


def quantize(options: argparse.Namespace) -> int:
    from dyno.models import gguf, hub, schemes

    recipe = ModelRecipe(
        hub.source_text(options.source),
        quantize=options.scheme,
        **flags.values(options, ModelRecipe),
    )
    (gguf if options.scheme.startswith("llama.cpp:") else schemes).check(recipe)
    return _make(recipe)


def _make(recipe: ModelRecipe) -> int:
    from dyno.cli.progress import ProgressLine
    from dyno.models import steps

    with ProgressLine() as line:
        entry = steps.run(recipe, line.say, line.below)
    before = next(step.entry for step in steps.steps(recipe) if step.entry)
    print(f"{entry.name}  {entry.path}")
    print(
        f"{'size':<12} {human_bytes(entry.size_bytes)}, from {human_bytes(before.size_bytes)}"
    )
    for what, result in entry.verified.items():
        print(f"{what:<12} {result}")
    print(
        f"To measure it:\n  dyno bench serve --engine {kind_for(entry.path)} --model {shlex.quote(entry.path)}"
    )
    return 0


def show(options: argparse.Namespace) -> int:
    from dyno.models import library

    entries = library.entries()
    rows: list[dict[str, Any]] = [
        {
            "name": e.name,
            "step": e.step,
            "size_bytes": e.size_bytes,
            "from": e.origin.rpartition("@")[0] or e.origin,
            "revision": e.origin.rpartition("@")[2] if "@" in e.origin else None,
            "path": e.path,
            "whole": e.whole,
        }
        for e in entries
    ]
    rows += _others({str(e.folder) for e in entries})
    if options.json:
        print(json.dumps(rows))
        return 0
    if not rows:
        return 0
    cells = []
    for row in rows:
        state = "" if row["whole"] else ", incomplete"
        size, revision = human_bytes(row["size_bytes"]), (row["revision"] or UNKNOWN)[:12]
        cells.append((row["name"], f"{row['step']}{state}", size, revision, row["from"]))
    print(
        *terminal(
            text_table(("name", "step", "size", "revision", "from"), cells, keep=(0, 2))
        ),
        sep="\n",
    )
    return 0


def _others(known: set[str]) -> list[dict[str, Any]]:
    """Return the snapshots in the Hub's cache that no entry of dyno's names."""
    from huggingface_hub import CacheNotFound, scan_cache_dir

    from dyno.probe.model import hub_cache

    try:
        repos = sorted(
            scan_cache_dir(hub_cache()).repos, key=lambda repo: str(repo.repo_path)
        )
    except CacheNotFound:
        return []
    rows = []
    for repo in repos:
        kind = "" if repo.repo_type == "model" else f"{repo.repo_type}s/"
        for revision in sorted(repo.revisions, key=lambda r: r.commit_hash):
            path = str(revision.snapshot_path)
            if any(folder.startswith(path) for folder in known):
                continue
            row = {
                "name": repo.repo_id,
                "step": "by another tool",
                "size_bytes": revision.size_on_disk,
                "from": f"hub:{kind}{repo.repo_id}",
                "revision": revision.commit_hash,
                "path": path,
                "whole": True,
            }
            rows.append(row)
    return rows


def info(options: argparse.Namespace) -> int:
    from dyno.probe import model

    path, entry = _located(options.model)
    facts: dict[str, Any] = {"path": str(path)}
    if entry:
        facts |= {
            "name": entry.name,
            "step": entry.step,
            "from": entry.origin,
            "files": len(entry.files),
        }
        facts |= {"size_bytes": entry.size_bytes, "verified": entry.verified}
    shape = model.read(path)
    if shape is None and entry is None:
        raise ModelError(
            f"{options.model} has no readable model: no config.json, and no GGUF file."
        )
    if shape:
        facts |= msgspec.to_builtins(shape)
    if options.json:
        print(json.dumps(facts))
        return 0
    for name, value in facts.items():
        title = name.removesuffix("_bytes")
        if value and title in _SHOWN:
            print(f"{title.replace('_', ' '):<15} {_text(name, value)}")
    if shape and shape.parameters and not shape.bytes_by_type:
        print("Parameters are calculated from config.json: no weights can be read.")
    return 0


def _located(model: str) -> "tuple[Path, ModelEntry | None]":
    """Return where a model is, by its path or name, and its entry in dyno's library."""
    from dyno.models import library

    path = Path(model).expanduser()
    if path.exists():
        return path, None
    try:
        entry = library.named(model)
    except NotFound:
        row = _other(model)
        if row is None:
            raise
        return Path(row["path"]), None
    return Path(entry.path), entry


def _text(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(
            f"{key} {human_bytes(v) if name == 'bytes_by_type' else v}"
            for key, v in value.items()
        )
    if name.endswith("_bytes"):
        return human_bytes(value)
    return count(value) if isinstance(value, int) else str(value)


def verify(options: argparse.Namespace) -> int:
    from dyno.cli.progress import ProgressLine
    from dyno.models import hub, library

    entry = library.named(options.model)
    with ProgressLine() as line:
        line.say(f"Reading {len(entry.files)} files, {human_bytes(entry.size_bytes)}")
        wrong = library.verify(entry, line.below)
        if wrong and hub.snapshot_root(entry):
            for name in wrong:
                hub.drop(entry, name)
    if wrong:
        raise ModelError(
            f"{entry.name}: {'; '.join(f'{n} {why}' for n, why in wrong.items())}. {_again(entry)}"
        )
    unread = sum(not f.sha256 for f in entry.files.values())
    print(
        f"{entry.name}: {len(entry.files)} files are as they were"
        + (", by size and time" if unread else "")
    )
    return 0


def _again(entry: "ModelEntry") -> str:
    if entry.origin.startswith("file:") and entry.step == "pull":
        return "`dyno models pull` records the files as they are now."
    if entry.step == "pull":
        return "The corrupted files were removed; `dyno models pull` fetches them again."
    return f"Remove it with `dyno models remove {entry.name}`, and make it again."


def export(options: argparse.Namespace) -> int:
    from dyno.cli.progress import ProgressLine
    from dyno.models import archive, library

    entries = [library.named(name) for name in dict.fromkeys(options.model)]
    with ProgressLine() as line:
        size = archive.export(entries, options.file, line.say, line.below)
    print(f"{options.file}  {human_bytes(size)}")
    return 0


def import_file(options: argparse.Namespace) -> int:
    from dyno.cli.progress import ProgressLine
    from dyno.models import archive

    with ProgressLine() as line:
        entries = archive.import_file(options.file, line.say, line.below)
    for entry in entries:
        print(f"{entry.name}  {entry.path}")
    return 0


def remove(options: argparse.Namespace) -> int:
    from dyno.models import hub, library

    for name in options.model:
        try:
            entry = library.named(name)
        except NotFound:
            if row := _other(name):
                repo = row["from"].removeprefix("hub:").removeprefix("datasets/")
                kind = "dataset" if row["from"].startswith("hub:datasets/") else "model"
                raise UsageError(
                    f"{name} was fetched by another tool. Remove it with `hf cache rm {kind}/{repo}`."
                ) from None
            raise
        print(hub.remove(entry))
    return 0


def _other(name: str) -> dict[str, Any] | None:
    return next((row for row in _others(set()) if name in (row["name"], row["from"])), None)
