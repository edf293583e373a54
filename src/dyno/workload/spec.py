"""A workload: which prompts, how long, how many tokens wanted."""

from typing import TYPE_CHECKING, Annotated

import msgspec

from dyno.option import Option
from dyno.workload.common import CommonSpec
from dyno.workload.dataset import DatasetTraits
from dyno.workload.datasets import DATASETS, DEFAULT, own_fields
from dyno.workload.request import Answers, CountedBy, Histories, Request, Templating, Turn

if TYPE_CHECKING:
    from dyno.workload.datasets import OwnSettings

# A workload is one flat value: stored files, studies, flags and SQL have its settings beside one another. It has the
# settings of all data sets, and only those of its own may differ from their defaults: OWN_FIELDS.
if TYPE_CHECKING:

    class _AllSettings(OwnSettings, frozen=True): ...

else:
    _AllSettings = msgspec.defstruct(
        "_AllSettings", own_fields(), bases=(CommonSpec,), module=__name__, frozen=True
    )


class WorkloadSpec(_AllSettings, frozen=True):
    classes: Annotated[
        dict[str, "TrafficClass"],
        Option(
            help="classes of traffic by name, each with its own keys (dataset mix)",
            setting="--class",
        ),
    ] = {}

    @property
    def traits(self) -> DatasetTraits:
        if not self.classes:
            declared = DATASETS.get(self.dataset)  # a stored run may have another version's
            return declared.traits if declared else DatasetTraits()
        each = [part.traits for part in self.classes.values()]
        return DatasetTraits(
            sessions=any(traits.sessions for traits in each),
            times=self.own_rate_rps is not None,
            template=any(traits.template for traits in each),
            endless=all(traits.endless for traits in each),
        )

    @property
    def own_rate_rps(self) -> float | None:
        """Return the rate of a workload whose requests have times of their own; None: the load decides."""
        declared = DATASETS.get(self.dataset)
        if declared and declared.rate:
            rate: float = getattr(self, declared.rate)
            return rate
        return sum(part.request_rate_rps or 0.0 for part in self.classes.values()) or None


_OF_SESSIONS = ("num_sessions", "answers")


def _owners(setting: str) -> list[str]:
    return [
        name
        for name, dataset in DATASETS.items()
        if setting in dataset.own or (dataset.traits.sessions and setting in _OF_SESSIONS)
    ]


# Settings that only some datasets have: field → these datasets.
OWN_FIELDS = {
    name: names for name in WorkloadSpec.__struct_fields__ if (names := _owners(name))
}


class TrafficClass(WorkloadSpec, frozen=True, kw_only=True):
    """One class of the traffic of a mix: a workload of its own, with a rate or a share of the requests."""

    dataset: str = DEFAULT
    request_rate_rps: Annotated[
        float | None,
        Option(help="requests (or sessions) per second of this class", above=0, most=1e7),
    ] = None
    burstiness: Annotated[
        float, Option(help="how irregular its rate is: 1 Poisson", above=0, most=1e6)
    ] = 1.0
    share: Annotated[
        float | None,
        Option(help="share of the requests, relative to the other classes", above=0),
    ] = None
    adapter: Annotated[
        str | None, Option(help="LoRA adapter, sent as the request's model")
    ] = None
    priority: Annotated[
        int | None, Option(help="the request's priority; vLLM serves lower values first")
    ] = None
    goodput_ms: Annotated[
        dict[str, float],
        Option(
            help="latency limits in ms by ttft, ttfo, tpot, e2el: goodput counts requests within all"
        ),
    ] = {}


class Workload(msgspec.Struct, frozen=True):
    spec: WorkloadSpec
    requests: list[Request]
    warmups: list[Request]  # prompts of their own: none of them is among the requests
    tokenizer: str | None  # its name as the result shows it
    counted_by: CountedBy
    # over prompts and lengths: two runs with the same value sent the same prompts
    sha256: str
    repeated: int = 0  # requests whose prompt is a copy of an earlier one
    # when each session begins, by the file; None: the load decides
    starts_s: list[float] | None = None
    answers: Answers = "server"  # in the history of conversations
    # None: the dataset has no use for one, or it is not wanted
    template: Templating | None = None
    dropped: dict[str, int] = {}  # left out: reason → how many

    @property
    def histories(self) -> Histories | None:
        """Where the answers in its conversations come from; None: it has none."""
        turns = [r for r in self.requests if isinstance(r, Turn)]
        quoted = any(m.get("role") == "assistant" for turn in turns for m in turn.messages)
        if not any(turn.history is not None for turn in turns):
            return "recorded" if quoted else None
        return "mixed" if quoted and self.answers == "server" else self.answers
