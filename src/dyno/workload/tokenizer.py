"""A tokenizer: counts text as the server would. From a file, the Hub or the server itself, or a guess."""

import contextlib
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import msgspec

from dyno import files
from dyno.errors import TargetError, WorkloadError
from dyno.http import Client
from dyno.option import setting_name
from dyno.workload import chat_template as chat_templates
from dyno.workload.chat_template import ChatTemplate
from dyno.workload.hub_file import hub_file
from dyno.workload.request import CountedBy

_LARGEST = 256 << 20  # bytes of a tokenizer.json; those of large vocabularies have 30 MB
_Id = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
_SPARE, _SPARE_CHARS, _SPARE_TOKENS = (
    1.1,
    32,
    2,
)  # of a text's start, so that it has enough tokens
_LETTERS_A_TOKEN = 64  # on average: a server that answers with more doesn't detokenize
T = TypeVar("T")


class _Piece(msgspec.Struct):
    """A token, as TGI reports it."""

    id: _Id
    stop: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class Tokenizer(Protocol):
    name: str  # as the result shows it
    counted_by: CountedBy
    # applied to the prompts of datasets that want one; None: it isn't
    template: ChatTemplate | None

    # with what the server adds to a completions prompt (BOS)
    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...  # without it

    def count(self, text: str) -> int: ...

    # of many texts at once: the same, sooner

    def cut(self, texts: Sequence[str], tokens: Sequence[int]) -> list[str]: ...

    def counts(self, texts: Sequence[str]) -> list[int]: ...


class OneByOne:
    """Many texts, one after another."""

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    def decode(self, ids: list[int]) -> str:
        raise NotImplementedError

    def count(self, text: str) -> int:
        raise NotImplementedError

    def cut(self, texts: Sequence[str], tokens: Sequence[int]) -> list[str]:
        """Return the start of each text, of so many tokens."""
        return [
            self.decode(self.encode(text)[:most])
            for text, most in zip(texts, tokens, strict=True)
        ]

    def counts(self, texts: Sequence[str]) -> list[int]:
        return [self.count(text) for text in texts]


def choose(flag: str | None, client: Client | None, model: str) -> Tokenizer:
    """Return the tokenizer that --tokenizer names, else the server's own, else a guess."""
    if flag:
        return local(flag)
    return (client and server(client, model)) or ApproximateTokenizer()


def chat_template(
    tokenizer: Tokenizer, client: Client | None, model: str
) -> ChatTemplate | None:
    """Return the template that belongs to the tokenizer: of its folder, or of the server's model if that is here."""
    if isinstance(tokenizer, LocalTokenizer):
        return (
            chat_templates.beside(tokenizer.folder)
            or (tokenizer.hub and chat_templates.of_hub(tokenizer.hub))
            or None
        )
    if client is None:
        return None
    here = (
        chat_templates.beside(Path(model))
        if Path(model).is_dir()
        else chat_templates.of_hub(model, fetch=False)
    )
    return chat_templates.of_server(client) or here


def special_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids before any prompt: those that two texts share. (Some servers refuse to tokenize nothing.)"""
    pairs = zip(tokenizer.encode("the"), tokenizer.encode("and"), strict=False)
    return [a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]


class LocalTokenizer:
    counted_by: CountedBy = "tokenizer"
    template: ChatTemplate | None = None

    def __init__(self, name: str, file: Path, hub: str = "") -> None:
        """`hub`: the model's name on the Hub, where it comes from there."""
        import tokenizers  # here and not above: it costs `dyno --help` a tenth of a second

        self.name, self.folder, self.hub = name, file.parent, hub
        try:
            data = files.read(file, _LARGEST)
        except OSError as e:
            raise WorkloadError(
                f"{file} can't be read: {e.strerror}. Check {setting_name('--tokenizer')}."
            ) from None
        if problem := _growth_problem(data):
            raise WorkloadError(
                f"{file} is not a tokenizer that dyno uses: {problem}. Check where it comes from."
            )
        with self._explained(f"{file} is not a readable tokenizer.json"):
            self._tokenizer = tokenizers.Tokenizer.from_buffer(data)
        # Of the texts that were encoded last, and some more. None: of none yet.
        self._chars_per_token: float | None = None
        # Some files carry the limits of their training; a server doesn't cut prompts by them.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, text: str) -> list[int]:
        with self._explained(f"The tokenizer {self.name} fails for a text"):
            ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        with self._explained(f"The tokenizer {self.name} fails for its own tokens"):
            text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Turn what the library raises into a sentence: the bare class for whatever a file holds, and the panics of
        Rust, which are no Exception."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as e:
            why = str(e).partition("\n")[0][:200] or type(e).__name__
            advice = f"Give the tokenizer.json of the model, or its folder, with {setting_name('--tokenizer')}."
            raise WorkloadError(f"{what} ({why}). {advice}") from None

    def count(self, text: str) -> int:
        return len(self.encode(text))

    def cut(self, texts: Sequence[str], tokens: Sequence[int]) -> list[str]:
        """Return the start of each text, of so many tokens. The library uses all cores."""
        encoded = self._first_ids(texts, tokens)
        starts = [ids[:most] for ids, most in zip(encoded, tokens, strict=True)]
        with self._explained(f"The tokenizer {self.name} fails for its own tokens"):
            cut: list[str] = self._tokenizer.decode_batch(starts, skip_special_tokens=True)
        return cut

    def _first_ids(self, texts: Sequence[str], tokens: Sequence[int]) -> list[list[int]]:
        """Return at least the wanted number of ids of each text that has as many. Texts are often twice as long: only
        so much is encoded as was enough before, to the end of a word."""
        starts = list(texts)
        if (chars := self._chars_per_token) is not None:
            starts = [
                _start(text, int(most * chars) + _SPARE_CHARS)
                for text, most in zip(texts, tokens, strict=True)
            ]
        encoded = self._ids(starts)
        count = sum(map(len, encoded))
        self._chars_per_token = _SPARE * sum(map(len, starts)) / count if count else None
        short = [
            i
            for i, ids in enumerate(encoded)
            if len(ids) < tokens[i] + _SPARE_TOKENS and len(starts[i]) < len(texts[i])
        ]
        for i, ids in zip(short, self._ids([texts[i] for i in short]), strict=True):
            encoded[i] = ids
        return encoded

    def counts(self, texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in self._ids(texts)]

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        with self._explained(f"The tokenizer {self.name} fails for a text"):
            return [
                encoded.ids for encoded in self._tokenizer.encode_batch_fast(list(texts))
            ]


def _start(text: str, chars: int) -> str:
    """Return the start of a text, of about so many characters: to the end of a word."""
    end = text.find(" ", chars) if chars < len(text) else -1
    return text if end < 0 else text[:end]


def local(flag: str) -> LocalTokenizer:
    path = Path(flag).expanduser()
    if path.is_dir():
        file = path / "tokenizer.json"
        if not file.is_file():
            raise WorkloadError(f"The folder {flag} has no tokenizer.json{_instead(path)}")
    elif path.is_file():
        if path.suffix == ".model":
            raise WorkloadError(f"{flag} is not a tokenizer.json{_instead(path.parent)}")
        file = path
    elif flag.startswith((".", "/", "~")) or flag.endswith(".json") or flag.count("/") > 1:
        raise WorkloadError(
            f"There is no file or folder {flag}. Check {setting_name('--tokenizer')}."
        )
    else:
        return LocalTokenizer(flag, _from_hub(flag), hub=flag)
    return LocalTokenizer(flag, file)


def _instead(folder: Path) -> str:
    if (folder / "tokenizer.model").is_file():
        return (
            ", only a SentencePiece tokenizer.model, which dyno doesn't read. Convert it with transformers: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER), or leave out "
            f"{setting_name('--tokenizer')}: then the server counts."
        )
    return f". Give the folder of the model, or leave out {setting_name('--tokenizer')}: then the server counts."


def _from_hub(name: str) -> Path:
    from huggingface_hub import errors  # it reads HF_TOKEN itself

    try:
        return hub_file(name, "tokenizer.json", _LARGEST)
    except errors.GatedRepoError:
        problem = (
            f"The tokenizer of {name} is gated. Accept its terms at https://huggingface.co/{name} "
            "and set HF_TOKEN to a token that may read it"
        )
    except errors.RepositoryNotFoundError:
        problem = (
            f"{name!r} is neither a file or folder here nor a model on the Hugging Face Hub. Check the spelling of "
            f"{setting_name('--tokenizer')}; if the model is private, set HF_TOKEN"
        )
    except errors.HFValidationError:
        problem = (
            f"{name!r} is neither a file or folder here nor a possible name on the Hugging Face Hub. Check "
            f"{setting_name('--tokenizer')}"
        )
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        problem = (
            f"The tokenizer of {name} isn't in the local cache, and the Hugging Face Hub can't be reached. Go "
            f"online once, or give a local tokenizer.json or its folder with {setting_name('--tokenizer')}"
        )
    except errors.EntryNotFoundError:
        problem = f"{name} has no tokenizer.json on the Hugging Face Hub. Name a model of its family that has one"
    except OSError as e:  # what is left of HTTP and disk
        reason = (str(e) or type(e).__name__).splitlines()[0]
        problem = f"The tokenizer of {name} can't be fetched from the Hugging Face Hub: {reason} Try again"
    raise WorkloadError(
        problem + f", or leave out {setting_name('--tokenizer')}: then the server counts."
    )


class ServerTokenizer(OneByOne):
    """The dialect of vLLM and SGLang; the others differ where they say so."""

    counted_by: CountedBy = "server"
    template: ChatTemplate | None = None

    def __init__(self, client: Client, model: str) -> None:
        self.name = model
        self._client = client
        self._special = special_ids(self)

    def encode(self, text: str) -> list[int]:
        body = {"model": self.name, "prompt": text, "add_special_tokens": True}
        return self._ask("/tokenize", body, list[_Id], "tokens")

    def decode(self, ids: list[int]) -> str:
        # vLLM calls the answer `prompt`, SGLang `text`.
        return self._text(
            {"model": self.name, "tokens": self._plain(ids)}, "prompt", "text"
        )

    def count(self, text: str) -> int:
        return len(self.encode(text))

    def _plain(self, ids: list[int]) -> list[int]:
        # /detokenize would write the BOS as text, and the server would add a second one.
        return (
            ids[len(self._special) :] if ids[: len(self._special)] == self._special else ids
        )

    def _text(self, body: dict[str, Any], *keys: str) -> str:
        most = _LETTERS_A_TOKEN * len(body["tokens"]) + 1000
        kind: Any = Annotated[str, msgspec.Meta(max_length=most)]
        text: str = self._ask("/detokenize", body, kind, *keys)
        return text

    def _ask(self, path: str, body: dict[str, Any], kind: type[T], *keys: str) -> T:
        """Return the answer's field of one of these names; without a name, the answer."""
        status, answer = self._client.call(path, body)
        if status == 200:
            said = answer
            if keys:
                said = (
                    next((answer[k] for k in keys if k in answer), None)
                    if isinstance(answer, dict)
                    else None
                )
            with contextlib.suppress(msgspec.ValidationError):
                return msgspec.convert(said, kind)
        raise TargetError(
            f"{self._client.url}{path} answered with HTTP {status}: {str(answer)[:200]!r}. Read the server's log, "
            f"or count with a local tokenizer: {setting_name('--tokenizer')} FOLDER."
        )


class LlamaCppTokenizer(ServerTokenizer):
    def encode(self, text: str) -> list[int]:
        return self._ask(
            "/tokenize", {"content": text, "add_special": True}, list[_Id], "tokens"
        )

    def decode(self, ids: list[int]) -> str:
        return self._text({"tokens": self._plain(ids)}, "content")


class TgiTokenizer(ServerTokenizer):
    """TGI has no /detokenize, but it says where each token ends: the pieces are remembered."""

    def __init__(self, client: Client, model: str) -> None:
        self._pieces: dict[int, str] = {}
        super().__init__(client, model)

    def encode(self, text: str) -> list[int]:
        tokens = self._ask("/tokenize", {"inputs": text}, list[_Piece])
        end = 0
        for token in tokens:
            # From the end of the one before, as TGI leaves out the space. The first word has none: keep the
            # longer piece.
            piece = text[end : token.stop]
            self._pieces[token.id] = max(self._pieces.get(token.id, ""), piece, key=len)
            end = max(end, token.stop)
        return [token.id for token in tokens]

    def decode(self, ids: list[int]) -> str:
        return "".join(self._pieces.get(i, "") for i in self._plain(ids))


def server(client: Client, model: str) -> Tokenizer | None:
    """Return the server's own tokenizer, its dialect known by its answer; None where it has none."""
    status, answer = client.call(
        "/tokenize", {"model": model, "prompt": "the", "add_special_tokens": True}
    )
    if status == 200 and isinstance(answer, dict) and "tokens" in answer:
        # llama.cpp doesn't know `prompt` and answers with no tokens and no count.
        if "count" in answer:
            return ServerTokenizer(client, model)
        return LlamaCppTokenizer(client, model)
    if status in (400, 422):  # TGI misses `inputs`
        status, answer = client.call("/tokenize", {"inputs": "the"})
        # With a slow tokenizer TGI knows no offsets: all are 0, and prompts couldn't be cut.
        tokens = answer if status == 200 and isinstance(answer, list) else []
        if any(isinstance(token, dict) and token.get("stop") for token in tokens):
            return TgiTokenizer(client, model)
    return None


class ApproximateTokenizer(OneByOne):
    """Four characters a token: English with a vocabulary of 32k to 128k, give or take a fifth."""

    name = "approximate"
    counted_by: CountedBy = "approximate"
    template: ChatTemplate | None = None

    def encode(self, text: str) -> list[int]:
        # An id is its four characters, so that decode can give them back. No server knows these ids.
        letters = text.encode("utf-32-be")
        return [int.from_bytes(letters[i : i + 16]) for i in range(0, len(letters), 16)]

    def decode(self, ids: list[int]) -> str:
        pieces = [i.to_bytes(16) for i in ids]
        text = b"".join(pieces).decode("utf-32-be")
        if "\0" in text:  # a piece of less than four letters, the last as a rule
            text = "".join(piece.decode("utf-32-be").lstrip("\0") for piece in pieces)
        return text

    def count(self, text: str) -> int:
        return -(-len(text) // 4)


# ---- a tokenizer.json is checked before it is used: its rules may make a text a million times as long ----

_GROWTH = 64.0  # times as long as the text; honest rules replace a space by a letter
_RULES_MOST = 200  # of one kind; honest files have a handful
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


def _growth_problem(data: bytes) -> str | None:
    """Say why a tokenizer could take all memory for a short text. None: it can't, or the library will refuse it."""
    try:
        document: Any = msgspec.json.decode(data)
    except files.BROKEN:
        return None
    if not isinstance(document, dict):
        return None
    for part in _PARTS:
        rules = _rules(document.get(part))
        if len(rules) > _RULES_MOST:
            return f"its {part} has {len(rules):,} rules"
        growth = 1.0
        for rule in rules:
            growth *= _factor(rule)
        if growth > _GROWTH:
            return f"its {part} makes a text up to {growth:,.0f} times as long"
    return None


def _rules(node: Any) -> list[dict[str, Any]]:
    """Return the rules of a part, those of its sequences in their order."""
    rules: list[dict[str, Any]] = []
    waiting = [node]
    while waiting and len(rules) <= _RULES_MOST:
        rule = waiting.pop()
        if isinstance(rule, list):
            waiting += reversed(rule)
        elif isinstance(rule, dict):
            rules.append(rule)
            waiting += [
                rule[key]
                for key in ("normalizers", "pretokenizers", "decoders", "processors")
                if key in rule
            ]
    return rules


def _factor(rule: dict[str, Any]) -> float:
    """Return by how much a rule can lengthen a text."""
    kind = rule.get("type")
    content: Any = ""
    if kind == "Replace":
        content = rule.get("content")
    elif kind == "Prepend":
        content = rule.get("prepend")
    if not isinstance(content, str):
        return 1.0
    if kind == "Prepend":
        return 1.0 + len(content)
    pattern = rule.get("pattern")
    text = pattern.get("String") if isinstance(pattern, dict) else None
    if isinstance(text, str) and text:
        return max(1.0, len(content) / len(text))
    return 1.0 + len(content)  # a regex may match between any two letters
