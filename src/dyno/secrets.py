"""Secrets, which must reach no file, log or page: known by a name (variable, flag, field), by looks, or by value."""

import base64
import binascii
import contextlib
import functools
import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

T = TypeVar("T")

HIDDEN = "[redacted]"
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")  # apiKey is api, key
# One rule for variables, flags and fields, on whole words: MAX_TOKENS_PER_RANK, TOKENIZERS_PARALLELISM,
# GIT_AUTHOR_NAME and --key-value-cache are none.
_NAME = re.compile(
    r"(?:^|_)(?:"
    r"[^_]*(?:secret|passphrase|passcode|passw(?:or)?d|apikey)[^_]*|credentials?|creds|o?auth|authorization|bearer|jwt|"
    r"cookies?|(?:api|access|private|auth|ssh|signing|encryption|master|license)_?keys?|"
    r"(?:api|access|auth|refresh|hub|hf|session)_?tokens)(?:_|$)"
    r"|(?:^|_)(?:key|pat|pswd|pwd?|(?:(?P<counted>[^_]+)_)?(?:[^_]*token|(?:ssh|pg|db|my)?pass))(?:_\d+)?$"
)
_PLACE = ("env", "file", "path", "dir", "folder")  # as last word: it says where a secret is
# Before the tokens of a text, or a pass: eos_token, time_per_output_token, forward_pass
_COUNTED = {
    *(
        "max",
        "min",
        "num",
        "per",
        "each",
        "total",
        "mean",
        "first",
        "second",
        "next",
        "last",
        "new",
        "one",
        "two",
    ),
    *(
        "single",
        "multi",
        "bos",
        "eos",
        "pad",
        "unk",
        "sep",
        "cls",
        "mask",
        "stop",
        "start",
        "end",
        "special",
        "think",
    ),
    *(
        "input",
        "output",
        "prompt",
        "completion",
        "generated",
        "draft",
        "image",
        "audio",
        "video",
        "prefill",
        "decode",
    ),
    *("forward", "backward", "by"),
}
# hf_subset and hf_max_batch_size are names of settings, not tokens of the Hub.
_LOOKS = re.compile(
    r"\b(?:hf_(?!(?:[a-z]{1,10}|[a-z]+(?:_[a-z]+)+)\b)|sk-|nvapi-|ghp_|gho_|github_pat_|glpat-|AKIA|xox[abp]-)[A-Za-z0-9_-]{6,}|\beyJ[\w-]{8,500}\.[\w-]+\.[\w-]+"
    r"|(?<=://)[^/\s@]+(?=@)"
)
_FOLDERS = ("PWD", "OLDPWD")  # the shell's working directory
_LONGEST_NAME = 200  # no longer one is in use, and to search it would take long
_DEEPEST = 200  # of JSON in a text
_LONGEST_ESCAPED = 200
_SHORTEST = 7  # a shorter value would star out ordinary words
_ORDINARY = (
    "default",
    "disabled",
    "enabled",
    "localhost",
    "optional",
    "password",
    "required",
    "unknown",
    "127.0.0.1",
)
# NAME=X, --name=X, --env=NAME=X, -eNAME=X, 'Name: X'
_ASSIGNED = re.compile(r"(?:--env=|--build-arg=|-e|--?)?([A-Za-z_][\w.-]*)\s*[=:]\s*", re.S)
_BEFORE_JSON = re.compile(r"[^{\[]*=(?=[{\[])|(?=[{\[])")
_PLAIN_HEADERS = (
    "accept",
    "accept-encoding",
    "accept-language",
    "content-type",
    "host",
    "user-agent",
)
_TRACING = ("traceparent", "tracestate", "baggage", "x-request-id", "x-correlation-id")


# ---- by name and looks ----


@functools.lru_cache(4096)
def is_secret(name: str) -> bool:
    """Return whether this is the name of a secret: of a variable, a flag without its dashes, a field."""
    if name in _FOLDERS:
        return False
    plain = re.sub(r"[-.]", "_", _HUMP.sub("_", name[:_LONGEST_NAME])).lower().strip("_")
    match = _NAME.search(plain)
    return (
        match is not None
        and match["counted"] not in _COUNTED
        and plain.rpartition("_")[2] not in _PLACE
    )


def shown(name: str, value: str) -> str:
    """Return the value, if neither its name nor its looks are those of a secret. That a secret is set may matter."""
    if is_secret(name):
        return HIDDEN
    tree = _json(value)
    return without_looks(
        value if tree is None or public(tree) == tree else json.dumps(public(tree))
    )


def without_looks(text: str) -> str:
    return _LOOKS.sub(HIDDEN, text)


def public(value: Any, name: str = "") -> Any:
    """Return settings, such as a request's body, without what their keys or looks call a secret, however deep."""
    if isinstance(value, Mapping):
        return {k: public(v, name if is_secret(name) else str(k)) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return _public_items(value, name)
    if isinstance(value, str):
        return shown(name, value)
    if value is None or isinstance(value, bool):
        return value
    return HIDDEN if is_secret(name) else value


def _public_items(values: Sequence[Any], name: str) -> list[Any]:
    """Return a list as it may be shown: texts may be arguments of a command."""
    if values and not is_secret(name) and all(isinstance(v, str) for v in values):
        return without((), values)
    return [public(v, name) for v in values]


def within(value: Any, name: str = "") -> Iterator[str]:
    """Yield the secrets that `public` would hide, of any length."""
    if isinstance(value, Mapping):
        for k, v in value.items():
            yield from within(v, name if is_secret(name) else str(k))
    elif isinstance(value, list | tuple):
        yield from _within_items(value, name)
    elif value is not None and not isinstance(value, bool) and is_secret(name):
        yield str(value)
    elif isinstance(value, str):
        yield from _LOOKS.findall(value)
        yield from within(_json(value))


def _within_items(values: Sequence[Any], name: str) -> Iterator[str]:
    for value in values:
        yield from within(value, name)
    texts = [value for value in values if isinstance(value, str)]
    for _, _, secrets in _hide(texts):
        yield from secrets


def values(env: Mapping[str, str], args: Sequence[str] = ()) -> list[str]:
    """Return the secrets among variables and arguments, the longest first."""
    named = {value for name, value in env.items() if is_secret(name)}
    return _longest_first(
        named | {secret for _, _, secrets in _hide(args) for secret in secrets}
    )


def of_headers(headers: Mapping[str, str]) -> list[str]:
    """Return a header's value and each of its words ('Bearer' is too short to count), and Basic credentials decoded."""
    secret = [
        v
        for k, v in headers.items()
        if k.lower() not in _PLAIN_HEADERS and not k.lower().endswith("model")
    ]
    return _longest_first({word for value in secret for word in _credentials(value)})


def routing(names: Iterable[str]) -> list[str]:
    """Return the names of headers that may change an answer, such as one that selects a variant: neither keys, nor the
    usual ones of any client, nor ids for tracing."""
    plain = {name.lower() for name in names}.difference(_PLAIN_HEADERS, _TRACING)
    return sorted(name for name in plain if not is_secret(name))


def without(hidden: Iterable[str], words: Sequence[str]) -> list[str]:
    """Return arguments without secrets: those in `hidden`, those after a secret's name, those that look like one."""
    out = list(words)
    for i, clean_word, _ in _hide(words):
        out[i] = clean_word
    for secret in hidden:
        out = [word.replace(secret, HIDDEN) for word in out]
    return [*map(without_looks, out)]


def without_in_command(text: str, hidden: Iterable[str] = ()) -> str:
    """Return a line for the shell as it was written, without secrets."""
    for secret in hidden:
        text = text.replace(secret, HIDDEN)
    text = _IN_COMMAND.sub(
        lambda m: f"{m[1]}{m[2]}{HIDDEN}" if is_secret(m[1].lstrip("-")) else m[0], text
    )
    return without_looks(text)


_IN_COMMAND = re.compile(
    r"(?<![\w.-])(--?[A-Za-z][\w.-]*+|[A-Za-z_]\w*+(?==))(\s+|=)('[^']*'|\"[^\"]*\"|[^\s'\"=|&;-][^\s|&;]*)"
)


def without_in_toml(text: str) -> str:
    """Return a file as it was written, comments and all: the value after a secret's name is hidden in its place."""
    text = _TOML_VALUE.sub(
        lambda m: (
            f'{m[1]}{m[2]}"{HIDDEN}"'
            if is_secret(m[1].strip("\"'").rpartition(".")[2])
            else m[0]
        ),
        text,
    )
    text = _TOML_FLAG.sub(
        lambda m: f'{m[1]}"{HIDDEN}"' if is_secret(m[3].lstrip("-")) else m[0], text
    )
    return without_looks(text)


_TOML_TEXT = r"\"\"\"(?:\\.|[^\\])*?\"\"\"|'''.*?'''|\"(?:\\.|[^\"\\\n])*\"|'[^'\n]*'"
_TOML_VALUE = re.compile(
    rf"((?<![\w.-])[A-Za-z0-9_.-]++|\"[^\"\n]*\"|'[^'\n]*')(\s*=\s*)({_TOML_TEXT}|[^\s,}}\]#\"'\[{{][^,}}\]#\n]*)",
    re.S,
)
_TOML_FLAG = re.compile(rf"(([\"'])(--?[\w.-]+)\2\s*,\s*)({_TOML_TEXT})", re.S)


def _hide(words: Sequence[str]) -> Iterator[tuple[int, str, list[str]]]:
    """Yield the words that hold a secret: their index, as they may be shown, and the secrets."""
    flag, several = False, False
    for i, word in enumerate(words):
        after, flag = flag and not word.startswith("-"), False
        if after:
            flag = several  # --api-key takes several
            yield i, HIDDEN, [word]
        elif (
            (match := _ASSIGNED.match(word))
            and is_secret(match[1])
            and match.end() < len(word)
        ):
            yield i, match[0] + HIDDEN, sorted(_credentials(word[match.end() :]))
        elif (match := _BEFORE_JSON.match(word)) and (
            tree := _json(word[match.end() :])
        ) is not None:
            if secrets := list(within(tree)):
                yield i, match[0] + json.dumps(public(tree)), secrets
        elif word.startswith("-") and "=" not in word:
            name = word.lstrip("-")
            flag, several = (
                is_secret(name),
                re.search(r"(?i)api[-_]?keys?$", name) is not None,
            )


def _credentials(value: str) -> set[str]:
    words = {value, *value.split()}
    kind, _, encoded = value.partition(" ")
    if kind.lower() == "basic":
        with contextlib.suppress(binascii.Error, UnicodeDecodeError):
            login = base64.b64decode(encoded.strip() + "==").decode()
            words |= {login, login.partition(":")[2]}
    return words


def _json(text: str) -> Any:
    """Return the value of a text that is an object or a list of JSON."""
    if text[:1] not in ("{", "[") or text.count("{") + text.count("[") > _DEEPEST:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _longest_first(secrets: Iterable[str]) -> list[str]:
    return sorted(
        (v for v in secrets if len(v) >= _SHORTEST and v.lower() not in _ORDINARY),
        key=lambda v: (-len(v), v),
    )


# ---- by value ----
#
# One list for the whole process, since a server may send back what it was sent, in any place and form: whatever is
# written, raised or read by the control client goes through `clean`, and keys needn't be passed around for it.

_values: set[str] = set()
_known: list[str] = []  # these and other forms of them, the longest first


def learn(secrets: Iterable[str]) -> None:
    new = {
        value
        for value in _longest_first(secrets)
        if value not in HIDDEN and _can_be_sent(value)
    } - _values
    if new:
        _values.update(new)
        _known[:] = _longest_first(
            {*_known, *(form for value in new for form in _forms(value))}
        )


def forget() -> None:
    _values.clear()
    _known.clear()


def learned() -> list[str]:
    """Return the values that were learned, for a process that is to know them too."""
    return sorted(_values)


def known() -> list[str]:
    return list(_known)


def public_command(text: str) -> str:
    """Return a line for the shell, as it may be shown."""
    return public_text(without_in_command(text))


def public_text(text: str) -> str:
    """Return words of a program, as they may be shown."""
    return clean(without_looks(text))


def clean(value: T) -> T:
    """Return the value without any secret that this process knows; names of fields stay as they are."""
    return cast(T, _clean(value)) if _known else value


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        for secret in _known:
            if secret in value:
                value = value.replace(secret, HIDDEN)
        if "\\" in value or "%" in value or "&" in value:
            value = _escaped(frozenset(_values)).sub(HIDDEN, value)
        return value
    if value is None or isinstance(value, int | float):
        return value
    return _clean_nested(value)


def _clean_nested(value: Any) -> Any:
    if isinstance(value, list | tuple):
        plain = type(value) in (list, tuple)
        return type(value)(map(_clean, value)) if plain else value
    if isinstance(value, dict):
        return {_clean(k): _clean(v) for k, v in value.items()}
    if hasattr(value, "__struct_fields__"):
        return _clean_struct(value)
    return value


def _clean_struct(value: Any) -> Any:
    import msgspec  # here and not above: it costs `dyno --help` some time

    changed = {}
    for name in _texts(value.__class__):
        old = getattr(value, name)
        new = _clean(old)
        if new != old:
            changed[name] = new
    return msgspec.structs.replace(value, **changed) if changed else value


@functools.cache
def _texts(struct: Any) -> list[str]:
    """Return the fields that may hold others' words: not a choice of dyno's own, whatever a secret's value is."""
    import msgspec

    fields = msgspec.structs.fields(struct)
    return [
        f.name
        for f in fields
        if "Literal[" not in str(f.type) and f.name not in ("backend", "dataset", "kind")
    ]


def _can_be_sent(value: str) -> bool:
    try:
        return bool(value.encode(errors="surrogateescape"))
    except UnicodeEncodeError:  # half a character, of JSON
        return False


def _is_simple(value: str) -> bool:
    """Return whether it can be searched for in all ways of writing. Others, such as certificates, are known by the
    usual escapes."""
    return len(value) <= _LONGEST_ESCAPED and value.count("\\") < 5


def _forms(value: str) -> Iterator[str]:
    yield value
    if not _is_simple(value):
        yield from (json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1])
    raw = value.encode(errors="surrogateescape")
    for encoded in (base64.b64encode(raw), base64.urlsafe_b64encode(raw)):
        # what follows it may change the last letter
        yield encoded.decode()[: len(raw) * 4 // 3]


@functools.lru_cache(1)
def _escaped(values: frozenset[str]) -> re.Pattern[str]:
    few = [value for value in _longest_first(values) if _is_simple(value)]
    # else all ways are tried at every letter
    begins = re.escape("".join({value[0] for value in few}) + "\\%&")
    return re.compile(
        f"(?=[{begins}])(?:{'|'.join(''.join(map(_any_way, value)) for value in few) or '(?!)'})"
    )


def _any_way(char: str) -> str:
    r"""Return a pattern of a letter as itself, or as \u0073, \x73, %73, &#115; or &#x73;."""
    code = ord(char)
    digits = "".join(f"[{d}{d.upper()}]" if d.isalpha() else d for d in f"{code:x}")
    percent = "".join(
        f"%(?:{byte:02x}|{byte:02X})" for byte in char.encode(errors="surrogateescape")
    )
    ways = [
        re.escape(char),
        rf"\\{{1,4}}u0{{0,{max(4 - len(f'{code:x}'), 0)}}}{digits}",
        percent,
    ]
    ways += [rf"\\{{1,4}}x{digits}", rf"&#[xX]0{{0,4}}{digits};", f"&#0{{0,4}}{code};"]
    if char in "\"'\\/":
        ways.append(rf"\\{{1,4}}{re.escape(char)}")
    if (named := html.escape(char)) != char:
        ways.append(re.escape(named))
    return f"(?:{'|'.join(ways)})"
