"""The file of a data set that is on the Hub: found on this machine, or fetched."""

import re
from pathlib import Path
from typing import Any

import msgspec

from dyno.errors import ModelError, UsageError, WorkloadError
from dyno.models import hub
from dyno.option import setting_name
from dyno.saying import Say
from dyno.workload.datasets import DATASETS
from dyno.workload.request import DataFile
from dyno.workload.spec import WorkloadSpec


def located(
    spec: WorkloadSpec, say: Say, below: Say
) -> tuple[WorkloadSpec, DataFile | None]:
    """Return the workload with the path of its file here, and that file; None: it needs none of the Hub."""
    if spec.classes:
        parts = {name: located(part, say, below)[0] for name, part in spec.classes.items()}
        return msgspec.structs.replace(spec, classes=parts), None
    declared = DATASETS.get(spec.dataset)
    if declared and declared.hub_name:
        name = hub_name(spec)
        return (spec if name is None else _fetched(spec, name, say, below)), None
    source = spec.path or spec.dataset
    recipe = hub.dataset_recipe(source)
    if recipe is None:
        return spec, None
    try:
        file = hub.dataset(source, say, below)
    except ModelError as e:
        raise WorkloadError(
            f"The dataset {spec.dataset} needs {recipe.include[0]}, which isn't on this machine. {e} A file from "
            f"elsewhere is given with {setting_name('--dataset-path')}. {setting_name('--dataset-name')} "
            "sharegpt-shaped has about the same lengths as sharegpt and needs no file."
        ) from None
    return msgspec.structs.replace(spec, path=file.path), file


def hub_name(spec: WorkloadSpec) -> str | None:
    """Return OWNER/NAME or OWNER/NAME@REVISION of a data set of the Hub; None: its files are named by a path."""
    declared = DATASETS[spec.dataset]
    given: str = spec.path or getattr(spec, declared.hub_name) or ""
    name = given.removeprefix("hub:").removeprefix("datasets/")
    if Path(given).expanduser().exists() or not re.fullmatch(
        r"[\w.-]+/[\w.-]+(@[\w./-]+)?", name
    ):
        return None
    if name.partition("@")[0] in declared.hub_refused:
        raise WorkloadError(
            f"The dataset {name} asks about images or sounds: dyno sends text only. Choose another with "
            f"{setting_name('--dataset-path')}."
        )
    return name


def files_of(spec: WorkloadSpec) -> list[str]:
    """Return patterns of the files that a data set of the Hub is fetched with."""
    return [f"*{ending}" for ending in DATASETS[spec.dataset].hub_endings]


def _fetched(spec: WorkloadSpec, name: str, say: Say, below: Say) -> WorkloadSpec:
    """Return the workload with the folder of its data set, which is fetched where it isn't here."""
    try:
        folder = hub.dataset_folder(name, files_of(spec), say, below)
    except (ModelError, UsageError) as e:
        raise WorkloadError(
            f"The dataset {name} isn't on this machine. {e} A folder or file from elsewhere is given with "
            f"{setting_name('--dataset-path')}."
        ) from None
    given: dict[str, Any] = {DATASETS[spec.dataset].hub_name: name} if not spec.path else {}
    return msgspec.structs.replace(spec, path=str(folder), **given)
