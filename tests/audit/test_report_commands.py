"""Commands, versions and names in a report against its results."""

from typing import Any

import pytest

from dyno.audit import wording
from dyno.audit.document import read_text
from dyno.facts.imported import Document

BLOCK = """============ Serving Benchmark Result ============
Successful requests:                     {done}
Benchmark duration (s):                  {seconds:.2f}
Output token throughput (tok/s):         1000.00
Mean TTFT (ms):                          230.00
==================================================
"""


def block(done: int = 1000, seconds: float = 100.0, concurrency: int | None = None) -> str:
    asked = f"Maximum request concurrency: {concurrency}\n" if concurrency else ""
    return asked + BLOCK.format(done=done, seconds=seconds)


def listing(*parts: str) -> str:
    return "```\n" + "\n".join(parts) + "\n```\n"


def report(*parts: str) -> Document:
    return read_text("r.md", "\n".join(parts).encode())


def said(check: Any, *documents: Document) -> list[tuple[str, str]]:
    """Names of models are looked for in all documents, everything else in one."""
    return [
        (f.code, f.level)
        for f in (check(documents) if check is wording.models_named else check(*documents))
    ]


SERVE = (
    "vllm serve org/Thing-8B-Instruct -tp {tp} --max-num-seqs {seqs} --max-model-len 8192"
)
CLIENT = (
    "vllm bench serve --model org/Thing-8B-Instruct --num-prompts {n} --max-concurrency {c}"
)


def test_a_command_that_is_not_of_the_results_after_it() -> None:
    own = report("# Runs", listing(CLIENT.format(n=1000, c=64), block(concurrency=64)))
    assert said(wording.command_differs, own) == []
    other = report(
        "# Runs",
        listing(CLIENT.format(n=1000, c=64), block(concurrency=64), block(concurrency=128)),
    )
    assert said(wording.command_differs, other) == [("consistency.command", "note")]


def test_a_few_requests_that_are_reported_nowhere() -> None:
    how = ("# Runs", "## How", listing(CLIENT.format(n=1000, c=64)), "## Results")
    assert (
        said(wording.fewer_than_commanded, report(*how, *[listing(block(1000))] * 3)) == []
    )
    assert said(wording.fewer_than_commanded, report(*how, *[listing(block(984))] * 3)) == [
        ("requests.failed", "doubt")
    ]
    # another load, perhaps
    assert (
        said(wording.fewer_than_commanded, report(*how, *[listing(block(400))] * 3)) == []
    )


@pytest.mark.parametrize(
    ("second", "reported"),
    [("0.9.1", []), ("0.10.0", [("comparability.engine_differs", "doubt")])],
)
def test_two_versions_of_an_engine_in_one_comparison(
    second: str, reported: list[tuple[str, str]]
) -> None:
    dumps = [
        f"PyTorch version: 2.5.1\nvLLM Version: {version}" for version in ("0.9.1", second)
    ]
    d = report("# A vs B", *map(listing, dumps), "## Results", listing(block()))
    assert said(wording.versions_differ, d) == reported


def test_more_than_one_setting_changed_between_what_is_compared() -> None:
    def compared(title: str, tp: int, seqs: int) -> Document:
        first, second = SERVE.format(tp=8, seqs=256), SERVE.format(tp=tp, seqs=seqs)
        return report(
            title,
            "## A",
            listing(first, block()),
            "## B",
            listing(second, block(seconds=90.0)),
        )

    assert said(wording.flags_differ, compared("# A vs B", 8, 256)) == []
    # one thing: what is compared
    assert said(wording.flags_differ, compared("# A vs B", 4, 256)) == []
    assert said(wording.flags_differ, compared("# A vs B", 4, 1024)) == [
        ("comparability.settings_differ", "doubt")
    ]
    assert said(wording.flags_differ, compared("# My tuning", 4, 1024)) == [
        ("comparability.settings_differ", "note")
    ]
    examples = report(
        "# A vs B",
        *(listing(SERVE.format(tp=n, seqs=100 * n)) for n in (1, 2, 4)),
        "## Run",
        listing(block()),
    )
    assert said(wording.flags_differ, examples) == []  # none but the last has results


def test_a_variable_that_is_a_slip_of_the_pen_is_named() -> None:
    right, wrong = "VLLM_USE_TRITON_FLASH_ATTN=0 ", "LLM_USE_TRITON_FLASH_ATTN=0 "
    d = report(
        "# A vs B",
        "## A", listing(right + SERVE.format(tp=8, seqs=256), block()),
        "## B", listing(wrong + SERVE.format(tp=4, seqs=256), block(seconds=90.0)),
    )  # fmt: skip
    (finding,) = wording.flags_differ(d)
    assert "LLM_USE_TRITON_FLASH_ATTN instead of VLLM_USE_TRITON_FLASH_ATTN" in finding.text


@pytest.mark.parametrize(
    ("named", "reported"),
    [
        ("org/Thing-8B-Instruct", []),
        ("org/Thing-8B", [("comparability.model_named", "doubt")]),
        ("org/Other-8B", []),
    ],
)
def test_a_model_named_in_words_that_is_not_the_one_that_ran(
    named: str, reported: list[tuple[str, str]]
) -> None:
    d = report(
        "# Report",
        f"All of it is of {named} on one machine.",
        "",
        listing(SERVE.format(tp=1, seqs=8), block()),
    )
    assert said(wording.models_named, d) == reported


@pytest.mark.parametrize(
    ("size", "reported"), [("8B", []), ("70B", [("comparability.model_named", "note")])]
)
def test_a_size_announced_above_a_command_that_runs_another(
    size: str, reported: list[tuple[str, str]]
) -> None:
    d = report(
        "# Guide",
        f"An example with Thing-{size} follows.",
        "",
        listing(SERVE.format(tp=1, seqs=8)),
    )
    assert said(wording.size_named, d) == reported


SCORES = """| Tasks |Version|Filter|n-shot|  Metric   |   |Value |   |Stderr|
|-------|------:|------|-----:|-----------|---|-----:|---|-----:|
|gsm8k  |      3|none  |     5|exact_match|↑  |0.8466|±  |0.0135|
"""


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        ("pretrained=org/Thing-8B-Instruct,dtype=float16", []),
        (
            "pretrained=org/Thing-8B-FP8-KV,dtype=float16",
            [("comparability.quality_elsewhere", "doubt")],
        ),
        # asks the server
        ("model=anything,base_url=http://localhost:8000/v1/completions", []),
    ],
)
def test_accuracy_of_another_model_than_the_commands_run(
    arguments: str, reported: list[tuple[str, str]]
) -> None:
    line = f"vllm ({arguments}), gen_kwargs: (None), limit: None, num_fewshot: 5, batch_size: 64"
    d = report(
        "# Report", listing(SERVE.format(tp=1, seqs=8)), "## Accuracy", line, "", SCORES
    )
    assert d.rows and said(wording.quality_elsewhere, d) == reported
