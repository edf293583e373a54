"""The evidence from which the checks of dyno's own runs judge."""

from typing import Any

import msgspec

from dyno.engines.kinds import KINDS
from dyno.facts.correctness import Correctness
from dyno.facts.engine import EngineFacts, Remark
from dyno.facts.offline import OfflineSummary
from dyno.facts.quality import QualitySummary, Sitting
from dyno.facts.rig import HostWanted, Rig, Roofline
from dyno.facts.summary import Summary
from dyno.facts.target import TargetFacts
from dyno.facts.telemetry import TelemetrySummary
from dyno.facts.trial import TrialSpec
from dyno.workload.request import CountedBy, Templating


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """A run of any benchmark."""

    trial: TrialSpec
    target: TargetFacts
    # of the machine on which dyno ran; None: not known, as with other tools' results
    rig: Rig | None = None
    host: HostWanted | None = None  # settings of that machine that the study wants
    engine: EngineFacts | None = None  # that dyno started
    repeats: int = 1  # of this trial, in a study
    first_failure: str | None = None  # why the first attempt has no result
    telemetry: TelemetrySummary | None = None
    roofline: Roofline | None = None
    remarks: list[Remark] = []  # in the engine's log

    @property
    def completed(self) -> int:
        """Return the number of completed requests."""
        raise NotImplementedError

    @property
    def stops_at_eos(self) -> str:
        """Return the engine, as people write it, if a request can't make it ignore the end token; '': it can."""
        unable = (kind for kind in KINDS.values() if not kind.can_ignore_eos)
        return next(
            (
                k.title
                for k in unable
                if k.backend == self.trial.target.backend or k.name == self.target.kind
            ),
            "",
        )


class OfflineEvidence(Circumstances, frozen=True, kw_only=True):
    """A run of an engine in its own process."""

    offline: OfflineSummary
    latencies_ms: list[float]  # of the measured iterations, in order
    wanted_iterations: int
    others_cpu: float | None = None  # cores kept busy by others than dyno and the engine
    reported: dict[str, Any] = {}  # llama-bench's report about itself and the test

    @property
    def completed(self) -> int:
        return self.offline.completed


class QualityEvidence(Circumstances, frozen=True, kw_only=True):
    """A test of an engine's answers."""

    quality: QualitySummary
    sittings: list[Sitting] = []
    failures: str = ""  # their kinds

    @property
    def completed(self) -> int:
        return self.quality.items


class Evidence(Circumstances, frozen=True, kw_only=True):
    """A run against a server."""

    counted_by: CountedBy  # prompt lengths
    prompts: int  # different requests prepared
    repeated_prompts: int
    sent_before: str | None
    summary: Summary
    cache_emptied: bool | None = None  # None: not tried
    correctness: Correctness | None = None  # None: turned off, or by an older version
    # over the network to the engine: before the load, after it
    round_trips_ns: list[int] = []
    dropped: dict[str, int] = {}  # left out of the workload: reason → how many
    template: Templating | None = None  # of completions prompts

    @property
    def completed(self) -> int:
        return self.summary.completed

    @property
    def cached_tokens(self) -> int | None:
        """Return the prompt tokens found in the server's prefix cache: by its answers, else by its own counters."""
        if self.summary.cached_input_tokens is not None or self.telemetry is None:
            return self.summary.cached_input_tokens
        counted = self.telemetry.total("prefix_hit_tokens")
        return None if counted is None else round(counted)
