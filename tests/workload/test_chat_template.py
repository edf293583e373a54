"""Chat templates: rendered as other programs render them, applied where vLLM applies them, and kept within limits."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import StartFake
from dyno.cli.main import main
from dyno.engines.model import FOLDER
from dyno.errors import WorkloadError
from dyno.workload import chat_template
from dyno.workload.chat_template import ChatTemplate
from dyno.workload.prompts import make
from dyno.workload.spec import WorkloadSpec
from dyno.workload.tokenizer import ApproximateTokenizer, Tokenizer, local

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

# of dyno-5m
SHELL = "<|begin_of_text|><|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
LLAMA = """
{%- for m in messages %}
    {%- set text = '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content'] | trim + '<|eot_id|>' %}
    {%- if loop.first %}{% set text = bos_token + text %}{% endif %}
    {{- text }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] != 'user' %}{{ raise_exception('only users') }}{% endif %}"
    "{{ '[INST] ' + m['content'] + ' [/INST]' }}{% endfor %}"
)
OTHERS = """
{% set ns = namespace(seen=false) %}
{% for m in messages %}
    {% if m.role == 'system' %}{% continue %}{% endif %}
    {% generation %}{{ m | tojson }}{% endgeneration %}
{% endfor %}
{{ strftime_now('%Y') | length }}{{ tools is defined }}
"""


def render(text: str, *messages: tuple[str, str], **variables: str) -> str:
    template = ChatTemplate(text, variables)
    try:
        return template.render(
            [{"role": role, "content": content} for role, content in messages]
        )
    finally:
        template.close()


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        # As the makers of the models document their prompts.
        (LLAMA, "<s><|start_header_id|>user<|end_header_id|>\n\nHi é <b><|eot_id|>"
                "<|start_header_id|>assistant<|end_header_id|>\n\n"),
        (MISTRAL, "<s>[INST]  Hi é <b>\n [/INST]"),
        (OTHERS, '\n{"role": "user", "content": " Hi é <b>\\n"}4False'),
    ],
)  # fmt: skip
def test_templates_are_rendered_as_their_models_expect(
    template: str, expected: str
) -> None:
    assert render(template, ("user", " Hi é <b>\n"), bos_token="<s>") == expected


def test_llama_cpp_renders_the_same_text(tmp_path: Path) -> None:
    """Another implementation of the same template: that of the server which has the model."""
    from dyno.engines import model
    from dyno.facts.engine import EngineSpec
    from dyno.facts.rig import Rig
    from dyno.http import Client, Url
    from dyno.trial.engine_plan import EnginePlan
    from dyno.trial.fleet import running

    spec = EngineSpec(
        "llamacpp", model=str(model.build("Q4_0")), max_num_seqs=1, max_model_len=256
    )
    plan = EnginePlan(spec, Rig("test", "0", "any", "cpu", 2))
    with running(plan, tmp_path, {}, lambda _: None, lambda _: None) as fleet:
        client = Client(Url(fleet.engines[0].base_url), {})
        reported = chat_template.of_server(client)
        here = chat_template.beside(FOLDER)
        assert reported is not None and here is not None and reported.text == here.text
        for text in ("Hi", "two\nlines é <b>", "{{ braces }}"):
            messages = [{"role": "user", "content": text}]
            status, answer = client.call("/apply-template", {"messages": messages})
            assert status == 200 and isinstance(answer, dict)
            assert reported.render(messages) == here.render(messages) == SHELL.format(text)
            # Its own completions add the first token, so it leaves it out here.
            assert "<|begin_of_text|>" + answer["prompt"] == SHELL.format(text)
        reported.close()
        here.close()
        client.close()


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% if %}", "TemplateSyntaxError"),
        ("{{ raise_exception('no such role') }}", "no such role"),
        ("{{ 'a' * 5000000 }}", "5,000,000 characters"),
        ("{{ 'a' * 10 ** 11 }}", "MemoryError"),
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "too long",
        ),
        ("{% include '/etc/passwd' %}", "TypeError"),
    ],
)
def test_a_template_that_does_more_than_it_should_is_an_error_in_a_sentence(
    template: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template, "SECONDS", 1)
    began = time.monotonic()
    with pytest.raises(
        WorkloadError, match="The model's chat template can't be rendered: "
    ) as error:
        render(template, ("user", "hi"))
    assert why in str(error.value) and "--skip-chat-template" in str(error.value)
    assert time.monotonic() - began < 60


def test_a_template_sees_no_variable_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789")
    template = ChatTemplate("{{ messages[0].content }}")
    assert template.render([{"role": "user", "content": "x"}]) == "x"
    assert template._process is not None
    assert (
        b"sk-0123456789" not in Path(f"/proc/{template._process.pid}/environ").read_bytes()
    )
    template.close()


# ---- where it is applied ----


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder, with a tokenizer and a template."""
    path = tmp_path_factory.mktemp("model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(FOLDER / name, path)
    return path


@pytest.fixture
def tokenizer(folder: Path) -> Iterator[Tokenizer]:
    it = local(str(folder))
    it.template = chat_template.beside(folder)
    assert it.template is not None
    yield it
    it.template.close()


def test_custom_prompts_get_the_template_that_vllm_gives_them(
    folder: Path, fake: StartFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "What is 2 + 3?"}\n{"prompt": "Say <b>."}\n')
    plain = {"What is 2 + 3?", "Say <b>."}
    server = fake(first_ms=1, gap_ms=1, bodies=True)

    def sent(*words: str) -> tuple[set[str], dict[str, Any]]:
        before = len(server.log()["bodies"])
        command = [
            "bench",
            "serve",
            "--base-url",
            server.base_url,
            "--runs",
            str(tmp_path / "runs"),
            "--json",
        ]
        command += [
            "--dataset-name",
            "custom",
            "--dataset-path",
            str(file),
            "--num-prompts",
            "2",
        ]
        command += [
            "--custom-output-len",
            "2",
            "--no-correctness-check",
            "--ready-check-timeout-sec",
            "0",
            *words,
        ]
        assert main(command) == 0
        result = json.loads(capsys.readouterr().out)
        bodies = server.log()["bodies"][before:]
        return {
            b["prompt"] if "prompt" in b else b["messages"][0]["content"] for b in bodies
        }, result

    prompts, result = sent("--tokenizer", str(folder))
    assert prompts == {SHELL.format(text) for text in plain}
    assert _notes(result) == []
    # Counted as vLLM counts: the rendered text, special tokens of the tokenizer included.
    counter = local(str(folder))
    [file_of_requests] = (tmp_path / "runs").glob("*/requests.jsonl")
    stored = [json.loads(line) for line in file_of_requests.read_text().splitlines()]
    assert {r["prompt"]: r["prompt_tokens"] for r in stored} == {
        text: counter.count(text) for text in prompts
    }
    assert sent("--tokenizer", str(folder), "--skip-chat-template")[0] == plain
    assert sent("--tokenizer", str(folder), "--backend", "openai-chat")[0] == plain
    # The fake engine has no template: then it is said.
    prompts, result = sent()
    assert prompts == plain and _notes(result) == ["load.no_chat_template"]
    assert _notes(sent("--skip-chat-template")[1]) == []


def _notes(result: dict[str, Any]) -> list[str]:
    return [f["code"] for f in result["dyno"]["findings"] if "template" in f["code"]]


def test_a_study_has_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: StartFake
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.jsonl").write_text(
        '{"prompt": "one", "output_tokens": 2}\n{"prompt": "two", "output_tokens": 2}\n'
    )
    study = """
        [engines.server]
        kind = "openai"
        base_url = "URL"
        [workloads.w]
        dataset = "custom"
        path = "p.jsonl"
        skip_chat_template = [false, true]
        num_warmups = 0
        [loads.one]
        max_concurrency = 1
        num_prompts = 2
        [trial]
        correctness_check = false
    """
    Path("s.toml").write_text(study.replace("URL", fake(first_ms=1, gap_ms=1).base_url))
    assert main(["run", "s.toml", "--no-report"]) == 0
    found = [
        json.loads(p.read_text())["findings"]
        for p in sorted(Path("runs/s/trials").glob("*/summary.json"))
    ]
    assert sorted(
        any(f["code"] == "load.no_chat_template" for f in some) for some in found
    ) == [False, True]


def test_a_sonnet_is_templated_and_no_longer_than_asked_for(tokenizer: Tokenizer) -> None:
    spec = WorkloadSpec(
        "sonnet", num_prompts=5, input_len=400, output_len=10, prefix_len=100
    )
    work = make(spec, tokenizer)
    start, end = SHELL.split("{}")
    for request in work.requests:
        assert isinstance(request.prompt, str)
        assert request.prompt.startswith(
            start + "Pick as many lines"
        ) and request.prompt.endswith(end)
        assert request.prompt_tokens == tokenizer.count(request.prompt) <= 400
    assert work.template == "applied"
    assert make(spec, ApproximateTokenizer()).template == "missing"


@pytest.mark.parametrize(
    ("folder_name", "row", "prompt", "output_tokens"),
    [
        ("openai--gsm8k", {"question": "1 + 1?", "answer": "It is 2, of course. #### 2"}, SHELL.format("1 + 1?"), 256),
        ("philschmid--mt-bench", {"turns": ["Write.", "More."]}, SHELL.format("Write."), 256),
        ("likaixin--InstructCoder", {"input": "x=1", "instruction": "Add one.", "output": "x=2"},
         SHELL.format("x=1\n\nAdd one. Just output the code, do not include any explanation."), 200),
        ("other--chat", {"conversations": [{"value": "one two three four five"}, {"value": "a b c d e f g"}]},
         "one two three four five", None),
        ("mgoin--mlperf", {"system_prompt": "Be brief.", "question": "Why is it so?", "output": "It is what it is."},
         "<|begin_of_text|><|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhy is it so?<|im_end|>\n"
         "<|im_start|>assistant\n", None),
    ],
)  # fmt: skip
def test_questions_of_the_hub_are_templated_and_conversations_are_not(
    folder_name: str,
    row: dict[str, Any],
    prompt: str,
    output_tokens: int | None,
    tokenizer: Tokenizer,
    tmp_path: Path,
) -> None:
    path = tmp_path / f"datasets--{folder_name}"
    path.mkdir()
    (path / "train.jsonl").write_text(json.dumps(row))
    [request] = make(WorkloadSpec("hf", path=str(path), num_prompts=1), tokenizer).requests
    assert request.prompt == prompt
    if output_tokens is not None:
        assert request.output_tokens == output_tokens
    skipped = make(
        WorkloadSpec("hf", path=str(path), num_prompts=1, skip_chat_template=True),
        tokenizer,
    )
    assert skipped.requests[0].prompt in prompt and skipped.template is None


@pytest.mark.parametrize(
    "config",
    [
        {"chat_template": "A{{ bos_token }}", "bos_token": {"content": "<s>"}},
        {"chat_template": [{"name": "tools", "template": "B"}, {"name": "default", "template": "A{{ bos_token }}"}],
         "bos_token": "<s>"},
        {"bos_token": "<s>"},
    ],
)  # fmt: skip
def test_a_template_is_found_in_each_place_where_models_have_it(
    config: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    if "chat_template" not in config:
        assert chat_template.beside(tmp_path) is None
        (tmp_path / "chat_template.jinja").write_text("A{{ bos_token }}")
    found = chat_template.beside(tmp_path)
    assert found is not None and found.render([]) == "A<s>"
    found.close()


def test_a_template_of_a_model_in_the_hub_s_cache_needs_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    snapshot = tmp_path / "models--own--model" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0" * 40)
    (snapshot / "tokenizer_config.json").write_text('{"chat_template": "cached"}')
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    found = chat_template.of_hub("own/model", fetch=False)
    assert found is not None and found.text == "cached"
    assert chat_template.of_hub("own/other", fetch=False) is None
