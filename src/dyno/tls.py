"""TLS: a context by the files that a user names, and its errors in words."""

import ssl

from dyno.errors import UsageError
from dyno.transport import Transport


def context(via: Transport) -> ssl.SSLContext:
    made = ssl.create_default_context()
    if via.cacert is not None:
        try:
            made.load_verify_locations(via.cacert)
        except (OSError, ValueError) as e:
            raise UsageError(
                f"--cacert {via.cacert} can't be read: {_why(e)}. Give a PEM file with the certificates to trust."
            ) from None
    if via.insecure:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    if via.cert is not None:
        try:
            made.load_cert_chain(via.cert, via.cert_key, password=_refuse_to_ask)
        except (OSError, ValueError) as e:
            # The key's path isn't repeated: an API key may stand there by mistake.
            if getattr(e, "reason", None) == "KEY_VALUES_MISMATCH":
                raise UsageError(f"--key is not the private key of the certificate in --cert {via.cert}.") from None
            raise UsageError(
                f"--cert {via.cert}{'' if via.cert_key is None else ' or its --key'} can't be read: {_why(e)}. Give "
                "PEM files: a certificate and its private key. (An API key goes into OPENAI_API_KEY.)"
            ) from None
    elif via.cert_key is not None:
        raise UsageError("--key is the private key of a client certificate: give that with --cert.")
    return made


def _refuse_to_ask() -> str:
    raise UsageError(
        "The private key is encrypted, and dyno asks for no passphrase. Decrypt it: openssl pkey -in FILE -out NEW."
    )


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"it isn't PEM as expected ({(error.reason or 'PEM').replace('_', ' ').lower()})"
    return getattr(error, "strerror", None) or str(error)


def words(error: ssl.SSLError) -> str:
    """What went wrong with a server, and what helps."""
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the server's certificate can't be verified ({error.verify_message}). Use --cacert FILE, or --insecure if "
            "you trust this server anyway."
        )
    ended = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)  # TLS 1.3 may show no more of a refusal
    if ended or ("ALERT" in reason and ("HANDSHAKE_FAILURE" in reason or "CERT" in reason)):
        return (
            f"the server refuses the connection ({reason}). If it wants a client certificate, give one that it accepts "
            "with --cert and --key."
        )
    return f"SSL doesn't work as expected ({reason}). Is it http:// rather than https://?"
