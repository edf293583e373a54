"""Transport settings besides the URL: certificates, time-outs, and a proxy from the usual variables."""

import base64
import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from dyno.errors import UsageError
from dyno.option import Option

_ANSWER = re.compile(rb"HTTP/1\.[01] (\d{3})")
_LONGEST_ANSWER = 65_536


class Transport(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the paths of files, never their content. A proxy's password is kept with the headers."""

    insecure: Annotated[
        bool, Option("--insecure", help="don't verify the TLS certificate", identity=False)
    ] = False
    # None: by the system's.
    cacert: Annotated[
        str | None,
        Option(
            "--cacert",
            "FILE",
            "verify it with the authorities in this PEM file (default: the system's)",
            identity=False,
        ),
    ] = None
    cert: Annotated[
        str | None,
        Option("--cert", "FILE", "client certificate, PEM (default: none)", identity=False),
    ] = None
    cert_key: Annotated[
        str | None,
        Option(
            "--key",
            "FILE",
            "private key of --cert (PEM; default: in the same file)",
            identity=False,
        ),
    ] = None
    proxy: str | None = None  # http://HOST:PORT, as the environment names it
    connect_timeout_s: Annotated[  # TLS included
        float,
        Option(
            "--connect-timeout",
            "S",
            "time for a connection to open",
            above=0,
            most=1e8,
            note=" seconds",
            identity=False,
        ),
    ] = 30.0
    read_timeout_s: Annotated[
        float | None,
        Option(
            "--read-timeout",
            "S",
            "time without a byte of an answer (default: no limit)",
            above=0,
            most=1e8,
            note=" seconds",
            identity=False,
        ),
    ] = None


DIRECT = Transport()


class Proxy(NamedTuple):
    url: str  # http://HOST:PORT
    authorization: str | None  # of its user name and password: a secret


class ProxyRefused(OSError):
    """The proxy refuses the connection."""


def proxy_for(tls: bool, host: str, port: int, env: Mapping[str, str]) -> Proxy | None:
    """Return the proxy that https_proxy or http_proxy names, else all_proxy; each in small letters first."""
    own = "https_proxy" if tls else "http_proxy"
    name = next((n for n in (own, own.upper(), "all_proxy", "ALL_PROXY") if n in env), None)
    if (
        name is None
        or not env[name]
        or _excluded(host, port, env.get("no_proxy", env.get("NO_PROXY", "")))
    ):
        return None
    value = env[name] if "://" in env[name] else "http://" + env[name]
    parts, proxy_port = _split(value)
    proxy = parts.hostname
    if parts.scheme != "http" and re.fullmatch(r"\w{1,10}", parts.scheme):
        raise UsageError(
            f"{name} names a {parts.scheme}:// proxy, but dyno supports only http:// proxies. Set "
            f"another one, or name {host} in no_proxy."
        )
    # The value itself isn't repeated: it may hold a password.
    if (
        not proxy
        or "@" in parts.path + parts.query + parts.fragment
        or not re.fullmatch(r"[!-~]+", value)
    ):
        raise UsageError(
            f"{name} is not a proxy that dyno can use. Write it as http://HOST:PORT, with USER:PASSWORD@ before HOST "
            "if it requires a login. Escape special characters of the password, for example as %40."
        )
    shown = f"[{proxy}]" if ":" in proxy else proxy
    return Proxy(f"http://{shown}:{proxy_port}", _login(parts))


def _split(value: str) -> tuple[SplitResult, int]:
    """Return the parts of a proxy's URL, and its port. A value that isn't a URL has no host."""
    try:
        parts = urlsplit(value)
        return parts, parts.port or 80
    except ValueError:
        return urlsplit("http:"), 0


def _login(parts: SplitResult) -> str | None:
    """Return the header of a proxy's user name and password."""
    if parts.username is None:
        return None
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return "Basic " + base64.b64encode(pair.encode()).decode()


def _excluded(host: str, port: int, no_proxy: str) -> bool:
    """Return whether `no_proxy` has the host: by names and all that ends in them, addresses, networks (10.0.0.0/8),
    each perhaps with a port; or by *."""
    for word in no_proxy.lower().replace(",", " ").split():
        entry = word.removesuffix(f":{port}").strip("[]").removeprefix("*").lstrip(".")
        if word == "*" or host == entry or (entry and host.endswith("." + entry)):
            return True
        try:
            if ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False):
                return True
        except ValueError:  # a name, not an address
            continue
    return False


def tunnel(netloc: str, authorization: str | None) -> bytes:
    """Return the request to a proxy for a way to HOST:PORT."""
    login = f"proxy-authorization: {authorization}\r\n" if authorization else ""
    return f"CONNECT {netloc} HTTP/1.1\r\nhost: {netloc}\r\n{login}\r\n".encode("latin-1")


def granted(answer: bytes) -> bool:
    """Return whether the proxy accepts; False while the answer is incomplete. Raise ProxyRefused where it refuses."""
    status = _ANSWER.match(answer)
    whole = b"\r\n\r\n" in answer
    if (whole and not status) or len(answer) > _LONGEST_ANSWER:
        raise ProxyRefused("the proxy doesn't answer like an HTTP proxy")
    if whole and status and status[1] != b"200":
        raise ProxyRefused(
            f"the proxy answers {int(status[1])} to CONNECT" + login_wanted(int(status[1]))
        )
    return whole


def login_wanted(status: int) -> str:
    advice = ": it requires a login. Write USER:PASSWORD@ before the host in the variable that names the proxy"
    return advice if status == 407 else ""
