"""How a server is reached: client certificates, proxies, Unix sockets, time-outs; for control calls and the wire."""

import contextlib
import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme

from conftest import Scripted, StartFake, answer, drive, receive_request, requests
from dyno.cli.main import main
from dyno.errors import TargetError, UsageError
from dyno.facts.load import LoadSpec
from dyno.http import Client, Route, Url, tls_context
from dyno.load import http1, wire
from dyno.load.connection import Connection
from dyno.load.plan import Plan
from dyno.load.script import PromptScript
from dyno.load.spool import Spool
from dyno.load.wire import Traffic, Wire
from dyno.transport import Transport
from dyno.units import NS_PER_S
from test_wire import answer_all

Serve = Callable[..., Scripted]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


def call(*how: Any) -> tuple[int, Any]:
    client = Client(*how)
    try:
        return client.call("/x")
    finally:
        client.close()


def relay(sock: Any, out: socket.socket, change: Callable[[bytes], bytes] = bytes) -> None:
    """Hands on what comes, until one of them closes."""
    while True:
        held = isinstance(sock, ssl.SSLSocket) and sock.pending()
        for ready in [sock] if held else select.select([sock, out], [], [])[0]:
            data = ready.recv(65_536)
            if not data:
                return
            (out if ready is sock else sock).sendall(
                change(data) if ready is sock else data
            )


def answer_json(sock: Any, _: int) -> None:
    while sock.recv(65_536):
        sock.sendall(OK)


# Certificates


class Files:
    """An authority, and what it has issued, as files."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.ca = str(folder / "ca.pem")
        self.authority.cert_pem.write_to_path(self.ca)
        mine, other = self.authority.issue_cert("me"), self.authority.issue_cert("other")
        self.cert, self.key, self.other_key, self.both = (
            str(folder / n) for n in ("me", "me.key", "other.key", "both")
        )
        mine.cert_chain_pems[0].write_to_path(self.cert)
        mine.private_key_pem.write_to_path(self.key)
        other.private_key_pem.write_to_path(self.other_key)
        mine.private_key_and_cert_chain_pem.write_to_path(self.both)

    def server(
        self, scripted: Serve, talk: Any, version: ssl.TLSVersion | None = None
    ) -> Scripted:
        """One that wants a certificate, or with no version none."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.authority.issue_cert("127.0.0.1").configure_cert(context)
        if version is not None:
            context.minimum_version = context.maximum_version = version
            context.verify_mode = ssl.CERT_REQUIRED
            self.authority.configure_trust(context)
        return scripted(talk, wrap=lambda sock: context.wrap_socket(sock, server_side=True))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


def test_an_authority_of_one_s_own_is_believed(scripted: Serve, files: Files) -> None:
    url = files.server(scripted, answer_json).base_url
    assert call(Url(url), {}, Transport(cacert=files.ca)) == (200, {})
    with pytest.raises(TargetError, match=r"certificate can't be verified .*--cacert FILE"):
        call(Url(url), {})
    url = files.server(scripted, answer_all).base_url
    assert [
        r.error for r in drive(url, requests(3), via=Transport(cacert=files.ca)).records
    ] == [None] * 3


@pytest.mark.parametrize("version", VERSIONS)
def test_a_server_that_wants_a_certificate_gets_it(
    scripted: Serve, files: Files, version: ssl.TLSVersion
) -> None:
    for via in (
        Transport(cacert=files.ca, cert=files.cert, cert_key=files.key),
        Transport(cacert=files.ca, cert=files.both),
    ):
        url = files.server(scripted, answer_json, version).base_url
        assert call(Url(url), {}, via) == (200, {})
        url = files.server(scripted, answer_all, version).base_url
        driven = drive(url, requests(6), LoadSpec(max_concurrency=2), via=via)
        assert [r.error for r in driven.records] == [None] * 6


@pytest.mark.parametrize("version", VERSIONS)
def test_without_one_the_sentence_says_so(
    scripted: Serve, files: Files, version: ssl.TLSVersion
) -> None:
    """In TLS 1.3 it shows on the first read only, or as a reset."""
    server, via = files.server(scripted, answer_json, version), Transport(cacert=files.ca)
    with pytest.raises(TargetError, match=r"client certificate.*--cert and --key"):
        call(Url(server.base_url), {}, via)
    try:
        (record,) = drive(server.base_url, requests(1), via=via).records
        reported = f"{record.error}: {record.error_detail}"
    except TargetError as e:
        reported = str(e)
    assert re.search(r"client certificate.*--cert and --key|reset|cut", reported)


def test_a_whole_run_with_a_client_certificate_keeps_its_path_and_not_its_key(
    scripted: Serve, files: Files, fake: StartFake, tmp_path: Path
) -> None:
    port = Url(fake().base_url).port

    def pass_on(sock: ssl.SSLSocket, _: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as out:
            relay(sock, out)

    url = files.server(scripted, pass_on, ssl.TLSVersion.TLSv1_3).base_url
    words = [
        "bench",
        "serve",
        "--base-url",
        url,
        "--cacert",
        files.ca,
        "--cert",
        files.cert,
        "--key",
        files.key,
    ]
    words += [
        "--num-prompts",
        "4",
        "--max-concurrency",
        "2",
        "--random-input-len",
        "5",
        "--random-output-len",
        "4",
    ]
    assert main([*words, "--runs", str(tmp_path / "runs"), "--disable-tqdm"]) == 0
    (manifest,) = tmp_path.glob("runs/*/trial.json")
    target = msgspec.json.decode(manifest.read_bytes())["trial"]["target"]
    assert (target["cacert"], target["cert"], target["cert_key"]) == (
        files.ca,
        files.cert,
        files.key,
    )
    secret = Path(files.key).read_text().splitlines()[1].encode()
    assert not [
        p
        for p in (tmp_path / "runs").rglob("*")
        if p.is_file() and secret in p.read_bytes()
    ]
    # the sampler got in, too
    assert b'"source":"engine"' in manifest.with_name("telemetry.jsonl").read_bytes()


def test_files_that_cannot_be_used_are_reported_before_anything_is_sent(
    files: Files, tmp_path: Path
) -> None:
    def reported(**fields: str) -> str:
        with pytest.raises(UsageError) as error:
            tls_context(Transport(**fields))  # type: ignore[arg-type]
        return str(error.value)

    assert "No such file" in reported(cacert="nowhere.pem")
    assert "isn't valid PEM" in reported(cacert=files.key)
    assert "No such file" in reported(cert="nowhere.pem")
    assert "is not the private key of the certificate" in reported(
        cert=files.cert, cert_key=files.other_key
    )
    assert "isn't valid PEM" in reported(cert=files.cert, cert_key=files.ca)
    assert "Give the certificate with --cert" in reported(cert_key=files.key)
    # Somebody takes --key for the API key: it isn't repeated.
    assert (
        "sk-abcdef" not in (message := reported(cert=files.cert, cert_key="sk-abcdef"))
        and "OPENAI_API_KEY" in message
    )
    locked = tmp_path / "locked.key"
    locked.write_bytes(_encrypted(Path(files.key).read_bytes()))
    assert "encrypted, and dyno can't ask for a passphrase" in reported(
        cert=files.cert, cert_key=str(locked)
    )


def _encrypted(pem: bytes) -> bytes:
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    key = load_pem_private_key(pem, None)
    return key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )


# Proxies


class Forwarding:
    """A proxy that takes every name for one address, and keeps what it was asked."""

    def __init__(self, scripted: Serve, port: int, login: bytes = b"") -> None:
        self.port, self.login = port, login
        self.asked: list[bytes] = []
        self.server = scripted(self._talk)
        self.url = self.server.base_url

    def _talk(self, sock: socket.socket, _: int) -> None:
        first = sock.recv(65_536)
        self.asked.append(first)
        if (
            self.login
            and b"proxy-authorization: basic " + self.login
            not in first.lower().replace(self.login.lower(), self.login)
        ):
            sock.sendall(b"HTTP/1.1 407 Who are you?\r\ncontent-length: 0\r\n\r\n")
            return
        with socket.create_connection(("127.0.0.1", self.port)) as out:
            if first.startswith(b"CONNECT "):
                sock.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                out.sendall(without_host(first))
            relay(sock, out, bytes if first.startswith(b"CONNECT ") else self._plain)

    def _plain(self, data: bytes) -> bytes:
        self.asked.append(data)
        return without_host(data)


def without_host(request: bytes) -> bytes:
    return re.sub(rb"^(\w+) http://[^/]+/", rb"\1 /", request)


LOGIN = b"bWU6aHVudGVyIDIy"  # me:hunter 22


def test_a_plain_request_is_handed_to_the_proxy_with_the_whole_url(
    scripted: Serve,
    fake: StartFake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The whole command, telemetry included; and the password is in no file and no message."""
    proxy = Forwarding(scripted, Url(fake().base_url).port, LOGIN)
    monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//me:hunter%2022@"))
    words = [
        "bench",
        "serve",
        "--base-url",
        "http://engine.test:8000/v1",
        "--num-prompts",
        "4",
        "--max-concurrency",
        "2",
    ]
    words += [
        "--random-input-len",
        "5",
        "--random-output-len",
        "4",
        "--runs",
        str(tmp_path),
        "--disable-tqdm",
    ]
    assert main(words) == 0
    printed = capsys.readouterr()
    (manifest,) = tmp_path.glob("*/trial.json")
    target = msgspec.json.decode(manifest.read_bytes())["trial"]["target"]
    assert target["proxy"] == proxy.url
    assert "All requests went through the proxy" in printed.out
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for text in (*kept, printed.out.encode(), printed.err.encode()):
        assert b"hunter" not in text and LOGIN not in text
    posts = [
        a
        for a in proxy.asked
        if a.startswith(b"POST http://engine.test:8000/v1/completions HTTP/1.1\r\n")
    ]
    assert len(posts) >= 4
    assert all(
        a.split(b" ")[1].startswith(b"http://engine.test:8000/")
        for a in proxy.asked
        if a[:4] in (b"GET ", b"POST")
    )


def test_tls_goes_through_a_tunnel_and_the_password_stops_at_the_proxy(
    scripted: Serve, files: Files
) -> None:
    received: list[bytes] = []

    def talk(sock: Any, _: int) -> None:
        while body := receive_request(sock):
            received.append(body)
            sock.sendall(answer(3))

    behind = files.server(scripted, talk)
    proxy = Forwarding(scripted, behind.port, LOGIN)
    via = Transport(insecure=True, proxy=proxy.url)
    headers = {"Proxy-Authorization": f"Basic {LOGIN.decode()}", "X-Mine": "y"}
    driven = drive(
        "https://engine.test",
        requests(6),
        LoadSpec(max_concurrency=2),
        via=via,
        headers=headers,
    )
    assert [(r.error, r.text) for r in driven.records] == [(None, " tok" * 3)] * 6
    assert len(proxy.asked) == 2 and len(received) == 6
    for asked in proxy.asked:
        assert asked.startswith(
            b"CONNECT engine.test:443 HTTP/1.1\r\nhost: engine.test:443\r\n"
        )
    heads: list[bytes] = []

    def tell(sock: Any, _: int) -> None:
        heads.append(sock.recv(65_536))
        sock.sendall(OK)

    proxy.port = files.server(scripted, tell).port
    assert call(Url("https://engine.test:8443"), headers, via) == (200, {})
    assert (
        heads[0].startswith(b"GET /x HTTP/1.1\r\n")
        and b"X-Mine: y" in heads[0]
        and LOGIN not in heads[0]
    )
    assert proxy.asked[-1].startswith(b"CONNECT engine.test:8443 ")


@pytest.mark.parametrize("url", ["http://engine.test", "https://engine.test"])
def test_a_proxy_that_wants_a_password_or_is_not_there_is_reported(
    scripted: Serve, url: str
) -> None:
    via = Transport(proxy=Forwarding(scripted, 9, LOGIN).url)
    with pytest.raises(TargetError, match=r"proxy.*answers 407.*USER:PASSWORD@"):
        call(Url(url), {}, via)
    if url.startswith("https"):
        with pytest.raises(TargetError, match=r"proxy answers 407 to CONNECT"):
            drive(url, requests(1), via=via)
    nowhere = Transport(proxy="http://127.0.0.1:9")
    with pytest.raises(
        TargetError, match=r"Nothing listens at http://127.0.0.1:9, the proxy"
    ):
        call(Url(url), {}, nowhere)
    with pytest.raises(
        TargetError, match=r"Nothing listens at http://127.0.0.1:9, the proxy"
    ):
        drive(url, requests(1), via=nowhere)


@pytest.mark.parametrize(
    "said", [b"SSH-2.0-x\r\n\r\n", b"x" * 100_000, b"HTTP/1.1 200 ", b""]
)
def test_a_proxy_that_speaks_something_else_is_one_sentence(
    scripted: Serve, said: bytes
) -> None:
    def talk(sock: Any, _: int) -> None:
        sock.recv(65_536)
        sock.sendall(said)

    via = Transport(proxy=scripted(talk).base_url, insecure=True)
    with pytest.raises(TargetError, match="proxy"):
        call(Url("https://engine.test"), {}, via)
    with pytest.raises(TargetError, match="proxy"):
        drive("https://engine.test", requests(1), via=via)


def test_a_loopback_address_is_never_behind_a_proxy(
    fake: StartFake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    words = [
        "bench",
        "serve",
        "--num-prompts",
        "2",
        "--max-concurrency",
        "1",
        "--random-input-len",
        "5",
    ]
    words += ["--random-output-len", "2", "--runs", str(tmp_path), "--disable-tqdm"]
    assert main([*words, "--base-url", fake().base_url]) == 0
    assert main([*words, "--engine", "fake"]) == 0
    for manifest in tmp_path.glob("*/trial.json"):
        assert (
            msgspec.json.decode(manifest.read_bytes())["trial"]["target"]["proxy"] is None
        )


# Unix sockets


class Unix:
    def __init__(
        self, path: Path, talk: Callable[[socket.socket], None], backlog: int = 16
    ) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(backlog)
        self.talk, self.sockets = talk, list[socket.socket]()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            self.sockets.append(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            self.talk(sock)
        except OSError:
            pass
        finally:
            sock.close()

    def close(self) -> None:
        for sock in (self.listener, *self.sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


@pytest.fixture
def unix(tmp_path: Path) -> Iterator[Callable[..., str]]:
    started: list[Unix] = []

    def start(talk: Callable[[socket.socket], None], **options: Any) -> str:
        path = tmp_path / f"{len(started)}.sock"
        started.append(Unix(path, talk, **options))
        return str(path)

    yield start
    for server in started:
        server.close()


def test_a_unix_socket_is_driven_like_any_other(unix: Callable[..., str]) -> None:
    heads: list[bytes] = []

    def talk(sock: socket.socket) -> None:
        while data := sock.recv(65_536):
            heads.append(data)
            sock.sendall(OK if data.startswith(b"GET") else answer(5))

    path = unix(talk)
    assert call(Url(f"unix://{path}"), {}) == (200, {})
    assert call(Url(f"http+unix://{path.replace('/', '%2F')}/base"), {}) == (200, {})
    assert [h.split(b" ")[1] for h in heads] == [
        b"/x",
        b"/base/x",
    ] and b"Host: localhost\r\n" in heads[0]
    driven = drive(f"unix://{path}", requests(12), LoadSpec(max_concurrency=3))
    assert [(r.error, r.text) for r in driven.records] == [(None, " tok" * 5)] * 12
    assert not driven.client.kernel_stamps
    assert b"host: localhost\r\n" in heads[-1]


def test_a_whole_run_over_a_unix_socket(
    unix: Callable[..., str], fake: StartFake, tmp_path: Path
) -> None:
    port = Url(fake().base_url).port

    def talk(sock: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", port)) as out:
            relay(sock, out)

    words = [
        "bench",
        "serve",
        "--base-url",
        f"unix://{unix(talk)}",
        "--num-prompts",
        "4",
        "--max-concurrency",
        "2",
    ]
    words += [
        "--random-input-len",
        "5",
        "--random-output-len",
        "4",
        "--runs",
        str(tmp_path),
        "--disable-tqdm",
    ]
    assert main(words) == 0
    (manifest,) = tmp_path.glob("*/trial.json")
    assert (
        msgspec.json.decode(manifest.read_bytes())["trial"]["target"]["base_url"]
        == words[3]
    )
    assert b'"source":"engine"' in manifest.with_name("telemetry.jsonl").read_bytes()
    assert main(["runs", "show", str(manifest.parent)]) == 0


def test_open_files_that_come_with_the_data_are_not_taken(unix: Callable[..., str]) -> None:
    """A Unix socket can carry them, where the kernel's stamps are looked for."""

    def talk(sock: socket.socket) -> None:
        with Path("/dev/null").open() as file:
            while receive_request(sock):
                whole = answer(5)
                for at in range(0, len(whole), 200):
                    socket.send_fds(sock, [whole[at : at + 200]], [file.fileno()] * 3)

    before = len(list(Path("/proc/self/fd").iterdir()))
    driven = drive(f"unix://{unix(talk)}", requests(10))
    assert [(r.error, r.text) for r in driven.records] == [(None, " tok" * 5)] * 10
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 10


def test_a_short_queue_of_a_unix_socket_is_waited_for(unix: Callable[..., str]) -> None:
    def talk(sock: socket.socket) -> None:
        while receive_request(sock):
            sock.sendall(answer(2))

    driven = drive(
        f"unix://{unix(talk, backlog=1)}", requests(60), LoadSpec(max_concurrency=30)
    )
    assert [r.error for r in driven.records] == [None] * 60


def test_a_socket_that_is_not_there_is_reported(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/none.sock"
    with pytest.raises(TargetError, match=r"No socket .*none.sock"):
        call(Url(url), {})
    with pytest.raises(TargetError, match=r"No socket .*none.sock"):
        drive(url, requests(1))
    assert str(Url(url)) == url
    assert str(Url("http+unix://%2Fa%2Fb.sock/v1")) == "http+unix://%2Fa%2Fb.sock/v1"


# Time-outs


def test_a_silent_stream_fails_by_the_read_time_out_and_one_that_moves_does_not(
    scripted: Serve,
) -> None:
    def talk(sock: Any, number: int) -> None:
        while receive_request(sock):
            whole = answer(5)
            half = len(whole) // 2
            sock.sendall(whole[:half])
            if number == 1:
                sock.recv(1)  # silent from here on
                return
            for at in range(half, len(whole), 30):  # longer than the limit as a whole
                time.sleep(0.4)
                sock.sendall(whole[at : at + 30])

    driven = drive(scripted(talk).base_url, requests(2), via=Transport(read_timeout_s=2.5))
    silent, slow = driven.records
    assert (
        silent.error == "timeout"
        and silent.error_detail == "no byte for 2.5 s (--read-timeout)"
    )
    assert slow.error is None and slow.end_ns - slow.sent_ns > 2.5 * NS_PER_S


def test_the_control_client_says_which_time_is_over(scripted: Serve) -> None:
    def talk(sock: Any, _: int) -> None:
        sock.recv(1 << 16)
        sock.recv(1)

    url = scripted(talk).base_url
    with pytest.raises(TargetError, match=r"sent nothing for 0.5 s \(--read-timeout\)"):
        call(Url(url), {}, Transport(read_timeout_s=0.5))
    via = Transport(connect_timeout_s=0.5, insecure=True)
    with pytest.raises(
        TargetError, match=r"answered no TLS handshake within 0.50? s. If .* use http:"
    ):
        call(Url(url.replace("http:", "https:")), {}, via)


def test_connections_that_never_open_fail_by_the_connect_time_out(scripted: Serve) -> None:
    def talk(sock: Any, _: int) -> None:
        while sock.recv(1 << 16):  # never a word of TLS
            pass

    url = scripted(talk).base_url.replace("http:", "https:")
    with pytest.raises(
        TargetError, match=r"accepted no connection within 1 s \(--connect-timeout\)"
    ):
        drive(url, requests(1), via=Transport(connect_timeout_s=1, insecure=True))


def test_a_request_that_waits_for_a_connection_says_so(
    scripted: Serve, files: Files
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    files.authority.issue_cert("127.0.0.1").configure_cert(context)

    def talk(sock: Any, number: int) -> None:
        if number > 1:
            while sock.recv(65_536):
                pass
            return
        with context.wrap_socket(sock, server_side=True) as secured:
            receive_request(secured)
            secured.sendall(answer(2).replace(b"\r\n", b"\r\nconnection: close\r\n", 1))

    url = scripted(talk).base_url.replace("http:", "https:")
    driven = drive(url, requests(2), via=Transport(connect_timeout_s=1, insecure=True))
    assert [r.error for r in driven.records] == [None, "timeout"]
    assert driven.records[1].error_detail == "not connected within 1 s (--connect-timeout)"


def test_a_loop_that_comes_late_still_looks_at_time_outs(
    tmp_path: Path, fake: StartFake
) -> None:
    """Its ticks may lie so that none falls into the first tenth of a second."""
    url = Url(fake().base_url)
    traffic = Traffic(
        [Route(url)], [b""], PromptScript([http1.front("POST", "/", "x")]), Plan(1, None, 1)
    )
    loop = Wire(traffic, spool := Spool(tmp_path / "s"))
    looked = []
    loop._pool = wire.Pool([Route(url)], [b""])
    loop._start_ns = start = loop._last_byte_ns = 0
    loop._time_out = looked.append  # type: ignore[method-assign]
    try:
        for i in range(20):
            loop._tick(start + i * 550_000_000 + 150_000_000)
    finally:
        loop._pool.close()
        spool.close()
    assert 5 <= len(looked) <= 11


def test_the_hot_path_reads_by_the_socket_s_own_call(scripted: Serve) -> None:
    """Without --read-timeout a read costs nothing more than before."""
    seen = []
    real = Connection.clear

    def clear(self: Connection) -> None:
        seen.append(self.recv)
        real(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "clear", clear)
        drive(scripted(answer_all).base_url, requests(1))
    assert seen and all(
        getattr(recv, "__self__", None).__class__ is socket.socket for recv in seen
    )
