"""What becomes of a decoded record: its counts are settled, keys are taken out, and it is added to the run's sums."""

from collections.abc import Callable, Sequence

import msgspec

from dyno import secrets
from dyno.facts.record import CANCELLED, Record
from dyno.facts.trial import TrialSpec
from dyno.measure.counting import Counting, length_is_known
from dyno.measure.reuse import ReuseTally
from dyno.measure.summary import Tally
from dyno.measure.sums import Summed
from dyno.workload.request import Histories


class PlannedRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request without its prompt, as Turn has it."""

    prompt_tokens: int
    output_tokens: int
    session: int | None = None
    after: list[int] = []
    wait_s: float = 0.0
    history: int | None = None
    group: str = ""
    media_count: int = 0  # images, sounds and videos
    media_tokens: int | None = None
    audio_s: float = 0.0
    results: int = 1  # vectors or scores that it asks for


def planned(requests: Sequence[object]) -> list[PlannedRequest]:
    return msgspec.convert(requests, list[PlannedRequest], from_attributes=True)


class Settling(msgspec.Struct, frozen=True):
    """How the records of a run are settled."""

    trial: TrialSpec
    processes: int  # of the client
    has_tokenizer: bool = False
    sampling: bool = False  # it counts also some answers that look right
    wordless: bool = False  # without what a server may have repeated
    model: str = ""  # that a server names rightly
    in_order: bool = False  # a record depends on those that ended before it
    # whose answers are in the prompts; None: prompts share nothing
    answers: Histories | None = None
    block_tokens: int | None = None


class Sums(Summed):
    """What the records of a run add up to."""

    SUMMED = ("tally", "reuse")

    def __init__(self, how: Settling, requests: Sequence[PlannedRequest]) -> None:
        self.tally = Tally(how.trial, how.processes)
        self.reuse = (
            None
            if how.answers is None
            else ReuseTally(requests, how.answers, how.block_tokens)
        )

    def add(self, record: Record) -> None:
        self.tally.add(record)
        if self.reuse is not None:
            self.reuse.add(record)


class _TokenizerNeeded(Exception):
    """The tokens of a text are to be counted, and the tokenizer is in another process."""


class Settler:
    """Settles records one by one."""

    def __init__(self, how: Settling, count: Callable[[str], int | None] | None) -> None:
        self._how = how
        self._counting = Counting(count, length_is_known(how.trial), how.sampling)

    def count(self, record: Record) -> None:
        """Settle its counts."""
        self._counting.settle(record)

    def clean(self, record: Record) -> None:
        """Take out what no file may hold."""
        if self._how.wordless:
            self._take_words(record)
        cleaned(record)

    def _take_words(self, record: Record) -> None:
        record.text = ""
        record.error_detail = ""
        record.model = self._how.model if record.model == self._how.model else None
        if record.finish_reason not in ("stop", "length"):
            record.finish_reason = None


class ShareSettler(Settler):
    """Settles the records of a share, as far as that needs neither the tokenizer nor those of other shares."""

    def __init__(self, how: Settling) -> None:
        super().__init__(how, self._needed if how.has_tokenizer else None)

    def settled(self, record: Record) -> bool:
        """Settle a record. False: whoever has all of them is to do it. (Which failure comes first is an example.)"""
        if self._how.in_order or record.error not in (None, CANCELLED):
            return False
        try:
            self.count(record)
        except _TokenizerNeeded:
            return False
        self.clean(record)
        return True

    @staticmethod
    def _needed(text: str) -> int | None:
        raise _TokenizerNeeded


def cleaned(record: Record) -> Record:
    """Remove a key that the server has sent back, by now in one piece whatever the reads, chunks and escapes were."""
    for name in ("text", "model", "finish_reason", "error", "error_detail"):
        setattr(record, name, secrets.clean(getattr(record, name)))
    record.error_detail = record.error_detail[:300]  # after that: half a key is a leak too
    return record
