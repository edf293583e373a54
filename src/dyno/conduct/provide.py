"""What trials need that isn't here: listed with sizes, then fetched, made and installed before an engine starts."""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from dyno import files
from dyno.conduct import dataset, lm_eval, weights
from dyno.engines import container, environment, image, install, versions
from dyno.engines.kinds import kind_of
from dyno.engines.launch import contained, locate
from dyno.errors import DynoError, EngineError, UsageError
from dyno.facts.engine import EngineSpec
from dyno.facts.quality import QualitySpec
from dyno.facts.recipe import ModelRecipe
from dyno.facts.workload import WorkloadSpec
from dyno.models import check, hub, shelf, steps
from dyno.numbers import human_bytes, many
from dyno.probe import model as model_files
from dyno.probe.model import hub_cache
from dyno.quality.ask import other_tasks

Say = Callable[[str], None]
T = TypeVar("T")


class Need(NamedTuple):
    """A thing that isn't here. Several may be provided together: the steps of one model."""

    what: str  # data set, tool, model, engine, image
    name: str
    how: str  # pull …, quantize …, install
    folder: Path | None  # where it will be; None: unknown
    provide: Callable[[Say, Say], str]  # returns what there is then, in words
    recipe: ModelRecipe | None = None  # of a model's step, or a data set's file
    size_bytes: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The same for several that need the same thing."""
        return self.what, self.recipe.name if self.recipe else self.name


def needs(
    specs: Iterable[EngineSpec],
    works: Iterable[WorkloadSpec] = (),
    dry: bool = False,
    installs: bool = True,
    tests: Iterable[QualitySpec] = (),
) -> list[Need]:
    """Return what is missing, in the order in which it is provided.

    `dry`: no program is asked for its version. `installs`: a missing engine is installed, and else an error."""
    specs = _unique(specs)
    started = [spec for spec in specs if kind_of(spec.kind).starts]
    out = [
        *(need for work in _unique(works) for need in _dataset(work) if dry or not offline()),
        *(need for test in tests if other_tasks(test) for need in _environment(lm_eval.KIND)),
        *(need for spec in specs for need in _models(spec, dry)),
        *(need for spec in started for need in _engine(spec, dry) if installs),
        *(need for spec in started for need in _image(spec, dry)),
    ]
    for spec in started if out and not installs else []:  # before anything is fetched for it
        locate(kind_of(spec.kind), contained(kind_of(spec.kind), spec))
    # A tool before the step that uses it, the rest as it is; each once, however many trials need it.
    out.sort(key=lambda need: need.what not in ("data set", "tool"))
    first: dict[tuple[str, str], Need] = {}
    for need in out:
        first.setdefault(need.key, need)
    return list(first.values())


def _unique(values: Iterable[T]) -> list[T]:
    """A study's thousand trials have a few settings."""
    return list({msgspec.json.encode(value): value for value in values}.values())


def with_sizes(missing: Sequence[Need]) -> list[Need]:
    """Ask the Hub for the sizes. Where it doesn't answer once, it isn't asked again."""
    out, silent = [], offline()
    for need in missing:
        pulled = need.recipe is not None and need.recipe == need.recipe.base
        size = hub.size(need.recipe) if need.recipe and pulled and not silent else None
        silent = silent or (pulled and size is None)
        out.append(need._replace(size_bytes=size))
    return out


def offline() -> bool:
    """Return whether the user has forbidden questions to the Hub: then an engine finds a model in its cache, or not."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "on", "yes", "true")  # as huggingface_hub reads it


def lines(missing: Sequence[Need]) -> Iterator[str]:
    """Yield what is missing, with its size where that is known, and the room for it."""
    rows = [
        (n.what, n.name, n.how, human_bytes(n.size_bytes) if n.size_bytes is not None else "size unknown")
        for n in missing
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for row in rows:
        yield "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[3]])
    known = [need.size_bytes for need in missing if need.size_bytes is not None]
    unknown = many(len(missing) - len(known), "thing") + " of unknown size"
    total = " and ".join([human_bytes(sum(known))] * bool(known) + [unknown] * (len(known) < len(missing)))
    yield "; ".join([f"Total: {total}", *(f"{human_bytes(free)} free at {folder}" for folder, free in room(missing))])


def check_space(missing: Sequence[Need]) -> None:
    """Raise where the known sizes alone are more than the disks have."""
    for mine in _by_disk(missing):
        size, folder = sum(need.size_bytes or 0 for _, need in mine), mine[0][0]
        if size > (free := files.free_bytes(folder)):
            raise EngineError(
                f"{human_bytes(size)} are to be fetched to {folder}, but {human_bytes(free)} are free there. Free some "
                "space, or set HF_HOME and DYNO_HOME to a larger disk."
            )


def run(missing: Sequence[Need], say: Say, below: Say) -> list[str]:
    """Provide all of it, and return a line for each. What fails is reported together, after the rest was provided."""
    check_space(missing)
    done: list[str] = []
    failed: dict[tuple[str, str], str] = {}
    for need in missing:
        if (need.what, need.name) in failed:
            continue
        say(f"{need.what.capitalize()} {need.name}: {need.how}")
        try:
            done.append(f"{need.what} {need.name}: {need.provide(say, below)}")
        except DynoError as e:
            failed[need.what, need.name] = f"{need.what} {need.name}, {need.how}: {e}"
    if failed:
        head = f"{many(len(failed), 'thing')} can't be provided; nothing was started. The rest is kept:"
        raise EngineError("\n".join([head, *failed.values()]))
    return list(dict.fromkeys(done))


def room(missing: Sequence[Need]) -> list[tuple[Path, int]]:
    """Return a folder of each disk that things will be on, and the bytes that are free there."""
    return [(mine[0][0], files.free_bytes(mine[0][0])) for mine in _by_disk(missing)]


def _by_disk(missing: Sequence[Need]) -> list[list[tuple[Path, Need]]]:
    disks: dict[int, list[tuple[Path, Need]]] = {}
    for need in missing:
        if need.folder:
            disks.setdefault(files.present(need.folder).stat().st_dev, []).append((need.folder, need))
    return list(disks.values())


# ---- by kind ----


def _dataset(work: WorkloadSpec) -> Iterator[Need]:
    for part in work.classes.values():
        yield from _dataset(part)
    source = work.path or work.dataset
    if work.dataset == "hf":
        return  # only what is here is used
    if (recipe := hub.dataset_recipe(source)) and hub.dataset_file(source) is None:
        yield Need("data set", work.dataset, f"pull {recipe.source}", hub_cache(), partial(_data_file, work), recipe)


def _models(spec: EngineSpec, dry: bool) -> Iterator[Need]:
    for name, recipe in spec.weights.items():
        for step in steps.missing(recipe):
            yield from _environment(steps.environment_kind(step))
            folder = hub_cache() if step.verb == "pull" else shelf.models_folder()
            yield Need("model", name, step.describe(), folder, partial(_model_made, step.recipe), step.recipe)
    for name, recipe in ({} if offline() and not dry else weights.of_hub(spec)).items():
        if not (shelf.find(recipe) or _fetched(name, recipe)):
            yield Need("model", name, "pull", hub_cache(), partial(_model_made, recipe), recipe)


def _fetched(name: str, recipe: ModelRecipe) -> bool:
    """Return whether another tool has fetched all of it into the Hub's cache."""
    shape = model_files.of_hub(name) if "@" not in recipe.source else None
    return shape is not None and check.problem(Path(shape.path), weights=not recipe.include) is None


def _model_made(recipe: ModelRecipe, say: Say, below: Say) -> str:
    entry = steps.run(recipe, say, below)
    return f"{entry.path}, {human_bytes(entry.size_bytes)}"


def _data_file(work: WorkloadSpec, say: Say, below: Say) -> str:
    return str(dataset.located(work, say, below)[0].path)


def _environment(kind: str | None) -> Iterator[Need]:
    """The environment of a tool. A step that makes a model would install its own by itself."""
    if kind and environment.find(kind) is None:
        yield Need("tool", kind, "install", environment.engines_folder(), partial(_installed, kind, None))


def _engine(spec: EngineSpec, dry: bool) -> Iterator[Need]:
    kind = kind_of(spec.kind)
    if spec.kind not in install.RECIPES or spec.python or spec.binary or spec.environment:
        return
    spec = contained(kind, spec)
    if spec.container:
        return
    with contextlib.suppress(UsageError):
        if not locate(kind, spec, dry).absent:
            return
    try:
        if install.choose(spec.kind, install.variant_of_this_machine()) == "container":
            versions.image_of(spec.kind, install.variant_of_this_machine(), spec.version)
    except UsageError:  # not for this machine: the plan says that it is missing
        return
    which = f"{spec.kind} {spec.version}" if spec.version else spec.kind
    folder = environment.engines_folder()
    yield Need("engine", which, "install", folder, partial(_installed, spec.kind, spec.version))


def _installed(kind: str, version: str | None, say: Say, below: Say) -> str:
    env = install.install(kind, version, say=say, below=below)
    return f"{env.folder}, {human_bytes(env.size_bytes)}"


def _image(spec: EngineSpec, dry: bool) -> Iterator[Need]:
    box = contained(kind_of(spec.kind), spec).container
    if box is None or box.pull == "never":
        return
    try:
        tool = container.tool(box.tool)
    except EngineError:  # which the plan reports
        if not dry:
            return
        tool = ""
    if tool and image.digest(tool, box.image):
        return

    def provide(say: Say, below: Say) -> str:
        log = environment.home() / "logs" / f"image-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        digest = image.pull_or_build(box, tool, say, log, below)
        log.unlink(missing_ok=True)  # where it failed, the message names it
        return digest

    yield Need("image", box.image, f"build from {box.build}" if box.build else "pull", None, provide)
