"""The way to a server (URL, route, TLS), and a control client for readiness, /v1/models and the like: not the wire."""

import http.client
import io
import json
import re
import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import msgspec

from dyno import secrets
from dyno.errors import TargetError, UsageError, describe_error, limit_advice
from dyno.numbers import count, number
from dyno.option import setting_name
from dyno.transport import DIRECT, ProxyRefused, Transport, granted, login_wanted, tunnel

# of an answer, head and framing included: a million token ids are 8 MB
LARGEST_BYTES = 16 << 20
_HINTS = 16  # responses before the final one
_DEEPEST = 100  # lists and objects in one another
_PROXY_LOGIN = "proxy-authorization"
_HANDSHAKE_S = 10.0  # for TLS, at most: a server without it waits for a request


def check_plain(text: str, what: str) -> None:
    """Check what goes into the first lines of a request: other characters could start a new line."""
    if not re.fullmatch(r"[!-~]*", text):
        raise UsageError(
            f"{what} contains a space, a line end or a non-ASCII character. Escape it, for example as %20."
        )


class Url:
    """A base URL, split once: `http://host:8000/prefix`, or `unix:///path/to.sock`."""

    def __init__(self, base_url: str) -> None:
        shown = base_url.rpartition("@")[2]  # without a password
        check_plain(base_url, f"The URL {shown!r}")
        try:
            parts = urlsplit(base_url if "://" in base_url else "http://" + base_url)
        except ValueError:  # half a bracket
            raise UsageError(
                f"{shown!r} is not a URL. Write an IPv6 address in brackets: http://[::1]:8000."
            ) from None
        if parts.username or parts.password:
            raise UsageError(
                f"The URL contains a user name or password. Remove it, and use {setting_name('--header')} "
                "'Authorization=Basic …', or set OPENAI_API_KEY."
            )
        self.tls = parts.scheme == "https"
        self.prefix = parts.path.rstrip("/")
        self.unix: str | None = None  # the path of a socket
        self.host, self.port = "localhost", 0
        if parts.scheme == "unix" and not parts.netloc and self.prefix:
            self.unix, self.prefix = unquote(parts.path), ""
        elif parts.scheme == "http+unix" and parts.netloc:
            self.unix = unquote(parts.netloc)
        elif parts.scheme in ("http", "https") and parts.hostname:
            self.host = parts.hostname
            try:
                self.port = parts.port or self._usual_port
            except ValueError:
                raise UsageError(f"{shown!r} has a port outside 1 to 65535.") from None
        else:
            raise UsageError(
                f"{shown!r} is not a URL that dyno can use. Write it as http://HOST:PORT, https://HOST or "
                "unix:///PATH/OF/SOCKET."
            )

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        if self.unix or self.port == self._usual_port:
            return host
        return f"{host}:{self.port}"

    @property
    def _usual_port(self) -> int:
        return 443 if self.tls else 80

    @property
    def local(self) -> bool:
        """Return whether the server is on this machine, by its address."""
        return self.host in ("localhost", "::1", "0.0.0.0") or self.host.startswith("127.")

    def __str__(self) -> str:
        if self.unix:
            whole = f"http+unix://{quote(self.unix, safe='')}{self.prefix}"
            return whole if self.prefix else f"unix://{quote(self.unix)}"
        return f"{'https' if self.tls else 'http'}://{self.netloc}{self.prefix}"


def _proxy(url: Url, via: Transport) -> Url | None:
    return None if via.proxy is None or url.local else Url(via.proxy)


class SilentHandshake(TimeoutError):
    """A server accepted the connection, and answered no TLS handshake within this time."""


class Route:
    """The way to a server: straight, by a Unix socket, or through a proxy. A loopback address is never behind one."""

    def __init__(
        self, url: Url, via: Transport = DIRECT, headers: dict[str, str] | None = None
    ) -> None:
        self.url, self.via = url, via
        self.proxy = _proxy(url, via)
        # TLS goes through a tunnel; a plain request is handed to the proxy, with the server's whole URL.
        handed = self.proxy is not None and not url.tls
        self.front = str(url) if handed else url.prefix  # before a path
        given = headers or {}
        self.login = {k: v for k, v in given.items() if k.lower() == _PROXY_LOGIN}
        self.headers = dict(given)
        if not handed:
            for name in self.login:
                del self.headers[name]
        self.tunnel = self._tunnel_request() if self.proxy and url.tls else b""

    def _tunnel_request(self) -> bytes:
        """Return what asks the proxy for a tunnel to the server, by its name and port."""
        netloc, port = self.url.netloc, f":{self.url.port}"
        host = netloc if netloc.endswith(port) else f"{netloc}{port}"
        return tunnel(host, next(iter(self.login.values()), None))

    def addresses(self) -> list[tuple[int, Any]]:
        """Return the families and addresses to connect to."""
        if self.url.unix:
            return [(socket.AF_UNIX, self.url.unix)]
        first = self.proxy or self.url
        infos = socket.getaddrinfo(first.host, first.port, type=socket.SOCK_STREAM)
        return [(family, address) for family, _, _, _, address in infos]

    def unreachable(self, error: Exception, within_s: float | None = None) -> str:
        """Describe the failure to connect, and what to do."""
        to = f"The proxy {self.proxy}" if self.proxy else f"{self.url}"
        if own := limit_advice(error):
            return (
                f"dyno couldn't open a connection to {to} ({describe_error(error)}). {own}"
            )
        if isinstance(error, ssl.SSLError):
            return f"{self.url}: {describe_tls(error)}"
        if isinstance(error, ProxyRefused):
            return f"{self.url} can't be reached: {error} ({self.proxy})."
        if isinstance(error, ConnectionRefusedError):
            return self._refused_words()
        if isinstance(error, FileNotFoundError) and self.url.unix:
            return f"No socket {self.url.unix}. Start the server, or give its path with {setting_name('--base-url')}."
        if isinstance(error, SilentHandshake):
            plain = str(self.url).replace("https:", "http:", 1)
            return (
                f"{self.url} accepted the connection, but answered no TLS handshake within {error}. If the "
                f"server has no TLS, use {plain}."
            )
        if isinstance(error, TimeoutError):
            limit_s = count(within_s or self.via.connect_timeout_s)
            return (
                f"{to} accepted no connection within {limit_s} s ({setting_name('--connect-timeout')}). Check the "
                "address, and whether a firewall blocks it."
            )
        if _is_unresolved(error):
            host = (self.proxy or self.url).host
            return f"The host name {host!r} can't be resolved. Check the spelling in {setting_name('--base-url')}."
        if isinstance(
            error, ConnectionResetError | BrokenPipeError | ConnectionAbortedError
        ):
            return (
                f"{to} closed the connection before it answered. Read its log. Check "
                f"{setting_name('--base-url')}, and that it is an HTTP server.{self._certificate_advice()}"
            )
        what = describe_error(error)
        wanted = self._certificate_advice()
        check = f"Check {setting_name('--base-url')}, and that it is an HTTP server."
        return f"{to} can't be reached: {what}. {check}{wanted}"

    def _refused_words(self) -> str:
        if self.proxy is not None:
            return f"Nothing listens at {self.proxy}, the proxy that http_proxy or https_proxy names. Set no_proxy?"
        address = setting_name("--base-url")
        return f"Nothing listens at {self.url}. Start the server, or give its address with {address}."

    def _certificate_advice(self) -> str:
        if self.url.tls and not self.via.cert:
            return f" It may require a client certificate: {setting_name('--cert')} and {setting_name('--key')}."
        return ""


def _is_unresolved(error: Exception) -> bool:
    """Return whether it is an error of getaddrinfo, whose numbers are negative."""
    return isinstance(error, OSError) and error.errno is not None and error.errno < 0


def check_certificates(targets: Iterable[Transport]) -> None:
    """Refuse those that can't be used before anything starts."""
    for cacert, cert, cert_key in {(t.cacert, t.cert, t.cert_key) for t in targets} - {
        (None, None, None)
    }:
        tls_context(Transport(cacert=cacert, cert=cert, cert_key=cert_key))


def tls_context(via: Transport) -> ssl.SSLContext:
    """Return a TLS context by the files that a user names."""
    context = ssl.create_default_context()
    if via.cacert is not None:
        try:
            context.load_verify_locations(via.cacert)
        except (OSError, ValueError) as e:
            raise UsageError(
                f"{setting_name('--cacert')} {via.cacert} can't be read: {_why(e)}. Give a PEM file with the "
                "certificates to trust."
            ) from None
    if via.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if via.cert is not None:
        try:
            context.load_cert_chain(via.cert, via.cert_key, password=_refuse_to_ask)
        except (OSError, ValueError) as e:
            # The key's path isn't repeated: it may be an API key by mistake.
            if getattr(e, "reason", None) == "KEY_VALUES_MISMATCH":
                raise UsageError(
                    f"{setting_name('--key')} is not the private key of the certificate in "
                    f"{setting_name('--cert')} {via.cert}."
                ) from None
            or_key = "" if via.cert_key is None else f" or its {setting_name('--key')}"
            raise UsageError(
                f"{setting_name('--cert')} {via.cert}{or_key} can't be read: {_why(e)}. Give PEM files: a "
                "certificate and its private key. (An API key goes into OPENAI_API_KEY.)"
            ) from None
    elif via.cert_key is not None:
        raise UsageError(
            f"{setting_name('--key')} is the private key of a client certificate. Give the certificate with "
            f"{setting_name('--cert')}."
        )
    return context


def _refuse_to_ask() -> str:
    raise UsageError(
        "The private key is encrypted, and dyno can't ask for a passphrase. Decrypt it: openssl pkey -in FILE -out NEW."
    )


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"it isn't valid PEM ({(error.reason or 'PEM').replace('_', ' ').lower()})"
    return describe_error(error)


def describe_tls(error: ssl.SSLError) -> str:
    """Describe a TLS failure, and what to do."""
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the server's certificate can't be verified ({error.verify_message}). Use {setting_name('--cacert')} "
            f"FILE, or {setting_name('--insecure')} if you trust this server anyway."
        )
    # TLS 1.3 may show no more of a refusal
    ended = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
    if ended or ("ALERT" in reason and ("HANDSHAKE_FAILURE" in reason or "CERT" in reason)):
        return (
            f"the server refuses the connection ({reason}). If it requires a client certificate, give one with "
            f"{setting_name('--cert')} and {setting_name('--key')}."
        )
    return f"the TLS handshake failed ({reason}). Is it http:// rather than https://?"


def connect_unix(sock: socket.socket, path: str, within_s: float) -> None:
    """Connects at once, but where the server's queue is full: that is EAGAIN then, and no connection under way."""
    sock.setblocking(False)
    deadline = time.monotonic() + within_s
    while True:
        try:
            sock.connect(path)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError from None
            time.sleep(0.001)


class _TooMuch(Exception):
    """An answer beyond the limit."""


class _FinalResponse(http.client.HTTPResponse):
    """A response after any that come before it, such as 103 Early Hints. http.client itself skips only 100."""

    def _read_status(self) -> tuple[str, int, str]:
        for _ in range(_HINTS):
            version, status, reason = super()._read_status()  # type: ignore[misc]
            if not 102 <= status < 200:
                return version, status, reason
            http.client.parse_headers(self.fp)
        raise http.client.HTTPException(
            f"more than {_HINTS} responses before the final one"
        )


class _Socket(io.RawIOBase):
    """A socket as http.client uses it, for one call: with one deadline for all of it, and a limit of what is read."""

    def __init__(
        self, sock: socket.socket, deadline: float, silence_s: float | None, most: int
    ) -> None:
        self._sock, self._deadline, self._silence_s, self._left = (
            sock,
            deadline,
            silence_s,
            most,
        )

    def _wait(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(
            left if self._silence_s is None else min(left, self._silence_s)
        )

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._wait()
        got = self._sock.recv_into(buffer)
        self._left -= got
        if self._left < 0:
            raise _TooMuch
        return got

    def sendall(self, data: bytes) -> None:
        self._wait()
        self._sock.sendall(data)

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def close(self) -> None:
        """Does nothing: http.client would close it before it has read all. The client does that."""


class EncodedBody(NamedTuple):
    """A request's body as it is sent."""

    data: bytes
    kind: str  # content type
    headers: Mapping[str, str] = {}  # unless the route has others


class Client:
    """One keep-alive connection, JSON in and out. A key that the server sends back is taken out of its answers.

    `timeout_s`: of a whole call."""

    def __init__(
        self,
        url: Url,
        headers: dict[str, str],
        via: Transport = DIRECT,
        *,
        timeout_s: float = 30,
        largest_bytes: int = LARGEST_BYTES,
    ) -> None:
        self.url = url
        secrets.learn(secrets.of_headers(headers))
        self._route = Route(url, via, headers)
        self._tls = tls_context(via) if url.tls else None
        self._timeout_s, self._largest = timeout_s, largest_bytes
        self._sock: socket.socket | None = None

    def call(self, path: str, body: Any = None) -> tuple[int, Any]:
        """Return status and decoded JSON (or text, where it isn't JSON). GET without a body, else POST. `body`: sent as
        JSON, unless it is encoded."""
        if body is not None and not isinstance(body, EncodedBody):
            body = EncodedBody(json.dumps(body).encode(), "application/json")
        payload = None if body is None else body.data
        headers = self._headers(body)
        deadline = time.monotonic() + self._timeout_s
        for attempt in (1, 2):
            try:
                status, raw = self._exchange(path, payload, headers, deadline)
                break
            except TargetError:
                self.close()
                raise
            except (_TooMuch, http.client.HTTPException, OSError, ValueError) as e:
                problem = self._problem(e, path, deadline)
                self.close()
                # A kept-alive connection may have been closed by the server meanwhile: once more, afresh.
                if attempt == 1 and isinstance(
                    e, http.client.RemoteDisconnected | ConnectionResetError
                ):
                    continue
                raise TargetError(problem) from None
        if status == 407 and self._route.proxy:
            raise TargetError(
                f"The proxy {self._route.proxy} answers {status}{login_wanted(status)}."
            )
        return status, secrets.clean(_decoded(raw))

    def _headers(self, body: EncodedBody | None) -> dict[str, str]:
        headers = {
            k: v for k, v in self._route.headers.items() if k.lower() != "accept-encoding"
        }
        if "host" not in map(str.lower, headers):
            headers["Host"] = self.url.netloc
        if body is None:
            return headers
        return {**body.headers, **headers, "Content-Type": body.kind}

    def _problem(self, error: Exception, path: str, deadline: float) -> str:
        """Describe why a call failed."""
        where = f"{self.url}{path.partition('?')[0]}"
        if isinstance(error, _TooMuch):
            return f"{where} answers with more than {self._largest >> 20} MB, more than dyno reads."
        if isinstance(error, TimeoutError):
            silence = self._route.via.read_timeout_s
            if silence is not None and time.monotonic() < deadline:
                return f"{where} sent nothing for {count(silence)} s ({setting_name('--read-timeout')})."
            return f"{where} sent no complete answer within {count(self._timeout_s)} s."
        return self._route.unreachable(error)

    def _exchange(
        self, path: str, payload: bytes | None, headers: dict[str, str], deadline: float
    ) -> tuple[int, bytes]:
        if self._sock is None:
            self._sock = self._opened(deadline)
        connection = http.client.HTTPConnection("localhost")
        connection.response_class = _FinalResponse
        limited = _Socket(
            self._sock, deadline, self._route.via.read_timeout_s, self._largest
        )
        connection.sock = limited
        connection.request(
            "GET" if payload is None else "POST", self._route.front + path, payload, headers
        )
        response = connection.getresponse()
        packed = response.headers.get("content-encoding", "identity").lower()
        if packed != "identity":
            raise TargetError(
                f"{self.url}{path} sends compressed answers ({packed[:50]!r}), but dyno requests plain text. Disable "
                "compression in the server or its proxy."
            )
        parts = []
        # not all at once: it would make room for what the head promises
        while part := response.read(65_536):
            parts.append(part)
        if response.length:
            raise http.client.IncompleteRead(b"", response.length)
        if response.will_close:
            self.close()
        return response.status, b"".join(parts)

    def _opened(self, deadline: float) -> socket.socket:
        allowed_s = min(self._route.via.connect_timeout_s, deadline - time.monotonic())
        until = time.monotonic() + allowed_s
        error = OSError("no address")
        addresses = self._route.addresses()
        for i, (family, address) in enumerate(addresses):
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                share_s = max((until - time.monotonic()) / (len(addresses) - i), 0.001)
                if family == socket.AF_UNIX:
                    connect_unix(sock, address, share_s)
                else:
                    sock.settimeout(share_s)
                    sock.connect(address)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.settimeout(max(until - time.monotonic(), 0.001))
                return self._greeted(sock, until)
            except (ssl.SSLError, ProxyRefused):
                sock.close()
                raise
            except OSError as e:
                error = e
            sock.close()
        if isinstance(error, TimeoutError):
            raise TargetError(self._route.unreachable(error, allowed_s)) from None
        raise error

    def _greeted(self, sock: socket.socket, until: float) -> socket.socket:
        """Go through the proxy's tunnel and the TLS handshake, where there are any."""
        if self._route.tunnel:
            sock.sendall(self._route.tunnel)
            answer = b""
            while not granted(answer):
                sock.settimeout(max(until - time.monotonic(), 0.001))
                more = sock.recv(1)  # not a byte of what follows
                if not more:
                    raise ProxyRefused("the proxy closed the connection")
                answer += more
            sock.settimeout(max(until - time.monotonic(), 0.001))
        if self._tls is None:
            return sock
        limit_s = min(max(until - time.monotonic(), 0.001), _HANDSHAKE_S)
        sock.settimeout(limit_s)
        try:
            return self._tls.wrap_socket(sock, server_hostname=self.url.host)
        except TimeoutError:
            raise SilentHandshake(f"{number(limit_s, digits=2)} s") from None

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


def _decoded(raw: bytes) -> Any:
    """JSON as far as the standard goes (no NaN, no half of a surrogate pair), else text."""
    try:
        answer = msgspec.json.decode(raw)
        if _shallow(answer):
            return answer
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return raw.decode("utf-8", "replace")


def _shallow(value: Any) -> bool:
    """Return whether it can be printed without reaching Python's recursion limit."""
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            child
            for v in level
            if isinstance(v, list | dict)
            for child in (v.values() if isinstance(v, dict) else v)
        ]
        if not level:
            return True
    return False
