"""A small control client for readiness, /v1/models, /tokenize and the like. It is not the wire."""

import http.client
import json
import ssl
from typing import Any
from urllib.parse import urlsplit

from dyno import limits
from dyno.errors import TargetError, UsageError


def tls_context(insecure: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def redacted(text: str, headers: dict[str, str]) -> str:
    """Without the header values: a server may send a key back in its complaint about it."""
    for secret in secrets_of(headers):
        text = text.replace(secret, "[redacted]")
    return text


def secrets_of(headers: dict[str, str]) -> list[str]:
    """Each word of a header's value that is long enough to be one: 'Bearer' isn't, what follows is."""
    words = {word for value in headers.values() for word in (value, *value.split()) if len(word) > 6}
    return sorted(words, key=len, reverse=True)


class Url:
    """A base URL, split once: `http://host:8000/prefix`."""

    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url if "://" in base_url else "http://" + base_url)
        try:
            port = parts.port
        except ValueError:
            raise UsageError(f"{base_url!r} has a port that is no number from 1 to 65535.") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                f"{base_url!r} is not a URL that dyno can use. Write it as http://HOST:PORT or https://HOST."
            )
        if parts.username or parts.password:
            raise UsageError(
                "The URL holds a user name or password. Leave it out and send it with "
                "--header 'Authorization=Basic …', or set OPENAI_API_KEY."
            )
        self.tls = parts.scheme == "https"
        self.host: str = parts.hostname
        self.port: int = port or (443 if self.tls else 80)
        self.prefix = parts.path.rstrip("/")

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    @property
    def local(self) -> bool:
        """The server is on this machine, by its address."""
        return self.host in ("localhost", "::1", "0.0.0.0") or self.host.startswith("127.")

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.netloc}{self.prefix}"


class Client:
    """One keep-alive connection, JSON in and out."""

    def __init__(self, url: Url, headers: dict[str, str], *, insecure: bool = False, timeout_s: float = 30) -> None:
        self.url = url
        self._headers = headers
        self._connection: http.client.HTTPConnection = (
            http.client.HTTPSConnection(url.host, url.port, timeout=timeout_s, context=tls_context(insecure))
            if url.tls
            else http.client.HTTPConnection(url.host, url.port, timeout=timeout_s)
        )

    def call(self, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and decoded JSON (or text, where it isn't JSON). GET without a body, else POST."""
        payload = None if body is None else json.dumps(body).encode()
        headers = dict(self._headers)
        if payload is not None:
            headers["Content-Type"] = "application/json"
        for attempt in (1, 2):
            try:
                self._connection.request("GET" if payload is None else "POST", self.url.prefix + path, payload, headers)
                response = self._connection.getresponse()
                raw = response.read()
                break
            except ssl.SSLCertVerificationError as e:
                self._connection.close()
                raise TargetError(
                    f"{self.url} shows a certificate that can't be verified ({e.verify_message}). "
                    "Use --insecure if you trust this server anyway."
                ) from None
            except ssl.SSLError as e:
                self._connection.close()
                raise TargetError(
                    f"{self.url} doesn't speak TLS as expected ({e.reason}). Is it http:// rather than https://?"
                ) from None
            except (http.client.HTTPException, OSError) as e:
                self._connection.close()
                # A kept-alive connection may have been closed by the server meanwhile: once more, afresh.
                if attempt == 1 and isinstance(e, http.client.RemoteDisconnected | ConnectionResetError):
                    continue
                raise TargetError(unreachable(self.url, e)) from None
        try:
            return response.status, json.loads(raw)
        except ValueError:
            return response.status, raw.decode("utf-8", "replace")

    def close(self) -> None:
        self._connection.close()


def unreachable(url: Url, error: Exception) -> str:
    if own := limits.advice(error):
        return f"dyno couldn't open a connection to {url} ({getattr(error, 'strerror', None) or error}). {own}"
    if isinstance(error, ConnectionRefusedError):
        return f"Nothing listens at {url}. Start the server, or give its address with --base-url or --host/--port."
    if isinstance(error, TimeoutError):
        return f"{url} didn't answer in time. Is the address right, and is a firewall in between?"
    if isinstance(error, OSError) and error.errno and error.errno < 0:
        return f"The host name {url.host!r} can't be resolved. Check the spelling in --base-url or --host."
    what = str(error) or type(error).__name__
    return f"{url} can't be reached: {what}. Check --base-url or --host/--port, and that it is an HTTP server."
