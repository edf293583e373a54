"""`dyno tune` under attack: servers that lie in some settings, damaged journals, kills, Ctrl-C, a full disk."""

import json
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dyno.errors import StoreError
from dyno.facts.tune import TuneAxis
from dyno.search.proposer import Proposer
from rigs_over_ssh import DynoProcess
from test_hostile_disk import full
from test_hostile_kills import Place
from test_hostile_processes import living_in, script, wait_for
from test_hostile_terminal import steering

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="processes are looked at in /proc"
)

HERE = Path(__file__).parent

# A server with the answers of a real one until its 12th request, and those of a trick from then on.
ENGINE = """
import os, random, re, signal, socket, sys, threading, time
if "--version" in sys.argv:
    os._exit(1)
sys.path[:0] = [HERE]
trick = sys.argv[sys.argv.index("--trick") + 1] if "--trick" in sys.argv else ""
EVENT = b'data: {"choices":[{"text":" %s","finish_reason":%s}]}\\n\\n'
CLAIM = b'data: {"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":%d}}\\n\\ndata: [DONE]\\n\\n'
requests = 0

def plain(body, status=b"200 OK", kind=b"application/json"):
    return b"HTTP/1.1 %s\\r\\ncontent-type: %s\\r\\ncontent-length: %d\\r\\n\\r\\n%s" % (status, kind, len(body), body)

def words(claimed=8):
    trees = random.choices((b"oak", b"elm", b"fir", b"ash", b"yew"), k=8)
    ends = [b"null"] * 7 + [b'"length"']
    return b"".join(EVENT % (tree, end) for tree, end in zip(trees, ends)) + CLAIM % claimed

def hostile(sock):
    if trick == "mutants":
        from mutants import mutant
        return mutant(random.Random(requests))
    if trick == "endless":
        sock.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-type: text/event-stream\\r\\n\\r\\n")
        while True:
            sock.sendall(EVENT % (b"oak", b"null") * 1000)
    if trick == "errors":
        text = b'{"error":{"message":"\\x1b[31mdyno: all is well\\\\n\\\\u001b[2JBest setting"}}'
        return plain(text, b"500 \\x1b[2J")
    if trick == "silent":
        time.sleep(1000)
    if trick == "empty":
        return plain(b"data: [DONE]\\n\\n", kind=b"text/event-stream")
    if trick == "dies":
        os.kill(os.getpid(), signal.SIGSEGV)
    if trick == "logs":
        os.write(2, b"\\x1b[2Jx" * 20_000)
    return None

def answer(path, sock):
    global requests
    if path == b"/v1/models":
        name = {"names": b"m\\\\u001b[2Jx\\\\nBest setting", "long names": b"m" * 200_000}.get(trick, b"m")
        length = {"lengths": b"-5"}.get(trick, b"4096")
        return plain(b'{"data":[{"id":"%s","max_model_len":%s}]}' % (name, length))
    if path == b"/metrics":
        lies = b"\\x1b[2J" * 1000 + b"vllm:num_requests_running{} 1e999\\n" * 1000
        return plain(lies if trick == "metrics" else b"", kind=b"text/plain")
    if not path.startswith(b"/v1/"):
        return plain(b"{}") if path == b"/health" else plain(b"{}", b"404 Not Found")
    requests += 1
    if requests > 12 and (sent := hostile(sock)) is not None:
        return sent
    time.sleep(0.02)
    return plain(words(10**18 if trick == "claims" else 8), kind=b"text/event-stream")

def talk(sock):
    buffer = b""
    while True:
        while b"\\r\\n\\r\\n" not in buffer:
            buffer += (data := sock.recv(65536))
            if not data:
                return
        head, _, buffer = buffer.partition(b"\\r\\n\\r\\n")
        length = re.search(rb"(?i)content-length: *(\\d+)", head)
        while len(buffer) < (size := int(length[1]) if length else 0):
            buffer += (data := sock.recv(65536))
            if not data:
                return
        buffer = buffer[size:]
        sock.sendall(answer(head.split()[1], sock))

def serve(sock):
    try:
        with sock:
            talk(sock)
    except OSError:
        pass

listener = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), backlog=512)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
STUDY = """
[engines.e]
kind = "vllm"
binary = {binary}
model = "m"
max_num_seqs = 4
[workloads.short]
input_len = 8
output_len = 8
num_prompts = 50
[loads.four]
max_concurrency = 4
request_timeout_s = 3
[tune]
seconds = 0.4
trials = {trials}
confirm_repeats = 0
settings."--trick" = {tricks}
"""
FAKE = """
[engines.fake]
kind = "fake"
args = ["first_ms=2", "gap_ms=1"]
[workloads.short]
input_len = 8
output_len = 4
num_prompts = 20
[loads.two]
max_concurrency = 2
[tune]
seconds = 0.2
trials = 2
confirm_repeats = 0
settings."gap_ms=" = [1, 2]
"""
TUNE = ["tune", "study.toml", "--plain", "--runs", "runs"]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def tune(place: Place) -> DynoProcess:
    return DynoProcess([sys.executable, "-m", "dyno", *TUNE], place.folder, place.env)


# ---- servers ----

REFUSED = {"errors": "http_500", "dies": "died with code -11", "silent": "timeout", "empty": "empty",
           "endless": "too_large", "mutants": "failed", "names": "is not what was asked for",
           "long names": "is not what was asked for"}  # fmt: skip
# in their answers, of which dyno counts the tokens itself
BELIEVED = ["claims", "metrics", "lengths", "logs"]


@pytest.mark.parametrize(
    "tricks",
    [
        ["mutants", "errors", "claims"],
        pytest.param([*REFUSED, *BELIEVED], marks=pytest.mark.nightly),
    ],
    ids=["some", "all"],
)
def test_a_server_that_lies_in_some_settings_is_refused_in_those_and_ends_no_search(
    place: Place, tricks: list[str]
) -> None:
    binary = script(place.folder / "vllm", ENGINE.replace("HERE", repr(str(HERE))))
    text = STUDY.format(
        binary=json.dumps(binary), tricks=json.dumps(tricks), trials=len(tricks)
    )
    (place.folder / "study.toml").write_text(text)
    with tune(place) as dyno:
        text = dyno.expect(0)
    assert "Traceback" not in text and "This is a bug" not in text
    assert steering(text) == []
    answer = json.loads((place.folder / "runs" / "study-tune" / "tune.json").read_text())
    trials = {trial["setting"]["--trick"]: trial for trial in answer["trials"]}
    assert trials.keys() == set(tricks)
    for trick in tricks:
        said = trials[trick].get("objection") or trials[trick].get("why") or ""
        assert REFUSED.get(trick, "") in said, trick
        assert bool(said) == (trick in REFUSED), (trick, said)
    if "claims" in tricks:  # 10¹⁸ tokens a request
        assert trials["claims"]["throughput"] < 100_000
    assert answer["best"]["setting"].get("--trick") not in REFUSED
    wait_for(lambda: not living_in(place.folder), 12)


# ---- kills ----


def finished(place: Place) -> dict[str, int]:
    return {
        p.parent.name: p.stat().st_mtime_ns
        for p in place.folder.glob("runs/*/trials/*/summary.json")
    }


KILLS = [(signal.SIGKILL, ms) for ms in (0, 300, 900, 1500, 2500, 4000)]
OTHERS = [
    (signal.SIGINT, 600),
    (signal.SIGINT, 3000),
    (signal.SIGTERM, 1200),
    (signal.SIGHUP, 2000),
]


@pytest.mark.parametrize(
    ("how", "moment_ms"),
    [
        (signal.SIGKILL, 450),
        *(pytest.param(*each, marks=pytest.mark.nightly) for each in (*KILLS, *OTHERS)),
    ],
)
def test_a_search_that_is_ended_leaves_no_process_and_no_answer_and_resumes(
    place: Place, moment_ms: int, how: signal.Signals
) -> None:
    (place.folder / "study.toml").write_text(FAKE)
    answer = place.folder / "runs" / "study-tune" / "tune.json"
    with tune(place) as dyno:
        dyno.until("Starting")
        time.sleep(moment_ms / 1000)
        early = dyno.process.poll() is None and not answer.exists()
        dyno.signal(how)
        dyno.process.wait(60)
        assert "Traceback" not in dyno.text() and "This is a bug" not in dyno.text()
    wait_for(lambda: not living_in(place.folder), 12)
    if early and answer.exists():  # it ended in the moment of the signal
        json.loads(answer.read_text())
    before = finished(place)
    with tune(place) as again:
        again.expect(0)
    assert before.items() <= finished(place).items(), (
        "a finished trial was lost or run again"
    )
    assert len(json.loads(answer.read_text())["trials"]) == 2
    assert not place.leftovers()


# ---- a full disk, and what it leaves ----


@pytest.mark.parametrize(
    "most",
    [200, *(pytest.param(n, marks=pytest.mark.nightly) for n in (0, 1, 3000, 20_000))],
)
@pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs prlimit of util-linux")
def test_a_search_for_settings_on_a_full_disk_resumes(place: Place, most: int) -> None:
    (place.folder / "study.toml").write_text(FAKE)
    full(place, most, *TUNE)
    assert not (place.folder / "runs" / "study-tune" / "tune.json").exists()
    with tune(place) as again:
        again.expect(0)


AXES = {"a": TuneAxis(least=0, most=100, whole=True)}


def proposer(path: Path) -> Proposer:
    return Proposer(path, AXES, lower=False, seed=1, trials=12)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("journal") / "optuna.log"
    first = proposer(path)
    for value in range(14):
        setting = first.propose()
        assert setting
        first.tell(setting, float(value))
    return path.read_bytes()


@pytest.mark.parametrize("cut", [1, 2, 30, 150, 400])
def test_a_journal_that_a_full_disk_has_cut_is_continued(
    journal: bytes, cut: int, tmp_path: Path
) -> None:
    """Optuna refuses a journal whose last line is cut, so the search could never be resumed."""
    path = tmp_path / "optuna.log"
    path.write_bytes(journal[:-cut])
    again = proposer(path)
    assert 12 <= len(again.earlier) <= 14
    assert again.propose() not in again.earlier


def test_the_lock_of_a_killed_dyno_is_not_waited_for(
    journal: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "optuna.log"
    path.write_bytes(journal)
    path.with_name("optuna.log.lock").symlink_to(path)
    began = time.monotonic()
    assert proposer(path).propose()
    assert time.monotonic() - began < 15  # Optuna waits for 30 s


JOURNALS: dict[str, Any] = {
    "no UTF-8": lambda j: b"\xff\xfe\x00\n" * 3,
    "a line of words": lambda j: j.replace(b"\n", b"\nhello\n", 1),
    "a list": lambda j: b"[]\n",
    "null": lambda j: b"null\n",
    "deep": lambda j: b"[" * 100_000 + b"\n",
    "a value of words": lambda j: j.replace(
        b'"param_value_internal":', b'"param_value_internal":"../x","y":', 1
    ),
    "an operation that is none": lambda j: j.replace(b'"op_code":6', b'"op_code":60', 1),
    "a distribution that is none": lambda j: j.replace(b"IntDistribution", b"os.system", 1),
    "without its trials": lambda j: j.replace(b'"trial_id"', b'"x"'),
}


@pytest.mark.parametrize("change", JOURNALS.values(), ids=JOURNALS.keys())
def test_a_journal_that_optuna_did_not_write_is_refused_in_a_sentence(
    journal: bytes, change: Any, tmp_path: Path
) -> None:
    path = tmp_path / "optuna.log"
    path.write_bytes(change(journal))
    with pytest.raises(
        StoreError,
        match=r"optuna\.log can't be read \(\w+\)\. Remove it, and repeat the command",
    ):
        proposer(path)


ODD_RESULTS = [
    b"NaN",
    b"Infinity",
    b'"x"',
    b"1,2",
    b"[]",
    b"{}",
    b"null",
    b"1e400",
    b"true",
]


@pytest.mark.parametrize("value", ODD_RESULTS)
def test_a_journal_with_odd_results_proposes_settings_or_is_refused(
    journal: bytes, value: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "optuna.log"
    path.write_bytes(journal.replace(b'"values":[0.0]', b'"values":[%s]' % value))
    assert path.read_bytes() != journal
    try:
        assert proposer(path).propose()
    except StoreError as e:
        assert "can't be read" in str(e)
