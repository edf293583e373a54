"""The embedded engine: its model, its process, and that nothing of it stays behind."""

import contextlib
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize
from jinja2 import Template
from tokenizers import Tokenizer

from dyno.cli.main import main
from dyno.engines import embedded, model
from dyno.engines.engine import Engine
from dyno.engines.kinds import kind_of
from dyno.engines.process import EngineProcess
from dyno.errors import EngineError, UsageError
from dyno.facts.engine import EngineSpec
from dyno.facts.rig import Rig
from dyno.http import Client, Url
from dyno.scratch import scratch
from dyno.store.rows import read_row
from dyno.store.run import Run
from dyno.trial.engine_plan import EnginePlan
from dyno.trial.fleet import running
from dyno.workload import tasks

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

TEXTS = [
    "Hello world, the brightness of 12345 bridges.\n\n  Indented\tand tabbed  ",
    "It's the river's end: they'LL see — naïve café, Ελλάδα, 東京, 🙂!?",
    "<|im_start|>user\nHi<|im_end|>\n",
    "x=1;\r\n\r\nfor(i=0;i<10;i++){}   ",
]


@pytest.fixture(scope="module")
def cache() -> Path:
    # named by the files and the code: what an earlier run wrote is right
    return model.default_cache()


def small(path: Path, **fields: Any) -> EngineSpec:
    return EngineSpec(
        "llamacpp", model=str(path), **{"max_num_seqs": 1, "max_model_len": 512, **fields}
    )


def started(spec: EngineSpec, folder: Path) -> Any:
    rig = Rig("test", "0", "any", "cpu", 2)
    return running(EnginePlan(spec, rig), folder, {}, lambda _: None, lambda _: None)


@pytest.fixture(scope="module")
def engine(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    spec = small(model.build("Q8_0", cache), served_name="small", max_num_seqs=4)
    with started(spec, tmp_path_factory.mktemp("engine")) as fleet:
        yield fleet.engines[0]


@pytest.fixture
def client(engine: Engine) -> Iterator[Client]:
    client = Client(Url(engine.base_url), {})
    yield client
    client.close()


def gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def group(leader: int) -> list[int]:
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(pid) == leader and not gone(pid):
                found.append(pid)
    return found


def await_true(what: Any, within_s: float = 120) -> None:
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# The model


def test_a_model_is_written_once_and_always_with_the_same_bytes(
    cache: Path, tmp_path: Path
) -> None:
    first = model.build("Q2_K", cache)
    written_ns = first.stat().st_mtime_ns
    assert model.build("Q2_K", cache).stat().st_mtime_ns == written_ns
    again = model.build("Q2_K", tmp_path)
    assert again.read_bytes() == first.read_bytes()
    assert sorted(p.name for p in again.parent.iterdir()) == [
        again.name,
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_two_builds_at_once_both_succeed(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from dyno.engines import model; "
    code += "print(model.build('F16', Path(sys.argv[1])).stat().st_size)"
    builds = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    sizes = {build.communicate()[0] for build in builds}
    assert [build.returncode for build in builds] == [0, 0]
    assert len(sizes) == 1
    assert len(list((tmp_path / model.revision()).iterdir())) == 3


# Relative errors that llama.cpp's own quantizers stay near; of 2 bits, a third.
ERRORS = {"F32": 0, "BF16": 0, "F16": 1e-4, "Q8_0": 0.01, "Q5_1": 0.05, "Q5_0": 0.06, "Q4_1": 0.1, "Q4_0": 0.11,
          "Q2_K": 0.4, "TQ2_0": 0.55}  # fmt: skip
# One of each family: plain floats, 8 bits, 4 bits with an offset, 2 bits, ternary.
_SAMPLED = ("BF16", "Q8_0", "Q4_1", "Q2_K", "TQ2_0")


@pytest.mark.parametrize(
    "quantization",
    [
        each if each in _SAMPLED else pytest.param(each, marks=pytest.mark.nightly)
        for each in model.QUANTIZATIONS
    ],
)
def test_each_quantization_holds_the_shipped_weights(
    cache: Path, quantization: str
) -> None:
    tensors = {t.name: t for t in GGUFReader(model.build(quantization, cache)).tensors}
    shipped = dict(model.weights(model.FOLDER / "model.safetensors"))
    assert len(tensors) == len(shipped)
    for theirs, ours in {
        "embed_tokens": "token_embd",
        "layers.3.mlp.down_proj": "blk.3.ffn_down",
    }.items():
        stored, exact = tensors[f"{ours}.weight"], shipped[f"model.{theirs}.weight"]
        error = dequantize(stored.data, stored.tensor_type).reshape(exact.shape) - exact
        assert (error**2).mean() <= (ERRORS[quantization] ** 2) * (exact**2).mean()


def test_what_is_shipped_is_small_and_has_all_that_engines_read() -> None:
    files = [p for p in model.FOLDER.rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in files) < 12_000_000
    names = "config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json"
    assert {p.name for p in files} == set(names.split())


def test_an_unknown_quantization_names_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match=r"dyno-5m has no quantization 'Q5_9'.*F16, Q8_0, Q5_1"
    ):
        model.build("Q5_9")


def test_a_cache_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EngineError, match="XDG_CACHE_HOME"):
        model.build("F16", tmp_path / "file")


def test_what_a_killed_build_left_is_swept_later_and_a_live_one_is_let_be(
    tmp_path: Path,
) -> None:
    folder = tmp_path / model.revision()
    folder.mkdir()
    dead = folder / ".dyno-build-dead"
    with scratch(".dyno-build-", folder) as live:
        dead.mkdir()
        model.build("F16", tmp_path)
        assert not dead.exists()
        assert live.exists()


# The server


def test_the_server_and_the_tokenizer_file_agree_on_every_token(client: Client) -> None:
    tokenizer = Tokenizer.from_file(str(model.FOLDER / "tokenizer.json"))
    for text in TEXTS:
        _, answer = client.call("/tokenize", {"content": text, "add_special": True})
        assert tokenizer.encode(text).ids == answer["tokens"]
        _, usage = client.call("/v1/completions", {"prompt": text, "max_tokens": 1})
        assert usage["usage"]["prompt_tokens"] == len(answer["tokens"])


def test_a_chat_has_the_same_tokens_in_llama_cpp_and_by_the_files_that_vllm_and_transformers_read(
    client: Client,
) -> None:
    facts = json.loads((model.FOLDER / "tokenizer_config.json").read_text())
    chat = [
        {"role": "user", "content": "What is 7 + 5?"},
        {"role": "assistant", "content": "12"},
    ]
    chat += [{"role": "user", "content": "Copy this: oak lamp"}]
    text = Template(facts["chat_template"]).render(
        messages=chat, add_generation_prompt=True, bos_token=facts["bos_token"]
    )
    tokenizer = Tokenizer.from_file(str(model.FOLDER / "tokenizer.json"))
    expected = tokenizer.encode(text, add_special_tokens=False).ids
    assert expected[:3] == [0, 2, *tokenizer.encode("user", add_special_tokens=False).ids]
    _, applied = client.call("/apply-template", {"messages": chat})
    _, server = client.call(
        "/tokenize", {"content": applied["prompt"], "add_special": True}
    )
    assert server["tokens"] == expected
    _, usage = client.call("/v1/chat/completions", {"messages": chat, "max_tokens": 1})
    assert usage["usage"]["prompt_tokens"] == len(expected)


@pytest.mark.parametrize("task", tasks.TASKS)
def test_it_answers_what_it_has_learnt_and_stops_by_itself(
    client: Client, task: str
) -> None:
    item = tasks.item(task, 2, 0)
    body = {
        "messages": [{"role": "user", "content": item.question}],
        "max_tokens": 64,
        "temperature": 0,
    }
    _, answer = client.call("/v1/chat/completions", body)
    [choice] = answer["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (item.answer, "stop")
    examples = [
        f"Question: {i.question}\nAnswer: {i.answer}\n\n"
        for i in tasks.items([task], 2, seed=1)
    ]
    prompt = f"{''.join(examples)}Question: {item.question}\nAnswer:"
    _, answer = client.call(
        "/v1/completions",
        {"prompt": prompt, "max_tokens": 64, "temperature": 0, "stop": ["\n"]},
    )
    assert answer["choices"][0]["text"] == f" {item.answer}"


def test_text_is_as_long_as_asked_where_it_may_not_stop(client: Client) -> None:
    body = {
        "prompt": "the bright stone",
        "max_tokens": 100,
        "temperature": 0,
        "ignore_eos": True,
    }
    _, answer = client.call("/v1/completions", body)
    assert answer["usage"]["completion_tokens"] == 100
    assert answer["choices"][0]["finish_reason"] == "length"


def test_no_prompt_is_cheaper_for_having_been_sent_before(client: Client) -> None:
    for _ in range(2):
        _, answer = client.call(
            "/v1/completions", {"prompt": "the river " * 20, "max_tokens": 1}
        )
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_idle_connections_keep_no_request_waiting(engine: Engine, client: Client) -> None:
    url = Url(engine.base_url)
    idle = [Client(url, {}) for _ in range(64)]
    for other in idle:
        other.call("/health")  # connected now, and kept alive
    # The server drops an idle connection after 5 s; a request that had to wait for that would take as long.
    began = time.monotonic()
    assert client.call("/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200
    assert time.monotonic() - began < 4
    for other in idle:
        other.close()


def test_the_server_says_which_model_it_serves_and_where_it_listens(
    engine: Engine, client: Client
) -> None:
    satisfies: Engine = engine
    assert satisfies.version.isdigit()  # llama.cpp's build, by which its flags are chosen
    _, props = client.call("/props")
    assert (props["model_alias"], props["model_ftype"], props["total_slots"]) == (
        "small",
        "Q8_0",
        4,
    )
    assert props["default_generation_settings"]["n_ctx"] == 512
    listening = [
        c.laddr.ip
        for c in psutil.Process(engine.process.pid).net_connections()
        if c.status == "LISTEN"
    ]
    assert listening == ["127.0.0.1"]


def test_its_draft_changes_no_greedy_answer_and_most_of_it_is_accepted(
    client: Client, tmp_path: Path
) -> None:
    questions = [
        tasks.item(task, 1, n).question
        for task in ("arithmetic", "copy", "sort")
        for n in range(3)
    ]

    def answers(client: Client) -> list[dict[str, Any]]:
        bodies = [
            {
                "messages": [{"role": "user", "content": q}],
                "max_tokens": 64,
                "temperature": 0,
            }
            for q in questions
        ]
        return [client.call("/v1/chat/completions", body)[1] for body in bodies]

    with started(
        small(model.build("Q8_0"), draft_model=model.DRAFT, draft_tokens=3), tmp_path
    ) as fleet:
        drafting = Client(Url(fleet.urls[0]), {})
        drafted = answers(drafting)
        drafting.close()
    plain = answers(client)
    assert [a["choices"][0]["message"] for a in drafted] == [
        a["choices"][0]["message"] for a in plain
    ]
    assert all("draft_n" not in a["timings"] for a in plain)
    accepted, total = (
        sum(a["timings"][key] for a in drafted) for key in ("draft_n_accepted", "draft_n")
    )
    assert 0.4 < accepted / total < 0.95
    with pytest.raises(UsageError, match="dyno-5m-draft has no quantization 'Q2_K'"):
        model.build("Q2_K", name=model.DRAFT)


def test_a_served_trial_reports_how_many_drafted_tokens_were_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load = "--backend openai-chat --dataset-name tasks --num-prompts 10 --max-concurrency 1 --no-correctness-check"
    draft = f"--draft-model {model.DRAFT} --draft-tokens 3 --max-num-seqs 1 --max-model-len 1024"
    assert (
        main(
            [
                *["bench", "serve", "--engine", "llamacpp"],
                *load.split(),
                *draft.split(),
                "--runs",
                str(tmp_path),
            ]
        )
        == 0
    )
    assert re.search(
        r"Engine: draft tokens accepted: +\d\d(\.\d+)? %", capsys.readouterr().out
    )
    [run] = tmp_path.iterdir()
    row = read_row(Run(run))
    assert 0.4 < row.figures["acceptance_rate"].value < 0.95
    assert 1 < row.figures["acceptance_length"].value < 4


@pytest.mark.parametrize("kind", ["vllm", "transformers"])
def test_other_engines_are_given_the_same_files_by_its_name(kind: str) -> None:
    spec = kind_of(kind).prepare(EngineSpec(kind, model=model.NAME))
    assert spec.model == str(model.FOLDER)
    assert spec.served_name == (model.NAME if kind == "vllm" else None)


# The process


def test_an_engine_that_cannot_read_its_model_reports_the_cause_and_the_log(
    tmp_path: Path,
) -> None:
    log = tmp_path / "engine.log"
    log.write_text("error of an earlier engine\n")
    broken = tmp_path / "broken.gguf"  # its head is whole, its tensors are not
    broken.write_bytes(model.build("Q4_0").read_bytes()[:1_000_000])
    with pytest.raises(EngineError) as caught, started(small(broken), tmp_path):
        pass
    for part in ("exited with code 1", str(log)):
        assert part in str(caught.value)
    # its own log may lose the last lines
    assert re.search("model|Failed to init server", str(caught.value))
    assert "earlier" not in str(caught.value)


def test_a_missing_wheel_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DYNO_HOME", str(tmp_path))
    with pytest.raises(
        UsageError, match=r"llama.cpp is not installed.*dyno engines install llamacpp"
    ):
        EnginePlan(small(model.build("Q4_0")), Rig("test", "0", "any", "cpu", 2))


def test_a_command_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    with EngineProcess(["/no/such/engine"], None, tmp_path / "log") as process:
        await_true(lambda: not process.alive())
        assert process.exit_code == 127
        assert process.last_lines() == ["/no/such/engine: No such file or directory"]


def test_the_child_gets_the_environment_given_and_no_pipe_of_ours(tmp_path: Path) -> None:
    command = ["/bin/sh", "-c", "echo $COLOR; ls /dev/fd | wc -l; cat"]
    with EngineProcess(
        command, {"COLOR": "green", "PATH": os.environ["PATH"]}, tmp_path / "log"
    ) as process:
        await_true(lambda: not process.alive())  # `cat` ends: its standard input is empty
    # in, out, error, and the listing itself
    assert (tmp_path / "log").read_text().split() == ["green", "4"]


def test_stop_ends_workers_that_ignore_a_polite_request(tmp_path: Path) -> None:
    script = (
        "trap '' TERM; (trap '' TERM; sleep 60; sleep 60) & echo up; sleep 60; sleep 60"
    )
    process = EngineProcess(["/bin/sh", "-c", script], None, tmp_path / "log")
    await_true(lambda: "up" in (tmp_path / "log").read_text())
    process.stop(timeout=0.2)
    assert group(process.pid) == []
    assert process.exit_code == -signal.SIGKILL
    process.stop()  # once more does no harm


def test_stop_after_a_crash_ends_the_workers_it_left(tmp_path: Path) -> None:
    process = EngineProcess(["/bin/sh", "-c", "sleep 60 & exit 3"], None, tmp_path / "log")
    await_true(lambda: not process.alive())
    assert process.exit_code == 3
    process.stop()
    assert group(process.pid) == []


def test_an_engine_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    started: list[EngineProcess] = []
    command = ["/bin/sh", "-c", "echo up; sleep 60"]
    thread = threading.Thread(
        target=lambda: started.append(EngineProcess(command, None, tmp_path / "log"))
    )
    thread.start()
    thread.join()
    await_true(lambda: "up" in (tmp_path / "log").read_text())
    assert started[0].alive()
    started[0].stop()


def outsider(tmp_path: Path) -> tuple[list[str], list[str]]:
    """An engine whose worker leaves its group, as a container's does, and the command that ends that one."""
    pidfile = tmp_path / "worker.pid"
    engine = f"setsid sh -c 'echo $$ > {pidfile}; exec sleep 60' & sleep 60"
    return ["/bin/sh", "-c", engine], [
        "/bin/sh",
        "-c",
        f"kill -9 $(cat {pidfile}); echo cleaned >> {tmp_path}/reported",
    ]


def worker_of(tmp_path: Path) -> int:
    pidfile = tmp_path / "worker.pid"
    await_true(lambda: pidfile.exists() and pidfile.read_text().strip())
    return int(pidfile.read_text())


def test_stop_cleans_up_what_is_outside_the_group_and_once_only(tmp_path: Path) -> None:
    command, cleanup = outsider(tmp_path)
    process = EngineProcess(command, None, tmp_path / "log", cleanup)
    worker = worker_of(tmp_path)
    assert not gone(worker)
    process.stop()
    await_true(lambda: gone(worker))
    process.stop()
    assert (tmp_path / "reported").read_text() == "cleaned\n"
    assert (tmp_path / "log").read_text() == ""


def test_a_cleanup_that_does_not_exist_or_fails_hinders_nothing(tmp_path: Path) -> None:
    for cleanup in (["/no/such/tool"], ["false"]):
        with EngineProcess(["sleep", "60"], None, tmp_path / "log", cleanup) as process:
            pass
        assert group(process.pid) == []


@pytest.mark.hostile
def test_a_killed_dyno_has_its_cleanup_run_by_the_watcher(tmp_path: Path) -> None:
    script = "import json, sys, time; from pathlib import Path; from dyno.engines.process import EngineProcess\n"
    script += "p = EngineProcess(*[json.loads(a) for a in sys.argv[1:3]], Path(sys.argv[3]), json.loads(sys.argv[4]))\n"
    script += "print(p.pid, flush=True); time.sleep(60)"
    command, cleanup = outsider(tmp_path)
    words = [json.dumps(command), "null", str(tmp_path / "log"), json.dumps(cleanup)]
    with subprocess.Popen(
        [sys.executable, "-c", script, *words], stdout=subprocess.PIPE, text=True
    ) as dyno:
        assert dyno.stdout
        pid = int(dyno.stdout.readline())
        worker = worker_of(tmp_path)
        dyno.kill()
    await_true(lambda: gone(worker))
    assert group(pid) == []


# A dyno of its own that starts the engine, tells its pid, and does what the test says with a signal.
PARENT = """
import json, os, signal, sys, time
from pathlib import Path
from dyno.trial.engine_plan import EnginePlan
from dyno.trial.fleet import running
from dyno.facts.engine import EngineSpec
from dyno.facts.rig import Rig
from dyno.http import Client, Url
spec = EngineSpec("llamacpp", model=sys.argv[1], max_num_seqs=1, max_model_len=512)
up = running(EnginePlan(spec, Rig("test", "0", "any", "cpu", 2)), Path(sys.argv[2]), {}, lambda _: None, lambda _: None)
engine = up.__enter__().engines[0]
before = signal.signal(signal.SIGINT, signal.SIG_IGN)
if os.fork() == 0:  # a process that holds all that dyno holds, and lives on
    time.sleep(30)
    os._exit(0)
signal.signal(signal.SIGINT, before)
try:
    print(json.dumps({"pid": engine.process.pid}), flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    status, _ = Client(Url(engine.base_url), {}).call("/v1/completions", {"prompt": "a", "max_tokens": 1})
    engine.stop()
    print(json.dumps({"status_after_interrupt": status}), flush=True)
"""


@pytest.fixture
def parent(cache: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    script = [
        sys.executable,
        "-c",
        textwrap.dedent(PARENT),
        str(model.build("Q4_0", cache)),
        str(tmp_path),
    ]
    with subprocess.Popen(
        script, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as dyno:
        assert dyno.stdout
        pid = json.loads(dyno.stdout.readline())["pid"]
        assert not gone(pid)
        yield dyno, pid
        os.killpg(dyno.pid, signal.SIGKILL)


@pytest.mark.hostile
def test_a_killed_parent_leaves_no_engine_behind(
    parent: tuple[subprocess.Popen[str], int],
) -> None:
    dyno, pid = parent
    dyno.kill()
    await_true(lambda: group(pid) == [])


@pytest.mark.hostile
def test_a_terminated_parent_leaves_no_engine_behind(
    parent: tuple[subprocess.Popen[str], int],
) -> None:
    dyno, pid = parent
    dyno.terminate()
    await_true(lambda: group(pid) == [])


def test_ctrl_c_reaches_dyno_and_the_engine_still_answers(
    parent: tuple[subprocess.Popen[str], int],
) -> None:
    dyno, pid = parent
    os.killpg(dyno.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
    assert dyno.stdout
    assert json.loads(dyno.stdout.readline()) == {"status_after_interrupt": 200}
    assert group(pid) == []


def test_importing_the_engine_does_not_load_llama_into_dyno() -> None:
    code = f"import sys, {embedded.__name__}, {model.__name__}; "
    code += "print('xllamacpp' in sys.modules, 'numpy' in sys.modules)"
    reported = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert reported.stdout.split() == ["False", "False"]


@pytest.mark.parametrize(
    ("reported", "features", "unused"),
    [
        (
            "CPU : NEON = 1 | ARM_FMA = 1 | LLAMAFILE = 1 | ",
            {"asimd", "asimddp", "asimdhp"},
            ["DOTPROD", "FP16_VA"],
        ),
        (
            "n_threads = 2 | CPU : NEON = 1 | DOTPROD = 1 | FP16_VA = 1 | ",
            {"asimd", "asimddp", "asimdhp"},
            [],
        ),
        (
            "CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | F16C = 1 | FMA = 1 | ",
            {"avx", "avx2", "f16c", "fma"},
            [],
        ),
        ("CPU : SSE3 = 1 | AVX = 1 | AVX2 = 0 | ", {"avx", "avx2"}, ["AVX2"]),
        ("CUDA : ARCHS = 900 | ", {"avx", "avx2"}, []),
    ],
)
def test_a_build_that_leaves_instructions_unused_is_known(
    reported: str, features: set[str], unused: list[str]
) -> None:
    assert (
        kind_of("llamacpp").unused_instructions(
            f"a line\nsystem_info: {reported}\nanother", features
        )
        == unused
    )
    assert kind_of("llamacpp").unused_instructions("a log without it", features) == []


# llama-server's flags


FORGETFUL = """#!{python}
import os, sys
args = sys.argv[1:]
if args == ["--version"]:
    sys.exit(print("version: 11549 (79c1160b)"))
i = args.index("-np")
os.execv(sys.executable, [sys.executable, "-P", "-m", "dyno.engines.embedded", *args[:i], *args[i + 2 :]])
"""


def test_a_server_that_forgets_a_flag_is_not_measured(tmp_path: Path) -> None:
    binary = tmp_path / "llama-server"
    binary.write_text(FORGETFUL.format(python=sys.executable))
    binary.chmod(0o755)
    spec = EngineSpec("llamacpp", binary=str(binary), args=["-np", "3", "-c", "256"])
    with (
        pytest.raises(
            EngineError,
            match=r"-np 3 was asked for, but it reports n_parallel 1\. Nothing was measured",
        ),
        started(spec, tmp_path),
    ):
        raise AssertionError("it was measured")


REPORTED = "-fa on -ngl 99 -np 4 -cb --kv-unified --cache-reuse 256 -c 512 --no-mmap"


def test_the_embedded_engine_runs_with_the_flags_of_a_reports_llama_server(
    tmp_path: Path,
) -> None:
    with started(EngineSpec("llamacpp", args=REPORTED.split()), tmp_path) as fleet:
        assert (
            fleet.target.slots,
            fleet.target.max_model_len,
            fleet.target.prefix_caching,
        ) == (4, 512, True)
        assert fleet.target.settings and fleet.target.settings["kv_unified"] == "true"


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ("--split-mode row", "unrecognized arguments: --split-mode row"),
        ("--temp 0.3", "unrecognized arguments: --temp 0.3"),
        ("-ctk q3_k", "--cache-type-k: invalid choice"),
        ("-fa maybe", "unrecognized arguments: maybe"),
    ],
)
def test_the_embedded_engine_refuses_other_flags_before_its_start_and_in_a_dry_run(
    capsys: pytest.CaptureFixture[str], flags: str, why: str
) -> None:
    for more in ([], ["--dry-run"]):
        words = [
            "bench",
            "serve",
            "--engine",
            "llamacpp",
            f"--engine-args={flags}",
            "--num-prompts",
            "1",
            *more,
        ]
        assert main([*words, "--dataset-name", "random"]) == 2
        error = capsys.readouterr().err
        assert why in error
        assert "use a llama-server" in error
    assert "xllamacpp" not in sys.modules


def test_folders_that_several_make_and_sweep_at_once_are_never_taken_from_one_of_them(
    tmp_path: Path,
) -> None:
    lost = []

    def make(_: int) -> None:
        for _ in range(60):
            with scratch("dyno-s-", tmp_path) as mine:
                (mine / "file").touch()
                if not (mine / "file").exists():
                    lost.append(mine)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(make, range(6)))
    assert not lost and not list(tmp_path.iterdir())
