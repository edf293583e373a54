"""Sounds to transcribe: generated ones, and files of the user."""

from typing import Annotated

from dyno.option import Option
from dyno.workload.common import CommonSpec
from dyno.workload.dataset import Dataset, DatasetTraits
from dyno.workload.draw import problem


class RandomAudioSpec(CommonSpec, frozen=True):
    audio_len_s: Annotated[
        str,
        Option(
            "--audio-len",
            "D",
            "random-audio: seconds of each sound; also a distribution",
            grammar=problem,
            always=True,
        ),
    ] = "5"


class CustomAudioSpec(CommonSpec, frozen=True):
    asr_min_audio_len_sec: Annotated[
        float,
        Option(
            "--asr-min-audio-len-sec", "S", "custom_audio: shortest sound to send", least=0
        ),
    ] = 0.0
    asr_max_audio_len_sec: Annotated[
        float | None,
        Option(
            "--asr-max-audio-len-sec",
            "S",
            "custom_audio: longest sound to send (default: no limit)",
            above=0,
            unlimited=True,
        ),
    ] = None


RANDOM_AUDIO = Dataset(
    name="random-audio",
    about="generated sounds of `--audio-len` seconds; needs `--backend openai-audio`",
    make="multimodal:random_audio",
    traits=DatasetTraits(media=True),
    spec=RandomAudioSpec,
    needs=("output_len",),
)
CUSTOM_AUDIO = Dataset(
    name="custom_audio",
    about="JSON lines with `audio`, the path of a sound, and perhaps `prompt`",
    make="multimodal:custom_audio",
    traits=DatasetTraits(file=True, media=True),
    spec=CustomAudioSpec,
    lengths_of="custom",
)
