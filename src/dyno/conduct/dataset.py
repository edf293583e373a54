"""The file of a data set that is on the Hub: found on this machine, or fetched."""

import msgspec

from dyno.errors import ModelError, WorkloadError
from dyno.facts.workload import DataFile, WorkloadSpec
from dyno.models import hub
from dyno.models.shelf import Say


def located(spec: WorkloadSpec, say: Say, below: Say) -> tuple[WorkloadSpec, DataFile | None]:
    """Return the workload with the path of its file here, and that file; None: it needs none of the Hub."""
    source = spec.path or spec.dataset
    recipe = hub.dataset_recipe(source)
    if recipe is None:
        return spec, None
    try:
        file = hub.dataset(source, say, below)
    except ModelError as e:
        raise WorkloadError(
            f"The dataset {spec.dataset} needs {recipe.include[0]}, which isn't on this machine. {e} A file from "
            "elsewhere is given with --dataset-path. --dataset-name sharegpt-shaped has about the same lengths as "
            "sharegpt and needs no file."
        ) from None
    return msgspec.structs.replace(spec, path=file.path), file
