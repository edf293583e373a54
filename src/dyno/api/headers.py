"""Headers of requests, keys among them, and the proxy in front of a server. A key goes nowhere but into requests."""

import os
import re
from collections.abc import Mapping

import msgspec

from dyno.errors import UsageError
from dyno.facts.study import PlannedTrial, Study
from dyno.facts.target import TargetSpec

# With one of these, the server and dyno would disagree where a request ends, or who goes on with the connection.
_FRAMING = {
    "content-length", "transfer-encoding", "connection", "keep-alive", "proxy-connection", "te", "trailer", "upgrade",
    "expect",
}  # fmt: skip


def check_headers(headers: dict[str, str]) -> None:
    for name, value in headers.items():
        if not re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", name, re.A):
            # It isn't repeated: of 'Authorization: Bearer abc==' it is the key.
            raise UsageError(
                "A header's name must be one word. Write 'Authorization=Bearer …', with '='."
            )
        if name.lower() in _FRAMING:
            raise UsageError(
                f"The header {name} frames the request, which dyno does itself. Remove it."
            )
        if not re.fullmatch(r"[ -~]*", value):
            raise UsageError(
                f"The header {name!r} has characters that HTTP doesn't allow. Use ASCII without line ends."
            )


def proxied(target: TargetSpec) -> tuple[TargetSpec, dict[str, str]]:
    """Return the target with the proxy that the environment names for it, and the header that the proxy wants."""
    from dyno.http import Url
    from dyno.transport import proxy_for

    urls = [Url(url) for url in target.urls if url]
    proxies = {
        None if url.local else proxy_for(url.tls, url.host, url.port, os.environ)
        for url in urls
    }
    if not proxies:
        return target, {}
    if len(proxies) > 1:
        raise UsageError(
            "The environment sets different proxies for the servers. Set no_proxy so that all are reached the same way."
        )
    (proxy,) = proxies
    if proxy is None:
        return target, {}
    login = (
        {} if proxy.authorization is None else {"Proxy-Authorization": proxy.authorization}
    )
    return msgspec.structs.replace(target, proxy=proxy.url), login


KEY = "OPENAI_API_KEY"  # the variable of a server's key, where no other is named


def request_headers(given: Mapping[str, str], key_env: str | None = None) -> dict[str, str]:
    """Return the headers of each request: those that were given, and the key of the environment where they have none.

    `key_env`: the variable that holds it, which must be set then."""
    headers = {}
    if key_env and key_env not in os.environ:
        raise UsageError(
            f"api_key_env = {key_env!r}: this environment variable is not set."
        )
    key = os.environ.get(key_env or KEY)
    if key and "authorization" not in map(str.lower, given):
        headers["Authorization"] = f"Bearer {key}"
    headers |= given
    check_headers(headers)
    return headers


def key_headers(planned: PlannedTrial) -> dict[str, str]:
    """Return the headers of a study's trial."""
    headers = request_headers({}, planned.api_key_env)
    return headers | proxied(planned.trial.target)[1]


def proxied_study(study: Study) -> Study:
    """Give a study's running servers the proxies that the environment names."""

    def through(planned: PlannedTrial) -> PlannedTrial:
        if study.is_elsewhere(planned):  # that machine's environment names its own
            return planned
        target, _ = proxied(planned.trial.target)
        return msgspec.structs.replace(
            planned, trial=msgspec.structs.replace(planned.trial, target=target)
        )

    return msgspec.structs.replace(
        study, trials=[through(planned) for planned in study.trials]
    )
