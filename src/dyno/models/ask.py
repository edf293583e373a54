"""Ask the Hub for the sizes of repositories: a process of its own, ended where the Hub is silent.

It reads a `RepoQuestion` from stdin and writes `RepoFacts` for each repository as soon as it is known, a line of JSON
each. Nothing is fetched but a model's config.json, whose tables of tokens most quantizations leave as they are.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import msgspec

from dyno.errors import DynoError, HubRefusal
from dyno.models.cache import FetchedFile
from dyno.models.fetch import Fetch
from dyno.models.messages import Job, RepoFacts, RepoQuestion

_AT_ONCE = 16
_CONFIG_MAX = 1 << 20  # bytes
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]


class _Config(msgspec.Struct):
    vocab_size: _Count = 0
    hidden_size: _Count = 0
    tie_word_embeddings: bool = False

    @property
    def table_parameters(self) -> int:
        """Return the parameters of the table of input tokens, and of the head where that is another."""
        return self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)


def main() -> None:
    question = msgspec.json.decode(sys.stdin.buffer.readline(), type=RepoQuestion)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for index, job in enumerate(question.jobs):
            pool.submit(_answer, index, job, question.shapes)


def _answer(index: int, job: Job, shapes: bool) -> None:
    os.write(1, msgspec.json.encode(_facts(index, job, shapes)) + b"\n")


def _facts(index: int, job: Job, shapes: bool) -> RepoFacts:
    files: dict[str, FetchedFile] = {}
    gated = False
    try:
        asked = Fetch(job, patient=False)
        files, gated = asked.listing.files, asked.gated
        if gated:
            asked.check_access()
        tables = _config(asked, job).table_parameters if shapes else 0
    except DynoError as e:
        return RepoFacts(
            index, files, gated, error=str(e), refused=isinstance(e, HubRefusal)
        )
    return RepoFacts(index, files, gated, asked.parameters, tables)


def _config(asked: Fetch, job: Job) -> _Config:
    if (
        job.kind != "model"
        or asked.listing.offline
        or "config.json" not in asked.listing.files
    ):
        return _Config()
    try:
        return msgspec.json.decode(
            asked.small_file("config.json", _CONFIG_MAX), type=_Config
        )
    except (DynoError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return _Config()  # then all parameters count as quantized


if __name__ == "__main__":
    main()
