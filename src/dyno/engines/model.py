"""The embedded engine's model: a small Llama in GGUF, built here from a seed so that nothing is downloaded.

Its weights are noise, so its text makes no sense. It costs as much as a real model of its shape, and its tokenizer
is real: it serves to measure speed.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dyno.errors import EngineError, UsageError

# Raise it whenever the bytes of a model would change: the cache finds models by this name.
NAME = "dyno-26m-r1"
QUANTIZATIONS = ("F16", "Q8_0", "Q4_0")
CONTEXT = 4096

_SEED = 20_240_229
_VOCAB, _DIM, _LAYERS, _HEADS, _KV_HEADS, _FF = 8192, 512, 6, 8, 4, 1408
_HEAD_DIM = _DIM // _HEADS

_BOS, _EOS, _TURN, _TURN_END = "<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>"
_SPECIAL = [_BOS, _EOS, _TURN, _TURN_END]
# llama.cpp calls it "llama-bpe"; the two must split alike, or the server counts other tokens than we do.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_STEMS = """
able act aim air anchor angle arm art autumn bake bank bar basin battle beat bell bird blade bloom blow body
bold book boot bow box brand brave breath brick broad brook burn bush calm camp card care carve cast cause
cave chain chair change channel chase cheer child circle clay clean climb clock coach coal code coin color
comb cook copper corner cotton course court crane cream crew crop crown current cycle damp dark dawn deer
delay desk detail direct dish doctor door draft dream drill drink drum dust earth ease edge effort engine
enter evening even expert eye fair faith farm fast fern ferry figure film fire firm flame flash flight float
flower fold fork form free fresh fruit fuel garden gate giant gift glove goal grain grand gravel green grow
guard habit hall harbor hard heat heavy hold hollow hook hope hour house idle image inner island join journey
keen kettle kitchen knee ladder lake lantern large launch layer learn leather light limit lion list logic
long loud lumber magnet maple market marsh meadow measure merry metal mill mind model moment moss motor music
narrow nest north oak ocean olive open order organ pack paint park part pause pearl pepper phrase pine pipe
plate plenty point polar port post press price proof proud quarter queen radio rain rapid reason region rest
rich ridge river road roof room rose rough royal rule salt sand science score seed shadow sharp sheet shield
shine short signal sketch skill smooth snow solid song space spark spoon spring stage star stem step story
stream strong studio sun surface table tailor target teach thick thread tide timber trade trail treat tree
turn twin upper urban vapor vast violin visit volume wagon warm watch weather west whisper wide wind window
wise wonder word work yellow young
"""
_SUFFIXES = "s ed ing er ly ness ful less able ment ish ward like y hood"
_SMALL = "the of and to in a is that for it as was with be by on not he his but at are this have from or"


def default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dyno" / "models"


def build(quantization: str, cache: Path | None = None) -> Path:
    """Return the GGUF of that quantization, built at the first call, with its `tokenizer.json` beside it."""
    if quantization not in QUANTIZATIONS:
        known = ", ".join(QUANTIZATIONS)
        raise UsageError(f"The embedded model has no quantization {quantization!r}. Use {known}.")
    folder = (cache or default_cache()) / NAME
    path = folder / f"{NAME}-{quantization}.gguf"
    tokenizer = folder / "tokenizer.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not tokenizer.exists():
            with _whole(tokenizer) as part:
                part.write_text(_train().to_str(), encoding="utf-8")
        if not path.exists():
            with _whole(path) as part:
                _write(part, quantization, tokenizer)
    except OSError as e:
        raise EngineError(
            f"The embedded engine's model can't be written to {folder}: {e.strerror or e}. "
            "It needs up to 70 MB; set XDG_CACHE_HOME to a writable folder with enough space."
        ) from None
    return path


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Yield a temporary name, which becomes `path` at the end: two builds at once do no harm."""
    for part in path.parent.glob("*.part"):
        # From a build that was killed; an hour is more than any live one takes.
        if time.time() - part.stat().st_mtime > 3600:
            part.unlink(missing_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _text() -> Iterator[str]:
    """Yield sentences to learn merges from: made-up words with the frequencies of a language, numbers and stops."""
    import numpy as np

    rng = np.random.Generator(np.random.PCG64(_SEED))
    words = [stem + suffix for stem in _STEMS.split() for suffix in ("", *_SUFFIXES.split())]
    small = _SMALL.split()
    often = rng.permutation(1 / np.arange(10, 10 + len(words)))
    picks = rng.choice(len(words), size=(15_000, 9), p=often / often.sum())
    lengths, numbers = rng.integers(2, 9, size=15_000), rng.integers(0, 1000, size=15_000)
    for row, length, number in zip(picks.tolist(), lengths.tolist(), numbers.tolist(), strict=True):
        some = " ".join(f"{words[i]} {small[i % len(small)]}" for i in row[:length])
        yield f"{some.capitalize()} {words[row[-1]]}{',;:'[number % 3]} {number}{'.?!'[number % 3]}\n"


def _train() -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE(ignore_merges=True))  # as llama.cpp does for "llama-bpe"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCAB,
        min_frequency=2,
        special_tokens=_SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_text(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{_BOS} $A", pair=f"{_BOS} $A $B", special_tokens=[(_BOS, tokenizer.token_to_id(_BOS))]
    )
    return tokenizer


def _write(path: Path, quantization: str, tokenizer_json: Path) -> None:
    import gguf
    import numpy as np
    from gguf.quants import quantize

    tokenizer = json.loads(tokenizer_json.read_text(encoding="utf-8"))
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    kinds = [gguf.TokenType.CONTROL if token in _SPECIAL else gguf.TokenType.NORMAL for token in tokens]

    out = gguf.GGUFWriter(path, "llama")
    out.add_name(NAME)
    out.add_file_type(gguf.LlamaFileType[f"MOSTLY_{quantization}"])
    out.add_quantization_version(gguf.GGML_QUANT_VERSION)
    out.add_context_length(CONTEXT)
    out.add_embedding_length(_DIM)
    out.add_block_count(_LAYERS)
    out.add_feed_forward_length(_FF)
    out.add_head_count(_HEADS)
    out.add_head_count_kv(_KV_HEADS)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("llama-bpe")
    out.add_token_list(tokens)
    out.add_token_types(kinds)
    out.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    out.add_bos_token_id(tokens.index(_BOS))
    out.add_eos_token_id(tokens.index(_EOS))
    out.add_eot_token_id(tokens.index(_TURN_END))
    out.add_add_bos_token(True)
    out.add_chat_template(_CHAT)

    # Every quantization draws the same numbers in the same order: the same weights, stored differently.
    rng = np.random.Generator(np.random.PCG64(_SEED))

    def noise(rows: int, columns: int, gain: float = 1.0) -> Any:
        return rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(gain / columns**0.5)

    def add(name: str, weights: Any) -> None:
        kind = gguf.GGMLQuantizationType[quantization]
        out.add_tensor(f"{name}.weight", quantize(weights, kind), raw_dtype=kind)

    def norm(name: str) -> None:
        out.add_tensor(f"{name}.weight", np.ones(_DIM, dtype=np.float32))

    add("token_embd", noise(len(tokens), _DIM, gain=_DIM**0.5))
    for layer in range(_LAYERS):
        block = f"blk.{layer}"
        norm(f"{block}.attn_norm")
        # Sharp attention: with a mean over all positions the last token alone would choose the next one,
        # and greedy text would soon run in a circle.
        add(f"{block}.attn_q", noise(_DIM, _DIM, gain=2))
        add(f"{block}.attn_k", noise(_KV_HEADS * _HEAD_DIM, _DIM, gain=2))
        add(f"{block}.attn_v", noise(_KV_HEADS * _HEAD_DIM, _DIM))
        add(f"{block}.attn_output", noise(_DIM, _DIM))
        norm(f"{block}.ffn_norm")
        add(f"{block}.ffn_gate", noise(_FF, _DIM))
        add(f"{block}.ffn_up", noise(_FF, _DIM))
        add(f"{block}.ffn_down", noise(_DIM, _FF))
    norm("output_norm")
    output = noise(len(tokens), _DIM, gain=4)
    # A logit of 0 among thousands of spread 4 is never chosen: no early end, and no broken UTF-8.
    output[[i for i, token in enumerate(tokens) if not _printable(token)]] = 0
    add("output", output)

    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _printable(token: str) -> bool:
    """Return whether a token is text on its own. Byte-level BPE writes a space as Ġ and a line's end as Ċ."""
    return token not in _SPECIAL and token.replace("Ġ", " ").replace("Ċ", "").isascii()
