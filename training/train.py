"""Train dyno's own small model and its draft on generated text: tasks with exact answers, and stories.

    python training/train.py OUT --minutes 8            # a GPU; both models
    python training/train.py OUT --steps 20 --device cpu --batch 4

Needs torch, transformers and tokenizers. OUT gets `model/` and `draft/` (config, safetensors, tokenizer) and `curve.csv`.
"""

import argparse
import csv
import json
import multiprocessing as mp
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import numpy as np

from dyno.quality.tasks import NOUNS, SIZES, TASKS, draw

SEED = 20_261_116
VOCAB = 2048
CONTEXT = 4096
BOS, EOS, TURN, TURN_END = "<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>"
SPECIAL = [BOS, EOS, TURN, TURN_END]
# llama.cpp calls it "qwen2": as "llama-bpe", but each digit is a token, so that sums can be learnt.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SHAPES = {
    "model": {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6, "num_attention_heads": 4,
              "num_key_value_heads": 2},
    "draft": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 2,
              "num_key_value_heads": 1},
}  # fmt: skip
ADJECTIVES = "old small quiet bright green heavy narrow warm cold tall wide broken early empty gentle hidden".split()
VERBS = "stands rests turns waits shines moves opens sleeps grows stays".split()
PLACES = "near behind above below beside beyond under across from".split(" ")

Doc = list[tuple[str, bool]]  # texts, and whether they are learnt in full: an answer, or prose


# ---- text ----


def story(rng: Random, noun: str) -> str:
    lines = [f"The {noun} is {rng.choice(ADJECTIVES)} and {rng.choice(ADJECTIVES)}."]
    for _ in range(rng.randint(1, 4)):
        other, place = rng.choice(NOUNS), rng.choice(PLACES[:7])
        lines.append(f"It {rng.choice(VERBS)} {place} the {rng.choice(ADJECTIVES)} {other}.")
    lines.append(f"In the {rng.choice(['morning', 'evening', 'winter', 'summer'])} the {noun} {rng.choice(VERBS)} again.")
    return " ".join(lines)


def pair(rng: Random, choice: float = 0.25) -> tuple[str, str]:
    """A question and its answer."""
    if rng.random() < 0.06:
        noun = rng.choice(NOUNS)
        return f"Tell me about the {noun}.", story(rng, noun)
    made = draw(rng.choice(list(TASKS)), rng.choice(SIZES), rng, str(rng.random()))
    return made.with_choices() if rng.random() < choice else (made.question, made.answer)


def document(rng: Random) -> Doc:
    kind = rng.random()
    if kind < 0.6:  # a chat
        out: Doc = [(BOS, False)]
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            question, answer = pair(rng)
            out += [(f"{TURN}user\n{question}{TURN_END}\n{TURN}assistant\n", False), (f"{answer}{TURN_END}", True), ("\n", False)]
        return out
    if kind < 0.92:  # a prompt with examples
        out, same = [(BOS, False)], rng.choice((0.0, 1.0))
        for _ in range(rng.randint(1, 6)):
            question, answer = pair(rng, same)
            out += [(f"Question: {question}\nAnswer:", False), (f" {answer}\n\n", True)]
        return [*out, (EOS, True)]
    return [(BOS, False), (" ".join(story(rng, rng.choice(NOUNS)) for _ in range(rng.randint(1, 6))) + EOS, True)]


def train_tokenizer(path: Path) -> None:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(SPLIT), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, min_frequency=2, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    rng = Random(SEED)
    words = (Path(__file__).resolve().parents[1] / "src/dyno/workload/words.txt").read_text()
    texts = ["".join(text for text, _ in document(rng) if text not in SPECIAL) for _ in range(30_000)]
    tokenizer.train_from_iterator([*texts, *[words] * 50], trainer)
    single = [(BOS, tokenizer.token_to_id(BOS))]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=single)
    tokenizer.save(str(path / "tokenizer.json"))
    facts = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": TURN_END, "pad_token": EOS,
        "model_max_length": CONTEXT, "chat_template": CHAT, "clean_up_tokenization_spaces": False,
    }  # fmt: skip
    (path / "tokenizer_config.json").write_text(json.dumps(facts, indent=1))


def blocks(tokenizer: Path, seed: int, length: int) -> Iterator[np.ndarray]:
    """Yield rows of token ids and their weights, packed."""
    from tokenizers import Tokenizer

    encoder, rng = Tokenizer.from_file(str(tokenizer)), Random(seed)
    ids: list[int] = []
    weights: list[int] = []
    while True:
        docs = [document(rng) for _ in range(256)]
        parts = [part for doc in docs for part in doc]
        for encoded, (_, learnt) in zip(
            encoder.encode_batch([text for text, _ in parts], add_special_tokens=False), parts, strict=True
        ):
            ids += encoded.ids
            weights += [10 if learnt else 1] * len(encoded.ids)
        while len(ids) > length:
            yield np.stack([np.array(ids[: length + 1], np.int32), np.array(weights[: length + 1], np.int32)])
            del ids[:length], weights[:length]


def produce(queue: Any, tokenizer: Path, seed: int, length: int, rows: int) -> None:
    stream = blocks(tokenizer, seed, length)
    while True:
        queue.put(np.stack([next(stream) for _ in range(rows)]))


# ---- training ----


def evaluate(model: Any, tokenizer: Any, device: str, count: int = 60) -> dict[str, float]:
    """Share of right answers by task, greedy, in the chat form; items that training doesn't draw."""
    import torch

    from dyno.quality.tasks import item

    model.eval()
    out = {}
    for task in TASKS:
        chosen = [item(task, SIZES[n % 3], n) for n in range(count)]
        right = 0
        for start in range(0, count, 60):
            part = chosen[start : start + 60]
            texts = [f"{BOS}{TURN}user\n{i.question}{TURN_END}\n{TURN}assistant\n" for i in part]
            batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
            with torch.no_grad():
                tokens = model.generate(
                    batch["input_ids"].to(device), attention_mask=batch["attention_mask"].to(device), max_new_tokens=64,
                    do_sample=False, pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
                )  # fmt: skip
            answers = tokenizer.batch_decode(tokens[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
            right += sum(answer.strip() == i.answer for answer, i in zip(answers, part, strict=True))
        out[task] = right / count
    model.train()
    return out


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("out", type=Path)
    p.add_argument("--which", nargs="+", default=["model", "draft"])
    p.add_argument("--minutes", type=float, default=8.0)
    p.add_argument("--steps", type=int)
    p.add_argument("--batch", type=int, default=512)
    p.add_argument("--length", type=int, default=512)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--device", default="cuda")
    p.add_argument("--workers", type=int, default=14)
    options = p.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    train_tokenizer(options.out)
    print("tokenizer is there", flush=True)
    mp.set_start_method("spawn")
    queue: Any = mp.Queue(maxsize=64)
    rows = max(1, options.batch // 8)
    workers = [
        mp.Process(target=produce, args=(queue, options.out / "tokenizer.json", SEED + n, options.length, rows), daemon=True)
        for n in range(options.workers)
    ]
    for worker in workers:
        worker.start()
    with (options.out / "curve.csv").open("w", newline="") as file:
        curve = csv.writer(file)
        curve.writerow(["model", "seconds", "step", "tokens", "loss", *TASKS])
        for name in options.which:
            train(name, options, queue, curve, file)


def train(name: str, options: argparse.Namespace, queue: Any, curve: Any, file: Any) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(SEED)
    torch.set_float32_matmul_precision("high")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(options.out)
    config = LlamaConfig(
        **SHAPES[name], head_dim=64, vocab_size=VOCAB, max_position_embeddings=CONTEXT, rms_norm_eps=1e-5,
        tie_word_embeddings=True, bos_token_id=0, eos_token_id=3, pad_token_id=1, rope_theta=10000.0,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(options.device)
    print(name, sum(p.numel() for p in model.parameters()), "parameters", flush=True)
    core = torch.compile(model.model) if options.device == "cuda" else model.model
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=options.lr, betas=(0.9, 0.98)
    )
    share = 0.8 if name == "model" and len(options.which) > 1 else 0.2 if len(options.which) > 1 else 1.0
    limit_s, begun, step, tokens, seen = options.minutes * 60 * share, time.monotonic(), 0, 0, 0.0
    pending: list[np.ndarray] = []
    while True:
        done = step / options.steps if options.steps else (time.monotonic() - begun) / limit_s
        if done >= 1:
            break
        while sum(len(p) for p in pending) < options.batch:
            pending.append(queue.get())
        rows = np.concatenate(pending)
        batch, pending = torch.from_numpy(rows[: options.batch]).to(options.device), [rows[options.batch :]]
        ids, weights = batch[:, 0].long(), batch[:, 1].float()
        rate = options.lr * min(1.0, (step + 1) / 200) * (1.0 if done < 0.5 else max(0.02, 2 * (1 - done)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(options.device, torch.bfloat16):
            hidden = core(input_ids=ids[:, :-1]).last_hidden_state
            logits = model.lm_head(hidden)
        each = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        scale = weights[:, 1:].flatten() / 10
        loss = (each * scale).sum() / scale.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step, tokens = step + 1, tokens + ids[:, 1:].numel()
        if step % 500 == 0 or step == 20:
            seen = time.monotonic() - begun
            scores = evaluate(model, tokenizer, options.device) if step % 1000 == 0 else {}
            line = [name, round(seen, 1), step, tokens, round(loss.item(), 4), *(round(scores.get(t, -1), 3) for t in TASKS)]
            curve.writerow(line)
            file.flush()
            print(*line, f"queue {queue.qsize()}", flush=True)
    scores = evaluate(model, tokenizer, options.device, 300)
    line = [name, round(time.monotonic() - begun, 1), step, tokens, round(loss.item(), 4), *(round(scores[t], 3) for t in TASKS)]
    curve.writerow(line)
    print("end", *line, flush=True)
    folder = options.out / name
    model.to(torch.bfloat16).save_pretrained(folder)
    for part in ("tokenizer.json", "tokenizer_config.json"):
        (folder / part).write_bytes((options.out / part).read_bytes())


if __name__ == "__main__":
    main()
