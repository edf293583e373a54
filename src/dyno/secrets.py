"""What must reach no file, log or page: told by a variable's name, by a flag's, or by its looks."""

import re
from collections.abc import Iterable, Mapping, Sequence

HIDDEN = "[redacted]"
_NAME = re.compile(r"TOKEN(?!IZERS?_|S\b|S$)|KEY|SECRET|PASSW|CREDENTIAL|AUTH", re.I)
_FLAG = re.compile(r"--?(?:api[-_]?key|hf[-_]?token|token|password|auth)", re.I)
_VALUE = re.compile(
    r"\b(?:hf_|sk-|nvapi-|ghp_|gho_|github_pat_|glpat-|AKIA|xox[abp]-)[A-Za-z0-9_-]{6,}|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]+"
)
_LOGIN = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_SHORTEST = 7  # a shorter value would star out ordinary words


def is_secret(name: str) -> bool:
    """Of a variable."""
    return bool(_NAME.search(name))


def shown(name: str, value: str) -> str:
    """The value, if neither its name nor its looks are those of a secret. That a secret is set may matter too."""
    if is_secret(name):
        return HIDDEN
    return _LOGIN.sub(HIDDEN, _VALUE.sub(HIDDEN, value))


def values(env: Mapping[str, str], args: Sequence[str] = ()) -> list[str]:
    """The secrets among variables and arguments, the longest first."""
    found = {value for name, value in env.items() if is_secret(name)}
    for i, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if _FLAG.fullmatch(name):
            found.add(value if equals else args[i + 1] if i + 1 < len(args) else "")
    return sorted((value for value in found if len(value) >= _SHORTEST), key=len, reverse=True)


def without(hidden: Iterable[str], words: Sequence[str]) -> list[str]:
    out = []
    for word in words:
        for secret in hidden:
            word = word.replace(secret, HIDDEN)
        out.append(_VALUE.sub(HIDDEN, word))
    return out
