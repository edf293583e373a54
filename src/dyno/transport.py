"""How a server is reached, beside its URL: certificates, proxy, time-outs."""

from typing import Annotated

import msgspec

from dyno.option import Option


class Transport(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the paths of files, never their content. A proxy's password is kept with the headers."""

    insecure: Annotated[bool, Option("--insecure", help="don't verify the TLS certificate")] = False
    # None: by the system's.
    cacert: Annotated[str | None, Option("--cacert", "FILE", "verify it by the authorities in this PEM file")] = None
    cert: Annotated[str | None, Option("--cert", "FILE", "client certificate, PEM")] = None
    cert_key: Annotated[
        str | None, Option("--key", "FILE", "private key of --cert, PEM (default: in the same file)")
    ] = None
    proxy: str | None = None  # http://HOST:PORT, as the environment names it
    connect_timeout_s: Annotated[  # TLS included
        float,
        Option("--connect-timeout", "S", "for a connection to open (default: 30)", above=0, most=1e8, note=" seconds"),
    ] = 30.0
    read_timeout_s: Annotated[
        float | None,
        Option("--read-timeout", "S", "without a byte of an answer (default: no limit)", above=0, most=1e8,
               note=" seconds"),
    ] = None  # fmt: skip


DIRECT = Transport()
