"""A Hub that means harm: its names, its lists and its files. Nothing leaves the cache, nothing runs without end."""

import functools
import gzip
import hashlib
import json
import os
import resource
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dyno.cli.main import main
from dyno.errors import ModelError, WorkloadError
from dyno.models import fetch
from dyno.models.messages import Event, Go, Job, Listing
from dyno.workload import tokenizer
from hub_server import git_sha1

REPO, COMMIT = "acme/tiny", "c" * 40
BODY = b'{"architectures": ["Tiny"]}' + b" " * 165  # 192 bytes
Answer = Callable[["_Handler"], None]


class LyingHub(ThreadingHTTPServer):
    """Answers each request by `api` or `file`, whichever the path is for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.api: Answer = json_answer({})
        self.file: Answer = body_answer(BODY)
        self.over = threading.Event()
        self.requests = 0
        self.tokens: set[str | None] = set()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what these tests want."""


class _Handler(BaseHTTPRequestHandler):
    server: LyingHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.server.requests += 1
        self.server.tokens.add(self.headers.get("authorization"))
        answer = self.server.api if self.path.startswith("/api/") else self.server.file
        answer(self)

    do_HEAD = do_GET

    def send(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def endless(self, part: bytes, wait_s: float = 0.0, **headers: str) -> None:
        self.send_response(200)
        for name, value in {"Transfer_Encoding": "chunked", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        while not self.server.over.wait(wait_s):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))


def json_answer(value: Any) -> Answer:
    return body_answer(json.dumps(value).encode())


def body_answer(body: bytes, status: int = 200, **headers: str) -> Answer:
    return lambda handler: handler.send(status, body, **headers)


def sibling(
    name: object = "config.json", body: bytes = BODY, **other: Any
) -> dict[str, Any]:
    return {"rfilename": name, "size": len(body), "blobId": git_sha1(body), **other}


def listing(*siblings: Any, **other: Any) -> dict[str, Any]:
    return {"id": REPO, "sha": COMMIT, "siblings": list(siblings), "tags": [], **other}


def everything(folder: Path) -> dict[str, bytes | str]:
    """All files below a folder but those of the cache, with their contents; of a link, where it leads."""
    return {
        str(p.relative_to(folder)): str(p.readlink()) if p.is_symlink() else p.read_bytes()
        for p in folder.rglob("*")
        if (p.is_symlink() or p.is_file()) and p.relative_to(folder).parts[0] != "hf"
    }


class Victim:
    """A home with files that must stay, and a cache beside them. `pull` fetches in this process."""

    def __init__(self, folder: Path, hub: LyingHub) -> None:
        self.folder, self.hub, self.notes = folder, hub, list[Event]()
        (folder / ".bashrc").write_text("echo mine\n")
        (folder / "models--acme--tiny").write_text("mine, too\n")
        (folder / "hf" / "hub").mkdir(parents=True)
        self.before = everything(folder)

    def pull(self, revision: str = "main") -> Listing | str:
        """Return what was fetched, or the message of the refusal."""
        try:
            fetching = fetch.Fetch(Job(REPO, "model", revision))
            fetching.run(Go({}))
        except ModelError as e:
            assert len(str(e)) < 2000
            return str(e)
        return fetching.listing

    def check(self) -> None:
        """Nothing outside the cache has changed, and no link in the cache leads out of it."""
        assert everything(self.folder) == self.before
        cache = (self.folder / "hf").resolve()
        for path in cache.rglob("*"):
            assert path.resolve().is_relative_to(cache)

    def stored(self) -> int:
        return sum(
            p.stat().st_size
            for p in (self.folder / "hf").rglob("*")
            if p.is_file() and not p.is_symlink()
        )


@pytest.fixture
def victim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Victim]:
    hub = LyingHub()
    threading.Thread(target=hub.serve_forever, args=(0.02,), daemon=True).start()
    for name in ("HF_HUB_CACHE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("DYNO_HOME", str(tmp_path / "dyno"))
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.removeprefix(constants.ENDPOINT)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + template)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(fetch, "_write", lambda message: None)
    monkeypatch.setattr(fetch, "_LIST_S", 1.0)
    monkeypatch.setattr(fetch, "_SLOWEST_S", 0.5)
    monkeypatch.setattr(fetch, "_LONGEST_WAIT_S", 0)
    monkeypatch.setattr(fetch.time, "sleep", lambda s: None)
    victim = Victim(tmp_path, hub)
    try:
        yield victim
    finally:
        hub.over.set()
        hub.shutdown()
        hub.server_close()
        victim.check()


# ---- names ----

UP = "../" * 6
NAMES = [
    f"{UP}.bashrc", "../../../../.bashrc", "..", ".", "/", "/etc/x", "//etc/x", "a/../../../../../.bashrc", "./x",
    "x/.", "x/..", "x//y", "x/", "\\..\\x", "x\\y", "x\0y", "x\ny", "x\x1b[2Jy", "x\u202ey", "x" * 300, "x/" * 20 + "y",
    "x\x7f", "../blobs/x", "../../refs/main", "..\u2028", "~/.bashrc\r", "\u200bconfig.json\x00", "C:\\x",
    "x\x85y", "ä" * 200,
]  # fmt: skip


@pytest.mark.parametrize(
    "first", [[], [""], ["."], ["config.json"]], ids=["alone", "empty", "dot", "good"]
)
@pytest.mark.parametrize("name", NAMES, ids=lambda n: repr(n)[:20])
def test_a_name_that_leads_elsewhere_is_refused_whatever_is_listed_before_it(
    name: str, first: list[str], victim: Victim
) -> None:
    victim.hub.api = json_answer(
        listing(*map(sibling, first), sibling(name), sibling("config.json"))
    )
    said = victim.pull()
    assert isinstance(said, str)
    assert "unsafe file name. Nothing was fetched." in said
    assert victim.stored() == 0


def test_an_empty_name_does_not_switch_the_check_off(
    victim: Victim, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the real command, as it was found: '' is falsy, and ~/.bashrc became a link to the Hub's bytes."""
    os.environ["HF_ENDPOINT"], os.environ["HF_HUB_OFFLINE"] = victim.hub.url, "0"
    evil = "../../../../../.bashrc"
    victim.hub.api = json_answer(
        listing(sibling(""), sibling(evil), sibling("config.json"))
    )
    try:
        assert main(["models", "pull", REPO]) == 1
    finally:
        del os.environ["HF_ENDPOINT"]
        os.environ["HF_HUB_OFFLINE"] = "1"
    assert "an unsafe file name" in capsys.readouterr().err
    assert (victim.folder / ".bashrc").read_text() == "echo mine\n"
    victim.before = everything(victim.folder)  # dyno's own folder of models is there now


def test_a_folder_of_the_cache_that_is_a_link_is_not_written_through(
    victim: Victim,
) -> None:
    root = victim.folder / "hf/hub/models--acme--tiny/snapshots" / COMMIT
    root.mkdir(parents=True)
    (victim.folder / "other").mkdir()
    (root / "sub").symlink_to(victim.folder / "other")
    victim.hub.api = json_answer(listing(sibling("sub/config.json")))
    said = victim.pull()
    assert isinstance(said, str)
    assert "would lead out of the Hub's cache" in said
    (root / "sub").unlink()


def test_a_link_that_is_not_the_caches_own_is_left_alone(victim: Victim) -> None:
    link = victim.folder / "hf/hub/models--acme--tiny/snapshots" / COMMIT / "config.json"
    link.parent.mkdir(parents=True)
    link.symlink_to(victim.folder / "hf" / "elsewhere")
    victim.hub.api = json_answer(listing(sibling()))
    assert "would lead out" in str(victim.pull())
    assert link.is_symlink()


# ---- lists ----

DEEP = "[" * 100_000
LISTS: dict[str, bytes] = {
    "nothing": b"",
    "a number": b"1",
    "a text": b'"x"',
    "null": b"null",
    "an array": b"[]",
    "a page": b"<!doctype html><title>It works!</title>",
    "not UTF-8": b'{"sha": "\xff\xfe"}',
    "cut": json.dumps(listing(sibling())).encode()[:-9],
    "deep": DEEP.encode(),
    "deep objects": ('{"a":' * 100_000).encode(),
    "no commit": json.dumps({"siblings": [sibling()]}).encode(),
    "half a surrogate": b'{"sha": "\\ud800", "siblings": []}',
    "twice the same key": b'{"sha": "a", "sha": "b", "siblings": []}',
    "not a number": b'{"sha": NaN}',
    **{
        f"commit {value!r:.30}": json.dumps(listing(sibling(), sha=value)).encode()
        for value in (
            None,
            1,
            "",
            "main",
            "../../x",
            "C" * 40,
            "c" * 41,
            "/" + "c" * 39,
            ["c" * 40],
            "c" * 39 + "\n",
        )
    },
    **{
        f"siblings {value!r:.30}": json.dumps(listing(siblings=value)).encode()
        for value in (
            None,
            1,
            "x",
            {},
            [1],
            [[]],
            ["config.json"],
            [None],
            [{}],
            [{"rfilename": None}],
            [{"size": 1}],
        )
    },
    **{
        f"size {value!r:.30}": json.dumps(listing(sibling(size=value))).encode()
        for value in (-1, -(2**63), 2**70, 10**400, 1.5, "192", [], True, 2**61)
    },
    **{
        f"blob {value!r:.30}": json.dumps(listing(sibling(blobId=value))).encode()
        for value in (
            1,
            "",
            "../../../../.bashrc",
            "a" * 39,
            "A" * 40,
            "x" * 40,
            [],
            f"{'a' * 40}/../x",
            "a" * 63,
        )
    },
    **{
        f"lfs {value!r:.30}": json.dumps(listing(sibling(lfs=value))).encode()
        for value in (
            1,
            "x",
            [],
            {},
            {"sha256": "../x", "size": 1},
            {"sha256": "a" * 64, "size": -5},
            {"size": 3},
        )
    },
}


@pytest.mark.parametrize("body", LISTS.values(), ids=LISTS.keys())
def test_a_list_that_is_none_is_refused_in_one_sentence(
    body: bytes, victim: Victim
) -> None:
    victim.hub.api = body_answer(body)
    said = victim.pull()
    assert isinstance(said, str)
    assert victim.stored() == 0


def head_answer(**headers: str) -> Answer:
    return lambda handler: handler.send(200, BODY, **headers)


@pytest.mark.parametrize(
    "etag", ['"../../../../.bashrc"', '""', "W/", "x" * 5000, '"../x"', "a" * 39]
)
def test_a_mirrors_header_is_believed_no_more_than_its_list(
    etag: str, victim: Victim
) -> None:
    victim.hub.api = json_answer(listing({"rfilename": "config.json"}))
    victim.hub.file = head_answer(ETag=etag, X_Repo_Commit="../../x")
    assert isinstance(victim.pull(), str)
    assert victim.stored() == 0


def memory_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@functools.cache
def bomb(form: int) -> bytes:
    """300 MB of spaces. `form`: zlib's wbits, 31 for gzip and 15 for deflate."""
    packer, part = zlib.compressobj(6, wbits=form), b" " * (10 << 20)
    return b"".join([*(packer.compress(part) for _ in range(30)), packer.flush()])


ENDLESS: dict[str, Answer] = {
    "endless": lambda h: h.endless(b" " * (1 << 20)),
    "drip": lambda h: h.endless(b" ", wait_s=0.05),
    "endless names": lambda h: h.endless(b'{"rfilename": "a"},' * 50_000),
    "gzip bomb": lambda h: h.send(200, bomb(31), Content_Encoding="gzip"),
    "deflate bomb": lambda h: h.send(200, bomb(15), Content_Encoding="deflate"),
    "bomb of bombs": lambda h: h.send(
        200, gzip.compress(bomb(31)), Content_Encoding="gzip, gzip"
    ),
}


@pytest.mark.parametrize("answer", ENDLESS.values(), ids=ENDLESS.keys())
def test_a_list_without_end_takes_neither_memory_nor_time(
    answer: Answer, victim: Victim
) -> None:
    victim.hub.api = answer
    before, began = memory_bytes(), time.monotonic()
    said = str(victim.pull())
    assert "answers wrongly for acme/tiny: its list" in said
    assert time.monotonic() - began < 20
    assert memory_bytes() - before < 400 << 20


def test_a_list_of_too_many_files_is_refused(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_LIST_FILES", 1000)
    victim.hub.api = json_answer(listing(*(sibling(f"f{i}") for i in range(1001))))
    assert "lists 1,001 files, more than dyno takes" in str(victim.pull())


REFUSALS: dict[str, Answer] = {
    **{
        f"status {s}": body_answer(b"{}", s)
        for s in (201, 204, 300, 400, 401, 403, 404, 405, 410, 418, 429, 451, 500)
    },
    **{f"status {s}": body_answer(b"{}", s) for s in (502, 503, 599)},
    "a body of garbage": body_answer(b"\xff" * 1000, 500),
    "an endless refusal": lambda h: h.endless(b"x" * 1000),
    "a redirect to itself": body_answer(
        b"", 302, Location="/api/models/acme/tiny/revision/main"
    ),
    "a redirect to a file": body_answer(b"", 302, Location="file:///etc/passwd"),
    "a redirect to nowhere": body_answer(b"", 302),
    "a redirect to rubbish": body_answer(b"", 302, Location="http://[::1"),
    "wait for ever": body_answer(b"", 429, Retry_After="9" * 400),
    "wait backwards": body_answer(b"", 429, Retry_After="-5"),
    "wait for a word": body_answer(b"", 429, Retry_After="tomorrow"),
    "wait for a strange digit": body_answer(b"", 429, Retry_After="\u00b2"),
    "an error in a header": body_answer(b"", 500, X_Error_Message="\x1b[2J" * 100),
    "a wrong encoding": body_answer(b"not gzip", Content_Encoding="gzip"),
    "an unknown encoding": body_answer(
        json.dumps(listing()).encode(), Content_Encoding="x-evil"
    ),
}


@pytest.mark.parametrize("answer", REFUSALS.values(), ids=REFUSALS.keys())
def test_a_refusal_of_any_kind_is_one_sentence(answer: Answer, victim: Victim) -> None:
    victim.hub.api = answer
    began = time.monotonic()
    assert isinstance(victim.pull(), str)
    assert time.monotonic() - began < 15
    assert victim.hub.requests < 60


# ---- files ----


def cut_answer(length: int) -> Answer:
    """Announce all of it, send a part and hang up."""

    def answer(handler: _Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(BODY)))
        handler.end_headers()
        handler.wfile.write(BODY[:length])
        handler.close_connection = True

    return answer


def partial_answer(span: str, body: bytes) -> Answer:
    return body_answer(body, 206, Content_Range=span)


BODIES: dict[str, Answer] = {
    "shorter": body_answer(BODY[:100]),
    "empty": body_answer(b""),
    "longer by one": body_answer(BODY + b"x"),
    "much longer": body_answer(BODY + b"x" * (32 << 20)),
    "endless": lambda h: h.endless(b"x" * (1 << 20)),
    "endless by bytes": lambda h: h.endless(b"x"),
    "dripping": lambda h: h.endless(b"x", wait_s=0.02),
    "wrong": body_answer(BODY[:-1] + b"X"),
    "cut at 0": cut_answer(0),
    "cut at 100": cut_answer(100),
    "never in range": body_answer(b"", 416, Content_Range="bytes */0"),
    "another range": partial_answer("bytes 5-191/192", BODY[5:]),
    "a range of words": partial_answer("bytes all", BODY[:9]),
    "a range from beyond": partial_answer("bytes 999999999999-/*", b"x"),
    "a negative range": partial_answer("bytes -5-3/192", b"x"),
    "compressed": body_answer(gzip.compress(BODY), Content_Encoding="gzip"),
    "a bomb": lambda h: h.send(200, bomb(31), Content_Encoding="gzip"),
    "forbidden": body_answer(b"", 403),
    "gone": body_answer(b"", 404),
    "a server's error": body_answer(b"x" * 100_000, 500),
    "no content": body_answer(b"", 204),
    "a redirect to itself": body_answer(
        b"", 302, Location="/acme/tiny/resolve/x/config.json"
    ),
    "a redirect to a file": body_answer(b"", 302, Location="file:///etc/passwd"),
    "a redirect to rubbish": body_answer(b"", 307, Location="gopher://x:99999999/"),
    "a length of words": body_answer(BODY, Content_Length="many"),
    "a negative length": body_answer(BODY, Content_Length="-1"),
}


@pytest.mark.parametrize("answer", BODIES.values(), ids=BODIES.keys())
def test_a_file_is_as_listed_or_is_refused_within_its_size(
    answer: Answer, victim: Victim
) -> None:
    victim.hub.api, victim.hub.file = json_answer(listing(sibling())), answer
    began = time.monotonic()
    said = victim.pull()
    assert isinstance(said, str)
    assert time.monotonic() - began < 20
    assert victim.stored() <= len(BODY)
    assert victim.hub.requests < 100  # a redirect to itself is followed 20 times


@pytest.mark.parametrize("size", [0, 1, 191, 193, 4096, 1 << 30])
def test_a_wrong_size_in_the_list_ends_after_a_few_requests(
    size: int, victim: Victim
) -> None:
    victim.hub.api = json_answer(listing(sibling(size=size)))
    said = victim.pull()
    assert isinstance(said, str)
    assert victim.hub.requests < 20
    assert victim.stored() <= max(size, len(BODY))


def test_a_file_and_a_folder_of_one_name_are_refused(victim: Victim) -> None:
    victim.hub.api = json_answer(listing(sibling("a"), sibling("a/b")))
    assert isinstance(victim.pull(), str)


def test_a_revision_that_is_also_a_folder_of_revisions_is_refused(victim: Victim) -> None:
    (victim.folder / "hf/hub/models--acme--tiny/refs/main").mkdir(parents=True)
    victim.hub.api = json_answer(listing(sibling()))
    assert "Is a directory" in str(victim.pull())


def test_two_names_for_one_blob_of_two_sizes_end(victim: Victim) -> None:
    victim.hub.api = json_answer(listing(sibling("a"), sibling("b", size=10)))
    assert isinstance(victim.pull(), str)
    assert victim.hub.requests < 20


def test_a_list_that_changes_between_two_requests_adds_no_file_of_the_other(
    victim: Victim,
) -> None:
    """The file is checked by the list that was read, whatever the Hub says later."""
    victim.hub.api = json_answer(listing(sibling()))
    victim.hub.file = body_answer(
        b"y" * len(BODY), ETag='"' + git_sha1(b"y" * len(BODY)) + '"'
    )
    assert "corrupted" in str(victim.pull())


def test_a_token_is_not_sent_to_where_a_redirect_leads(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret_of_this_test")
    thief = LyingHub()
    threading.Thread(target=thief.serve_forever, args=(0.02,), daemon=True).start()
    try:
        victim.hub.api = json_answer(listing(sibling()))
        victim.hub.file = body_answer(
            b"", 302, Location=f"http://localhost:{thief.server_port}/x"
        )
        assert isinstance(victim.pull(), Listing)
        assert victim.hub.tokens == {"Bearer hf_secret_of_this_test"}
        assert thief.tokens == {None}
    finally:
        thief.shutdown()
        thief.server_close()


def test_a_file_that_only_the_hubs_own_protocol_sends_has_a_place_of_dynos_choice(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above a size, huggingface_hub would write to blobs/ETAG by the header."""
    monkeypatch.setattr(constants, "MAX_HTTP_DOWNLOAD_SIZE", 10)
    victim.hub.api = json_answer(listing(sibling()))
    victim.hub.file = head_answer(
        ETag='"../../../../../.bashrc"', X_Repo_Commit=COMMIT, X_Linked_Size="192"
    )
    assert "doesn't send such a file by Xet" in str(victim.pull())


ETAGS = ['"../../../../../planted"', '"../../.bashrc"', '"/tmp/x"', '""', "W/x", "x" * 5000]


@pytest.mark.parametrize("etag", ETAGS, ids=range(len(ETAGS)))
def test_a_tokenizer_of_a_mirror_is_stored_where_dyno_chooses(
    etag: str, victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """huggingface_hub's own download writes to blobs/ETAG: ../planted was a new file wherever the mirror liked."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(victim.folder / "hf" / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(victim.folder / "hf" / "hub"))
    victim.hub.file = head_answer(ETag=etag, X_Repo_Commit="c" * 40)
    path = tokenizer._from_hub(REPO)
    assert path == victim.folder / "hf/cache/dyno/hub/models--acme--tiny/tokenizer.json"
    assert path.read_bytes() == BODY


BAD_TOKENIZERS: dict[str, Answer] = {
    "endless": lambda h: h.endless(b"x" * (1 << 20)),
    "a bomb": lambda h: h.send(200, bomb(31), Content_Encoding="gzip"),
    "gone": body_answer(b"", 404),
    "forbidden": body_answer(b"", 403),
    "an error": body_answer(b"x" * 10_000, 500),
    "a redirect to a file": body_answer(b"", 302, Location="file:///etc/passwd"),
}


@pytest.mark.parametrize("answer", BAD_TOKENIZERS.values(), ids=BAD_TOKENIZERS.keys())
def test_a_tokenizer_that_cannot_be_had_is_refused(
    answer: Answer, victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(victim.folder / "hf" / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(victim.folder / "hf" / "hub"))
    monkeypatch.setattr(tokenizer, "_LARGEST", 8 << 20)
    victim.hub.file = answer
    before = memory_bytes()
    with pytest.raises(WorkloadError):
        tokenizer._from_hub(REPO)
    assert memory_bytes() - before < 300 << 20
    assert victim.stored() == 0


def test_an_honest_answer_passes_all_of_this(victim: Victim) -> None:
    large = os.urandom(40_000)
    digest = hashlib.sha256(large).hexdigest()
    bodies = {"config.json": BODY, "sub/weights.bin": large}
    facts = sibling(
        "sub/weights.bin",
        large,
        lfs={"sha256": digest, "size": len(large), "pointerSize": 134},
    )
    victim.hub.api = json_answer(listing(sibling(), facts))
    victim.hub.file = lambda h: h.send(
        200, next(b for n, b in bodies.items() if h.path.endswith(n))
    )
    assert isinstance(victim.pull(), Listing)
    snapshot = victim.folder / "hf/hub/models--acme--tiny/snapshots" / COMMIT
    assert {n: (snapshot / n).read_bytes() for n in bodies} == bodies


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=10), inner, max_size=4)
    ),
    max_leaves=10,
)
KEYS = st.sampled_from(["sha", "siblings", "rfilename", "size", "blobId", "lfs", "id"])


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    change=st.dictionaries(KEYS, JSON, max_size=3),
    entry=st.dictionaries(KEYS, JSON, max_size=3),
)
def test_any_list_is_read_or_refused(
    change: dict[str, Any], entry: dict[str, Any], victim: Victim
) -> None:
    victim.hub.api = json_answer({**listing({**sibling(), **entry}), **change})
    victim.pull()
    victim.check()
