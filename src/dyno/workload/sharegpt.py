"""ShareGPT: the first two turns of recorded conversations, chosen as vLLM chooses them."""

from collections.abc import Iterator
from random import Random

import msgspec

from dyno import files
from dyno.errors import WorkloadError
from dyno.facts.request import Request
from dyno.facts.workload import WorkloadSpec
from dyno.workload.file import read
from dyno.workload.tokenizer import Tokenizer

MIN_TOKENS = 4
MAX_PROMPT_TOKENS = 1024
MAX_TOTAL_TOKENS = 2048


class Turn(msgspec.Struct):
    value: str = ""


class Conversation(msgspec.Struct):
    conversations: list[Turn] = []


def sharegpt(spec: WorkloadSpec, tokenizer: Tokenizer) -> Iterator[Request]:
    if spec.path is None:
        raise WorkloadError(
            "The dataset sharegpt needs its file. Fetch ShareGPT_V3_unfiltered_cleaned_split.json from "
            "https://huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered and give it with "
            "--dataset-path. --dataset-name sharegpt-shaped has about the same lengths and needs no file."
        )
    try:
        entries = msgspec.json.decode(read(spec.path), type=list[Conversation])
    except files.BROKEN as e:
        raise WorkloadError(
            f"{spec.path} is not ShareGPT's JSON, a list of "
            f'{{"conversations": [{{"value": "…"}}, …]}}: {e}. '
            "Fetch it again, or use --dataset-name custom for JSON lines of your own."
        ) from None
    pairs = [entry.conversations[:2] for entry in entries if len(entry.conversations) >= 2]
    if spec.shuffle:
        Random(spec.seed).shuffle(pairs)  # vLLM's generator: the same seed gives the same order
    none = True
    for prompt, completion in pairs:
        prompt_tokens = tokenizer.count(prompt.value)
        if not MIN_TOKENS <= prompt_tokens <= MAX_PROMPT_TOKENS:
            continue
        output_tokens = spec.output_len or tokenizer.count(completion.value)
        if output_tokens < MIN_TOKENS and not spec.output_len:
            continue
        if prompt_tokens + output_tokens > MAX_TOTAL_TOKENS:
            continue
        none = False
        yield Request(prompt.value, prompt_tokens, output_tokens)
    if none:
        raise WorkloadError(
            f"None of the {len(entries)} conversations in {spec.path} can be used: {len(pairs)} have two "
            f"turns, and of these none has a prompt of {MIN_TOKENS} to {MAX_PROMPT_TOKENS} tokens, an answer "
            f"of at least {MIN_TOKENS}, and at most {MAX_TOTAL_TOKENS} together. Check --dataset-path and "
            "--sharegpt-output-len."
        )
