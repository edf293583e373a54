"""Train dyno's own small model and its draft on generated text: tasks with exact answers, and stories.

    PYTHONPATH=src python training/train.py OUT --which model --steps 3903
    PYTHONPATH=src python training/train.py OUT --steps 20 --device cpu --batch 4 --workers 1      # a try

Needs torch, transformers and tokenizers. OUT gets `model/` and `draft/` (config, safetensors; the model's tokenizer)
and `curve.csv`. README.md has the recipe of the shipped model.
"""

import argparse
import csv
import json
import multiprocessing as mp
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from dyno.workload.tasks import NOUNS, SIZES, TASKS, draw, item

SEED = 20_261_116
VOCAB = 2048
CONTEXT = 4096
BOS, EOS, TURN, TURN_END = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|im_start|>",
    "<|im_end|>",
)
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
_ADJECTIVES = "old small quiet bright green heavy narrow warm cold tall wide broken early empty gentle hidden"
_VERBS = "stands rests turns waits shines moves opens sleeps grows stays"
_PLACES = "near behind above below beside beyond under"
ADJECTIVES, VERBS, PLACES = _ADJECTIVES.split(), _VERBS.split(), _PLACES.split()

# texts, and whether they are learnt in full: an answer, or prose
Doc = list[tuple[str, bool]]


# ---- text ----


def story(rng: Random, noun: str) -> str:
    lines = [f"The {noun} is {rng.choice(ADJECTIVES)} and {rng.choice(ADJECTIVES)}."]
    for _ in range(rng.randint(1, 4)):
        other, place = rng.choice(NOUNS), rng.choice(PLACES)
        lines.append(
            f"It {rng.choice(VERBS)} {place} the {rng.choice(ADJECTIVES)} {other}."
        )
    season = rng.choice(["morning", "evening", "winter", "summer"])
    lines.append(f"In the {season} the {noun} {rng.choice(VERBS)} again.")
    return " ".join(lines)


def pair(rng: Random, choice: float = 0.25) -> tuple[str, str]:
    """A question and its answer."""
    if rng.random() < 0.06:
        noun = rng.choice(NOUNS)
        return f"Tell me about the {noun}.", story(rng, noun)
    drawn = draw(rng.choice(list(TASKS)), rng.choice(SIZES), rng, str(rng.random()))
    return drawn.with_choices() if rng.random() < choice else (drawn.question, drawn.answer)


def asked(question: str) -> str:
    """A question as CHAT puts it, up to where the answer begins."""
    return f"{TURN}user\n{question}{TURN_END}\n{TURN}assistant\n"


def document(rng: Random) -> Doc:
    kind = rng.random()
    if kind < 0.6:  # a chat
        out: Doc = [(BOS, False)]
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            question, answer = pair(rng)
            out += [(asked(question), False), (f"{answer}{TURN_END}", True), ("\n", False)]
        return out
    if kind < 0.92:  # a prompt with examples
        out, same = [(BOS, False)], rng.choice((0.0, 1.0))
        for _ in range(rng.randint(1, 6)):
            question, answer = pair(rng, same)
            out += [(f"Question: {question}\nAnswer:", False), (f" {answer}\n\n", True)]
        return [*out, (EOS, True)]
    return [
        (BOS, False),
        (
            " ".join(story(rng, rng.choice(NOUNS)) for _ in range(rng.randint(1, 6))) + EOS,
            True,
        ),
    ]


def train_tokenizer(path: Path) -> None:
    from tokenizers import (
        Regex,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        processors,
        trainers,
    )

    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        min_frequency=2,
        special_tokens=SPECIAL,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    rng = Random(SEED)
    words = (
        Path(__file__).resolve().parents[1] / "src/dyno/workload/words.txt"
    ).read_text()
    texts = [
        "".join(text for text, _ in document(rng) if text not in SPECIAL)
        for _ in range(30_000)
    ]
    tokenizer.train_from_iterator([*texts, *[words] * 50], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A $B",
        special_tokens=[(BOS, tokenizer.token_to_id(BOS))],
    )
    tokenizer.save(str(path / "tokenizer.json"), pretty=False)
    facts = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": TURN_END, "pad_token": EOS,
        "model_max_length": CONTEXT, "chat_template": CHAT, "clean_up_tokenization_spaces": False,
    }  # fmt: skip
    (path / "tokenizer_config.json").write_text(json.dumps(facts, indent=1))


def blocks(tokenizer: Path, seed: int, length: int) -> Iterator[np.ndarray]:
    """Yield rows of token ids and of their weights, documents one after the other."""
    from tokenizers import Tokenizer

    encoder, rng = Tokenizer.from_file(str(tokenizer)), Random(seed)
    ids: list[int] = []
    weights: list[int] = []
    while True:
        parts = [part for _ in range(256) for part in document(rng)]
        texts = encoder.encode_batch([text for text, _ in parts], add_special_tokens=False)
        for encoded, (_, learnt) in zip(texts, parts, strict=True):
            ids += encoded.ids
            weights += [10 if learnt else 1] * len(encoded.ids)
        while len(ids) > length:
            yield np.stack(
                [
                    np.array(ids[: length + 1], np.int32),
                    np.array(weights[: length + 1], np.int32),
                ]
            )
            del ids[:length], weights[:length]


def produce(queue: Any, seed: int, tokenizer: Path, length: int, rows: int) -> None:
    stream = blocks(tokenizer, seed, length)
    while True:
        queue.put(np.stack([next(stream) for _ in range(rows)]))


def batches(options: argparse.Namespace) -> Iterator[np.ndarray]:
    """Yield batches from workers in turn: the same seed and number of workers give the same data in the same order."""
    rows = max(1, options.batch // 8)
    queues: list[Any] = [mp.Queue(maxsize=8) for _ in range(options.workers)]
    shared = (options.out / "tokenizer.json", options.length, rows)
    workers = [
        mp.Process(target=produce, args=(q, SEED + n, *shared), daemon=True)
        for n, q in enumerate(queues)
    ]
    for worker in workers:
        worker.start()
    pending = np.empty((0, 2, options.length + 1), np.int32)
    try:
        for queue in cycle(queues):
            pending = np.concatenate([pending, queue.get()])
            while len(pending) >= options.batch:
                yield pending[: options.batch]
                pending = pending[options.batch :]
    finally:
        for worker in workers:
            worker.terminate()


# ---- training ----


def evaluate(model: Any, tokenizer: Any, device: str, count: int = 60) -> dict[str, float]:
    """Share of right answers by task, greedy, in the chat form; items that training doesn't draw."""
    import torch

    model.eval()
    out = {}
    for task in TASKS:
        items = [item(task, SIZES[n % 3], n) for n in range(count)]
        right = 0
        for start in range(0, count, 60):
            part = items[start : start + 60]
            texts = [BOS + asked(i.question) for i in part]
            batch = tokenizer(
                texts,
                return_tensors="pt",
                padding=True,
                padding_side="left",
                add_special_tokens=False,
            )
            with torch.no_grad():
                tokens = model.generate(
                    batch["input_ids"].to(device), attention_mask=batch["attention_mask"].to(device), max_new_tokens=64,
                    do_sample=False, pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
                )  # fmt: skip
            answers = tokenizer.batch_decode(
                tokens[:, batch["input_ids"].shape[1] :], skip_special_tokens=True
            )
            right += sum(
                answer.strip() == i.answer for answer, i in zip(answers, part, strict=True)
            )
        out[task] = right / count
    model.train()
    return out


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("out", type=Path)
    p.add_argument("--which", nargs="+", choices=SHAPES, default=list(SHAPES))
    p.add_argument("--minutes", type=float, default=5.0, help="of each model")
    p.add_argument("--steps", type=int, help="an exact length instead")
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
    with (options.out / "curve.csv").open("w", newline="") as file:
        curve = csv.writer(file)
        curve.writerow(["model", "seconds", "step", "tokens", "loss", *TASKS])
        for name in options.which:
            for line in train(name, options):
                curve.writerow(line)
                file.flush()
                print(*line, flush=True)


def train(name: str, options: argparse.Namespace) -> Iterator[list[Any]]:
    """Train one model and save it; yield the lines of its curve."""
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
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.98))
    begun, step, tokens = time.monotonic(), 0, 0

    def line(loss: Any, count: int) -> list[Any]:
        scores = evaluate(model, tokenizer, options.device, count) if count else {}
        seconds = round(time.monotonic() - begun, 1)
        return [
            name,
            seconds,
            step,
            tokens,
            round(loss.item(), 4),
            *(round(scores.get(t, -1), 3) for t in TASKS),
        ]

    for data in batches(options):
        done = (
            step / options.steps
            if options.steps
            else (time.monotonic() - begun) / (60 * options.minutes)
        )
        if done >= 1:
            break
        batch = torch.from_numpy(data).to(options.device)
        ids, weights = batch[:, 0].long(), batch[:, 1].float()
        rate = (
            options.lr
            * min(1.0, (step + 1) / 200)
            * (1.0 if done < 0.5 else max(0.02, 2 * (1 - done)))
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(options.device, torch.bfloat16):
            logits = model.lm_head(core(input_ids=ids[:, :-1]).last_hidden_state)
        each = torch.nn.functional.cross_entropy(
            logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
        )
        scale = weights[:, 1:].flatten() / 10
        loss = (each * scale).sum() / scale.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step, tokens = step + 1, tokens + ids[:, 1:].numel()
        if step % 500 == 0 or step == 20:
            yield line(loss, 60 * (step % 1000 == 0))
    yield line(loss, 300)
    save(model, options.out, name)


def save(model: Any, out: Path, name: str) -> None:
    import torch

    folder = out / name
    model.generation_config.eos_token_id = [3, 1]  # of a chat, and of a text
    model.to(torch.bfloat16).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    # what transformers 4 reads
    config |= {"rope_theta": 10000.0, "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(
        json.dumps(dict(sorted(config.items())), indent=2) + "\n"
    )
    if name == "model":  # a draft has its tokenizer
        for part in ("tokenizer.json", "tokenizer_config.json"):
            (folder / part).write_bytes((out / part).read_bytes())


if __name__ == "__main__":
    main()
