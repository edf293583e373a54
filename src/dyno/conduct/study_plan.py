"""A study before it runs: its trials, the machine it is for, what is wrong with it, and its folder."""

import itertools
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dyno import files, secrets
from dyno.checks.machine import differences as rig_differences
from dyno.conduct import provide
from dyno.engines import container, versions
from dyno.engines.kinds import KINDS, starts
from dyno.errors import EngineError, StoreError, UsageError
from dyno.facts.elsewhere import SshSpec
from dyno.facts.offline import Batch
from dyno.facts.quality import QualitySpec
from dyno.facts.rig import Accelerator, Rig
from dyno.facts.study import Place, PlannedTrial, RigWanted, Study
from dyno.facts.trial import TrialSpec
from dyno.load.plan import prompts_needed
from dyno.load.protocols import PROTOCOLS
from dyno.models import steps
from dyno.numbers import many
from dyno.plugins import Derived
from dyno.probe.model import looks_local
from dyno.quality import ask
from dyno.store.study import StudyFolder
from dyno.study import file
from dyno.study.document import as_toml
from dyno.study.trials import Known
from dyno.trial import answers, dataset, slots
from dyno.trial.engine_plan import EnginePlan
from dyno.trial.offline import batch_of, same_engine
from dyno.trial.prepare import hidden, longest
from dyno.trial.prepare import public as public_trial
from dyno.workload.datasets import DATASETS
from dyno.workload.spec import WorkloadSpec

_NO_TEXT = "# The file is not stored, because dyno can't remove a secret from it. study.json has every trial.\n"
_AT_LEAST = 8  # accelerators that are assumed where a study doesn't say how many


def known() -> Known:
    """Return the names that a study file may use."""
    return Known(
        backends=Derived(KINDS, attrgetter("backend")),
        starts=Derived(KINDS, attrgetter("starts")),
        paths=Derived(PROTOCOLS, attrgetter("path")),
        whole_paths=Derived(PROTOCOLS, attrgetter("path_in_one_piece")),
        fields=Derived(PROTOCOLS, attrgetter("fields")),
        prompts_needed=prompts_needed,
        recipe_problem=steps.problem,
        quality_problem=ask.problem,
        quality_workload=ask.workload,
        with_slots=_with_slots,
    )


def _with_slots(
    trials: Sequence[TrialSpec], quality: QualitySpec | None
) -> list[TrialSpec]:
    return slots.for_loads(trials, quality, ask.longest(quality) if quality else None)


def read(path: Path, given: dict[str, str] | None = None) -> tuple[Study, str]:
    """Return the study and its text."""
    try:
        data = files.read(path, files.TEXT, pipes=True)
        # some editors put a mark at the beginning
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is not UTF-8"
        raise UsageError(f"The study {path} can't be read: {why}.") from None
    return file.read(text, path, known(), given), text


def read_tables(
    tables: Mapping[str, Any], name: str, given: dict[str, str] | None = None
) -> tuple[Study, str]:
    """Return the study that tables describe, and its text: that of a file with the same tables."""
    text = as_toml(tables)
    return file.read(text, Path(f"{name}.toml"), known(), given), text


def repeated(
    name: str, trials: Iterable[tuple[Place, TrialSpec]], seed: int, repeats: int
) -> Study:
    """Make a study without a file: each trial `repeats` times, with other prompts each time."""
    pairs = list(trials)
    slotted = slots.for_loads([trial for _, trial in pairs])
    planned = [
        file.placed(place, trial, None, name, seed, repeat, repeats)
        for (place, _), trial in zip(pairs, slotted, strict=True)
        for repeat in range(1, repeats + 1)
    ]
    return Study(
        name=name, trials=planned, seed=seed, repeats=repeats, on_failure="carry_on"
    )


def fits(wanted: RigWanted, machine: Rig) -> bool:
    """Return whether the study is meant for this machine, as far as it says."""
    if wanted.accelerator is None and wanted.accelerators is None:
        return True
    name = (wanted.accelerator or "").lower()
    return sum(name in a.name.lower() for a in machine.accelerators) >= (
        wanted.accelerators or 1
    )


def choose_rig(study: Study, machine: Rig, asked: str | None, anyway: bool) -> str | None:
    """Return which of the study's rigs this machine is. None: it names none."""
    if asked is not None and asked not in study.rigs:
        raise UsageError(
            f"--rig {asked}: the study has no such rig. There are: {', '.join(study.rigs) or 'none'}."
        )
    if not study.rigs:
        return None
    candidates = [asked] if asked else list(study.rigs)
    fitting_ones = [
        name for name in candidates if anyway or fits(study.rigs[name], machine)
    ]
    if len(fitting_ones) == 1:
        return fitting_ones[0]
    if fitting_ones:
        raise UsageError(
            f"Several of the study's rigs match this machine: give --rig {' or --rig '.join(fitting_ones)}."
        )
    here = ", ".join(a.name for a in machine.accelerators) or "no accelerator"
    wanted = " or ".join(_rig_words(name, study.rigs[name]) for name in candidates)
    raise UsageError(
        f"This study is for {wanted}, but this machine has {here}. --any-rig runs it anyway, --dry-run shows it."
    )


def _rig_words(name: str, wanted: RigWanted) -> str:
    return f"{name} ({wanted.accelerators or 'any number'} × {wanted.accelerator or 'any accelerator'})"


def choose_rigs(
    study: Study, machine: Rig, asked: str | None, anyway: bool
) -> list[str] | None:
    """Return the rigs whose trials run now: this machine's, and those elsewhere. None: the study names none."""
    far = [
        name
        for name, wanted in study.rigs.items()
        if wanted.elsewhere and asked in (None, name)
    ]
    near = {name: wanted for name, wanted in study.rigs.items() if not wanted.elsewhere}
    if asked in far or (far and not near):
        return far
    here = choose_rig(msgspec.structs.replace(study, rigs=near), machine, asked, anyway)
    return [here, *far] if here else None


def placed(study: Study, hosts: dict[str, str]) -> Study:
    """Return the study with these rigs on other machines: NAME → user@host."""
    far = {
        n: msgspec.structs.replace(study.rigs[n], ssh=SshSpec(host), dstack=None)
        for n, host in hosts.items()
    }
    return msgspec.structs.replace(study, rigs={**study.rigs, **far})


def assumed(wanted: RigWanted, machine: Rig) -> Rig:
    """Return this machine with the accelerators that the study is meant for: for a dry run elsewhere."""
    if fits(wanted, machine):
        return machine
    name = wanted.accelerator or "accelerator"
    vendor = "amd" if re.match(r"(?i)mi\d|radeon|strix|instinct|gfx", name) else "nvidia"
    architecture = (
        (wanted.architecture or versions.architecture_of(name)) if vendor == "amd" else None
    )
    cards = [
        Accelerator(i, name, vendor, architecture=architecture)
        for i in range(wanted.accelerators or _AT_LEAST)
    ]
    return msgspec.structs.replace(machine, accelerators=cards)


class SettingPlan(NamedTuple):
    """An engine setting, planned, and the trials that need it."""

    trials: list[PlannedTrial]
    engine: EnginePlan | None  # None: it runs already, or can't be run
    refused: str | None = None
    elsewhere: bool = False  # the machine is assumed: its files aren't known


def plans(
    study: Study,
    trials: Iterable[PlannedTrial],
    machine: Rig,
    dry: bool,
    here: bool = False,
) -> list[SettingPlan]:
    """Plan each engine setting of the trials. `dry`: with what is missing, as if it were there, and for the machines
    that the study is meant for. `here`: for this one all the same."""
    out: list[SettingPlan] = []
    for mine in _by_setting(trials):
        name = mine[0].place.rig
        planned_for = (
            assumed(study.rigs[name], machine) if dry and name and not here else machine
        )
        far = name is not None and study.rigs[name].elsewhere
        setting = _setting_plan(study, mine, planned_for, dry)
        shared = _same_batch_engine(out, setting.engine)
        if shared and shared.trials[0].place.rig == name:
            shared.trials.extend(mine)
        else:
            assumed_machine = setting.engine is not None and (
                far or planned_for is not machine
            )
            out.append(setting._replace(elsewhere=assumed_machine))
    return out


def _batch(planned: PlannedTrial) -> Batch | None:
    return batch_of(planned.trial) if planned.trial.offline else None


def _by_setting(trials: Iterable[PlannedTrial]) -> list[list[PlannedTrial]]:
    """Group trials that have the same engine setting on the same rig."""
    settings: dict[bytes, list[PlannedTrial]] = {}
    for planned in trials:
        trial = planned.trial
        key = msgspec.json.encode(
            [planned.place.rig, trial.engine, trial.target, _batch(planned)]
        )
        settings.setdefault(key, []).append(planned)
    return list(settings.values())


def _setting_plan(
    study: Study, mine: list[PlannedTrial], machine: Rig, dry: bool
) -> SettingPlan:
    """Plan one setting, or say why it is refused. A server that runs already needs no plan."""
    first = mine[0]
    engine = first.trial.engine
    if engine is None or not starts(engine):
        return SettingPlan(mine, None)
    if dry and (why := no_docker(study, first)):
        return SettingPlan(mine, None, why)
    try:
        return SettingPlan(mine, EnginePlan(engine, machine, dry=dry, batch=_batch(first)))
    except (UsageError, EngineError) as e:
        return SettingPlan(mine, None, str(e))


def _same_batch_engine(
    settings: Sequence[SettingPlan], plan: EnginePlan | None
) -> SettingPlan | None:
    """Return the setting that loads the same engine: several batches may need the same of it, and then share it."""
    if plan is None or not plan.batch:
        return None
    for setting in settings:
        if setting.engine and setting.engine.batch and same_engine(setting.engine, plan):
            return setting
    return None


def no_docker(study: Study, planned: PlannedTrial) -> str | None:
    """Say that an engine in a container can't run on a machine of dstack's: it is a container itself."""
    rig, engine = planned.place.rig, planned.trial.engine
    machine = study.rigs[rig].dstack if rig else None
    if machine is None or machine.docker or engine is None or engine.container is None:
        return None
    return (
        f"[rigs.{rig}] a machine of dstack's is a container, without Docker inside, but {planned.place.engine} runs in "
        f"one ({engine.container.image}). Set dstack.docker = true; or set dstack.image to this image, and remove the "
        "engine's container."
    )


def problems(plans: Sequence[SettingPlan]) -> list[str]:
    """Return what the engines' own checks object to in each trial, before anything starts."""
    texts: dict[str, list[PlannedTrial]] = {}
    for setting in plans:
        for planned in setting.trials:
            missing = () if setting.elsewhere else _missing_files(planned.trial)
            for text in (*missing, *_without_such_answers(planned.trial)):
                texts.setdefault(text, []).append(planned)
    for setting in plans:
        if setting.refused:
            texts.setdefault(setting.refused, []).extend(setting.trials)
        for planned, problem in _engine_problems(setting):
            texts.setdefault(problem, []).append(planned)
    return [_labelled(mine, text) for text, mine in texts.items()]


def _engine_problems(setting: SettingPlan) -> Iterator[tuple[PlannedTrial, str]]:
    """Yield each trial with a problem of its engine. The files of a machine that is only assumed aren't known."""
    engine = setting.engine
    if engine is None:
        return
    for planned in setting.trials:
        for problem in engine.problems([longest(planned.trial)]):
            if not (setting.elsewhere and problem == engine.absent):
                yield planned, problem


def _without_such_answers(trial: TrialSpec) -> Iterator[str]:
    """Yield why a trial's backend has no answers of the form that it asks for."""
    if trial.offline:
        return
    try:
        answers.check(
            trial, [limit.stem for limit in trial.find.limits] if trial.find else []
        )
    except UsageError as e:
        yield str(e)


def _missing_files(trial: TrialSpec) -> Iterator[str]:
    """Yield what is wrong with the local files that a trial names."""
    if trial.workload.path and (why := _missing_data(trial.workload)):
        yield f"path = {trial.workload.path!r}: {why}."
    tokenizer = trial.tokenizer
    # provided, or missed by the engine's plan
    own = trial.engine is not None and tokenizer in trial.engine.weights
    if not tokenizer or own or not looks_local(tokenizer):
        return
    if why := _missing(Path(tokenizer).expanduser(), folders=True):
        yield f"tokenizer = {tokenizer!r}: {why}."


def _missing_data(workload: WorkloadSpec) -> str | None:
    """Return why a workload's file can't be used; None: it can, or will be fetched."""
    assert workload.path is not None
    declared = DATASETS[workload.dataset]
    of_hub = declared.hub_name and dataset.hub_name(workload)
    if of_hub or workload.path.startswith("hub:"):
        return None
    return _missing(Path(workload.path).expanduser(), folders=declared.folders)


def problems_before_fetching(
    study: Study, trials: Sequence[PlannedTrial], machine: Rig
) -> list[str]:
    """Return what is known to go wrong on this machine, before anything is fetched: files, flags, tools."""
    planned = plans(study, trials, machine, dry=True, here=True)
    return [*problems(planned), *missing_tools(planned), *_not_installable(planned)]


def missing_tools(planned: Sequence[SettingPlan]) -> list[str]:
    """Say which container tools are missing, of those that engines need."""
    boxes = [setting.engine.spec.container for setting in planned if setting.engine]
    return list(
        filter(None, map(_no_tool, dict.fromkeys(box.tool for box in boxes if box)))
    )


def _not_installable(planned: Sequence[SettingPlan]) -> list[str]:
    """Say which engines are neither here nor can be installed here, each once."""
    texts: dict[str, list[PlannedTrial]] = {}
    for setting in planned:
        engine = setting.trials[0].trial.engine
        if engine and (why := provide.refusal(engine)):
            texts.setdefault(why, []).extend(setting.trials)
    return [_labelled(mine, text) for text, mine in texts.items()]


def _no_tool(name: str | None) -> str | None:
    try:
        container.tool(name)
    except EngineError as e:
        return str(e)
    return None


def _labelled(trials: Sequence[PlannedTrial], text: str) -> str:
    more = f" (and {many(len(trials) - 1, 'more trial')})" if len(trials) > 1 else ""
    return f"{trials[0].place.label}{more}: {text}"


def _missing(path: Path, folders: bool) -> str | None:
    try:
        files.opened(path, pipes=True).close()
    except FileNotFoundError:
        return "there is no such file"
    except IsADirectoryError as e:
        return None if folders else e.strerror
    except OSError as e:
        return e.strerror
    return None


def moved(folder: StudyFolder, wanted: Iterable[PlannedTrial], machine: Rig) -> list[str]:
    """Return how the machine differs from the one that measured the first of these trials."""
    first = next((run for p in wanted if (run := folder.run(p.place)).whole), None)
    if first is None:
        return []
    return [
        f.text
        for f in rig_differences(first.manifest().rig, machine)
        if f.code != "rig.environment_differs"
    ]


def public(study: Study, text: str) -> tuple[Study, str]:
    """Return study and text as they are stored: without the secrets that a setting may hold."""
    secrets.learn(secret for p in study.trials for secret in hidden(p.trial, {}))
    trials = [msgspec.structs.replace(p, trial=public_trial(p.trial)) for p in study.trials]
    rigs = {name: _public_rig(rig) for name, rig in study.rigs.items()}
    text = secrets.clean(secrets.without_in_toml(text))
    try:
        tree = tomllib.loads(text)
        shows = secrets.clean(tree) != tree or secrets.public(tree) != tree
    except (tomllib.TOMLDecodeError, RecursionError):
        shows = True
    return msgspec.structs.replace(
        study, trials=trials, rigs=rigs
    ), _NO_TEXT if shows else text


def _public_rig(rig: RigWanted) -> RigWanted:
    before, after = (
        [secrets.public_command(c) for c in commands]
        for commands in (rig.before, rig.after)
    )
    return msgspec.structs.replace(rig, before=before, after=after)


def same(a: Study, b: Study) -> bool:
    """Return whether the trials are the same: what else a file says may change without a new study."""
    return {p.place.id for p in a.trials} == {p.place.id for p in b.trials}


def differences(old: Study, new: Study) -> str:
    """Say how the file as it is now differs from the study in a folder."""
    was, now = _labels(old), _labels(new)
    common = len(was.keys() & now.keys())
    parts = ["1 trial is the same" if common == 1 else f"{common} trials are the same"]
    added = [label for id, label in now.items() if id not in was]
    gone = [label for id, label in was.items() if id not in now]
    parts += _changes(added, gone)
    if old.repeats != new.repeats:
        parts.append(f"repeats were {old.repeats} and are {new.repeats}")
    if old.seed != new.seed:
        parts.append(f"the seed was {old.seed} and is {new.seed}")
    return ", ".join(parts)


def _changes(added: Sequence[str], gone: Sequence[str]) -> Iterator[str]:
    """Count the trials that differ. A label that is both added and gone is a trial with other settings."""
    both = set(added).intersection(gone)
    groups = (
        (
            "has other settings",
            "have other settings",
            [label for label in added if label in both],
        ),
        ("is new", "are new", [label for label in added if label not in both]),
        ("is removed", "are removed", [label for label in gone if label not in both]),
    )
    for one, several, labels in groups:
        if labels:
            verb = one if len(labels) == 1 else several
            yield f"{len(labels)} {verb} ({_first_labels(labels)})"


def _labels(study: Study) -> dict[str, str]:
    """Return the labels of a study's trials by id."""
    return {p.place.id: p.place.label for p in study.trials}


def _first_labels(labels: Iterable[str]) -> str:
    """Join the first three of the labels, each once, and count the others."""
    names = list(dict.fromkeys(labels))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return "; ".join(names[:3]) + more


def begun(runs: Path, study: Study) -> StudyFolder | None:
    """Return the folder that holds exactly these trials, if there is one."""
    folders = itertools.takewhile(lambda folder: folder.exists, _folders(runs, study))
    return next((folder for folder in folders if same(folder.study(), study)), None)


def _folders(runs: Path, study: Study) -> Iterator[StudyFolder]:
    """NAME, NAME-2, NAME-3, …"""
    yield StudyFolder(runs / study.name)
    yield from (
        StudyFolder(runs / f"{study.name}-{number}") for number in itertools.count(2)
    )


def folder_for(
    runs: Path, study: Study, new: bool = False, extend: bool = False, again: bool = False
) -> StudyFolder:
    """Return where it resumes or begins: the first folder that holds exactly these trials, or the first free name.

    `again`: a complete one is not resumed.
    """
    taken: list[StudyFolder] = []
    for folder in _folders(runs, study):
        if not folder.path.exists():
            break
        if not folder.path.is_dir():
            raise StoreError(
                f"{folder.path} is a file. Choose another place with --runs DIR."
            )
        if not folder.exists:
            if folder.blank:
                return folder
            raise StoreError(
                f"{folder.path} exists but is not a study. Choose another place with --runs DIR."
            )
        if (
            same(folder.study(), study)
            and not new
            and not (again and len(folder.done()) >= len(study.trials))
        ):
            return folder
        taken.append(folder)
    if not taken or new or again:
        return folder
    if extend:
        return taken[-1]
    last = taken[-1]
    raise UsageError(
        f"{last.path} was made from an earlier version of this file: {differences(last.study(), study)}. "
        f"`--extend` continues there and keeps its results, `--new` starts {folder.path}."
    )
