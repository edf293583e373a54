"""Small models of random weights, written by transformers: `python small_models.py KIND SOURCE FOLDER`.

Embedding (BERT), reranker (BERT with one score), vision (Qwen2-VL), speech (Whisper). SOURCE has a tokenizer.json.
"""

import json
import shutil
import sys
from pathlib import Path

VOCAB = 2048
WORDS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)


def tokenizer(source: Path, folder: Path, more: tuple[str, ...] = (), **names: str):
    """Save dyno's own tokenizer there, with further special tokens."""
    from transformers import PreTrainedTokenizerFast

    made = PreTrainedTokenizerFast(
        tokenizer_file=str(source / "tokenizer.json"),
        eos_token="<|end_of_text|>",
        pad_token="<|end_of_text|>",
        **names,
    )
    made.add_special_tokens({"additional_special_tokens": list(more)})
    made.save_pretrained(folder)
    return made


def bert(source: Path, folder: Path, labels: int) -> None:
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertModel

    made = tokenizer(source, folder)
    config = BertConfig(
        vocab_size=len(made) + 8, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
        max_position_embeddings=512, num_labels=max(labels, 1),
    )  # fmt: skip
    torch.manual_seed(0)
    model = BertForSequenceClassification(config) if labels else BertModel(config)
    model.save_pretrained(folder)


def vision(source: Path, folder: Path) -> None:
    import torch
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    made = tokenizer(source, folder, WORDS)
    ids = {word: made.convert_tokens_to_ids(word) for word in WORDS}
    mrope = {"rope_type": "default", "type": "default", "mrope_section": [4, 6, 6]}
    text = {
        "vocab_size": len(made) + 8, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 256, "max_position_embeddings": 8192,
        "tie_word_embeddings": False, "rope_parameters": {**mrope, "rope_theta": 10000.0}, "rope_scaling": mrope,
        "eos_token_id": made.eos_token_id, "bos_token_id": made.eos_token_id,
    }  # fmt: skip
    patches = {
        "depth": 2, "embed_dim": 64, "hidden_size": 128, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3,
    }  # fmt: skip
    config = Qwen2VLConfig(
        text_config=text,
        vision_config=patches,
        image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"],
    )  # fmt: skip
    torch.manual_seed(0)
    Qwen2VLForConditionalGeneration(config).save_pretrained(folder)
    processor = {
        "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor",
        "min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
        "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    video = {**processor, "video_processor_type": "Qwen2VLVideoProcessor"}
    (folder / "video_preprocessor_config.json").write_text(json.dumps(video))
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings["chat_template"] = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}"
        "{% else %}{% for c in m['content'] %}{% if c['type'] == 'text' %}{{ c['text'] }}"
        "{% elif 'image' in c['type'] %}<|vision_start|><|image_pad|><|vision_end|>{% endif %}{% endfor %}{% endif %}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    settings["processor_class"] = "Qwen2VLProcessor"
    settings |= {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
    path.write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(settings["chat_template"])


def speech(source: Path, folder: Path) -> None:
    import torch
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import (
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
    )
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    letters = sorted(ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(letters)}
    vocab["<|endoftext|>"] = len(vocab)
    specials = ["<|startoftranscript|>", *(f"<|{name}|>" for name in LANGUAGES), "<|translate|>", "<|transcribe|>",
                "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
                *(f"<|{i * 0.02:.2f}|>" for i in range(1501))]  # fmt: skip
    from transformers import WhisperTokenizer

    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "normalizer.json").write_text("{}")
    made = WhisperTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    made.add_special_tokens({"additional_special_tokens": specials})
    made.save_pretrained(folder)
    start = made.convert_tokens_to_ids("<|startoftranscript|>")
    end = made.convert_tokens_to_ids("<|endoftext|>")
    config = WhisperConfig(
        vocab_size=len(made) + 8, num_mel_bins=80, d_model=64, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=128, decoder_ffn_dim=128,
        max_source_positions=1500, max_target_positions=448, decoder_start_token_id=start, bos_token_id=end,
        eos_token_id=end, pad_token_id=end, begin_suppress_tokens=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model = WhisperForConditionalGeneration(config)
    model.generation_config.decoder_start_token_id = start
    # It writes letters: most tokens are marks of time, which are no text.
    written = [vocab[letter] for letter in letters if letter.isascii() and letter.isalpha()]
    others = torch.ones(len(made) + 8, dtype=torch.bool)
    others[written] = False
    model.model.decoder.embed_tokens.weight.data[others] = 0.0
    model.save_pretrained(folder)
    WhisperFeatureExtractor().save_pretrained(folder)
    config_path = folder / "preprocessor_config.json"
    settings = json.loads(config_path.read_text())
    config_path.write_text(json.dumps({**settings, "processor_class": "WhisperProcessor"}))


def main(kind: str, source: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if kind == "vision":
        vision(source, folder)
    elif kind == "speech":
        speech(source, folder)
    else:
        bert(source, folder, {"embedding": 0, "reranker": 1, "classifier": 3}[kind])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
