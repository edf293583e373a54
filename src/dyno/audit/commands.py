"""Commands, argument dumps and environments before results, and the results that each applies to."""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from dyno.engines import kinds
from dyno.engines.kinds import kind_of, names
from dyno.engines.kinds.base import EngineKind, KnownCommand, Role
from dyno.facts.imported import By, Command, RowKind, Scalar, Setting
from dyno.facts.setting import of_flag
from dyno.secrets import HIDDEN, is_secret, shown

# A command line of other tools: words of which one must be there, the program's name, its role, its tool. The engines'
# files have those of engines.
_TOOLS: dict[str, KnownCommand] = {
    "lm-eval": KnownCommand(
        ("lm_eval", "lm-eval"),
        r"\blm[_-]eval\b|lm_eval\.__main__|lm-evaluation-harness/main\.py",
        "quality",
    ),
    "guidellm": KnownCommand(("guidellm",), r"\bguidellm\s+benchmark\b", "client"),
    "aiperf": KnownCommand(
        ("aiperf", "genai-perf"), r"\b(?:aiperf|genai-perf)\s+profile\b", "client"
    ),
    "inference-benchmarker": KnownCommand(
        ("inference-benchmarker",), r"\binference-benchmarker\b", "client"
    ),
    "inference-perf": KnownCommand(("inference-perf",), r"\binference-perf\s", "client"),
    "tensorrt-llm": KnownCommand(("trtllm-serve",), r"\btrtllm-serve\b", "server"),
    "dyno": KnownCommand(("dyno bench",), r"\bdyno\s+bench\s+serve\b", "client"),
}
# a line without any has no command
_HINTS = ("bench", "serve", "llama", "launch", "eval", "guidellm", "perf")
# of most programs
_SHORT = {
    "tp": "tensor_parallel",
    "pp": "pipeline_parallel",
    "dp": "replicas",
    "q": "quantization",
}


class _Programs:
    """The programs of engines and tools, as a document names them."""

    def __init__(self, engines: Iterable[EngineKind]) -> None:
        self.patterns: list[tuple[tuple[str, ...], re.Pattern[str], Role, str]] = []
        self.hints = [*_HINTS]
        self.servers: set[str] = set()
        self._short: dict[str, dict[str, str]] = {}
        for kind in engines:
            for command in kind.commands:
                self._add(command.tool or kind.result_name, command)
        for tool, command in _TOOLS.items():
            self._add(tool, command)

    def _add(self, tool: str, command: KnownCommand) -> None:
        self.patterns.append(
            (command.words, re.compile(command.pattern), command.role, tool)
        )
        self.hints += [
            word for word in command.words if not any(hint in word for hint in _HINTS)
        ]
        self._short[tool] = {**self._short.get(tool, {}), **command.short}
        if command.role == "server":
            self.servers.add(tool)

    def short_flags(self, tool: str) -> dict[str, str]:
        """Return the settings of flags of a few letters: those mean different things to different programs."""
        return {**self._short.get(tool, {}), **_SHORT}


@functools.cache
def _programs(engines: tuple[str, ...]) -> _Programs:
    return _Programs(map(kind_of, engines))


_ABOUT_THE_LOAD = ("concurrency", "rate", "num_prompts", "dataset", "input_len", "output_len", "seed", "batch_size",
                   "tokenizer", "endpoint", "percentiles", "ignore_eos")  # fmt: skip
_VARIABLE = re.compile(r"([A-Z_][A-Z0-9_]*)=(\S*)")
_PLACEHOLDER = re.compile(r"<[^>]*>|\$\{?\w+\}?|[A-Z][A-Z_]{2,}|\.\.\.|…")
_IN_PLACE = re.compile(r"\$\{?(\w{1,60})\}?")
_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,15})?")
_PROMPT = re.compile(r"^.{0,80}?[$#❯>%]\s+(?=\S)")
_LONGEST = 16_000
_MOST = 200  # settings of a command
# A word as a shell takes it: $'…' too. Possessive, so no text takes long.
_WORD = re.compile(
    r"""(?:[^\s"'\\$]++|\\.|\\$|\$?'[^']*+'|"(?:[^"\\]++|\\.)*+"|\$)++""", re.DOTALL
)
_QUOTED = re.compile(r"""\\(.)|\$?'([^']*+)'|"((?:[^"\\]++|\\.)*+)"|\\$""", re.DOTALL)


def program_in(text: str) -> tuple[str, Role, str, int] | None:
    """Return the name of a program as written, its role, its tool, and its position in the line."""
    programs = _programs(kinds.NAMES)
    if not any(hint in text for hint in programs.hints):
        return None
    text = text[:_LONGEST]
    for words, pattern, role, tool in programs.patterns:
        if any(word in text for word in words) and (match := pattern.search(text)):
            return " ".join(match[0].split()), role, tool, match.start()
    return None


def scalar(text: str) -> Scalar:
    text = text.strip().strip("'\"")
    if _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    return {"true": True, "false": False}.get(text.lower(), text)


def command(
    text: str, line: int, variables: Mapping[str, str], section: str = ""
) -> Command | None:
    """Read a joined line of commands. None where it names no known program, or only mentions one."""
    known = program_in(text)
    if known is None:
        return None
    program, role, tool, start = known
    words = _unquoted_words(text[:_LONGEST])
    settings = dict(islice(_settings_of_flags(words, line, tool, variables), _MOST))
    if role == "server" and "model" not in settings:
        name = _positional(text[start + len(program) :])
        if name:
            settings["model"] = Setting(
                without_secrets(_resolved(name, variables) or name), line, "command"
            )
    if role in ("server", "offline") and tool in _programs(kinds.NAMES).servers:
        settings.setdefault("engine", Setting(tool, line, "command"))
    if role == "quality":  # --model names the program
        settings.pop("model", None)
        if "--model-args" in settings:
            settings |= model_args(str(settings["--model-args"].value), line)
    if role == "server":  # a load in its flags is its own limit
        for name in _ABOUT_THE_LOAD:
            settings.pop(name, None)
    shown_text = without_secrets(" ".join(_without_secrets(words))[:2000])
    return Command(
        line, role, shown_text, settings, program, _environment(text[:start]), section
    )


def _environment(text: str) -> dict[str, str]:
    """Return the variables that are set before a program, without secrets."""
    matches = map(_VARIABLE.fullmatch, _unquoted_words(text))
    return {match[1]: shown(match[1], match[2]) for match in matches if match}


def _unquoted_words(text: str) -> list[str]:
    """Return the words of a command, without their quotes."""
    words, end = [], 0
    for match in _WORD.finditer(text):
        if text[end : match.start()].strip():
            return text.split()  # an open quote, as in a cut line
        end, word = match.end(), match[0]
        words.append(
            _QUOTED.sub(_unquoted, word)
            if "'" in word or '"' in word or "\\" in word
            else word
        )
    return words if not text[end:].strip() else text.split()


def _unquoted(match: re.Match[str]) -> str:
    if match[3] is not None:
        return re.sub(r"\\([\\\"$`\n])", r"\1", match[3])
    return match[1] or match[2] or ""


# ---- secrets in words ----

_SECRETIVE = re.compile(
    r"token|key|secret|pass|pwd|cred|auth|bearer|cookie|jwt|hf_|sk-|gh[po]_|_pat|akia|xox|eyj|@",
    re.I,
)
_BY_FLAG = re.compile(r"(?<![\w-])(--?[A-Za-z][\w-]{1,60})(\s{1,3}|=)(?![\s=-])(\S+)")
_BY_NAME = re.compile(
    r"(?<![\w-])([A-Za-z_][\w-]{1,60})=(?![\s=])(\"[^\"]*\"|'[^']*'|[^\s,;)]+)"
)
_IN_WORDS_SECRET = re.compile(
    r"\b((?:\w{0,30}_)?(?:(?:api|secret|private|access)[_-]?key|passphrase|password|passwd|secret|access[_-]token|auth[_-]token|hf[_-]token))"
    r"([\"'`]{0,2}\s{0,3}[:=]\s{0,3})([^\s,;)]{3,})",
    re.I,
)
_BEARER = re.compile(r"\b(bearer|authorization\s{0,3}:\s{0,3}basic)\s{1,3}\S{3,}", re.I)


def without_secrets(text: str) -> str:
    """Hide what follows a secret's name, or looks like a secret."""
    if not _SECRETIVE.search(text):
        return text
    text = _BEARER.sub(rf"\1 {HIDDEN}", text)
    text = _BY_FLAG.sub(
        lambda m: f"{m[1]}{m[2]}{HIDDEN}" if _hides(m[1], m[3]) else m[0], text
    )
    text = _BY_NAME.sub(lambda m: f"{m[1]}={HIDDEN}" if _hides(m[1], m[2]) else m[0], text)
    text = _IN_WORDS_SECRET.sub(
        lambda m: m[0] if _NUMBER.fullmatch(m[3]) else f"{m[1]}{m[2]}{HIDDEN}", text
    )
    return shown("", text)


def _hides(name: str, value: str) -> bool:
    ordinary = _NUMBER.fullmatch(value) or value.lower() in (
        "true",
        "false",
        "none",
        "null",
        "auto",
    )
    return (
        is_secret(name.lstrip("-").replace("-", "_")) and not ordinary and value[:1] != "$"
    )


def _without_secrets(words: list[str]) -> list[str]:
    out, hide = [], False
    for word in words:
        name, equals, value = word.partition("=")
        if hide and not word.startswith("-"):
            word = HIDDEN
        elif equals and is_secret(name.lstrip("-").replace("-", "_")) and value:
            word = f"{name}={HIDDEN}"
        hide = (
            word.startswith("-")
            and not equals
            and is_secret(word.lstrip("-").replace("-", "_"))
        )
        out.append(shown("", word))
    return out


# ---- flags ----


def _positional(text: str) -> str | None:
    """Return the model of `vllm serve MODEL`, anywhere among the flags."""
    words, skip = _unquoted_words(text), False
    for word in words:
        if skip:
            skip = False
        elif word.startswith("-"):
            skip = "=" not in word
        elif word in ("\\", "|", "&", ">", "&&") or _VARIABLE.fullmatch(word):
            return None
        elif "/" in word or re.search(r"\d+[bB]\b", word):
            return word
    if not words or words[0].startswith(("-", "\\", "<", "|", "&")) or "=" in words[0]:
        return None
    return words[0]


def _settings_of_flags(
    words: list[str], line: int, tool: str, variables: Mapping[str, str]
) -> Iterator[tuple[str, Setting]]:
    """Yield the settings of a command's flags."""
    for i, word in enumerate(words):
        if word[:1] != "-" or not re.match(r"--?[A-Za-z]", word):
            continue
        flag, equals, value = word.partition("=")
        bare = flag.lstrip("-").replace("_", "-")
        if (
            len(bare) > 100
            or is_secret(bare.replace("-", "_"))
            or _is_python_module(words, i)
        ):
            continue
        if not equals:
            value = _value_after(words, i)
        resolved = _resolved(value, variables)
        if resolved is None:
            continue
        dashes = flag[: len(flag) - len(flag.lstrip("-"))]
        name = _setting_name(dashes, bare, tool)
        setting = scalar(without_secrets(shown(bare, resolved[:2000])))
        if name.startswith("-"):
            name, setting = name[1:], False
        yield name or f"{dashes}{bare}", Setting(setting, line, "command")


def _is_python_module(words: list[str], i: int) -> bool:
    """Return whether it is the -m of `python -m`."""
    return (
        words[i] == "-m" and i > 0 and re.search(r"python[\d.]*$", words[i - 1]) is not None
    )


def _value_after(words: list[str], i: int) -> str:
    """Return the word after a flag; 'true' where another flag, or nothing, follows."""
    after = words[i + 1] if i + 1 < len(words) else ""
    if not after or re.match(r"--?[A-Za-z]|[|&>;\\]", after):
        return "true"
    return after


def _setting_name(dashes: str, bare: str, tool: str) -> str:
    """Return the name of a flag's setting; '' if it has none, '-' before it if the flag turns it off."""
    if dashes == "-":
        short = _programs(kinds.NAMES).short_flags(tool).get(bare)
        if short:
            return short
    return of_flag(bare) if dashes == "--" or len(bare) > 2 else ""


def _resolved(value: str, variables: Mapping[str, str]) -> str | None:
    """Return a value with the shell's variables put in; None for a placeholder that a reader is to fill."""
    whole = re.fullmatch(r"\$\{?(\w+)\}?", value)
    if whole and whole[1] in variables:
        return shown(whole[1], variables[whole[1]])
    if "$" in value and not whole:
        value = _IN_PLACE.sub(
            lambda m: shown(m[1], variables[m[1]]) if m[1] in variables else m[0],
            value[:2000],
        )
    return None if _PLACEHOLDER.fullmatch(value) else value


def without_prompt(text: str) -> str:
    """Return a line of a terminal without the prompt before its command."""
    match = _PROMPT.match(text)
    return text[match.end() :] if match and program_in(text[match.end() :]) else text


# ---- dumps of arguments ----

_ARGUMENT = re.compile(
    r"(?<!\w)(\w{2,60}+)=(?:'([^']{0,500}+)'|\"([^\"]{0,500}+)\"|([^,()\[\]{}'\"\s]{1,200}+))(?=[,)\s]|$)"
)
# datasets whose lengths are set
_RANDOM = ("random", "random-ids", "random-image", "generated-shared-prefix")


def namespace(text: str, line: int) -> dict[str, Setting]:
    """Return the settings of `Namespace(num_prompts=64, …)` as Python prints it."""
    out: dict[str, Setting] = {}
    for match in _ARGUMENT.finditer(text):
        argument, *quotations = match.groups()
        value = next(text for text in quotations if text is not None)
        if value == "None" or is_secret(argument):
            continue
        key = argument.replace("_", "-")
        name = of_flag(key)
        # A length that is another dataset's doesn't apply to this one; see below.
        if (
            name
            and not name.startswith("-")
            and key not in ("sharegpt-output-len", "batch-size")
        ):
            out[name] = Setting(scalar(shown(key, value)), line, "namespace")
        elif (
            key == "random-range-ratio"
        ):  # lengths are drawn around those that are asked for
            out["--random-range-ratio"] = Setting(scalar(value), line, "namespace")
    dataset = out.get("dataset")
    # its lengths are unused defaults
    if dataset is not None and str(dataset.value) not in _RANDOM:
        for name in ("input_len", "output_len", "--random-range-ratio"):
            out.pop(name, None)
    return out


def model_args(text: str, line: int) -> dict[str, Setting]:
    """Return the settings of `pretrained=NAME,dtype=float16,…` as lm-eval takes and prints it."""
    out = {
        k: v
        for k, v in namespace(text, line).items()
        if k not in ("backend", "endpoint", "batch_size")
    }
    model = re.search(r"(?:pretrained|model)=([^,)\s]+)", text)
    if model and not _PLACEHOLDER.fullmatch(model[1]):
        out["model"] = Setting(without_secrets(model[1]), line, "command")
    if quantization := re.search(r"quantization=([\w-]+)", text):
        out["quantization"] = Setting(quantization[1], line, "command")
    return out


# ---- words of a heading or a label ----

_WORDED = tuple((re.compile(pattern, re.I), name) for pattern, name in (
    (r"(?:^|[\s,(\[_-])c\s?=\s?(\d{1,6})\b", "concurrency"),
    (r"\bconc(?:urrency)?\s*(?:of|[=:])?\s*(\d{1,6})\b(?!\s*(?:,|to|-|–|\.\.)\s*\d)", "concurrency"),
    (r"\b(\d{1,5}(?:\.\d+)?)\s*(?:qps|rps)\b", "rate"),
    (r"\b(?:qps|rps|request[ _-]rate)\s*(?:of|[=:])?\s*(\d{1,5}(?:\.\d+)?)\b", "rate"),
    (r"(?:^|[\s,(])-?-?tp\s?[= ]?\s?(\d{1,3})\b", "tensor_parallel"),
    (r"\bnum[_ -]?prompts?\s*[=:]\s*(\d{1,7})\b(?!\s*,\s*\d)", "num_prompts"),
    (r"\bseq(?:uence)?[_ -]len(?:gth)?\s*[=:]\s*(\d{1,7})\b(?!\s*,\s*\d)", "input_len"),
    (r"\binput[_ -]len(?:gth)?\s*[=:]\s*(\d{1,7})\b(?!\s*,\s*\d)", "input_len"),
    (r"\boutput[_ -]len(?:gth)?\s*[=:]\s*(\d{1,7})\b(?!\s*,\s*\d)", "output_len"),
    (r"\bbatch[_ -]?size\s*[=:]\s*(\d{1,6})\b(?!\s*,\s*\d)", "batch_size"),
))  # fmt: skip
QUANTIZATION = re.compile(
    r"(?<![A-Za-z0-9])(IQ\d_\w{1,4}|Q\d_(?:K(?:_[SML])?|[01])|MXFP4|NVFP4|FP4|FP8|INT8|INT4|W8A8|W4A16|GPTQ|AWQ|BF16|FP16|F16"
    r"|FP32|F32)(?![A-Za-z0-9])",
    re.IGNORECASE,
)


def in_words(text: str, line: int, by: By = "heading") -> dict[str, Setting]:
    """Return settings that a heading or label names in a way that can't be misread."""
    text = text[:400]
    out: dict[str, Setting] = {}
    for pattern, name in _WORDED:
        values = set(pattern.findall(text))
        if len(values) == 1:
            out.setdefault(name, Setting(scalar(values.pop()), line, by))
    quantizations = {q.upper() for q in QUANTIZATION.findall(text)}
    if len(quantizations) == 1:
        out["quantization"] = Setting(quantizations.pop(), line, by)
    spellings = names.spellings()
    engines = {spellings[name.lower()] for name in names.pattern().findall(text)}
    if len(engines) == 1:
        out["engine"] = Setting(engines.pop(), line, by)
    return out


# ---- how far a statement holds: in a listing with results to its end, else under its heading until the next one ----

# Whose settings a row of a kind gets; a later one takes precedence over an earlier.
_ROLES: dict[RowKind, tuple[str, ...]] = {
    "serve": ("server", "client", "namespace"),
    "throughput": ("offline", "namespace"),
    "latency": ("offline", "namespace"),
    "quality": ("quality",),
    "micro": ("micro",),
}
# A client's command replaces the dump of an earlier one.
_REPLACES = {"client": {"client", "namespace"}}


class Statement(NamedTuple):
    settings: dict[str, Setting]
    role: str
    tool: str  # whose command it is
    level: int  # of the heading above it
    listing: int  # 0: outside


class Scope:
    """The statements that hold for the next result."""

    def __init__(self) -> None:
        self._statements: list[Statement] = []

    def add(self, statement: Statement) -> None:
        replaced = _REPLACES.get(statement.role, {statement.role})
        self._statements = [
            *(s for s in self._statements if s.role not in replaced),
            statement,
        ]

    def end_listing(self, listing: int) -> None:
        self._statements = [s for s in self._statements if s.listing != listing]

    def end_sections(self, level: int) -> None:
        """End the statements under headings of this level and below."""
        self._statements = [s for s in self._statements if s.level < level]

    def settings(self, kind: RowKind) -> dict[str, Setting]:
        return {
            k: v
            for s in self._statements
            if s.role in _ROLES[kind]
            for k, v in s.settings.items()
        }

    def client(self) -> str | None:
        """Return the tool that measured, where its command is known."""
        return next(
            (s.tool for s in reversed(self._statements) if s.role == "client"), None
        )


# ---- dumps of versions and devices: PyTorch's collect_env, a package list, an engine's log ----

_DUMPED = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"(?i)^\W{0,8}PyTorch version\s*:\s*(\S+)", "torch"),
        (r"^\W{0,8}\[(?:pip3|conda)\]\s*torch==(\S+)", "torch"),
        (r"^\W{0,8}\[(?:pip3|conda)\]\s*transformers==(\S+)", "transformers"),
        (r"(?i)^\W{0,8}ROCM? Version\s*:\s*(\d\S+)", "rocm"),
        (r"^\W{0,8}HIP runtime version\s*:\s*(\d\S+)", "hip"),
        (r"^\W{0,8}CUDA runtime version\s*:\s*(\d\S+)", "cuda"),
        (r"(?i)^\W{0,8}Nvidia driver version\s*:\s*(\d\S+)", "driver"),
        (r"^\W{0,8}GPU models and configuration\s*:\s*(\w.{3,80})$", "accelerator"),
    )
)
_DEVICE = re.compile(r"^\W{0,8}GPU (\d{1,2})\s*:\s*([A-Z][\w .+-]{3,60}?)\s*(?:\(|$)")
_CPU = re.compile(r"^\W{0,8}Model name\s*:\s*(\S.{3,80})$")
_DUMP_HINTS = ("ersion", "==", "GPU", "Model name")
_MOST_DUMPS = 1_000  # of a document
_BEGINS = re.compile(r"PyTorch version\s*:|Collecting environment information")


class _Dumps:
    """Lines of a dump that have a version or a device."""

    def __init__(self, engines: Sequence[EngineKind]) -> None:
        versions = [
            (re.compile(way), "engine_version")
            for kind in engines
            for way in kind.version_dumps
        ]
        self.patterns = (*versions, *_DUMPED)
        self.hints = (
            *_DUMP_HINTS,
            *(word for kind in engines for word in kind.version_words),
        )


@functools.cache
def _dumps(engines: tuple[str, ...]) -> _Dumps:
    return _Dumps([kind_of(name) for name in engines])


class Environments:
    """Collects the dumps of a document. A new one begins with its first line repeated."""

    def __init__(self) -> None:
        self.dumps: list[dict[str, Setting]] = []
        self._devices: set[str] = set()

    def take(self, number: int, text: str) -> bool:
        dumps = _dumps(kinds.NAMES)
        if not any(hint in text for hint in dumps.hints):
            return False
        for pattern, name in dumps.patterns:
            if match := pattern.search(text):
                self._put(
                    name,
                    match[1].rstrip(",;)'\""),
                    number,
                    fresh=bool(_BEGINS.search(text)),
                )
                return True
        if match := _DEVICE.search(text):
            self._put("accelerator", match[2].strip(), number)
            self._devices.add(match[1])
            self.dumps[-1]["accelerators"] = Setting(
                len(self._devices), number, "environment"
            )
            return True
        if (match := _CPU.search(text)) and self.dumps:
            self._put("cpu", match[1].strip(), number)
            return True
        return False

    def _put(self, name: str, value: str, number: int, fresh: bool = False) -> None:
        if not self.dumps or (fresh and self.dumps[-1] and len(self.dumps) < _MOST_DUMPS):
            self.dumps.append({})
            self._devices = set()
        self.dumps[-1].setdefault(name, Setting(value[:200], number, "environment"))
