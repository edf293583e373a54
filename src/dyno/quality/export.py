"""Built-in tasks as task files of lm-evaluation-harness."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from dyno.errors import StoreError
from dyno.facts.quality import QualitySpec
from dyno.quality.ask import ITEMS, VERSION, own_tasks
from dyno.workload.tasks import LETTERS, MAX_TOKENS, items

_GENERATED = """task: dyno_{task}
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n\\n"], max_gen_toks: {most}, do_sample: false}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
filter_list:
  - {{name: strip, filter: [{{function: regex, regex_pattern: "^\\\\s*(.*?)\\\\.?\\\\s*$"}}, {{function: take_first}}]}}
"""
_CHOSEN = """task: dyno_{task}_choices
output_type: multiple_choice
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_choice: [{letters}]
doc_to_target: "{{{{letter}}}}"
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
"""
_COMMON = """dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
num_fewshot: 0
metadata: {{version: {version}}}
"""


def write_tasks(folder: Path, spec: QualitySpec) -> Iterator[str]:
    """Write each task in two forms, to be generated and to be chosen by log-likelihood. Yield their names."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for task in own_tasks(spec):
            for name, form, lines in (
                ("", _GENERATED, _questions(task, spec)),
                ("_choices", _CHOSEN, _choices(task, spec)),
            ):
                data = (folder / f"dyno_{task}{name}.jsonl").resolve()
                data.write_bytes(
                    b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
                )
                text = form.format(
                    task=task,
                    most=spec.max_tokens or MAX_TOKENS,
                    letters=", ".join(LETTERS),
                )
                text += _COMMON.format(
                    data=msgspec.json.encode(str(data)).decode(), version=VERSION
                )
                (folder / f"dyno_{task}{name}.yaml").write_text(text)
                yield f"dyno_{task}{name}"
    except OSError as e:
        raise StoreError(
            f"{folder} can't be written: {e.strerror}. Choose another folder."
        ) from None


def _questions(task: str, spec: QualitySpec) -> Iterator[dict[str, str]]:
    for item in items([task], spec.limit or ITEMS, spec.seed):
        yield {"id": item.id, "question": item.question, "answer": item.answer}


def _choices(task: str, spec: QualitySpec) -> Iterator[dict[str, str]]:
    for item in items([task], spec.limit or ITEMS, spec.seed):
        question, letter = item.with_choices()
        yield {"id": item.id, "question": question, "letter": letter}
