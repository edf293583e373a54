"""The data sets. The only list of them: a new one is a file here, and a line below. Those of plug-ins come after."""

from typing import TYPE_CHECKING, Any

import msgspec

from dyno.plugins import Registry
from dyno.workload.common import CommonSpec
from dyno.workload.dataset import Dataset
from dyno.workload.datasets.agents import AGENTS
from dyno.workload.datasets.audio import (
    CUSTOM_AUDIO,
    RANDOM_AUDIO,
    CustomAudioSpec,
    RandomAudioSpec,
)
from dyno.workload.datasets.chat import CHAT, ChatSpec
from dyno.workload.datasets.clients import CLIENTS, ClientsSpec
from dyno.workload.datasets.conversations import CONVERSATIONS, ConversationsSpec
from dyno.workload.datasets.custom import CUSTOM
from dyno.workload.datasets.hf import HF, HfSpec
from dyno.workload.datasets.images import CUSTOM_IMAGE, RANDOM_MM, RandomMmSpec
from dyno.workload.datasets.mix import MIX
from dyno.workload.datasets.prefix_repetition import PREFIX_REPETITION
from dyno.workload.datasets.random import RANDOM, RandomSpec
from dyno.workload.datasets.rerank import RANDOM_RERANK, RandomRerankSpec
from dyno.workload.datasets.sharegpt import SHAREGPT
from dyno.workload.datasets.sharegpt_shaped import SHAREGPT_SHAPED
from dyno.workload.datasets.sonnet import SONNET
from dyno.workload.datasets.spec_bench import SPEC_BENCH, SpecBenchSpec
from dyno.workload.datasets.speed_bench import SPEED_BENCH, SpeedBenchSpec
from dyno.workload.datasets.structured import STRUCTURED, StructuredSpec
from dyno.workload.datasets.tasks import TASKS
from dyno.workload.datasets.traces import TRACES, TimedTraceSpec

# In the order of the help and the documentation.
_OWN = {
    dataset.name: dataset
    for dataset in (
        RANDOM,
        PREFIX_REPETITION,
        SHAREGPT,
        SHAREGPT_SHAPED,
        CUSTOM,
        TASKS,
        CHAT,
        CONVERSATIONS,
        AGENTS,
        *TRACES,
        SONNET,
        HF,
        SPEC_BENCH,
        SPEED_BENCH,
        STRUCTURED,
        RANDOM_MM,
        CUSTOM_IMAGE,
        RANDOM_RERANK,
        RANDOM_AUDIO,
        CUSTOM_AUDIO,
        CLIENTS,
        MIX,
    )
}
DATASETS: Registry[Dataset] = Registry("dataset", _OWN)
# What a workload has that names none: as vLLM, also where a file is given; and where it has classes.
DEFAULT, DEFAULT_OF_A_FILE, DEFAULT_OF_CLASSES = RANDOM.name, SHAREGPT.name, MIX.name


def own_fields() -> list[tuple[str, Any, Any]]:
    """Return the settings of single data sets as msgspec takes them: name, type and default, each once.

    The settings of the last file come first: the columns of tables, and the seeds of a study's trials, have depended on
    that order since the first of them."""
    files: dict[str, list[tuple[str, Any, Any]]] = {}
    known = {*CommonSpec.__struct_fields__}
    for spec in (dataset.spec for dataset in DATASETS.values()):
        for field in msgspec.structs.fields(spec):
            if field.name not in known:
                known.add(field.name)
                files.setdefault(spec.__module__, []).append(
                    (field.name, field.type, field.default)
                )
    return [field for own in reversed(files.values()) for field in own]


if TYPE_CHECKING:

    class OwnSettings(
        ChatSpec,
        ConversationsSpec,
        TimedTraceSpec,
        HfSpec,
        SpecBenchSpec,
        SpeedBenchSpec,
        StructuredSpec,
        RandomSpec,
        RandomRerankSpec,
        RandomMmSpec,
        RandomAudioSpec,
        CustomAudioSpec,
        ClientsSpec,
        frozen=True,
    ):
        """The settings of `own_fields`, for the type checker."""
