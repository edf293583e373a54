"""Addresses: names that resolve to several, none or odd ones, redirects, passwords in URLs, machines of dstack's."""

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import Scripted, StartFake
from dyno.cli.main import main
from dyno.errors import RigError
from dyno.remote import dstack
from test_hostile_hub import Victim, body_answer, json_answer, listing, sibling, victim  # noqa: F401

SECRET = "hunter2-of-this-test"
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    monkeypatch.chdir(tmp_path)

    def call(base_url: str, *more: str) -> tuple[int, str]:
        words = [
            "bench",
            "serve",
            "--base-url",
            base_url,
            "--num-prompts",
            "4",
            "--output-len",
            "2",
            "--runs",
            "runs",
        ]
        code = main([*words, *more])
        said = capsys.readouterr()
        assert "bug in dyno" not in said.err
        return code, said.out + said.err

    return call


# ---- names ----


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Names that this machine resolves as a test says: a list of addresses, or an error."""
    table: dict[str, Any] = {}
    real = socket.getaddrinfo

    def resolve(host: Any, port: Any, *rest: Any, **more: Any) -> Any:
        if host not in table:
            return real(host, port, *rest, **more)
        if isinstance(table[host], Exception):
            raise table[host]
        found = (
            [table[host].pop(0)]
            if host.startswith("turning") and len(table[host]) > 1
            else table[host]
        )
        return [entry for address in found for entry in real(address, port, *rest, **more)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return table


def test_a_name_with_several_addresses_is_reached_at_one_that_answers(
    names: dict[str, Any], run: Run, fake: StartFake
) -> None:
    server = fake(first_ms=1, gap_ms=1)
    names["many.test"] = ["127.0.0.9", "::1", "127.0.0.1"]
    code, text = run(server.base_url.replace("127.0.0.1", "many.test"))
    assert code == 0, text


@pytest.mark.parametrize(
    "found",
    [socket.gaierror(-2, "Name or service not known"), UnicodeError("label too long"), []],
)
def test_a_name_without_an_address_is_one_sentence(
    names: dict[str, Any], run: Run, found: Any
) -> None:
    names["none.test"] = found
    code, text = run("http://none.test:8000")
    assert code == 1
    assert "none.test" in text and "Traceback" not in text


@pytest.mark.parametrize(
    "host",
    ["a" * 64 + ".test", "..", ".", "a..b", "xn--", "1.2.3.4.5", "0x7f.1", "127.1", "[::1"],
)
def test_an_odd_name_is_one_sentence(run: Run, host: str) -> None:
    code, text = run(f"http://{host}:1")
    assert code in (1, 2)
    assert "Traceback" not in text


def test_an_address_of_ipv6_is_written_in_brackets(run: Run, fake: StartFake) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("there is no IPv6 here")
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        asked: list[bytes] = []

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                asked.append(connection.recv(4096))
                connection.sendall(
                    b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                )

        threading.Thread(target=serve, daemon=True).start()
        port = server.getsockname()[1]
        code, text = run(
            f"http://[::1]:{port}", "--model", "m", "--ready-check-timeout-sec", "1"
        )
    assert code == 1
    assert f"[::1]:{port}" in text
    assert f"host: [::1]:{port}".encode() in asked[0].lower()


# ---- redirects ----

GOALS = [
    "file:///etc/passwd",
    "ftp://127.0.0.1/x",
    "//evil.test/x",
    "http://127.0.0.1:1/x",
    "/v1/models",
    "x" * 70_000,
]


@pytest.mark.parametrize("goal", GOALS, ids=lambda g: g[:20])
def test_a_server_that_redirects_is_not_followed_and_the_key_stays(
    run: Run, scripted: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch, goal: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    said = f"HTTP/1.1 302 Found\r\nlocation: {goal}\r\ncontent-length: 0\r\n\r\n".encode()

    def serve(sock: Any, _: int) -> None:
        while sock.recv(65536):
            sock.sendall(said)

    server = scripted(serve)
    code, text = run(server.base_url, "--model", "m")
    assert code == 1
    assert "root:" not in text and SECRET not in text


@pytest.mark.parametrize(
    "goal",
    ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://x", "http://", "//[", "\x00"],
)
def test_a_hub_that_redirects_elsewhere_is_refused_in_a_sentence(
    victim: Victim,  # noqa: F811
    goal: str,
) -> None:
    victim.hub.api = json_answer(listing(sibling()))
    victim.hub.file = body_answer(b"", 302, Location=goal)
    said = victim.pull()
    assert isinstance(said, str) and "\n" not in said


def test_a_hub_that_redirects_in_a_circle_is_refused(victim: Victim) -> None:  # noqa: F811
    victim.hub.api = json_answer(listing(sibling()))
    victim.hub.file = body_answer(
        b"", 302, Location=f"http://127.0.0.1:{victim.hub.server_port}/acme/tiny/resolve/x"
    )
    said = victim.pull()
    assert isinstance(said, str)
    assert victim.hub.requests < 200


# ---- passwords in URLs ----


def everywhere(folder: Path) -> list[str]:
    return [
        str(p)
        for p in folder.rglob("*")
        if p.is_file() and SECRET.encode() in p.read_bytes()
    ]


@pytest.mark.parametrize(
    "url", [f"http://me:{SECRET}@127.0.0.1:1", f"https://{SECRET}@h/v1", f"me:{SECRET}@h:1"]
)
def test_a_password_in_the_address_of_a_server_reaches_no_file_and_no_line(
    run: Run, tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = run(url)
    assert code == 2
    assert SECRET not in text
    (tmp_path / "s.toml").write_text(
        f'[engines.e]\nkind = "openai"\nbase_url = "{url}"\n[workloads.w]\ninput_len = 8\noutput_len = 4\n'
        "num_prompts = 4\n[loads.l]\nmax_concurrency = 1\n"
    )
    assert main(["run", "s.toml", "--runs", "runs"]) in (1, 2)
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err
    (tmp_path / "s.toml").unlink()
    assert everywhere(tmp_path) == []


@pytest.mark.parametrize(
    "endpoint",
    [f"http://me:{SECRET}@127.0.0.1:1", f"ftp://me:{SECRET}@h", f"me:{SECRET}@h"],
)
def test_a_password_in_the_address_of_a_mirror_reaches_no_file_and_no_line(
    tmp_path: Path,
    endpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name, value in {
        "HF_ENDPOINT": endpoint,
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(tmp_path / "hf"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DYNO_HOME", str(tmp_path / "home"))
    assert main(["models", "pull", "acme/tiny"]) == 1
    said = capfd.readouterr()
    assert SECRET not in said.out + said.err
    assert everywhere(tmp_path) == []


# ---- machines of dstack's, which report their user themselves ----

INJECTED = "me\n  ProxyCommand touch /tmp/owned"
HOPS: list[tuple[str, Any, str]] = [
    ("h", 22, INJECTED), (f"h\n{INJECTED}", 22, "me"), ("-oProxyCommand=x", 22, "me"), ("h", 22, "-oProxyCommand=x"),
    ("h h", 22, "me"), ("h", 0, "me"), ("h", 10**6, "me"), ("", 22, "me"), ("h", 22, ""), ("h%n", 22, "me"),
    ("h", 22, 'me"'), ("h", 22, "${HOME}"), ("h" * 300, 22, "me"), ("h\r", 22, "me"), ("h", 22, "me\0"),
]  # fmt: skip


@pytest.mark.parametrize("hop", HOPS, ids=range(len(HOPS)))
def test_an_address_of_a_machine_adds_no_line_to_the_settings_of_ssh(
    hop: tuple[str, Any, str], tmp_path: Path
) -> None:
    """A ProxyCommand would run here."""
    for hops in (
        [("dyno-x", *hop)],
        [("dyno-x-host", *hop), ("dyno-x", "localhost", 22, "root")],
    ):
        with pytest.raises(RigError, match="which is not an address"):
            dstack.ssh_config(hops, tmp_path / "key", tmp_path / "hosts")


KEYS = [
    "ssh-ed25519 AAAA\nevil * ssh-rsa AAAA",
    "ssh-ed25519 AAAA evil",
    "@cert-authority * ssh-rsa AAAA",
]


@pytest.mark.parametrize("key", KEYS)
def test_a_containers_log_adds_only_keys_of_its_own_name(key: str) -> None:
    found = dstack._HOST_KEY.findall(f"dyno-host-key {key}\n")
    assert all(
        "\n" not in each and " evil" not in each and "*" not in each for each in found
    )


@pytest.mark.parametrize("path", ["/usr/bin/python3; touch /tmp/owned", "python3", "/x\ny"])
def test_a_containers_python_is_one_path(path: str) -> None:
    found = dstack._PYTHON.findall(f"dyno-python {path}\n")
    assert all(" " not in each and each.startswith("/") for each in found)
