"""How a server is reached, beside its URL: certificates, proxy, time-outs."""

import msgspec


class Transport(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the paths of files, never their content. A proxy's password is kept with the headers."""

    insecure: bool = False  # the server's certificate isn't verified
    cacert: str | None = None  # PEM file: the authorities to verify it by; None: the system's
    cert: str | None = None  # PEM file: the client's own certificate
    cert_key: str | None = None  # PEM file: its private key; None: in the same file
    proxy: str | None = None  # http://HOST:PORT, as the environment names it
    connect_timeout_s: float = 30.0  # until a connection is open, TLS included
    read_timeout_s: float | None = None  # without a byte of an answer; None: no such limit


DIRECT = Transport()
