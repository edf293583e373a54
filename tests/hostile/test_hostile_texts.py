"""Texts that mean harm, or that something has eaten: always a document, soon, and nothing outside is touched."""

import os
import random
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dyno.audit.document import read, read_text
from dyno.cli.main import main
from dyno.errors import ImportFailed, NotFound
from dyno.facts.imported import Document, Figure, Row
from dyno.store.imports import load, store

HERE = Path(__file__).parent.parent
FUZZ = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
NAMES = ("a.md", "a.log")
BLOCK = (HERE / "fixtures" / "imports" / "vllm-0.24-serve-c64.txt").read_bytes()
REAL = [BLOCK, (HERE / "captures" / "llama-bench-11434.md").read_bytes()]
LONG = 32_000

WORDS = (
    "============ Serving Benchmark Result ============", "=" * 50, "Successful requests: 5", "Mean TTFT (ms): 4.5",
    "Throughput: 1.5 requests/s, 2 total tokens/s", "Avg latency: 1 seconds", "Namespace(model='m', seed=1)",
    "vllm serve m --api-key x \\", "vllm bench serve --model $M '{", "M=1", "```", "~~~", "# a", "## b", "**c**",
    "| model | t/s |", "|---|---|", "| a | 1 |", "a | b", "--- | ---", "---", "===", "<table>", "<tr><td>1</td></tr>",
    "</table>", "<tr rowspan=9>", "<td colspan=50 rowspan=50>", "GPU 0: NVIDIA H100", "PyTorch version: 1",
    "build: abcdef (1)", "hf (pretrained=m), num_fewshot: 1", "5/7 [00", "> ", "- item", "", "\r",
    "\x1b[0m", "\x00", "Â±",
    "token=", "Bearer x", "http://u:p@h", "$'{", "'", '"', "\\",
)  # fmt: skip


def within(seconds: float, name: str, data: bytes) -> Document:
    start = time.process_time()  # other processes' time doesn't count
    found = read_text(name, data)
    assert time.process_time() - start < seconds
    msgspec.json.encode(found)
    return found


# Anything at all


@FUZZ
@given(st.binary(max_size=2000), st.sampled_from(NAMES))
def test_random_bytes_are_a_document(data: bytes, name: str) -> None:
    within(2, name, data)


@FUZZ
@given(
    st.lists(st.lists(st.sampled_from(WORDS), max_size=3).map(" ".join), max_size=60),
    st.sampled_from(NAMES),
)
def test_lines_of_the_readers_own_words_are_a_document(lines: list[str], name: str) -> None:
    found = within(2, name, "\n".join(lines).encode())
    for row in found.rows:
        assert 1 <= row.line <= row.end <= len(lines) + 1
        assert all(1 <= f.line <= len(lines) for f in row.figures.values())


@FUZZ
@given(st.sampled_from(REAL), st.randoms(use_true_random=False), st.sampled_from(NAMES))
def test_real_files_with_bytes_changed_lines_moved_or_cut_are_a_document(
    data: bytes, chance: random.Random, name: str
) -> None:
    for _ in range(chance.randrange(4)):
        at = chance.randrange(len(data))
        match chance.randrange(5):
            case 0:
                data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
            case 1:
                data = data[:at] + b"\0\xc3" + data[at:]
            case 2:
                lines = data.split(b"\n")
                chance.shuffle(lines)
                data = b"\n".join(lines)
            case 3:
                data = (data[:at] + data) or b"x"
            case _:
                data = data[: at + 1]
    within(2, name, data)


@FUZZ
@given(st.binary(min_size=1, max_size=300))
def test_a_file_of_any_bytes_is_a_document(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    assert read(path).file == "x"


# Much of the same

BOMBS = {
    "bars": b"|" * 100_000, "quotes": b">" * 100_000 + b" x", "quoted lines": (b"> " * 500 + b"x\n") * 300,
    "headings": b"# a\n" * 50_000, "underlined": b"a\n---\n" * 8_000, "one line": b"x" * (10 << 20),
    "ends": b"\n" * (4 << 20), "returns": b"\r" * (1 << 20), "painted": b"a\r" * 500_000, "zeros": b"\0" * (1 << 20),
    "bold": b"**a " * 50_000, "bold lines": b"**a\n" * 20_000, "links": b"[a](" * 50_000, "images": b"![" * 100_000,
    "tags": b"<a " * 100_000, "tables of a page": b"<table><tr><td colspan=50 rowspan=50>\n" * 600,
    "tables": b"|a|\n|-|\n|1|\n\n" * 6_000, "rows": b"|a|b|\n|-|-|\n" + b"|1|2|\n" * 25_000,
    "columns": b"|a" * 2000 + b"|\n" + b"|-" * 2000 + b"|\n" + (b"|1" * 2000 + b"|\n") * 50,
    "commands": b"vllm serve a --b c\n" * 5_000, "a command": b"vllm serve " + b"--a b \\\n" * 20_000,
    "flags": b"vllm bench serve " + b"--a" * 5000 + b" --c 'x" * 2000 + b"\n" + BLOCK * 20,
    "open quotes": b"vllm serve m --c '{\n" * 5_000, "results": BLOCK * 500,
    "figures": b"Throughput: 1 requests/s\n" * 30_000,
    "heads of blocks": b"=== Serving Benchmark Result ===\n" * 20_000, "equals": b"=" * LONG + b"\n" +
    b"=" * LONG + b"x",
    "dashes": b"-" * LONG + b"x\n" + (b"-" * 600 + b"x\n") * 500, "dumps": b"PyTorch version: 1\n" * 20_000,
    "arguments": b"Namespace(" + b"pretrained=" * 3000 + b")\n", "stray": b"\xe9\n" * 30_000,
    "mangled": "Â".encode() * 500_000,
}  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS)
def test_much_of_the_same_takes_no_long(bomb: str) -> None:
    found = within(2, NAMES[len(bomb) % 2], BOMBS[bomb])
    assert len(found.rows) <= 10_000
    assert len(found.headings) <= 20_000
    assert len(found.unread) <= 1_002


PARTS = (
    " ", "a", "A ", "1", "-", "=", "|", "# ", "*", "_", "a=", "a=1,", "--a ", "<h1>", "![a](", "[", "$ ",
    "\x1b[", "\x1b]0;",
    "Mean TTFT (ms): ", "Successful requests", "GPU 0: ", "A=1 ", "pretrained=", "hf (pretrained=", "c=", "tp=", "qps ",
    "vllm serve ", "11/11 ", "Throughput: ", "token=", "token ", "Bearer ", "eyJaaaaaaaa-", "://a",
    "a-1b", "'{", '"', "\\",
)  # fmt: skip


@pytest.mark.parametrize(
    "before",
    [
        "",
        "```\n",
        "Successful requests: 5\n",
        "vllm serve ",
        "Namespace(",
        "# ",
        "the token @ ",
    ],
)
def test_no_line_takes_long_however_it_continues(before: str) -> None:
    for i, part in enumerate(PARTS):
        line = (part * LONG)[:LONG]
        within(1, NAMES[i % 2], f"{before}{line}\x01!\n".encode())


def test_a_row_is_no_heavier_for_the_flags_of_a_command() -> None:
    flags = " ".join(f"--f{i} {i}" for i in range(1500))
    found = within(2, "a.log", f"vllm bench serve {flags}\n".encode() + BLOCK * 50)
    assert all(len(row.settings) < 220 for row in found.rows)


# Files and names

ROW = Row("serve", "vllm", "block", "f", 1, 1, {"completed": Figure(1, 1)})


@pytest.mark.parametrize(
    "name",
    [
        "../../x",
        "/etc/x",
        "a/b",
        "..",
        ".",
        "",
        "x" * 300,
        "a\nb",
        "a\0b",
        "-o",
        "é" * 100,
        "..\\..\\x",
        "~/x",
    ],
)
def test_a_name_is_not_a_path(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "runs" / "imports"
    path = store(Document(name, "text", rows=[ROW]), folder)
    assert path.parent == folder
    assert [p.name for p in folder.iterdir()] == [path.name]
    assert load(path).file == name
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]


def test_import_writes_only_under_its_folder_and_over_no_other_file_s(
    tmp_path: Path,
) -> None:
    runs = tmp_path / "runs"
    for folder, completed in (("a", b"640"), ("b", b"641")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "bench.log").write_bytes(BLOCK.replace(b"640", completed))
    (tmp_path / "link.log").symlink_to(tmp_path / "a" / "bench.log")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*.log")}
    words = [
        str(tmp_path / "a" / "bench.log"),
        str(tmp_path / "b" / "bench.log"),
        str(tmp_path / "link.log"),
    ]
    for _ in range(2):  # the same again takes its own place
        assert main(["import", *words, "--runs", str(runs)]) == 0
    made = sorted(p for p in runs.rglob("*") if p.is_file())
    assert len(made) == 3
    assert {p.parent for p in made} == {runs / "imports"}
    assert sorted(load(p).rows[0].get("completed") or 0 for p in made) == [640, 640, 641]
    assert {p: p.read_bytes() for p in tmp_path.rglob("*.log")} == before


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "gone.log").symlink_to(tmp_path / "nowhere")
    # nobody writes into it, and nobody is waited for
    assert read(tmp_path / "pipe").format == "empty"
    for path in (tmp_path, tmp_path / "gone.log", tmp_path / "missing", Path("/dev/null")):
        with pytest.raises((ImportFailed, NotFound)):
            read(path)


def test_commands_in_a_text_are_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    data = (
        f"```\nvllm serve $(touch {mark}) --model `touch {mark}`; touch "
        f"{mark}\nNamespace(x=open('{mark}','w'))\n```\n"
    )
    within(2, "a.md", data.encode())
    assert not mark.exists()


def test_a_large_file_is_read_around_its_results_with_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    filler = b"INFO engine: nothing to speak of here, and so on and on\n" * 5_000
    with path.open("wb") as file:
        for _ in range(70):
            file.write(filler)
        file.write(BLOCK)
        file.write(b"x" * (5 << 20) + b"\n" + filler + BLOCK)
    start = time.process_time()
    found = read(path)
    assert time.process_time() - start < 5
    assert [r.line for r in found.rows] == [350_001, 350_001 + 41 + 1 + 5_000]
    assert [r.get("mean_ttft_ms") for r in found.rows] == [506.70, 506.70]
