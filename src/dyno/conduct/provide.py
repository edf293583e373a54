"""What trials need that isn't here: listed with sizes, then fetched, made and installed before an engine starts."""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from dyno import files
from dyno.engines import container, environment, image, install, versions
from dyno.engines.kinds import kind_of, starts
from dyno.engines.launch import contained, locate
from dyno.errors import DynoError, EngineError, UsageError
from dyno.facts.engine import ContainerSpec, EngineSpec, is_of, will_do
from dyno.facts.quality import QualitySpec
from dyno.facts.recipe import ModelRecipe
from dyno.models import check, hub, library, sizes, steps
from dyno.numbers import human_bytes, many
from dyno.probe import model as model_files
from dyno.probe import rig
from dyno.probe.model import hub_cache
from dyno.quality import lm_eval
from dyno.quality.ask import other_tasks
from dyno.saying import Say
from dyno.trial import dataset, weights
from dyno.workload.datasets import DATASETS
from dyno.workload.spec import WorkloadSpec

T = TypeVar("T")
_ASKED_AT_ONCE = 8  # registries


class Bare(NamedTuple):
    """A machine that is only described: nothing is there."""

    variant: str  # of engines: cpu, cuda, rocm
    architecture: str | None = None  # gfx942


class Need(NamedTuple):
    """A thing that isn't here. Several may be provided together: the steps of one model."""

    what: str  # data set, tool, model, engine, image
    name: str
    how: str  # pull …, quantize …, install
    folder: Path | None  # where it will be; None: unknown
    provide: Callable[[Say, Say], str]  # returns what there is then, in words
    recipe: ModelRecipe | None = None  # of a model's step, or a data set's file
    size_bytes: int | None = None
    about: bool = False  # the size is an estimate
    unknown: str = ""  # why the size isn't known
    gated: bool = False
    refused: str = ""  # why it can't be provided
    box: ContainerSpec | None = None  # of an image
    installed: tuple[str, str] | None = None  # kind and variant of an environment

    @property
    def key(self) -> tuple[str, str]:
        """The key that several have in common where they need the same thing."""
        return self.what, self.recipe.name if self.recipe else self.name

    @property
    def pulled(self) -> bool:
        return self.recipe is not None and self.recipe == self.recipe.base


def needs(
    specs: Iterable[EngineSpec],
    works: Iterable[WorkloadSpec] = (),
    dry: bool = False,
    installs: bool = True,
    tests: Iterable[QualitySpec] = (),
    bare: Bare | None = None,
) -> list[Need]:
    """Return what is missing, in the order in which it is provided.

    `dry`: no program is asked for its version. `installs`: a missing engine is installed, and else an error. `bare`:
    for another machine, on which nothing is."""
    specs = _unique(specs)
    started = [spec for spec in specs if starts(spec)]
    out = _datasets(works, dry, bare)
    if any(other_tasks(test) for test in tests):
        out += _environment(lm_eval.KIND, bare)
    for spec in specs:
        out += _models(spec, dry, bare)
    engines = [need for spec in started for need in _engine(spec, dry, bare)]
    if installs:
        out += engines
    for spec in started:
        out += _image(spec, dry, bare)
    if out and not installs:
        _check_engines(started)  # before anything is fetched for them
    # A tool before the step that uses it, the rest as it is; each once, however many trials need it.
    out.sort(key=lambda need: need.what not in ("data set", "tool"))
    first: dict[tuple[str, str], Need] = {}
    for need in out:
        first.setdefault(need.key, need)
    return list(first.values())


def _check_engines(specs: Iterable[EngineSpec]) -> None:
    """Raise where the program of an engine isn't here."""
    for spec in specs:
        kind = kind_of(spec.kind)
        locate(kind, contained(kind, spec))


def _unique(values: Iterable[T]) -> list[T]:
    """Return each value once: a study's thousand trials have a few settings."""
    return list({msgspec.json.encode(value): value for value in values}.values())


# ---- sizes ----


def with_sizes(
    missing: Sequence[Need], bare: bool = False, registries: bool = False
) -> list[Need]:
    """Return what is missing with its sizes, or why they aren't known. `registries`: ask them about images.

    All are asked at once, and none longer than a few seconds."""
    shapes = any(need.recipe and not need.pulled for need in missing)
    bases = {need.recipe.base.name: need.recipe.base for need in missing if need.recipe}
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        images = {
            need.name: pool.submit(_image_size, need.box)
            for need in missing
            if need.box and registries
        }
        of_hub = dict(zip(bases, _hub_sizes(list(bases.values()), shapes), strict=True))
        answers = {name: job.result() for name, job in images.items()}
    return _shared([_sized(need, of_hub, answers, bare) for need in missing])


def _shared(sized: Sequence[Need]) -> list[Need]:
    """Count the files of a repository once, where a study names it for several models with the same `include`."""
    first: dict[tuple[str, ...], Need] = {}
    out = []
    for need in sized:
        asked = (
            (need.recipe.source, *need.recipe.include)
            if need.recipe and need.pulled
            else ()
        )
        earlier = first.get(asked)
        if earlier and need.size_bytes is not None and earlier.size_bytes is not None:
            rest = max(need.size_bytes - earlier.size_bytes, 0)
            need = need._replace(size_bytes=rest, how=f"{need.how}, as {earlier.name}")
        elif asked:
            first.setdefault(asked, need)
        out.append(need)
    return out


def _hub_sizes(recipes: list[ModelRecipe], shapes: bool) -> list[sizes.RepoSize]:
    if offline() and recipes:
        return [
            sizes.RepoSize(unknown="HF_HUB_OFFLINE is set, so the Hub is not asked")
            for _ in recipes
        ]
    return sizes.ask(recipes, shapes)


def _sized(
    need: Need,
    of_hub: Mapping[str, sizes.RepoSize],
    images: Mapping[str, image.RegistrySize],
    bare: bool,
) -> Need:
    if need.refused:
        return need._replace(unknown="it can't be provided")
    if need.recipe:
        return _sized_model(need, need.recipe, of_hub[need.recipe.base.name], bare)
    if need.box:
        size = images.get(
            need.name, image.RegistrySize(unknown="registries are asked in a dry run only")
        )
        return need._replace(size_bytes=size.bytes, unknown=size.unknown)
    if need.installed and (size_bytes := install.about_bytes(*need.installed)):
        return need._replace(size_bytes=size_bytes, about=True)
    return need._replace(unknown="no installation of it is known")


def _sized_model(need: Need, recipe: ModelRecipe, base: sizes.RepoSize, bare: bool) -> Need:
    if need.pulled:
        size = base.whole_bytes if bare else base.left_bytes
        return need._replace(
            size_bytes=size, gated=base.gated, unknown=base.unknown, refused=base.refused
        )
    size = sizes.made_bytes(recipe, base)
    why = "" if size is not None else f"the parameters of {recipe.source} aren't known"
    return need._replace(size_bytes=size, about=True, unknown=why)


def _image_size(box: ContainerSpec) -> image.RegistrySize:
    if box.build:
        return image.RegistrySize(unknown="it is built")
    return image.registry_size(box.image)


def offline() -> bool:
    """Return whether the user has forbidden questions to the Hub: then an engine finds a model in its cache, or not."""
    # as huggingface_hub reads it
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "on", "yes", "true")


def check_space(missing: Sequence[Need]) -> None:
    """Raise where the known sizes alone are more than the disks have."""
    for mine in by_disk(missing):
        size, folder = sum(need.size_bytes or 0 for _, need in mine), mine[0][0]
        if size > (free := files.free_bytes(folder)):
            raise EngineError(
                f"{human_bytes(size)} are to be fetched to {folder}, but {human_bytes(free)} are free there. Free some "
                "space, or set HF_HOME and DYNO_HOME to a larger disk."
            )


def run(missing: Sequence[Need], say: Say, below: Say) -> list[str]:
    """Provide all of it, and return a line for each. What fails is reported together, after the rest was provided.

    What the Hub refuses is known before, and then nothing is fetched."""
    if refused := [
        f"{need.what} {need.name}, {need.how}: {need.refused}"
        for need in missing
        if need.refused
    ]:
        head = f"{many(len(refused), 'thing')} can't be provided; nothing was fetched or started:"
        raise EngineError("\n".join([head, *refused]))
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
    return [(mine[0][0], files.free_bytes(mine[0][0])) for mine in by_disk(missing)]


def by_disk(missing: Sequence[Need]) -> list[list[tuple[Path, Need]]]:
    disks: dict[int, list[tuple[Path, Need]]] = {}
    for need in missing:
        if need.folder:
            disks.setdefault(files.present(need.folder).stat().st_dev, []).append(
                (need.folder, need)
            )
    return list(disks.values())


# ---- by kind ----


def _dataset(work: WorkloadSpec, bare: Bare | None) -> Iterator[Need]:
    for part in work.classes.values():
        yield from _dataset(part, bare)
    source = work.path or work.dataset
    declared = DATASETS.get(work.dataset)
    if declared and declared.hub_name:
        source = dataset.hub_name(work) or ""
        recipe = hub.folder_recipe(source, dataset.files_of(work)) if source else None
        here = hub.cached_folder(source) if source else None
    else:
        recipe, here = hub.dataset_recipe(source), hub.dataset_file(source)
    if recipe and (bare or here is None):
        yield Need(
            "data set",
            work.dataset,
            f"pull {recipe.source}",
            hub_cache(),
            partial(_data_file, work),
            recipe,
        )


def _datasets(works: Iterable[WorkloadSpec], dry: bool, bare: Bare | None) -> list[Need]:
    """Return the data sets that are missing; none where the Hub may not be asked. A wrong name is always an error."""
    missing = [need for work in _unique(works) for need in _dataset(work, bare)]
    return missing if dry or not offline() else []


def _models(spec: EngineSpec, dry: bool, bare: Bare | None) -> Iterator[Need]:
    for name, recipe in spec.weights.items():
        for step in steps.steps(recipe) if bare else steps.missing(recipe):
            yield from _environment(steps.environment_kind(step), bare)
            folder = hub_cache() if step.verb == "pull" else library.models_folder()
            yield Need(
                "model",
                name,
                step.describe(),
                folder,
                partial(_model_made, step.recipe),
                step.recipe,
            )
    for name, recipe in ({} if offline() and not dry else weights.of_hub(spec)).items():
        if bare or not (library.find(recipe) or _fetched(name, recipe)):
            yield Need(
                "model", name, "pull", hub_cache(), partial(_model_made, recipe), recipe
            )


def _fetched(name: str, recipe: ModelRecipe) -> bool:
    """Return whether another tool has fetched all of it into the Hub's cache."""
    shape = model_files.of_hub(name) if "@" not in recipe.source else None
    return (
        shape is not None
        and check.problem(Path(shape.path), weights=not recipe.include) is None
    )


def _model_made(recipe: ModelRecipe, say: Say, below: Say) -> str:
    entry = steps.run(recipe, say, below)
    return f"{entry.path}, {human_bytes(entry.size_bytes)}"


def _data_file(work: WorkloadSpec, say: Say, below: Say) -> str:
    return str(dataset.located(work, say, below)[0].path)


def _environment(kind: str | None, bare: Bare | None) -> Iterator[Need]:
    """Yield the environment of a tool. A step that makes a model would install its own by itself."""
    if kind and (bare or environment.find(kind) is None):
        variant = install.variant_for(
            kind, bare.variant if bare else install.variant_of_this_machine()
        )
        yield Need(
            what="tool",
            name=kind,
            how=install.describe(kind, variant),
            folder=environment.engines_folder(),
            provide=partial(_installed, kind, None, None),
            installed=(kind, variant),
        )


def _engine(spec: EngineSpec, dry: bool, bare: Bare | None) -> Iterator[Need]:
    kind = kind_of(spec.kind)
    if kind.recipes is None or spec.python or spec.binary or spec.environment:
        return
    spec = spec if bare else contained(kind, spec)
    if spec.container or (bare and _comes_with_dyno(spec)):
        return
    with contextlib.suppress(UsageError):
        if not bare and not locate(kind, spec, dry).absent:
            return
    folder = environment.engines_folder()
    need = Need(
        "engine",
        engine_name(spec),
        "install",
        folder,
        partial(_installed, spec.kind, spec.version, None),
    )
    machine = bare or this_machine()
    try:
        chosen_image = _image_to_install(spec, machine)
    except UsageError as e:  # not for this machine: where something is started, the plan says that it is missing
        if dry:
            yield need._replace(refused=str(e))
        return
    if chosen_image:
        yield _by_image(need, spec, *chosen_image)
    else:
        how = install.describe(spec.kind, machine.variant)
        yield need._replace(how=how, installed=(spec.kind, machine.variant))


def engine_name(spec: EngineSpec) -> str:
    """Return the name by which a missing engine is listed."""
    return f"{spec.kind} {spec.version}" if spec.version else spec.kind


def _by_image(need: Need, spec: EngineSpec, image_name: str, version: str | None) -> Need:
    other = (
        f" ({version}, which the setting accepts)"
        if _is_other(version, spec.version)
        else ""
    )
    return need._replace(
        how=f"pull {image_name}{other}",
        folder=None,
        box=ContainerSpec(image=image_name),
        provide=partial(_installed, spec.kind, version or spec.version, image_name),
    )


def _comes_with_dyno(spec: EngineSpec) -> bool:
    """Return whether a program that is part of dyno serves the setting."""
    own = kind_of(spec.kind).own_program()
    return own is not None and (own.version is None or will_do(own.version, spec))


def _is_other(version: str | None, asked: str | None) -> bool:
    return version is not None and asked is not None and not is_of(version, asked)


def _image_to_install(spec: EngineSpec, machine: Bare) -> tuple[str, str | None] | None:
    """Return the image that installs an engine, and its version; None: a package does. Raise where there is neither."""
    if install.choose(spec.kind, machine.variant) != "container":
        return None
    return versions.image_of(
        spec.kind, machine.variant, spec.version, machine.architecture, spec.accepts
    )


def image_for_this_card(
    kind: str, version: str | None, variant: str | None, by: str | None
) -> str | None:
    """Return the image that installs an engine here, where the card decides which. None: any that the table has."""
    machine = this_machine()
    if machine.architecture is None or (variant or machine.variant) != machine.variant:
        return None
    if install.choose(kind, machine.variant, by) != "container":
        return None
    return versions.image_of(kind, machine.variant, version, machine.architecture)[0]


def this_machine() -> Bare:
    variant = install.variant_of_this_machine()
    cards = rig.read_machine().accelerators if variant == "rocm" else []
    return Bare(variant, cards[0].architecture if cards else None)


def refusal(spec: EngineSpec) -> str | None:
    """Say why an engine can't be installed on this machine, before anything is fetched for it."""
    if not starts(spec):
        return None
    return next((need.refused for need in _engine(spec, True, None) if need.refused), None)


def _installed(
    kind: str, version: str | None, source: str | None, say: Say, below: Say
) -> str:
    env = install.install(
        kind,
        version,
        say=say,
        below=below,
        source=source,
        by="container" if source else None,
    )
    return f"{env.folder}, {human_bytes(env.size_bytes)}"


def _image(spec: EngineSpec, dry: bool, bare: Bare | None) -> Iterator[Need]:
    box = (spec if bare else contained(kind_of(spec.kind), spec)).container
    if box is None or box.pull == "never":
        return
    tool = ""
    try:
        tool = "" if bare else container.tool(box.tool)
    except EngineError:  # which the plan reports
        if not dry:
            return
    if tool and image.digest(tool, box.image):
        return

    def provide(say: Say, below: Say) -> str:
        log = (
            environment.home()
            / "logs"
            / f"image-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
        )
        log.parent.mkdir(parents=True, exist_ok=True)
        digest = image.pull_or_build(box, tool, say, log, below)
        log.unlink(missing_ok=True)  # where it failed, the message names it
        return digest

    yield Need(
        "image",
        box.image,
        f"build from {box.build}" if box.build else "pull",
        None,
        provide,
        box=box,
    )
