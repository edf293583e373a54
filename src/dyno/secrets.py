"""What must reach no file, log or page: told by a variable's name, by a flag's, or by its looks."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

HIDDEN = "[redacted]"
# Whole words between underscores: MAX_TOKENS_PER_RANK, TOKENIZERS_PARALLELISM and GIT_AUTHOR_NAME are none.
_NAME = re.compile(
    r"(?:^|[_-])(?:\w*(?:token|apikey)|key|secrets?|passw(?:or)?d|passwd|pass|pwd?|credentials?|auth)(?:$|[_-])", re.I
)
_FLAG = re.compile(r"--?(?:[\w-]*[-_])?(?:api[-_]?key|[\w-]*token|password|auth)", re.I)
_VALUE = re.compile(
    r"\b(?:hf_|sk-|nvapi-|ghp_|gho_|github_pat_|glpat-|AKIA|xox[abp]-)[A-Za-z0-9_-]{6,}|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]+"
)
_LOGIN = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_FOLDERS = ("PWD", "OLDPWD")  # the shell's: where the user stands
_LONGEST_NAME = 200  # of a longer one nobody speaks, and to search it would take long
_SHORTEST = 7  # a shorter value would star out ordinary words


def is_secret(name: str) -> bool:
    """Of a variable."""
    return name not in _FOLDERS and bool(_NAME.search(name[:_LONGEST_NAME]))


def shown(name: str, value: str) -> str:
    """The value, if neither its name nor its looks are those of a secret. That a secret is set may matter too."""
    if is_secret(name):
        return HIDDEN
    return _LOGIN.sub(HIDDEN, _VALUE.sub(HIDDEN, value))


def without_in(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table of settings, such as a request's body, without what its keys or looks call a secret."""
    out = {k: without_in(v) if isinstance(v, dict) else v for k, v in table.items()}
    return {k: shown(k, v) if isinstance(v, str) else v for k, v in out.items()}


def values(env: Mapping[str, str], args: Sequence[str] = ()) -> list[str]:
    """The secrets among variables and arguments, the longest first."""
    found = {value for name, value in env.items() if is_secret(name)}
    for i, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if _FLAG.fullmatch(name):
            found.add(value)
            for word in () if equals else args[i + 1 :]:  # --api-key takes several
                if word.startswith("-"):
                    break
                found.add(word)
        elif equals and is_secret(name.removeprefix("--env=").removeprefix("-e")):  # -e NAME=VALUE of a container
            found.add(value.rpartition("=")[2])
    return sorted((value for value in found if len(value) >= _SHORTEST), key=len, reverse=True)


def without(hidden: Iterable[str], words: Sequence[str]) -> list[str]:
    out = []
    for word in words:
        for secret in hidden:
            word = word.replace(secret, HIDDEN)
        out.append(_VALUE.sub(HIDDEN, word))
    return out
