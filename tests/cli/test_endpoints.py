"""Each endpoint from the command to the result, against the fake engine: what it counts and what it finds."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from conftest import StartFake, ends_ms
from dyno.cli.main import main
from dyno.workload import pictures

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

SHORT = ["--random-input-len", "20", "--random-output-len", "6"]
_READ = "--json"


def measured(
    url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *words: str,
    count: int = 8,
) -> dict[str, Any]:
    """Return the result of a run."""
    args = ["--base-url", url, "--runs", str(tmp_path / "runs"), "--disable-tqdm"]
    load = ["--num-prompts", str(count), "--max-concurrency", "4", "--allow-void"]
    code = main(["bench", "serve", *args, *load, *words, _READ])
    said = capsys.readouterr()
    assert code in (0, 1), said.err  # 1: every request failed
    result: dict[str, Any] = json.loads(said.out)
    return result


def found(result: dict[str, Any], code: str) -> str:
    texts = [f["text"] for f in result["dyno"]["findings"] if f["code"] == code]
    return texts[0] if texts else ""


@pytest.mark.parametrize("backend", ["openai-responses", "anthropic", "openai-chat"])
def test_an_api_of_text_has_all_latencies_and_the_servers_counts(
    backend: str, fake: StartFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = measured(
        fake(gap_ms=3).base_url, tmp_path, capsys, "--backend", backend, *SHORT
    )
    assert result["completed"] == 8
    assert result["total_output_tokens"] == 8 * 6
    assert result["total_input_tokens"] == 8 * 20
    assert ends_ms(result, "mean_ttft_ms")[1] > 0 and ends_ms(result, "mean_itl_ms")[1] > 0
    assert result["dyno"]["tokens_by"] == {"usage": 8}


@pytest.mark.parametrize(
    "backend", ["openai", "openai-chat", "openai-responses", "anthropic"]
)
def test_an_answer_in_one_piece_has_an_end_and_no_first_token(
    backend: str, fake: StartFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--backend", backend, "--no-streaming", *SHORT)
    result = measured(fake(gap_ms=3).base_url, tmp_path, capsys, *words)
    assert result["completed"] == 8
    assert result["total_output_tokens"] == 8 * 6
    assert ends_ms(result, "mean_e2el_ms")[1] >= 5 + 5 * 3
    assert result["mean_ttft_ms"] is None
    assert result["mean_tpot_ms"] is None
    assert result["mean_itl_ms"] is None
    assert result["max_output_tokens_per_s"] is None
    assert not found(result, "statistics.ramp_and_drain")


def test_the_block_of_answers_in_one_piece_has_no_line_about_first_tokens(
    fake: StartFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = fake().base_url
    words = ["--base-url", port, "--runs", str(tmp_path), "--num-prompts", "4", *SHORT]
    assert main(["bench", "serve", *words, "--no-streaming", "--allow-void"]) == 0
    block = capsys.readouterr().out
    assert "Mean E2EL (ms):" in block
    assert "TTFT" not in block and "TPOT" not in block and "ITL" not in block


def test_a_stream_where_one_answer_was_asked_for_is_a_failure(
    fake: StartFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--no-streaming", "--extra-body", '{"stream": true}', *SHORT)
    result = measured(
        fake().base_url, tmp_path, capsys, *words, "--ready-check-timeout-sec", "0",
        "--no-correctness-check",
    )  # fmt: skip
    assert result["failed"] == result["dyno"]["sent"]
    assert result["dyno"]["failures"].keys() == {"a_stream"}


# ---- numbers instead of text ----


@pytest.mark.parametrize(
    "backend", ["openai-embeddings", "vllm-pooling", "vllm-classify", "infinity-embeddings"]
)
def test_a_model_without_text_is_measured_in_inputs(
    backend: str, fake: StartFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = fake(first_ms=5).base_url
    words = ("--backend", backend, "--random-input-len", "20", "--random-batch-size", "3")
    result = measured(port, tmp_path, capsys, *words)
    assert result["completed"] == 8
    assert result["total_input_sequences"] == 24
    assert result["total_input_tokens"] == 24 * 20
    assert result["total_output_tokens"] == 0
    assert result["input_sequence_throughput"] == pytest.approx(24 / result["duration"])
    assert result["mean_ttft_ms"] is None
    assert ends_ms(result, "mean_e2el_ms")[1] > 0


@pytest.mark.parametrize("backend", ["vllm-rerank", "vllm-score"])
def test_documents_are_ranked_with_one_query(
    backend: str, fake: StartFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--backend", backend, "--dataset-name", "random-rerank"]
    words += ["--random-input-len", "42", "--random-batch-size", "5"]
    result = measured(fake(first_ms=5).base_url, tmp_path, capsys, *words)
    # query and document have 20 tokens each: 42 with the separators that a reranker adds
    assert result["total_input_tokens"] == 8 * 5 * 40
    assert result["total_input_sequences"] == 40
    assert not found(result, "load.repeated_prompts")


@pytest.mark.parametrize(
    ("fault", "kind"), [("zeros", "garbage"), ("short", "results"), ("500", "http_500")]
)
def test_a_wrong_vector_is_a_failure(
    fault: str,
    kind: str,
    fake: StartFake,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--backend", "openai-embeddings", "--random-batch-size", "2", *SHORT[:2]]
    port = fake(first_ms=5, faults={fault: 4}).base_url
    result = measured(port, tmp_path, capsys, *words)
    assert result["dyno"]["failures"] == {kind: 2}


def test_texts_in_a_batch_are_refused_by_an_api_of_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fake: StartFake
) -> None:
    words = [
        "--base-url",
        fake().base_url,
        "--random-batch-size",
        "2",
        "--num-prompts",
        "4",
        "--runs",
        str(tmp_path),
    ]
    assert main(["bench", "serve", *words]) == 2
    assert "can't send. Use openai-embeddings" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--no-streaming", "--goodput", "ttft:5"], "have no first token"),
        (["--backend", "openai-embeddings", "--goodput", "tpot:5"], "have no first token"),
        (["--backend", "transformers", "--no-streaming"], "has only streams"),
        (["--backend", "json"], "belong together"),
    ],
)
def test_what_such_answers_lack_is_refused_before_anything_starts(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "serve", "--base-url", "http://127.0.0.1:9", *words]) == 2
    assert why in capsys.readouterr().err


# ---- images and sounds ----

# height, width, and tokens by Qwen2-VL's rule: patches of 28 pixels and two marks
SIZES = [((504, 504), 326), ((256, 256), 83), ((720, 1280), 1198)]


@pytest.mark.parametrize("backend", ["openai-chat", "openai-responses", "anthropic"])
@pytest.mark.parametrize(("size", "tokens"), SIZES[:1])
def test_images_reach_the_server_and_have_the_tokens_of_the_rule(
    backend: str,
    size: tuple[int, int],
    tokens: int,
    fake: StartFake,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--backend", backend, "--dataset-name", "random-mm", *SHORT]
    words += [
        "--image-tokens",
        "qwen2-vl",
        "--random-mm-bucket-config",
        f"{{({size[0]},{size[1]},1): 1}}",
    ]
    result = measured(fake().base_url, tmp_path, capsys, *words)
    media = result["dyno"]["media"]
    assert media["items"] == 8
    assert media["media_tokens"] == media["ruled_tokens"] == 8 * tokens
    assert result["total_input_tokens"] == 8 * (20 + tokens)
    assert not found(result, "tokens.media")


@pytest.mark.parametrize(("size", "tokens"), SIZES[1:])
@pytest.mark.parametrize("form", ["jpeg", "png"])
def test_images_of_any_size_and_format_are_read_by_the_server(
    form: str,
    size: tuple[int, int],
    tokens: int,
    fake: StartFake,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--backend", "openai-chat", "--dataset-name", "random-mm", *SHORT]
    words += ["--image-format", form, "--image-tokens", "qwen2-vl"]
    words += ["--random-mm-bucket-config", f'{{"({size[0]}, {size[1]}, 1)": 1.0}}']
    result = measured(fake().base_url, tmp_path, capsys, *words, count=3)
    assert result["dyno"]["media"]["media_tokens"] == 3 * tokens


def test_an_image_that_counts_two_tokens_instead_of_326_is_a_doubt(
    fake: StartFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--backend", "openai-chat", "--dataset-name", "random-mm", *SHORT]
    words += [
        "--image-tokens",
        "qwen2-vl",
        "--random-mm-bucket-config",
        "{(504, 504, 1): 1}",
    ]
    result = measured(fake(faults={"blind": 1}).base_url, tmp_path, capsys, *words)
    text = found(result, "tokens.media")
    assert "counts 2.000 prompt tokens per image" in text and "it is 326" in text
    assert result["dyno"]["verdict"] == "doubtful"


def test_images_of_files_are_sent_with_their_prompts(
    fake: StartFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.png").write_bytes(pictures.png(56, 84, 1))
    (tmp_path / "b.jpg").write_bytes(pictures.jpeg(280, 280, 2))
    lines = [
        {"prompt": "What is in these two?", "image_files": ["a.png", "b.jpg"]},
        {"prompt": "And in this one?", "image_files": ["b.jpg"]},
    ]
    path = tmp_path / "images.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    words = [
        "--backend",
        "openai-chat",
        "--dataset-name",
        "custom_image",
        "--dataset-path",
        str(path),
    ]
    words += ["--image-tokens", "qwen2-vl", "--custom-output-len", "4", "--disable-shuffle"]
    result = measured(fake().base_url, tmp_path, capsys, *words, count=2)
    assert result["dyno"]["media"]["items"] == 3
    assert result["dyno"]["media"]["media_tokens"] == (2 * 3 + 2) + 2 * (100 + 2)
    assert result["total_output_tokens"] == 8


def test_images_are_refused_by_an_api_that_takes_text_alone(
    fake: StartFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--base-url",
        fake().base_url,
        "--dataset-name",
        "random-mm",
        "--runs",
        str(tmp_path),
    ]
    assert main(["bench", "serve", *words]) == 2
    assert (
        "has images, which --backend openai can't send. Use openai-chat"
        in capsys.readouterr().err
    )


def test_images_are_a_class_of_a_mix(
    fake: StartFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--backend", "openai-chat"]
    words += [
        "--class",
        "seen: share=1 dataset=random-mm input_len=20 output_len=4 image_tokens=qwen2-vl",
    ]
    words += ["--class", "read: share=1 input_len=20 output_len=4"]
    result = measured(fake().base_url, tmp_path, capsys, *words)
    assert result["dyno"]["media"]["items"] == 4
    assert (
        result["dyno"]["media"]["media_tokens"] == result["dyno"]["media"]["ruled_tokens"]
    )


def test_speech_is_counted_in_seconds(
    fake: StartFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--backend",
        "openai-audio",
        "--dataset-name",
        "random-audio",
        "--audio-len",
        "2",
    ]
    result = measured(fake(gap_ms=3).base_url, tmp_path, capsys, *words)
    assert result["dyno"]["media"]["audio_s"] == 16
    assert result["rtfx"] == pytest.approx(16 / result["duration"])
    assert result["total_output_tokens"] == 8 * 6
    whole = measured(fake(gap_ms=3).base_url, tmp_path, capsys, *words, "--no-streaming")
    assert whole["mean_ttft_ms"] is None and ends_ms(whole, "mean_e2el_ms")[1] > 0


# ---- the form of answers ----


VIOLATIONS = [
    ("json", "schema", "schema"),
    ("json", "not_json", "not JSON"),
    ("tools", "schema", "arguments"),
    ("tools", "wrong_tool", "unknown tool"),
    ("tools", "not_json", "arguments not JSON"),
    ("tools", "no_call", "no call"),
]


@pytest.mark.parametrize(
    ("backend", "kind", "fault", "problem"),
    [
        *(("openai-chat", *each) for each in VIOLATIONS),
        # each API has texts and calls of its own; how these are judged is the same
        *(
            (api, *VIOLATIONS[i])
            for api in ("openai-responses", "anthropic")
            for i in (0, 5)
        ),
        *(
            pytest.param(api, *each, marks=pytest.mark.nightly)
            for api in ("openai-responses", "anthropic")
            for each in VIOLATIONS[1:5]
        ),
    ],
)
def test_a_violation_is_named_with_its_share(
    backend: str,
    kind: str,
    fault: str,
    problem: str,
    fake: StartFake,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [
        "--backend",
        backend,
        "--dataset-name",
        "structured-output",
        "--structured-kind",
        kind,
    ]
    port = fake(first_ms=5, gap_ms=1, faults={fault: 4}).base_url
    result = measured(port, tmp_path, capsys, *words, "--no-correctness-check")
    held = result["dyno"]["structured"]
    assert held["checked"] == 8
    assert held["problems"] == {problem: 2}
    assert held["valid_share"] == 0.75
    assert "2 of 8 answers (25 %)" in found(result, "answers.form")


def test_an_answer_cut_by_its_limit_of_tokens_is_called_so(
    fake: StartFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--backend",
        "openai-chat",
        "--dataset-name",
        "structured-output",
        "--output-len",
        "3",
    ]
    result = measured(fake(gap_ms=1).base_url, tmp_path, capsys, *words)
    assert result["dyno"]["structured"]["problems"] == {"cut": 8}


def test_a_schema_in_extra_body_is_held_with_any_prompts(
    fake: StartFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    words = [
        "--backend",
        "openai-chat",
        "--random-input-len",
        "20",
        "--random-output-len",
        "40",
    ]
    words += ["--extra-body", json.dumps({"response_format": form})]
    port = fake(gap_ms=1).base_url
    result = measured(port, tmp_path, capsys, *words)
    assert result["dyno"]["structured"]["valid_share"] == 1.0


def test_slower_answers_of_a_prescribed_form_are_found(
    fake: StartFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--backend",
        "openai-chat",
        "--dataset-name",
        "structured-output",
        "--output-len",
        "20",
    ]
    words += ["--structured-output-ratio", "0.5", "--no-correctness-check"]
    port = fake(gap_ms=4, constrained=3).base_url
    result = measured(port, tmp_path, capsys, *words, count=40)
    assert "have a median TPOT of" in found(result, "answers.constrained")
    port = fake(gap_ms=4).base_url
    result = measured(port, tmp_path, capsys, *words, count=40)
    assert result["dyno"]["structured"]["free"] > 8
    assert "TPOT" not in found(result, "answers.constrained")


# ---- conversations, token ids, templates ----


@pytest.mark.parametrize("backend", ["openai-responses", "anthropic"])
def test_conversations_go_on_with_the_servers_answers(
    backend: str, fake: StartFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--backend",
        backend,
        "--dataset-name",
        "chat",
        "--turns",
        "3",
        "--num-sessions",
        "3",
    ]
    words += [
        "--turn-input-len",
        "10",
        "--turn-output-len",
        "5",
        "--system-prompt-len",
        "7",
    ]
    server = fake(gap_ms=1, bodies=True)
    result = measured(server.base_url, tmp_path, capsys, *words, "--no-correctness-check")
    assert result["completed"] == 9
    # system prompt and question, then each time an answer and a question more
    assert result["total_input_tokens"] == 3 * (17 + 32 + 47)
    last = max(server.log()["bodies"], key=lambda body: len(json.dumps(body)))
    if backend == "anthropic":
        assert len(last["system"].split()) == 7
        assert [m["role"] for m in last["messages"]] == ["user", "assistant"] * 2 + ["user"]
    else:
        kinds = [item.get("type", item["role"]) for item in last["input"]]
        assert kinds == ["system", "user", "message", "user", "message", "user"]


def test_a_template_describes_an_endpoint_that_dyno_does_not_know(
    fake: StartFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.toml"
    path.write_text(
        'path = "/generate_stream"\n'
        'body = {inputs = "{{prompt}}", parameters = {max_new_tokens = "{{output_tokens}}", details = true}}\n'
        'answer = {text = "token.text", output_tokens = "details.generated_tokens", '
        'prompt_tokens = "details.input_length", finish_reason = "details.finish_reason", error = "error"}\n'
    )
    words = ("--backend", "json", "--request-template", str(path), *SHORT)
    server = fake(gap_ms=3)
    result = measured(server.base_url, tmp_path, capsys, *words)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (160, 48)
    sends = [stream[1:] for stream in server.log()["streams"] if len(stream) == 1 + 6]
    sent_ms = statistics.mean((last - first) / 5e6 for first, *_, last in sends)
    shortest, longest = ends_ms(result, "mean_itl_ms")
    assert shortest < sent_ms * 1.5 and longest > sent_ms / 1.5
    assert result["dyno"]["finish_reasons"] == {"length": 8}


def test_a_study_has_endpoints_by_its_keys_and_a_comparison_their_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "s.toml"
    study.write_text(
        """
[engines.good]
kind = "fake"
backend = "openai-chat"
args = ["first_ms=5", "gap_ms=1"]
[engines.bad]
kind = "fake"
backend = "openai-chat"
args = ["first_ms=5", "gap_ms=1", "fault=schema@2"]
[workloads.forms]
dataset = "structured-output"
output_len = 40
num_prompts = 8
[loads.c]
max_concurrency = 4
[trial]
stream = false
"""
    )
    assert main(["run", str(study), "--runs", str(tmp_path / "runs"), "--no-report"]) == 0
    capsys.readouterr()
    folder = next((tmp_path / "runs").iterdir())
    query = "SELECT engine, valid_share, mean_ttft_ms FROM trials ORDER BY engine"
    assert main(["sql", query, "--runs", str(folder.parent), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["engine"] for row in rows] == ["bad", "good"]
    assert rows[0]["valid_share"] <= 0.625 and rows[1]["valid_share"] == 1.0
    assert [row["mean_ttft_ms"] for row in rows] == [None, None]
