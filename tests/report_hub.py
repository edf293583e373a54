"""The Hub of the shipped studies, on loopback: every repository that they name, filled in one of two ways.

`serving(folder)`: dyno's own model stands in for each of theirs, as GGUF files that the embedded engine reads.
`described(folder)`: nothing to fetch, but lists with the sizes of the real repositories, for dry runs.

    HF_ENDPOINT=http://127.0.0.1:PORT dyno run STUDY --dry-run
"""

import json
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import hub_server
from dyno.engines import model
from hub_server import HubServer


class HubModel(NamedTuple):
    """A repository: the shape of its model, and the quantizations of dyno's model that stand in for it."""

    parameters: float
    vocabulary: int
    width: int
    bits: float  # per weight, outside embedding and head
    # '' or the step that makes it (quark:fp8) → quantization of dyno's model
    files: dict[str, str]
    stand_in: str = model.NAME

    @property
    def weights_bytes(self) -> int:
        tables = 2 * self.vocabulary * self.width
        return round((self.parameters - tables) * self.bits / 8 + tables * 2)


_LLAMA_405B, _LLAMA_70B = (405.85e9, 128_256, 16_384), (70.55e9, 128_256, 8192)
_LLAMA_8B, _LLAMA_2_7B = (8.03e9, 128_256, 4096), (6.74e9, 32_000, 4096)
_F16, _FP8 = {"": "F16"}, {"": "Q8_0"}
_GGUF = {
    "gguf:F16": "F16",
    "llama.cpp:Q8_0": "Q8_0",
    "llama.cpp:Q4_1": "Q4_1",
    "llama.cpp:Q4_0": "Q4_0",
}
MODELS = {
    "meta-llama/Llama-3.1-405B-Instruct": HubModel(*_LLAMA_405B, 16, _F16),
    "meta-llama/Llama-3.1-405B-Instruct-FP8": HubModel(*_LLAMA_405B, 8, _FP8),
    "amd/Llama-3.1-405B-Instruct-FP8-KV": HubModel(*_LLAMA_405B, 8, _FP8),
    "meta-llama/Llama-3.1-70B-Instruct": HubModel(
        *_LLAMA_70B, 16, _F16 | {"quark:fp8": "Q8_0"}
    ),
    "amd/Llama-3.1-70B-Instruct-FP8-KV": HubModel(*_LLAMA_70B, 8, _FP8),
    "amd/Llama-3.1-8B-Instruct-FP8-KV": HubModel(*_LLAMA_8B, 8, _FP8, model.DRAFT),
    "meta-llama/Llama-2-7b-chat-hf": HubModel(*_LLAMA_2_7B, 16, _F16 | _GGUF),
    "RedHatAI/Llama-2-7b-chat-quantized.w8a8": HubModel(*_LLAMA_2_7B, 8, _FP8),
    "TheBloke/Llama-2-7B-Chat-GPTQ": HubModel(*_LLAMA_2_7B, 4, {"": "Q4_0"}),
}
# The same weights again, which nobody needs.
_COPIES = {
    "meta-llama/Llama-3.1-405B-Instruct": "original/consolidated.pth",
    "meta-llama/Llama-3.1-70B-Instruct": "original/consolidated.pth",
    "meta-llama/Llama-2-7b-chat-hf": "pytorch_model.bin",
}
GATED_OWNERS = {"meta-llama"}
SHAREGPT = "anon8231489123/ShareGPT_Vicuna_unfiltered"
SHAREGPT_FILE = "ShareGPT_V3_unfiltered_cleaned_split.json"
_SHAREGPT_BYTES = 672_837_240  # of the real one
_CONVERSATIONS = 400
_WORDS = (
    "what",
    "how",
    "count",
    "sort",
    "copy",
    "the",
    "a",
    "of",
    "red",
    "blue",
    "seven",
    "nine",
    "list",
    "word",
)


def file_of(repository: str, step: str = "") -> str:
    """Return the file that stands in for a repository's weights, or for what a tool makes of them."""
    assert step in MODELS[repository].files, f"{repository} has nothing for {step}"
    return f"{step.replace(':', '-') or 'weights'}.gguf"


@contextmanager
def serving(folder: Path) -> Iterator[HubServer]:
    """Serve files that can be fetched and run. Models of Meta's need the token."""
    for name in MODELS:
        _write_stand_in(folder / name, name)
    _write_sharegpt(folder)
    with hub_server.serving(folder) as hub:
        hub.faults.gated_owners = GATED_OWNERS
        yield hub


@contextmanager
def described(folder: Path) -> Iterator[HubServer]:
    """Serve lists with the sizes of the real repositories."""
    _write_sharegpt(folder)
    sizes = {f"{SHAREGPT}/{SHAREGPT_FILE}": _SHAREGPT_BYTES}
    for name, repository in MODELS.items():
        root = folder / name
        root.mkdir(parents=True)
        config = {
            "vocab_size": repository.vocabulary,
            "hidden_size": repository.width,
            "tie_word_embeddings": False,
        }
        (root / "config.json").write_text(json.dumps(config))
        for weights in filter(None, ("model.safetensors", _COPIES.get(name))):
            (root / weights).parent.mkdir(exist_ok=True)
            (root / weights).touch()
            sizes[f"{name}/{weights}"] = repository.weights_bytes
    with hub_server.serving(folder) as hub:
        hub.faults.gated_owners = GATED_OWNERS
        hub.faults.sizes = sizes
        yield hub


def _write_stand_in(root: Path, name: str) -> None:
    repository = MODELS[name]
    root.mkdir(parents=True)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model.FOLDER / file, root)
    for step, quantization in repository.files.items():
        shutil.copy(
            model.build(quantization, name=repository.stand_in), root / file_of(name, step)
        )


def _write_sharegpt(folder: Path) -> None:
    """Conversations of a question and an answer, short enough for the context of a twin's slot."""
    random_words = random.Random(35)
    conversations = []
    for index in range(_CONVERSATIONS):
        question, answer = (
            " ".join(random_words.choices(_WORDS, k=k))
            for k in (random_words.randint(6, 20), 8)
        )
        turns = [
            {"from": "human", "value": f"{question}?"},
            {"from": "gpt", "value": f"{answer}."},
        ]
        conversations.append({"id": f"c{index}", "conversations": turns})
    path = folder / "datasets" / SHAREGPT / SHAREGPT_FILE
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(conversations))
