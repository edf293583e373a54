"""vLLM's datasets that are read from public files: the sonnet, and datasets of the Hub that are on this machine."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from dyno import files
from dyno.errors import WorkloadError
from dyno.option import setting_name
from dyno.workload.common import MOST_TOKENS, CommonSpec
from dyno.workload.datasets.hf import ENDINGS, HfSpec
from dyno.workload.datasets.spec_bench import SpecBenchSpec
from dyno.workload.datasets.speed_bench import SpeedBenchSpec
from dyno.workload.recorded import (
    MAX_PROMPT_TOKENS,
    MAX_TOTAL_TOKENS,
    MIN_TOKENS,
    table_rows,
    templated,
)
from dyno.workload.request import Request, ToolRequest
from dyno.workload.tokenizer import Tokenizer

# Sonnets of Shakespeare, as vLLM has them (vllm-project/vllm, benchmarks/sonnet.txt, a014e35f38c8, Apache-2.0).
_SONNET = Path(__file__).with_name("sonnet.txt")
_TASK = "Pick as many lines as you can from these poem lines:\n"
SONNET_LENGTHS = {"prefix_len": 200, "input_len": 550, "output_len": 150}  # vLLM's defaults
_TRIES = 1000  # draws of lines in a row that are too long

_HF_OUTPUT_LEN = 256  # vLLM's for questions without an answer
# Of these vLLM ignores the recorded answer, and its length filter: words of a path, and tokens to generate.
_FIXED = {
    "instructcoder": 200,
    "mt-bench": 256,
    "openai_humaneval": 256,
    "gsm8k": 256,
    "edit_5k_char": 4000,
    "edit_10k_char": 4000,
}
# Subset and split that vLLM takes unasked, where they are not all of it, or train: word of a path → their words
_USUAL_PARTS = {"gsm8k": ("main", "test"), "openai_humaneval": ("", "test")}
_SPLIT = re.compile(r"(?<![a-z])(train|test|validation|valid|val|dev|eval)(?![a-z])")
_BFCL_OUTPUT_LEN = 512
_SPEC_OUTPUT_LEN, _SPEED_OUTPUT_LEN = 256, 4096
# BFCL's names of types that JSON Schema calls otherwise
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
_BFCL_FILE = "BFCL_v3_{}.json"
# The prompt of blazedit (ise-uiuc/blazedit, dataset/create_refined_dataset.py), as vLLM's client sends it.
_EDIT_TASK = """Given a code file, please apply the change requests and generate the new file.

Original file:
```python
{code}
```

Change request:
{change_request}

Please generate the new code file in the "New file" section below."""
# The prompt of zed-industries/zeta, as vLLM's client sends it.
_ZETA_TASK = """### Instruction:
You are a code completion assistant and your task is to analyze user edits and then rewrite an excerpt that the user \
provides, suggesting the appropriate edits within the excerpt, taking into account the cursor location.

### User Edits:

{events}

### User Excerpt:

{input}

### Response:

"""
_ZETA_REGION = "<|editable_region_start|>"  # its answer begins here
# ends vLLM's prompts from InstructCoder
_EDIT = "Just output the code, do not include any explanation."
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


def spec_bench(spec: SpecBenchSpec, tokenizer: Tokenizer) -> Iterator[Request]:
    """Yield the first turns of Spec-Bench's questions."""
    path = _named(spec, "question.jsonl of Spec-Bench")
    rows = list(_of_category(path, spec.spec_bench_category, "--spec-bench-category"))
    prompts = [_first_text(row.get("turns"), where) for where, row in rows]
    yield from _asked(spec, tokenizer, prompts, _SPEC_OUTPUT_LEN, skip_template=False)


def speed_bench(spec: SpeedBenchSpec, tokenizer: Tokenizer) -> Iterator[Request]:
    """Yield the first messages of SPEED-Bench's prompts."""
    folder = _path(_named(spec, "the folder of SPEED-Bench"))
    name = f"{spec.speed_bench_dataset_subset}.jsonl"
    path = next((p for p in sorted(folder.glob("*.jsonl")) if p.name == name), None)
    if path is None:
        raise WorkloadError(
            f"{spec.path} has no {name}. Give the folder that SPEED-Bench's prepare.py fills, with "
            f"{setting_name('--dataset-path')}."
        )
    category = spec.speed_bench_category
    rows = list(_of_category(str(path), category, "--speed-bench-category"))
    prompts = [_first_text(row.get("messages"), where) for where, row in rows]
    yield from _asked(spec, tokenizer, prompts, _SPEED_OUTPUT_LEN, spec.skip_chat_template)


def _asked(
    spec: CommonSpec,
    tokenizer: Tokenizer,
    prompts: list[str],
    output_len: int,
    skip_template: bool,
) -> Iterator[Request]:
    """Yield a request for each prompt, in vLLM's order. `output_len`: where the workload has none."""
    if spec.shuffle:
        Random(spec.seed).shuffle(prompts)
    for text in prompts:
        prompt = text if skip_template else templated(tokenizer, text)
        yield Request(prompt, tokenizer.count(prompt), spec.output_len or output_len)


def _named(spec: CommonSpec, what: str) -> str:
    """Return the path that was given."""
    if spec.path is None:
        raise WorkloadError(
            f"The dataset {spec.dataset} needs {what}: give it with {setting_name('--dataset-path')}."
        )
    return spec.path


def _of_category(
    path: str, category: str | None, flag: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield place and columns of the rows of a category; None: of all."""
    known: set[str] = set()
    none = True
    for _, where, row in table_rows(path):
        known.add(str(row.get("category")))
        if category is None or row.get("category") == category:
            none = False
            yield f"{path}, {where}", row
    if none:
        raise WorkloadError(
            f"{path} has no category {category!r}. It has {', '.join(sorted(known))[:300]}. Check "
            f"{setting_name(flag)}."
        )


def _first_text(entries: Any, where: str) -> str:
    """Return the text of the first turn or message."""
    first = entries[0] if isinstance(entries, list) and entries else None
    text = first.get("content") if isinstance(first, dict) else first
    if not isinstance(text, str) or not text:
        raise WorkloadError(
            f"{where}: its first turn has no text. Check {setting_name('--dataset-path')}."
        )
    return text


def hf(spec: HfSpec, tokenizer: Tokenizer) -> Iterator[Request]:
    """Yield the prompts of a dataset folder or file: the first message of a conversation, or a column of questions."""
    if spec.path is None:
        raise WorkloadError(
            f"The dataset hf needs its file or folder: give it with {setting_name('--dataset-path')}, or "
            f"{setting_name('--hf-name')}."
        )
    if (categories := _bfcl_files(spec)) is not None:
        yield from _bfcl(spec, tokenizer, categories)
        return
    rows = [
        (f"{file}, {where}", row)
        for file in _files(spec, _path(spec.path))
        for _, where, row in table_rows(str(file))
    ]
    if spec.shuffle:
        Random(spec.seed).shuffle(rows)
    none = True
    name = _name(spec)
    wanted_tokens = spec.output_len or _fixed_length(name)
    for where, row in rows:
        if not _is_wanted_edit(spec, row) or _is_unanswered(row):
            continue
        question = _exchange(row, where, edits="instructcoder" in name)
        request = _question(spec, tokenizer, question, wanted_tokens)
        if request is not None:
            none = False
            yield request
    if none:
        raise WorkloadError(
            f"None of the {len(rows):,} rows of {spec.path} can be used: prompts need {MIN_TOKENS} to "
            f"{MAX_PROMPT_TOKENS} tokens, and at most {MAX_TOTAL_TOKENS} with their answer. --hf-output-len lifts this."
        )


def _name(spec: HfSpec) -> str:
    """Return what tells which dataset it is: its path, and the name that the user gives it."""
    return f"{spec.path} {spec.hf_name or ''}".lower()


def _fixed_length(name: str) -> int | None:
    """Return the tokens that vLLM has generated whatever the recorded answer is; None: as many as that has."""
    return next((tokens for word, tokens in _FIXED.items() if word in name), None)


def _question(
    spec: HfSpec, tokenizer: Tokenizer, row: "_QuestionRow", wanted_tokens: int | None
) -> Request | None:
    """Return the request of a row; None: vLLM leaves the row out."""
    prompt = row.prompt
    if row.question and not spec.skip_chat_template:
        prompt = templated(tokenizer, prompt, row.system)
    tokens = tokenizer.count(prompt)
    if wanted_tokens or not row.answer:
        return Request(prompt, tokens, wanted_tokens or _HF_OUTPUT_LEN)
    output_tokens = tokenizer.count(row.answer)
    if row.plain_answer:
        output_tokens -= tokenizer.count("")
    if not row.limits.admit(tokens, output_tokens):
        return None
    return Request(prompt, tokens, output_tokens)


def _is_wanted_edit(spec: HfSpec, row: dict[str, Any]) -> bool:
    """Return whether a change of code is as large as asked for; True for other rows."""
    distance = row.get("norm_distance")
    if not isinstance(distance, int | float):
        return True
    return spec.blazedit_min_distance <= distance <= spec.blazedit_max_distance


def _is_unanswered(row: dict[str, Any]) -> bool:
    """Return whether it is a conversation without an answer, which vLLM leaves out."""
    turns = row.get("conversations")
    return isinstance(turns, list) and len(turns) < 2


# ---- BFCL: questions with tools ----


def _bfcl_files(spec: HfSpec) -> list[Path] | None:
    """Return the file of each category; None: it is not BFCL's folder."""
    assert spec.path is not None
    folder = _path(spec.path)
    if not folder.is_dir() or not any(folder.rglob(_BFCL_FILE.format("*"))):
        return None
    by_name = {path.name: path for path in sorted(folder.rglob(_BFCL_FILE.format("*")))}
    names = [name.strip() for name in spec.bfcl_categories.split(",") if name.strip()]
    for name in names:
        if _BFCL_FILE.format(name) not in by_name:
            known = ", ".join(file[8:-5] for file in by_name)
            raise WorkloadError(
                f"{spec.path} has no {_BFCL_FILE.format(name)}. It has the categories {known[:300]}. Check "
                f"{setting_name('--bfcl-categories')}."
            )
    return [by_name[_BFCL_FILE.format(name)] for name in names]


def _bfcl(
    spec: HfSpec, tokenizer: Tokenizer, categories: Sequence[Path]
) -> Iterator[ToolRequest]:
    """Yield the first turns of BFCL's questions with their tools, one of each category in turn, as vLLM has them."""
    each = [[row for _, _, row in table_rows(str(path))] for path in categories]
    longest = max(map(len, each), default=0)
    rows = [part[i] for i in range(longest) for part in each if i < len(part)]
    if spec.shuffle:
        Random(spec.seed).shuffle(rows)
    for row in rows:
        messages, tools = _first_messages(row), _tools(row.get("function"))
        if not messages or not tools:
            continue
        texts = [str(message.get("content") or "") for message in messages]
        yield ToolRequest(
            texts[-1],
            # The server writes the tools into the prompt: dyno counts the texts alone.
            tokenizer.count("\n".join(texts)),
            spec.output_len or _BFCL_OUTPUT_LEN,
            messages=messages,
            body={"tools": tools, "tool_choice": "auto"},
        )


def _first_messages(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a question's first turn; none where the row has another form."""
    turns = row.get("question")
    first = turns[0] if isinstance(turns, list) and turns else None
    if not isinstance(first, list):
        return []
    return [message for message in first if isinstance(message, dict)]


def _tools(functions: Any) -> list[dict[str, Any]]:
    """Return BFCL's functions as tools in OpenAI's form."""
    several = functions if isinstance(functions, list) else [functions]
    known = [_json_schema(f) for f in several if isinstance(f, dict)]
    return [{"type": "function", "function": function} for function in known]


def _json_schema(node: Any) -> Any:
    """Return a schema of BFCL with the type names of JSON Schema."""
    if isinstance(node, list):
        return [_json_schema(item) for item in node]
    if not isinstance(node, dict):
        return node
    schema = {name: _json_schema(value) for name, value in node.items()}
    if isinstance(kind := schema.get("type"), str):
        schema["type"] = _TYPES.get(kind, kind)
    return schema


class _Limits(NamedTuple):
    """vLLM's limits for recorded answers, whose lengths are as recorded."""

    least: int = MIN_TOKENS
    prompt: int = MAX_PROMPT_TOKENS
    total: int = MAX_TOTAL_TOKENS

    def admit(self, tokens: int, output_tokens: int) -> bool:
        if tokens < self.least or output_tokens < self.least:
            return False
        return tokens <= self.prompt and tokens + output_tokens <= self.total


_OF_PROBLEMS = _Limits(prompt=2048, total=32_000)  # of AIMO
_NO_LIMITS = _Limits(0, MOST_TOKENS, MOST_TOKENS)  # of zeta


def _files(spec: HfSpec, path: Path) -> list[Path]:
    """Return the files of the wanted subset and split."""
    if not path.is_dir():
        return [path]
    names = _data_files(path)
    subset, split = _parts(spec, names)
    chosen = _chosen(names, subset, split)
    if not chosen:
        raise _without(path, list(names.values()), [subset, split])
    train = [p for p in chosen if "train" in names[p]]
    # all splits together would send one prompt twice
    return train if train and not split else chosen


def _chosen(names: dict[Path, str], subset: str, split: str) -> list[Path]:
    """Return the files of a subset and split, by their paths. '': of any."""
    of_subset = {p: name for p, name in names.items() if subset in name}
    chosen = [p for p, name in of_subset.items() if split in name]
    if chosen or split != "train":
        return chosen
    # As the datasets package has it: files that name no split are for training.
    return [p for p, name in of_subset.items() if not _SPLIT.search(name)]


def _without(path: Path, names: list[str], parts: list[str]) -> WorkloadError:
    """Return the error that no file has these parts in its path."""
    words = " and ".join(filter(None, parts))
    asked = f" with {words}" if words else ""
    return WorkloadError(
        f"{path} has no {', '.join(ENDINGS[:3])} file{asked} in its path. Its data files: "
        f"{', '.join(names[:6]) or 'none'}. Check {setting_name('--dataset-path')}, {setting_name('--hf-subset')} and "
        f"{setting_name('--hf-split')}."
    )


def _parts(spec: HfSpec, names: dict[Path, str]) -> tuple[str, str]:
    """Return the words of the subset and the split: those that were asked for, else vLLM's, else none."""
    known = next((v for word, v in _USUAL_PARTS.items() if word in _name(spec)), ("", ""))
    if not any(all(part in name for part in known) for name in names.values()):
        known = ("", "")  # a copy in other files
    return spec.hf_subset or known[0], spec.hf_split or known[1]


def _data_files(folder: Path) -> dict[Path, str]:
    """Return the data files below a folder, each with its path from there."""
    names = {}
    for path in sorted(folder.rglob("*")):
        if path.name.endswith(ENDINGS) and not path.name.startswith(("dataset_info", ".")):
            names[path] = path.relative_to(folder).as_posix()
    return names


class _QuestionRow(NamedTuple):
    prompt: str
    answer: str = ""  # as recorded
    system: str = ""  # message before the prompt
    # vLLM applies the chat template; to the start of a conversation it doesn't
    question: bool = True
    limits: _Limits = _Limits()
    plain_answer: bool = False  # vLLM counts it without the tokens that begin a prompt


def _exchange(row: dict[str, Any], where: str, edits: bool) -> _QuestionRow:
    """Return the question of a row, with the answer and the system's message where it has them. `edits`: it asks for
    a change of code, as InstructCoder does."""
    start = _conversation_start(row)
    if start is not None:
        return start
    if first := _first_turn(row):
        return _QuestionRow(first)
    texts = {name: text for name, text in row.items() if isinstance(text, str)}
    for columns, read in _SPECIAL.items():
        if texts.keys() >= columns:
            return read(texts)
    prompt = next((texts[name] for name in _PROMPTS if texts.get(name)), None)
    if prompt is None:
        raise WorkloadError(
            f"{where}: no prompt. dyno reads conversations, messages, turns, {', '.join(_PROMPTS)}; this row has "
            f"{', '.join(map(str, row))[:200]}. Write the prompts to a file for {setting_name('--dataset-name')} "
            "custom."
        )
    answer = next((texts[name] for name in _ANSWERS if name in texts), "")
    system = texts.get("system_prompt", "")  # of MLPerf
    if edits and "input" in texts:
        prompt = f"{texts['input']}\n\n{prompt} {_EDIT}"
    return _QuestionRow(prompt, answer, system, plain_answer=bool(system))


def _first_turn(row: dict[str, Any]) -> str:
    """Return the first turn of MT-Bench's form; '' where the row has another."""
    turns = row.get("turns")
    first = turns[0] if isinstance(turns, list) and turns else None
    return first if isinstance(first, str) else ""


def _edit(texts: dict[str, str]) -> _QuestionRow:
    """Return the question of a row of blazedit."""
    return _QuestionRow(_EDIT_TASK.format_map(texts))


def _problem(texts: dict[str, str]) -> _QuestionRow:
    """Return the question of a row of AIMO, which vLLM sends as it is."""
    problem, solution = texts["problem"], texts["solution"]
    return _QuestionRow(problem, solution, question=False, limits=_OF_PROBLEMS)


def _next_edit(texts: dict[str, str]) -> _QuestionRow:
    """Return the question of a row of zeta."""
    prompt = _ZETA_TASK.format_map(texts)
    _, mark, region = texts["output"].partition(_ZETA_REGION)
    return _QuestionRow(prompt, mark + region, question=False, limits=_NO_LIMITS)


# Data sets that vLLM writes a prompt for: columns of their rows, and what reads them.
_SPECIAL: dict[frozenset[str], Callable[[dict[str, str]], _QuestionRow]] = {
    frozenset(("code", "change_request")): _edit,
    frozenset(("problem", "solution")): _problem,
    frozenset(("events", "input", "output")): _next_edit,
}


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
