"""Code that comes with data: task files of lm-eval, and models that bring Python or pickles of their own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dyno.engines import environment
from dyno.errors import UsageError
from dyno.facts.quality import QualitySpec
from dyno.models.programs import convert_gguf
from dyno.quality.lm_eval import _check_code, task_code

TASKS = {
    "a function": "process_results: !function utils.process\n",
    "a class": "task: x\nclass: !function task.MyTask\n",
    "an object": "x: !!python/object/apply:os.system ['id']\n",
    "a data set's script": "dataset_kwargs:\n  trust_remote_code: true\n",
    "generated code that is run": "unsafe_code: true\n",
}


@pytest.mark.parametrize("text", TASKS.values(), ids=TASKS.keys())
@pytest.mark.parametrize("name", ["task.yaml", "sub/deeper/task.yml"])
def test_a_task_that_runs_code_needs_a_word_from_the_user(
    text: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"task: mine\n{text}")
    assert str(path) in (task_code(tmp_path) or "")
    with pytest.raises(
        UsageError,
        match=r"runs Python code with your rights\. Read it, and add --allow-task-code",
    ):
        _check_code(QualitySpec(["mine"], include_path=str(tmp_path)))
    _check_code(QualitySpec(["mine"], include_path=str(tmp_path), allow_task_code=True))


def test_a_task_of_data_alone_needs_none(tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text(
        "task: mine\ndataset_path: json\ndoc_to_text: '{{question}}'\n"
    )
    (tmp_path / "data.jsonl").write_text('{"question": "!function"}\n')
    _check_code(QualitySpec(["mine"], include_path=str(tmp_path)))


def test_a_folder_of_tasks_that_holds_a_device_is_not_a_trap(tmp_path: Path) -> None:
    (tmp_path / "task.yaml").symlink_to("/dev/zero")
    _check_code(QualitySpec(["mine"], include_path=str(tmp_path)))


# ---- models ----

EVIL = "from pathlib import Path\nPath({mark!r}).touch()\nclass Evil:\n    pass\n"
READ = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("dyno_guard", sys.argv[1])
guard = importlib.util.module_from_spec(spec)
spec.loader.exec_module(guard)
guard.refuse_code()
import transformers
getattr(transformers, sys.argv[3]).from_pretrained(sys.argv[2], trust_remote_code=True)
"""


@pytest.mark.parametrize(
    "kind",
    [
        "AutoTokenizer",
        *(
            pytest.param(k, marks=pytest.mark.nightly)
            for k in ("AutoConfig", "AutoModelForCausalLM")
        ),
    ],
)
def test_a_models_own_code_does_not_run_where_a_tool_trusts_it(
    kind: str, tmp_path: Path
) -> None:
    """As llama.cpp's converter asks for some models: trust_remote_code=True."""
    env = environment.find("transformers")
    if env is None:
        pytest.skip("transformers isn't installed: `make engines`")
    mark = tmp_path / "executed"
    model = tmp_path / "model"
    model.mkdir()
    (model / "evil.py").write_text(EVIL.format(mark=str(mark)))
    auto = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM"), "evil.Evil") | {
        "AutoTokenizer": ["evil.Evil", None]
    }
    (model / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": auto}))
    (model / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "Evil", "auto_map": auto})
    )
    guard = Path(convert_gguf.__file__).with_name("guard.py")
    command = [env.python, "-I", "-c", READ, str(guard), str(model), kind]
    variables = {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "hf"),
        "PATH": "/usr/bin:/bin",
    }
    done = subprocess.run(
        command, capture_output=True, text=True, env=variables, timeout=300
    )
    assert "comes with Python code of its own" in done.stderr
    assert done.returncode == 1
    assert not mark.exists()


def test_the_guard_needs_no_transformers() -> None:
    code = f"import sys; sys.modules['transformers'] = None\n{READ.partition('import transformers')[0]}"
    guard = Path(convert_gguf.__file__).with_name("guard.py")
    assert subprocess.run([sys.executable, "-I", "-c", code, str(guard)]).returncode == 0
