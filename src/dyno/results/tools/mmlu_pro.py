"""MMLU-Pro's own outputs: a list of questions with the model's choice. Rows by category, and one of all."""

import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from statistics import mean
from typing import Final

from dyno.results.draft import Draft, scored
from dyno.results.json_text import Value

_NAME: Final = re.compile(r"model_outputs_(.+?)(?:_(\d+)[-_]?shots?)?\.json")


def is_answer(value: Value) -> bool:
    return value.has("question_id", "answer", "pred", "category", "options")


def answers(values: Sequence[Value], file: str) -> Iterator[Draft]:
    """Questions without a choice count as wrong."""
    by_task: dict[str, list[tuple[str, float, int, str]]] = {"mmlu_pro": []}
    for value in values:
        fields = value.fields
        right = (
            fields["pred"].text is not None and fields["pred"].text == fields["answer"].text
        )
        options = fields["options"].decoded(list[str]) or []
        text = f"{fields['question_id'].scalar} {value.text_of('question')} {options}"
        one = str(fields["question_id"].scalar), float(right), len(options), text
        category = str(fields["category"].scalar or "other").replace(" ", "_")
        for task in ("mmlu_pro", f"mmlu_pro_{category}"):  # lm-eval's names
            by_task.setdefault(task, []).append(one)
    for task, items in by_task.items():
        scores = [(item, score) for item, score, _, _ in items]
        draft = scored("mmlu-pro", file, values[0].line, (task, "exact_match", ""), scores)
        if (match := _NAME.fullmatch(file)) is not None:
            draft.set("model", match[1], 0, "file")
            if match[2]:
                draft.set("n_shot", int(match[2]), 0, "file")
        draft.set(
            "chance",
            round(mean(1 / max(options, 1) for _, _, options, _ in items), 4),
            draft.line,
        )
        draft.prompts_sha256 = sha256(
            "".join(sorted(text for *_, text in items)).encode()
        ).hexdigest()
        if task == "mmlu_pro":
            draft.set("group", True, draft.line)
        yield draft
