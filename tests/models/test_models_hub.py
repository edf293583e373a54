"""`dyno models` with the real client of the Hub, against a Hub on loopback: pulled, checked, refused, continued."""

import hashlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dyno.cli.main import main
from dyno.errors import DynoError
from dyno.facts.recipe import ModelRecipe
from dyno.models import hub, library, sizes
from dyno.outside import is_safe
from hub_server import TOKEN, HubServer, commit_of, serving

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

REPO = "acme/tiny"
WIDTH, VOCAB, LAYERS = 32, 512, 2


def write_safetensors(
    path: Path, shapes: dict[str, tuple[int, int]], seed: int = 1
) -> None:
    """Weights in half precision, of numbers that differ by seed."""
    head, data = {}, b""
    for name, shape in shapes.items():
        block = hashlib.sha256(f"{seed} {name}".encode()).digest()
        size = 2 * shape[0] * shape[1]
        head[name] = {
            "dtype": "F16",
            "shape": shape,
            "data_offsets": [len(data), len(data) + size],
        }
        data += (block * (size // len(block) + 1))[:size]
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def make_model(folder: Path) -> Path:
    """Two shards with their index, a configuration, and a file that nobody needs."""
    folder.mkdir(parents=True)
    block = {"self_attn.o_proj": (WIDTH, WIDTH), "mlp.up_proj": (WIDTH, 4 * WIDTH)}
    layers = {
        f"model.layers.{i}.{n}.weight": s for i in range(LAYERS) for n, s in block.items()
    }
    shards = {
        "model-00001-of-00002.safetensors": {"model.embed_tokens.weight": (VOCAB, WIDTH)},
        "model-00002-of-00002.safetensors": layers,
    }
    for seed, (name, shapes) in enumerate(shards.items()):
        write_safetensors(folder / name, shapes, seed)
    index = {tensor: name for name, shapes in shards.items() for tensor in shapes}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": index})
    )
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
    }
    config |= {
        "max_position_embeddings": 2048,
        "torch_dtype": "float16",
        "num_attention_heads": 4,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "original").mkdir()
    (folder / "original" / "notes.txt").write_text("old")
    return folder


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    make_model(tmp_path / "hub" / REPO)
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("DYNO_HOME", str(tmp_path / "dyno"))
    with serving(tmp_path / "hub") as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


class Pull:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(
        self, source: str = f"hub:{REPO}", **patterns: list[str]
    ) -> library.ModelEntry:
        return hub.pull(ModelRecipe(source, **patterns), self.lines.append)

    def refused(self, source: str = f"hub:{REPO}", **patterns: list[str]) -> str:
        with pytest.raises(DynoError) as caught:
            self(source, **patterns)
        assert library.entries() == []
        return str(caught.value)


@pytest.fixture
def pull() -> Pull:
    return Pull()


def blobs(tmp_path: Path) -> Path:
    return tmp_path / "hf" / "hub" / "models--acme--tiny" / "blobs"


def test_a_pulled_model_lies_in_the_hubs_cache_with_its_commit_and_is_not_asked_for_again(
    server: HubServer, pull: Pull, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(
        p.stat().st_size for p in (tmp_path / "hub" / REPO).rglob("*") if p.is_file()
    )
    entry = pull()
    commit = commit_of(tmp_path / "hub" / REPO)
    assert entry.origin == f"hub:{REPO}@{commit}"
    assert entry.size_bytes == size
    assert (
        entry.files["config.json"].sha256
        == hashlib.sha256((entry.folder / "config.json").read_bytes()).hexdigest()
    )
    assert "hf/hub/models--acme--tiny/snapshots" in entry.path
    before = list(server.requests)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert pull() == entry
    assert sizes.ask([ModelRecipe(f"hub:{REPO}")])[0].left_bytes == 0
    # By its commit it is another recipe of the same files: the cache has them, and they aren't read again.
    assert pull(f"hub:{REPO}@{commit}").files == entry.files
    assert server.requests == before
    code = "import sys, huggingface_hub as h; print(h.snapshot_download(sys.argv[1]))"
    found = subprocess.run(
        [sys.executable, "-c", code, REPO], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == entry.path


def test_patterns_choose_files_as_the_hubs_own_command_does(
    server: HubServer, pull: Pull
) -> None:
    chosen = pull(include=["*.json", "original/"], exclude=["*index*"])
    assert set(chosen.files) == {"config.json", "original/notes.txt"}
    with pytest.raises(
        DynoError, match=r"No file of acme/tiny matches\. Its files: config\.json, model-0"
    ):
        pull(include=["*.gguf"])


def test_many_files_with_the_same_bytes_are_fetched_at_the_same_time(
    server: HubServer, pull: Pull, tmp_path: Path
) -> None:
    names = [f"same/{i}.json" for i in range(40)]
    (tmp_path / "hub" / REPO / "same").mkdir()
    for name in names:
        (tmp_path / "hub" / REPO / name).write_bytes(b'{"same": true}')
    entry = pull(include=["same/*"])
    assert set(entry.files) == set(names)
    assert {(entry.folder / name).read_bytes() for name in names} == {b'{"same": true}'}
    assert not list(blobs(tmp_path).glob("*.incomplete"))


def test_pickled_weights_are_left_out_where_the_same_are_safetensors_unless_they_are_named(
    server: HubServer, pull: Pull, tmp_path: Path
) -> None:
    root = tmp_path / "hub" / REPO
    copies = ["pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json"]
    for name in copies:
        (root / name).write_bytes(b"{}")
    assert not set(copies) & set(pull().files)
    assert set(copies) <= set(pull(include=["*"]).files)
    for path in root.glob("*.safetensors*"):
        path.unlink()
    library.remove(pull().name)
    assert set(copies) <= set(pull().files), "there is nothing else to read"


@pytest.mark.hostile
def test_a_killed_pull_continues_and_no_byte_is_sent_twice(
    server: HubServer, pull: Pull, tmp_path: Path
) -> None:
    shard, data = "extra.bin", bytes(range(256)) * (1 << 14)
    (tmp_path / "hub" / REPO / shard).write_bytes(data)
    server.faults.slow.add(shard)
    part = blobs(tmp_path) / f"{hashlib.sha256(data).hexdigest()}.incomplete"
    size, half = len(data), len(data) // 2
    command = [sys.executable, "-m", "dyno", "models", "pull", REPO]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as dyno:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not (
            part.exists()
            and part.stat().st_size == half
            and sum(p.suffix != ".incomplete" for p in blobs(tmp_path).iterdir()) == 5
        ):
            time.sleep(0.02)
        dyno.send_signal(signal.SIGKILL)
    assert part.stat().st_size == half
    assert library.entries() == []
    server.faults.slow.clear()
    server.sent.clear()
    assert (
        sizes.ask([ModelRecipe(f"hub:{REPO}")], timeout_s=60)[0].left_bytes == size - half
    )
    assert pull().whole
    assert server.sent == {shard: size - half}


@pytest.mark.hostile
def test_a_connection_that_is_cut_is_resumed_where_it_was_cut(
    server: HubServer, pull: Pull, tmp_path: Path
) -> None:
    shard = "model-00002-of-00002.safetensors"
    server.faults.cut[shard] = [5000, 300]
    assert pull().whole
    size = (tmp_path / "hub" / REPO / shard).stat().st_size
    assert server.sent[shard] <= size + 5300  # a reset loses what was on the way
    assert sum("storage" in r and shard in r for r in server.requests) == 3


def test_the_hubs_own_client_begins_a_file_anew_after_a_kill(
    server: HubServer, tmp_path: Path
) -> None:
    """Why dyno fetches the bytes itself. Where this fails, huggingface_hub continues, and models/fetch.py may go."""
    shard, data = "extra.bin", bytes(range(256)) * (1 << 14)
    (tmp_path / "hub" / REPO / shard).write_bytes(data)
    server.faults.slow.add(shard)
    code = f"import huggingface_hub as h; h.hf_hub_download({REPO!r}, {shard!r})"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as client:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and server.sent[shard] < len(data) // 2:
            time.sleep(0.02)
        time.sleep(0.5)  # it has read them
        client.kill()
    server.faults.slow.clear()
    server.sent.clear()
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert server.sent[shard] == len(data)


@pytest.mark.hostile
def test_one_cut_too_many_is_an_error_and_the_same_command_continues(
    server: HubServer, pull: Pull
) -> None:
    server.faults.cut["config.json"] = [0] * 50
    said = pull.refused()
    assert said.startswith("The connection was cut while fetching config.json")
    assert said.endswith("The same command continues.")
    server.faults.cut.clear()
    assert pull().whole


@pytest.mark.hostile
def test_a_corrupted_shard_is_named_and_fetched_again_once(
    server: HubServer, pull: Pull, tmp_path: Path
) -> None:
    shard = "model-00001-of-00002.safetensors"
    server.faults.corrupt[shard] = 2
    assert pull.refused().startswith(f"{shard} of {REPO} is corrupted: twice")
    sha256 = hashlib.sha256((tmp_path / "hub" / REPO / shard).read_bytes()).hexdigest()
    assert not list(blobs(tmp_path).glob(f"{sha256}*"))
    server.faults.corrupt.update({shard: 1, "config.json": 1})
    assert pull().whole
    assert (
        f"{shard} is corrupted: its checksum differs from the Hub's. Fetching it again"
        in pull.lines
    )


@pytest.mark.hostile
def test_verify_finds_a_changed_file_and_the_next_pull_fetches_it_alone(
    server: HubServer, pull: Pull, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = pull()
    assert main(["models", "verify", REPO]) == 0
    shard = (entry.folder / "model-00001-of-00002.safetensors").resolve()
    shard.write_bytes(b"\1" + shard.read_bytes()[1:])
    assert main(["models", "verify", entry.name]) == 1
    assert "model-00001-of-00002.safetensors is corrupted" in capsys.readouterr().err
    server.sent.clear()
    assert pull() == library.find(entry.recipe)
    assert list(server.sent) == ["model-00001-of-00002.safetensors"]


def test_refusals_are_one_sentence_with_what_to_do(
    server: HubServer, pull: Pull, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pull.refused("hub:acme/none") == (
        f"There is no model acme/none at {server.url}. Check the name (with --dataset for a data set). If it is "
        "private, set HF_TOKEN."
    )
    assert (
        pull.refused(f"hub:{REPO}@v9") == "acme/tiny has no revision 'v9'. It has main, v1."
    )
    server.faults.gated = True
    page = f"{server.url}/{REPO}"
    assert pull.refused() == (
        f"acme/tiny is gated. Accept its terms at {page} and set HF_TOKEN to a token that may read it."
    )
    monkeypatch.setenv("HF_TOKEN", "hf_of_another")
    assert pull.refused() == (
        f"This token has no access to acme/tiny. Request access at {page} and wait until it is granted."
    )
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    assert (
        pull.refused()
        == f"{server.url} refuses the token (HTTP 401). Check HF_TOKEN, or make a new one."
    )
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert TOKEN not in json.dumps([pull.lines, pull().path])
    assert TOKEN in server.tokens
    assert not [
        p
        for p in library.models_folder().rglob("*")
        if p.is_file() and TOKEN in p.read_text()
    ]


def test_a_home_that_cannot_be_written_says_what_to_do(
    server: HubServer, pull: Pull, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DYNO_HOME", str(tmp_path / "file" / "home"))
    assert pull.refused() == (
        f"Models can't be stored under {tmp_path}/file/home/models: Not a directory. "
        "Set DYNO_HOME to a writable folder with enough space."
    )


@pytest.mark.hostile
def test_a_limited_server_is_asked_again_when_it_says(
    server: HubServer, pull: Pull
) -> None:
    server.faults.limited, server.faults.retry_after_s = 1, 1
    assert pull().whole
    assert "The Hub limits requests (HTTP 429). Waiting 1 s" in pull.lines


def test_a_model_that_does_not_fit_on_the_disk_is_not_begun(
    server: HubServer, pull: Pull
) -> None:
    server.faults.sizes["model-00001-of-00002.safetensors"] = 10**16
    said = pull.refused()
    assert said.startswith("acme/tiny needs 9,095 TiB more, but the disk of ")
    assert "set HF_HOME to a larger disk" in said
    assert not server.sent


@pytest.mark.hostile
def test_a_disk_that_fills_halfway_keeps_what_was_fetched(
    server: HubServer, pull: Pull, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = ["prlimit", "--fsize=20000", *hub._PROCESS]
    if shutil.which("prlimit") is None:
        pytest.skip("needs prlimit of util-linux")
    with monkeypatch.context() as patch:
        patch.setattr(hub, "_PROCESS", limited)
        # else Python leaves modules cut at the limit in __pycache__, for all who come after
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        said = pull.refused()
    assert said.startswith(f"The disk of {tmp_path / 'hf' / 'hub'} is full.")
    # which of the files that were fetched at once has met the limit first is chance
    assert max(p.stat().st_size for p in blobs(tmp_path).glob("*.incomplete")) == 20000
    (size,) = sizes.ask([ModelRecipe(f"hub:{REPO}")], timeout_s=60)
    assert size.left_bytes is not None and size.whole_bytes is not None
    assert size.left_bytes <= size.whole_bytes - 20000
    server.sent.clear()
    assert pull().whole
    assert sum(server.sent.values()) == size.left_bytes


@pytest.mark.parametrize("name", ["../../evil", "/etc/evil", "a/../b", "a\\b"])
def test_an_unsafe_name_is_one_that_leads_elsewhere(name: str) -> None:
    assert not is_safe(name)
    assert is_safe("Q4_K_M/model-00001-of-00002.gguf")


def test_a_server_that_lists_an_unsafe_name_writes_nothing(
    server: HubServer, pull: Pull, tmp_path: Path
) -> None:
    server.faults.extra_names = ["../../../evil"]
    assert (
        pull.refused()
        == "acme/tiny lists '../../../evil', an unsafe file name. Nothing was fetched."
    )
    assert not server.sent


def test_no_network_is_reported_at_once(
    server: HubServer, pull: Pull, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert (
        "http://127.0.0.1:9 can't be reached: Connection refused. Check the network"
        in pull.refused()
    )
    assert "can't be reached" in sizes.ask([ModelRecipe(f"hub:{REPO}")])[0].unknown
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE is set" in pull.refused()


def test_a_model_that_is_not_what_its_config_says_is_refused(
    server: HubServer, pull: Pull, tmp_path: Path
) -> None:
    model = tmp_path / "hub" / REPO
    config: dict[str, Any] = json.loads((model / "config.json").read_text())
    for change, said in (
        ({"num_hidden_layers": 3}, "its files have 2 layers, but config.json says 3."),
        (
            {"hidden_size": 64},
            "model.embed_tokens.weight has 32 columns, but config.json says 64.",
        ),
    ):
        (model / "config.json").write_text(json.dumps({**config, **change}))
        assert pull.refused(f"file:{model}") == f"{model} is not a whole model: {said}"
    (model / "config.json").write_text(json.dumps(config))
    (model / "model-00002-of-00002.safetensors").unlink()
    assert pull.refused() == (
        "acme/tiny is not a whole model: model.safetensors.index.json lists model-00002-of-00002.safetensors, which is "
        "not there (1 of 2 are missing)."
    )


def test_a_local_folder_is_recorded_and_a_change_is_noticed(
    server: HubServer, pull: Pull, tmp_path: Path
) -> None:
    model = tmp_path / "hub" / REPO
    entry = pull(f"file:{model}")
    assert (entry.path, entry.origin) == (str(model), f"file:{model}")
    assert pull(f"file:{model}").created == entry.created
    os.utime(model / "config.json", ns=(1, 1))
    assert not entry.whole
    assert pull(f"file:{model}").whole
    with pytest.raises(DynoError, match="There is no file or folder /none"):
        pull("file:/none")
    assert not server.requests


def test_list_info_and_remove(
    server: HubServer, pull: Pull, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = pull()
    other = tmp_path / "hf" / "hub" / "models--acme--other"
    (other / "blobs").mkdir(parents=True)
    (other / "blobs" / ("a" * 40)).write_text("{}")
    (other / "snapshots" / ("b" * 40)).mkdir(parents=True)
    (other / "snapshots" / ("b" * 40) / "config.json").symlink_to(f"../../blobs/{'a' * 40}")
    assert main(["models", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(r["name"], r["step"], r["whole"]) for r in rows] == [
        (entry.name, "pull", True),
        ("acme/other", "by another tool", True),
    ]
    assert main(["models", "list"]) == 0
    assert f"{entry.name}  pull" in capsys.readouterr().out
    assert main(["models", "info", REPO]) == 0
    text = capsys.readouterr().out
    assert "architecture    LlamaForCausalLM" in text
    assert f"parameters      {VOCAB * WIDTH + LAYERS * 5 * WIDTH * WIDTH:,}" in text
    assert "bytes by type   F16 " in text and "context         2,048" in text
    assert main(["models", "remove", "acme/other"]) == 2
    assert main(["models", "remove", entry.name]) == 0
    assert "KiB freed" in capsys.readouterr().out
    assert not (tmp_path / "hf" / "hub" / "models--acme--tiny").exists()
    assert main(["models", "remove", entry.name]) == 2


def test_remove_leaves_files_that_another_entry_uses(server: HubServer, pull: Pull) -> None:
    first, second = pull(), pull(f"hub:{REPO}@v1")
    assert (
        hub.remove(first)
        == f"{first.name}: removed. Its files stay: {second.name} uses them"
    )
    assert second.whole
    assert "freed" in hub.remove(second)


@pytest.mark.parametrize(
    ("names", "path"),
    [
        (["model-Q4_0.gguf", "README.md"], "model-Q4_0.gguf"),
        (
            ["Q8/m-00001-of-00002.gguf", "Q8/m-00002-of-00002.gguf", "mmproj-f16.gguf"],
            "Q8/m-00001-of-00002.gguf",
        ),
        (["a.gguf", "b.gguf"], "."),
        (["config.json", "a.gguf"], "."),
        (["config.json", "model.safetensors"], "."),
    ],
)
def test_an_engine_gets_the_gguf_file_where_there_is_one_model(
    names: list[str], path: str
) -> None:
    assert hub.engine_path(Path("/r"), names) == Path("/r") / path


def test_a_gguf_file_in_a_folder_is_pulled_with_what_is_beside_it(
    server: HubServer, pull: Pull, tmp_path: Path
) -> None:
    folder = tmp_path / "hub" / "acme" / "files"
    (folder / "Q8").mkdir(parents=True)
    (folder / "README.md").write_text("read me")
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 0)
    (folder / "Q8" / "m-00001-of-00002.gguf").write_bytes(head)
    assert pull.refused("hub:acme/files") == (
        "acme/files is not a whole model: m-00002-of-00002.gguf is not there (1 of 2 parts are missing)."
    )
    (folder / "Q8" / "m-00002-of-00002.gguf").write_bytes(head + b"2")
    entry = pull("hub:acme/files")
    assert entry.path.endswith("/Q8/m-00001-of-00002.gguf")
    assert set(hub.fetched(entry)) == {
        "README.md",
        "Q8/m-00001-of-00002.gguf",
        "Q8/m-00002-of-00002.gguf",
    }
    assert entry.whole


# ---- data sets ----

SHAREGPT = "ShareGPT_V3_unfiltered_cleaned_split.json"
TURNS = [
    [{"value": f"Say {i} and some more words"}, {"value": "one two three four"}]
    for i in range(20)
]


@pytest.fixture
def sharegpt(server: HubServer, tmp_path: Path) -> Path:
    folder = tmp_path / "hub" / "datasets" / "anon8231489123" / "ShareGPT_Vicuna_unfiltered"
    folder.mkdir(parents=True)
    (folder / SHAREGPT).write_text(
        json.dumps([{"conversations": turns} for turns in TURNS])
    )
    (folder / "other.json").write_text("[]")
    return folder


def test_sharegpt_is_pulled_once_and_recorded_in_the_run(
    server: HubServer,
    sharegpt: Path,
    tmp_path: Path,
    fake: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = [
        "bench",
        "serve",
        "--base-url",
        fake().base_url,
        "--dataset-name",
        "sharegpt",
        "--num-prompts",
        "4",
    ]
    command += ["--runs", str(tmp_path / "runs")]
    assert hub.dataset_file("sharegpt") is None
    assert main(command) == 0
    assert hub.dataset_file("sharegpt") is not None
    assert list(server.sent) == [SHAREGPT]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert (
        main(
            [
                *command,
                "--dataset-path",
                f"hub:anon8231489123/ShareGPT_Vicuna_unfiltered/{SHAREGPT}",
            ]
        )
        == 0
    )
    facts = [
        json.loads(p.read_text())["dataset"]
        for p in (tmp_path / "runs").glob("*/trial.json")
    ]
    sha256 = hashlib.sha256((sharegpt / SHAREGPT).read_bytes()).hexdigest()
    origin = f"hub:datasets/anon8231489123/ShareGPT_Vicuna_unfiltered@{commit_of(sharegpt)}"
    assert [(f["origin"], f["file"], f["sha256"]) for f in facts] == [
        (origin, SHAREGPT, sha256)
    ] * 2


def test_a_dataset_that_vllm_s_client_would_fetch_is_fetched(
    server: HubServer,
    tmp_path: Path,
    fake: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "hub" / "datasets" / "philschmid" / "mt-bench"
    folder.mkdir(parents=True)
    rows = [{"turns": [f"What is {i}?"]} for i in range(3)]
    (folder / "question.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (folder / "paper.pdf").write_bytes(b"not for us")
    words = f"bench serve --base-url {fake().base_url} --runs {tmp_path / 'runs'} --dataset-name hf"
    words += " --dataset-path philschmid/mt-bench --num-prompts -1 --max-concurrency 1 --hf-output-len 4"
    assert main(words.split()) == 0
    assert list(server.sent) == ["question.jsonl"]
    assert "Successful requests:                     3" in capsys.readouterr().out
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(words.split()) == 0, "it is here now"
    assert main(words.replace("mt-bench", "none").split()) == 2
    said = capsys.readouterr().err
    assert "The dataset philschmid/none isn't on this machine." in said
    assert "--dataset-path" in said


def test_a_dry_run_lists_a_dataset_that_is_to_be_fetched(
    server: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "hub" / "datasets" / "openai" / "gsm8k"
    folder.mkdir(parents=True)
    (folder / "test.jsonl").write_text('{"question": "Why?"}\n')
    study = tmp_path / "math.toml"
    study.write_text(
        '[engines.a]\nkind = "fake"\n[workloads.w]\ndataset = "hf"\npath = "openai/gsm8k"\n'
        "num_prompts = -1\n[loads.c]\nmax_concurrency = 1\n"
    )
    assert main(["run", str(study), "--dry-run", "--runs", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out
    assert "pull hub:datasets/openai/gsm8k" in said
    assert not server.sent


def test_an_absent_data_set_says_how_to_get_it(
    server: HubServer,
    sharegpt: Path,
    fake: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert (
        main(
            ["bench", "serve", "--base-url", fake().base_url, "--dataset-name", "sharegpt"]
        )
        == 2
    )
    said = capsys.readouterr().err
    assert f"The dataset sharegpt needs {SHAREGPT}, which isn't on this machine." in said
    assert "`dyno models export`" in said and "--dataset-path" in said
