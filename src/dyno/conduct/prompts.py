"""The prompts of a trial, by the right tokenizer, and whether a server can take them."""

from typing import NamedTuple

from dyno import workload
from dyno.conduct.watcher import Watcher
from dyno.errors import UsageError
from dyno.facts.target import TargetFacts
from dyno.facts.trial import TrialSpec
from dyno.facts.workload import Workload
from dyno.http import Client, Url
from dyno.load.protocols import PROTOCOLS
from dyno.workload.tokenizer import Tokenizer, choose


class Prompts(NamedTuple):
    workload: Workload
    counter: Tokenizer | None  # the tokenizer, where it is one that also counts answers

    @property
    def lengths(self) -> list[int]:
        return [r.prompt_tokens + r.output_tokens for r in self.workload.requests]


def fitting(trial: TrialSpec, target: TargetFacts, headers: dict[str, str], watcher: Watcher) -> Prompts:
    """The prompts, by the server's own tokenizer where none is named, if the server can take them."""
    check_context([longest(trial)], target)  # before any time goes into making them
    client = Client(Url(trial.target.base_url), headers, trial.target)
    try:
        work = prompts(trial, watcher, client, target.model)
    finally:
        client.close()
    check_context(work.lengths, target)
    return work


def prompts(trial: TrialSpec, watcher: Watcher, client: Client | None = None, model: str = "") -> Prompts:
    tokenizer = choose(trial.tokenizer, client, model)
    watcher.phase(f"Making {trial.workload.num_prompts} prompts ({trial.workload.dataset})")
    work = workload.make(trial.workload, tokenizer)
    if not PROTOCOLS[trial.target.backend].takes_token_ids and any(isinstance(r.prompt, list) for r in work.requests):
        raise UsageError(
            f"The dataset has prompts of token ids, which --backend {trial.target.backend} can't send. Use openai, "
            "vllm or llama.cpp, or a dataset of texts."
        )
    return Prompts(work, tokenizer if tokenizer.counted_by == "tokenizer" else None)


def longest(trial: TrialSpec) -> int:
    """What a random request may need; other datasets are known when they are read."""
    w = trial.workload
    if trial.offline and trial.offline.kind == "micro":
        return (trial.offline.depth or 0) + w.input_len + (w.output_len or 0) + 1
    if w.dataset != "random":
        return 0
    output = int((w.output_len or 1) * (1 + w.range_ratio_output))
    return w.prefix_len + int(w.input_len * (1 + w.range_ratio_input)) + output


def check_context(lengths: list[int], target: TargetFacts) -> None:
    limit = target.max_model_len
    if limit is None:
        return
    over = sum(n > limit for n in lengths)
    if over:
        raise UsageError(
            f"{over} of {len(lengths)} requests need up to {max(lengths)} tokens (prompt + output), and the server's "
            f"context is {limit}. Ask for shorter ones, or start the server with a longer context."
        )
