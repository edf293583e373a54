"""What a data set declares. Each is one file in datasets/, and a line in the registry there.

Flags, study keys, SQL columns, the settings of a result and the table of the documentation follow from it.
"""

import importlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from dyno.errors import WorkloadError
from dyno.option import problems
from dyno.workload.common import CommonSpec


class DatasetTraits(msgspec.Struct, frozen=True):
    """What is known of a workload by its data set. Of a mix it depends on its classes: see WorkloadSpec.traits."""

    file: bool = False  # it is read from --dataset-path
    # its requests belong to sessions: a load counts users and sessions/s
    sessions: bool = False
    times: bool = False  # it may have times at which its requests or sessions were recorded
    paced: bool = False  # its requests are sent at these times unless the load has a rate
    trace: bool = False  # all of its requests are sent unless a number is given
    # it has a last request, so that all of them can be asked for: num_prompts = -1
    ends: bool = False
    template: bool = False  # vLLM applies the model's chat template to its prompts
    template_always: bool = False  # also with --skip-chat-template: vLLM's rule
    # its prompts have no natural end, so the requested length is meant: ignore_eos
    endless: bool = False
    # its prompts have exactly the requested length, and share nothing that isn't asked for
    exact: bool = False
    media: bool = False  # its requests have images or sounds
    scores: bool = False  # its requests are for models that write no text
    # its histories have calls of tools, which the server's template writes out
    tools: bool = False


class LengthFlag(NamedTuple):
    """A flag of one data set for a length, named as vLLM's: --sonnet-prefix-len."""

    field: str  # the setting that it sets
    end: str  # of the flag, behind the data set's name
    default: int | None  # vLLM's
    help: str
    least: int | None = 1


class Dataset(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    about: str  # its prompts, for the documentation
    # Yields requests for as long as it has different ones; whoever asks stops when there are enough. It yields turns
    # session by session, numbered from 0; those of a trace have the times at which their sessions begin.
    # A function of its spec and a tokenizer, or its place in this package ('recorded:custom'), which is imported
    # only where prompts are made: a help text doesn't wait for it. '': the classes of the workload do.
    make: Callable[[Any, Any], Iterator[Any]] | str
    traits: DatasetTraits = DatasetTraits()
    spec: type[CommonSpec] = CommonSpec  # the common settings, and those of its own
    # settings of all workloads that it has, and most others don't
    takes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()  # settings that a study must give
    file_optional: bool = False  # its file is named by another setting, or comes with dyno
    folders: bool = False  # its path may be a folder
    offline: bool = False  # `dyno bench throughput` has it
    lengths: tuple[LengthFlag, ...] = ()
    lengths_of: str = ""  # the data set whose flags for lengths it has, too
    # setting → vLLM's default of its flag, where it is not that of all
    flag_defaults: dict[str, Any] = {}
    hub_file: str = ""  # its file on the Hub, where none is given
    hub_name: str = ""  # the setting that names a data set of the Hub
    hub_endings: tuple[str, ...] = ()  # of its files that are fetched
    hub_refused: frozenset[str] = frozenset()  # data sets of the Hub without text
    rate: str = ""  # the setting that is the rate of its requests
    # of an answer, about, where nothing limits it: for an estimate of the time
    answer_tokens: int = 200

    @property
    def generate(self) -> Callable[[Any, Any], Iterator[Any]]:
        if not isinstance(self.make, str):
            return self.make
        module, _, name = self.make.partition(":")
        function: Callable[[Any, Any], Iterator[Any]] = getattr(
            importlib.import_module(f"dyno.workload.{module}"), name
        )
        return function

    def requests(self, workload: CommonSpec, tokenizer: Any) -> Iterator[Any]:
        """Generate its requests for a workload, of whose settings it gets those that are its own."""
        return self.generate(self.own_spec(workload), tokenizer)

    def own_spec(self, workload: CommonSpec) -> CommonSpec:
        """Return the settings of a workload that are the data set's. Those of a plug-in's are in its `options`."""
        names = self.spec.__struct_fields__
        given = {name: getattr(workload, name) for name in names if hasattr(workload, name)}
        added = {name for name in names if name not in given}
        if unknown := sorted(workload.options.keys() - added):
            known = ", ".join(sorted(added)) or "none"
            raise WorkloadError(
                f"The data set {self.name} has no option {', '.join(unknown)}. Its options: {known}."
            )
        if not added:
            return self.spec(**given)
        plain = {name: msgspec.to_builtins(value) for name, value in given.items()}
        try:
            spec = msgspec.convert({**plain, **workload.options}, self.spec, strict=False)
        except msgspec.ValidationError as e:
            raise WorkloadError(f"An option of the data set {self.name}: {e}.") from None
        if wrong := list(problems(spec)):
            raise WorkloadError(f"The data set {self.name}: {'; '.join(wrong)}.")
        return spec

    @property
    def needs_file(self) -> bool:
        return self.traits.file and not self.file_optional

    @property
    def own(self) -> tuple[str, ...]:
        """Return the settings of its own, and those that few others have."""
        return (
            *self.takes,
            *(
                name
                for name in self.spec.__struct_fields__
                if name not in CommonSpec.__struct_fields__
            ),
        )
