"""Run llama.cpp's convert_hf_to_gguf.py. In its environment's interpreter, without dyno: FOLDER ARGUMENTS…

The converter knows a tokenizer by a hash of its tokens for one text, and refuses every other: one that was trained
anew or extended too. Where such a tokenizer splits text by exactly a rule that llama.cpp has, this names the rule.
"""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

_LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Pattern and ignore_merges of a tokenizer.json → the rule's name in llama.cpp (src/llama-vocab.cpp).
_RULES = {
    (_LETTERS + r"\p{N}{1,3}" + _REST, True): "llama-bpe",
    (_LETTERS + r"\p{N}" + _REST, False): "qwen2",
    ("", False): "gpt-2",  # the pattern that ByteLevel itself has
}


def rule(tokenizer: Any) -> str | None:
    """Return the name of the rule by which a tokenizer.json splits text. None: none of these."""
    model, splitter = tokenizer.get("model") or {}, tokenizer.get("pre_tokenizer") or {}
    *splits, last = splitter.get("pretokenizers") or [splitter]
    if model.get("type") != "BPE" or len(splits) > 1:
        return None
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return None
    # either its own pattern, or the one before it
    if bool(splits) == last.get("use_regex", True):
        return None
    pattern: Any = ""
    if splits:
        if not _isolates(splits[0]):
            return None
        pattern = (splits[0].get("pattern") or {}).get("Regex")
    return _RULES.get((pattern, bool(model.get("ignore_merges"))))


def _isolates(split: Any) -> bool:
    """Return whether each match of its pattern becomes a part of its own."""
    return (
        split.get("type") == "Split"
        and split.get("behavior") == "Isolated"
        and not split.get("invert")
    )


def load_guard() -> Any:
    """Load by path: the files beside this one have names of packages."""
    spec = importlib.util.spec_from_file_location(
        "dyno_guard", Path(__file__).with_name("guard.py")
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(folder: str, *arguments: str) -> None:
    load_guard().refuse_code()
    sys.path.insert(0, folder)
    sys.argv = ["convert_hf_to_gguf.py", *arguments]
    import convert_hf_to_gguf as converter  # type: ignore[import-not-found]

    # In a package of its own since 2026; before, in the script.
    base = sys.modules.get("conversion.base", converter)
    model = getattr(base, "TextModel", None) or base.Model
    known = model.get_vocab_base_pre

    def name(self: Any, tokenizer: Any) -> str:
        try:
            return str(known(self, tokenizer))
        except NotImplementedError:
            text = (Path(self.dir_model) / "tokenizer.json").read_text(encoding="utf-8")
            if (same := rule(json.loads(text))) is None:
                raise
            print(
                f"dyno: the converter doesn't know this tokenizer, which splits text as {same} does",
                flush=True,
            )
            return same

    model.get_vocab_base_pre = name
    converter.main()


if __name__ == "__main__":
    main(*sys.argv[1:])
