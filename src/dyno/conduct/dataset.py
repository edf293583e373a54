"""The file of a data set that is on the Hub: found on this machine, or fetched before anything is measured."""

import msgspec

from dyno.conduct.session import Watcher
from dyno.errors import ModelError, WorkloadError
from dyno.facts.workload import DataFile, WorkloadSpec
from dyno.models import hub


def provide(spec: WorkloadSpec, watcher: Watcher) -> tuple[WorkloadSpec, DataFile | None]:
    """Return the workload as it is read here, and its file; None: it needs none of the Hub."""
    source = spec.path or spec.dataset
    if hub.dataset_recipe(source) is None:
        return spec, None
    try:
        file = hub.dataset(source, watcher.phase, watcher.below)
    except ModelError as e:
        raise WorkloadError(
            f"The dataset {spec.dataset} needs its file, which isn't on this machine. {e} With the file in another "
            "place, give it with --dataset-path. --dataset-name sharegpt-shaped has about the same lengths as sharegpt "
            "and needs no file."
        ) from None
    return msgspec.structs.replace(spec, path=file.path), file
