"""How a server is reached: the flags for it, and the proxy that the environment names."""

import argparse
import math
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dyno.errors import UsageError

if TYPE_CHECKING:
    from dyno.facts.target import TargetSpec


def add(g: argparse._ArgumentGroup) -> None:
    g.add_argument("--insecure", action="store_true", help="don't verify the TLS certificate")
    g.add_argument("--cacert", metavar="FILE", help="verify it by the authorities in this PEM file")
    g.add_argument("--cert", metavar="FILE", help="client certificate, PEM")
    g.add_argument("--key", metavar="FILE", help="private key of --cert, PEM (default: in the same file)")
    g.add_argument(
        "--connect-timeout", type=float, default=30.0, metavar="S", help="for a connection to open (default: 30)"
    )
    g.add_argument("--read-timeout", type=float, metavar="S", help="without a byte of an answer (default: no limit)")


def fields(o: argparse.Namespace) -> dict[str, Any]:
    """Of `Transport`."""
    for name in ("connect_timeout", "read_timeout"):
        value = getattr(o, name)
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"--{name.replace('_', '-')} must be above 0 seconds.")
    return {
        "insecure": o.insecure,
        "cacert": o.cacert,
        "cert": o.cert,
        "cert_key": o.key,
        "connect_timeout_s": o.connect_timeout,
        "read_timeout_s": o.read_timeout,
    }


def check_files(targets: "Iterable[TargetSpec]") -> None:
    """Certificates that can't be used are told before anything starts."""
    from dyno.http import tls_context
    from dyno.transport import Transport

    named = {(t.cacert, t.cert, t.cert_key) for t in targets} - {(None, None, None)}
    for cacert, cert, cert_key in named:
        tls_context(Transport(cacert=cacert, cert=cert, cert_key=cert_key))


def proxied(target: "TargetSpec") -> "tuple[TargetSpec, dict[str, str]]":
    """With the proxy that the environment names for it, and the header that this one wants."""
    import msgspec

    from dyno.http import Url
    from dyno.transport import proxy_for

    urls = [Url(url) for url in target.urls if url]
    found = {None if url.local else proxy_for(url.tls, url.host, url.port, os.environ) for url in urls} or {None}
    if len(found) > 1:
        raise UsageError(
            "The environment names a proxy for some of the servers and none, or another one, for others. Set no_proxy "
            "so that all are reached in the same way."
        )
    (proxy,) = found
    if proxy is None:
        return target, {}
    login = {} if proxy.authorization is None else {"Proxy-Authorization": proxy.authorization}
    return msgspec.structs.replace(target, proxy=proxy.url), login
