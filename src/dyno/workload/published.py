"""vLLM's datasets that are read from public files: the sonnet, and datasets of the Hub that are on this machine."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from dyno import files
from dyno.errors import WorkloadError
from dyno.option import setting_name
from dyno.workload.common import CommonSpec
from dyno.workload.datasets.hf import HfSpec
from dyno.workload.recorded import (
    MAX_PROMPT_TOKENS,
    MAX_TOTAL_TOKENS,
    MIN_TOKENS,
    table_rows,
    templated,
)
from dyno.workload.request import Request
from dyno.workload.tokenizer import Tokenizer

# Sonnets of Shakespeare, as vLLM has them (vllm-project/vllm, benchmarks/sonnet.txt, a014e35f38c8, Apache-2.0).
_SONNET = Path(__file__).with_name("sonnet.txt")
_TASK = "Pick as many lines as you can from these poem lines:\n"
SONNET_LENGTHS = {"prefix_len": 200, "input_len": 550, "output_len": 150}  # vLLM's defaults
_TRIES = 1000  # draws of lines in a row that are too long

_HF_OUTPUT_LEN = 256  # vLLM's for questions without an answer
# Of these vLLM ignores the recorded answer, and its length filter: words of a path, and tokens to generate.
_FIXED = {"instructcoder": 200, "mt-bench": 256, "openai_humaneval": 256, "gsm8k": 256}
# ends vLLM's prompts from InstructCoder
_EDIT = "Just output the code, do not include any explanation."
_ENDINGS = (".parquet", ".jsonl", ".json", ".jsonl.gz", ".json.gz", ".csv")
# columns; the first that has a text
_PROMPTS = ("prompt", "question", "instruction", "text", "input")
_ANSWERS = ("answer", "response", "output", "completion")


def sonnet(spec: CommonSpec, tokenizer: Tokenizer) -> Iterator[Request]:
    """Yield lines of poems to pick from, chosen as vLLM chose them: the first lines are in every prompt."""
    text = files.read(_path(spec.path) if spec.path else _SONNET, files.TEXT).decode(
        errors="replace"
    )
    lines = text.splitlines(keepends=True)
    if not lines:
        raise WorkloadError(
            f"{spec.path} is empty. Without {setting_name('--dataset-path')} dyno uses its own copy of vLLM's "
            "sonnet.txt."
        )
    line_tokens = sum(map(tokenizer.count, lines)) / len(lines)
    task_tokens = tokenizer.count(templated(tokenizer, _TASK))
    if spec.input_len <= task_tokens + line_tokens:
        raise WorkloadError(
            f"Prompts of {spec.input_len} tokens are too short for a sonnet: its task has {task_tokens} and a line "
            f"{line_tokens:.0f}. Raise --sonnet-input-len."
        )
    first = lines[: max(round((spec.prefix_len - task_tokens) / line_tokens), 0)]
    more = round((spec.input_len - task_tokens) / line_tokens) - len(first)
    if more < 1:
        raise WorkloadError(
            f"A prefix of {spec.prefix_len} tokens leaves no room in prompts of {spec.input_len}."
        )
    rng, misses = Random(spec.seed), 0
    while misses < _TRIES:
        prompt = templated(
            tokenizer, _TASK + "".join([*first, *rng.choices(lines, k=more)])
        )
        tokens = tokenizer.count(prompt)
        misses = misses + 1 if tokens > spec.input_len else 0
        if not misses:
            yield Request(prompt, tokens, spec.output_len or SONNET_LENGTHS["output_len"])
    raise WorkloadError(
        f"No choice of lines has at most {spec.input_len} tokens. Raise --sonnet-input-len."
    )


def hf(spec: HfSpec, tokenizer: Tokenizer) -> Iterator[Request]:
    """Yield the prompts of a dataset folder or file: the first message of a conversation, or a column of questions."""
    if spec.path is None:
        raise WorkloadError(
            f"The dataset hf needs its file or folder: give it with {setting_name('--dataset-path')}, or "
            f"{setting_name('--hf-name')}."
        )
    named = _files(spec, _path(spec.path))
    rows = [
        (f"{file}, {where}", row)
        for file in named
        for _, where, row in table_rows(str(file))
    ]
    if spec.shuffle:
        Random(spec.seed).shuffle(rows)
    none = True
    fixed = next(
        (tokens for word, tokens in _FIXED.items() if word in spec.path.lower()), None
    )
    wanted_tokens = spec.output_len or fixed
    for where, row in rows:
        exchange = _exchange(row, where)
        prompt = exchange.prompt
        if exchange.question and not spec.skip_chat_template:
            prompt = templated(tokenizer, prompt, exchange.system)
        tokens = tokenizer.count(prompt)
        if wanted_tokens:
            output_tokens = wanted_tokens
        elif exchange.answer:
            output_tokens = tokenizer.count(exchange.answer)
            if not _is_within_limits(tokens, output_tokens):
                continue
        else:
            output_tokens = _HF_OUTPUT_LEN
        none = False
        yield Request(prompt, tokens, output_tokens)
    if none:
        raise WorkloadError(
            f"None of the {len(rows):,} rows of {spec.path} can be used: prompts need {MIN_TOKENS} to "
            f"{MAX_PROMPT_TOKENS} tokens, and at most {MAX_TOTAL_TOKENS} with their answer. --hf-output-len lifts this."
        )


def _is_within_limits(tokens: int, output_tokens: int) -> bool:
    """Apply vLLM's limits for recorded conversations, whose lengths are as recorded."""
    if tokens < MIN_TOKENS or output_tokens < MIN_TOKENS:
        return False
    return tokens <= MAX_PROMPT_TOKENS and tokens + output_tokens <= MAX_TOTAL_TOKENS


def _files(spec: HfSpec, path: Path) -> list[Path]:
    """Return the files of the wanted subset and split."""
    if not path.is_dir():
        return [path]
    names = _data_files(path)
    words = [word for word in (spec.hf_subset, spec.hf_split) if word]
    chosen = [p for p, name in names.items() if all(word in name for word in words)]
    if not chosen:
        shown = ", ".join(list(names.values())[:6]) or "none"
        asked = f" with {' and '.join(words)}" if words else ""
        raise WorkloadError(
            f"{path} has no {', '.join(_ENDINGS[:3])} file{asked} in its path. Its data files: {shown}. Check "
            f"{setting_name('--dataset-path')}, {setting_name('--hf-subset')} and {setting_name('--hf-split')}."
        )
    train = [p for p in chosen if "train" in names[p]]
    if train and not spec.hf_split:
        return train  # else a split would be sent twice
    return chosen


def _data_files(folder: Path) -> dict[Path, str]:
    """Return the data files below a folder, each with its path from there."""
    names = {}
    for path in sorted(folder.rglob("*")):
        if path.name.endswith(_ENDINGS) and not path.name.startswith(("dataset_info", ".")):
            names[path] = path.relative_to(folder).as_posix()
    return names


class _QuestionRow(NamedTuple):
    prompt: str
    answer: str = ""  # as recorded
    system: str = ""  # message before the prompt
    # vLLM applies the chat template; to the start of a conversation it doesn't
    question: bool = True


def _exchange(row: dict[str, Any], where: str) -> _QuestionRow:
    """Return the question of a row, with the answer and the system's message where it has them."""
    start = _conversation_start(row)
    if start is not None:
        return start
    turns = row.get("turns")
    if isinstance(turns, list) and turns and isinstance(turns[0], str):
        return _QuestionRow(turns[0])
    texts = {name: text for name, text in row.items() if isinstance(text, str)}
    prompt = next((texts[name] for name in _PROMPTS if texts.get(name)), None)
    if prompt is None:
        raise WorkloadError(
            f"{where}: no prompt. dyno reads conversations, messages, turns, {', '.join(_PROMPTS)}; this row has "
            f"{', '.join(map(str, row))[:200]}. Write the prompts to a file for {setting_name('--dataset-name')} "
            "custom."
        )
    answer = next((texts[name] for name in _ANSWERS if name in texts), "")
    system = texts.get("system_prompt", "")  # of MLPerf
    if "instructcoder" in where.lower() and "input" in texts:
        prompt = f"{texts['input']}\n\n{prompt} {_EDIT}"
    return _QuestionRow(prompt, answer, system)


def _conversation_start(row: dict[str, Any]) -> _QuestionRow | None:
    """Return the first message of a conversation and its answer; None: the row has no conversation."""
    for column in ("conversations", "messages", "conversation"):
        entries = row.get(column)
        if not isinstance(entries, list) or len(entries) < 2:
            continue
        texts = _texts([entry for entry in entries if isinstance(entry, dict)])
        if len(texts) > 1 and texts[0] and texts[1]:
            return _QuestionRow(texts[0], texts[1], question=False)
    return None


def _texts(messages: list[dict[str, Any]]) -> list[str]:
    """Return the texts of messages in ShareGPT's form or OpenAI's, without a system message at their start."""
    if messages and (messages[0].get("from") or messages[0].get("role")) == "system":
        messages = messages[1:]
    return [
        str(message.get("value") or message.get("content") or "") for message in messages
    ]


def _path(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.exists():
        raise WorkloadError(f"There is no {text}. Check {setting_name('--dataset-path')}.")
    return path
