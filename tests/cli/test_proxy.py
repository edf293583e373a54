"""Which proxy the environment names for a server, and how it is asked for the way."""

import pytest

from dyno.api.headers import proxied
from dyno.errors import UsageError
from dyno.facts.target import TargetSpec
from dyno.http import Route, Url
from dyno.transport import Proxy, ProxyRefused, Transport, granted, proxy_for, tunnel

P, Q = "http://p:3128", "http://q:3128"


@pytest.mark.parametrize(
    ("tls", "env", "found"),
    [
        (False, {}, None),
        (False, {"http_proxy": P}, P),
        (True, {"http_proxy": P}, None),
        (True, {"https_proxy": P, "http_proxy": Q}, P),
        (False, {"HTTP_PROXY": P}, P),
        (False, {"http_proxy": P, "HTTP_PROXY": Q}, P),  # small letters first
        (True, {"all_proxy": P}, P),
        (True, {"ALL_PROXY": P, "HTTPS_PROXY": Q}, Q),  # the scheme's own first
        (True, {"all_proxy": "socks5://p:1", "https_proxy": Q}, Q),  # as desktops set both
        # set to nothing: off
        (False, {"http_proxy": "", "HTTP_PROXY": P, "all_proxy": P}, None),
        (False, {"http_proxy": "p:3128"}, P),
        (False, {"http_proxy": "http://p"}, "http://p:80"),
        (False, {"http_proxy": "http://[::1]:1/"}, "http://[::1]:1"),
    ],
)
def test_the_usual_variables_in_the_usual_order(
    tls: bool, env: dict[str, str], found: str | None
) -> None:
    proxy = proxy_for(tls, "host.example", 443, env)
    assert (proxy and proxy.url) == found


@pytest.mark.parametrize(
    ("host", "no_proxy", "left_out"),
    [
        ("host.example", "host.example", True),
        ("host.example", "example", True),
        ("host.example", ".example", True),
        ("host.example", "*.example", True),
        ("host.example", "other, HOST.example", True),
        ("host.example", "ample", False),
        ("host.example", "host.example:443", True),
        ("host.example", "host.example:80", False),
        ("host.example", "*", True),
        ("host.example", "", False),
        ("host.example", ",, .", False),
        ("10.1.2.3", "10.0.0.0/8", True),
        ("11.1.2.3", "10.0.0.0/8", False),
        ("10.1.2.3", "10.1.2.3", True),
        ("fd00::1", "[fd00::1]", True),
        ("fd00::1", "fd00::/8", True),
    ],
)
def test_no_proxy_leaves_out_names_addresses_and_networks(
    host: str, no_proxy: str, left_out: bool
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        assert (
            proxy_for(True, host, 443, {"https_proxy": P, name: no_proxy}) is None
        ) == left_out


def test_user_and_password_become_a_header_and_are_in_no_url() -> None:
    env = {"https_proxy": "http://me:p%40ss@p:3128"}
    assert proxy_for(True, "h", 443, env) == Proxy(P, "Basic bWU6cEBzcw==")
    assert (
        tunnel("h:443", "Basic x")
        == b"CONNECT h:443 HTTP/1.1\r\nhost: h:443\r\nproxy-authorization: Basic x\r\n\r\n"
    )


@pytest.mark.parametrize(
    "value",
    [
        "socks://me:hunter22@p:1", "socks5://p:1", "socks5h://p:1", "https://p:1", "http://", "http://me:hunt/er22@p:1",
        "http://me:hunter22@p:port", "http://me:hunter22@p:99999", "http://me:hunter 22@p:1", "http://me:12/hunter22@p",
        "http://p\r\n:1", "://hunter22", "http://[", "http://me:hunter22@[p",
    ],
)  # fmt: skip
def test_what_is_not_an_http_proxy_is_refused_in_one_sentence_without_its_password(
    value: str,
) -> None:
    with pytest.raises(UsageError, match="all_proxy") as reported:
        proxy_for(False, "h", 80, {"all_proxy": value})
    assert "hunt" not in str(reported.value) and "\n" not in str(reported.value)


def test_an_answer_is_waited_for_to_its_end_and_a_no_is_reported() -> None:
    whole = b"HTTP/1.1 200 Connection established\r\nvia: x\r\n\r\n"
    assert [granted(whole[:n]) for n in (0, 1, 20, len(whole) - 1, len(whole))] == [
        False,
        False,
        False,
        False,
        True,
    ]
    for said in (b"HTTP/1.1 403 no\r\n\r\n", b"220 smtp\r\n\r\n", b"x" * 70_000):
        with pytest.raises(ProxyRefused, match="the proxy"):
            granted(said)


def test_only_the_one_that_needs_the_password_gets_it() -> None:
    headers = {"Proxy-Authorization": "Basic x", "A": "b"}
    plain = Route(Url("http://h:8000/v1"), Transport(proxy=P), headers)
    assert (plain.front, plain.tunnel, plain.headers) == ("http://h:8000/v1", b"", headers)
    secure = Route(Url("https://h/v1"), Transport(proxy=P), headers)
    assert (secure.front, secure.headers) == (
        "/v1",
        {"A": "b"},
    ) and b"Basic x" in secure.tunnel
    for url in ("http://127.0.0.1:1", "https://localhost", "http://[::1]:1", "unix:///x"):
        straight = Route(Url(url), Transport(proxy=P), headers)
        assert (straight.proxy, straight.tunnel, straight.headers) == (
            None,
            b"",
            {"A": "b"},
        )


def test_a_target_is_reported_its_proxy_and_all_its_copies_must_have_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    remote = TargetSpec(
        "http://a:8000", "openai", "/v1/completions", more_urls=["http://b:8000"]
    )
    assert proxied(remote) == (remote, {})
    monkeypatch.setenv("http_proxy", "http://me:pass@p:3128")
    target, headers = proxied(remote)
    assert (target.proxy, headers) == (P, {"Proxy-Authorization": "Basic bWU6cGFzcw=="})
    assert "pass" not in str(target)
    # here; or of an engine that isn't started yet
    for base in ("http://127.0.0.1:8000", "unix:///x", ""):
        here = TargetSpec(base, "openai", "/v1/completions")
        assert proxied(here) == (here, {})
    monkeypatch.setenv("no_proxy", "b")
    with pytest.raises(UsageError, match="all are reached the same way"):
        proxied(remote)
