"""The file of a data set that is on the Hub: found on this machine, or fetched."""

import re
from pathlib import Path

import msgspec

from dyno.errors import ModelError, WorkloadError
from dyno.models import hub
from dyno.models.cache import snapshot, snapshot_folder, storage_folder
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
        return msgspec.structs.replace(
            spec, path=_cached(spec.path or getattr(spec, declared.hub_name))
        ), None
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


def _cached(name: str | None) -> str | None:
    """Return the folder of a dataset in the Hub's cache, by OWNER/NAME; a path of this machine is its own."""
    text = (name or "").removeprefix("hub:").removeprefix("datasets/")
    if (
        not name
        or Path(name).expanduser().exists()
        or not re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", text)
    ):
        return name
    repo, _, revision = text.partition("@")
    storage = storage_folder("dataset", repo)
    commit, _ = snapshot(storage, revision or "main")
    folder = snapshot_folder(storage, commit) if commit else None
    if folder is None or not folder.is_dir():
        raise WorkloadError(
            f"The dataset {repo} isn't on this machine. Fetch it with `hf download --repo-type dataset {repo}`, or "
            f"give a folder or file with {setting_name('--dataset-path')}."
        )
    return str(folder)
