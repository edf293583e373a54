"""Were prompts and answers as long as asked, and who counted?"""

from collections.abc import Iterator

from dyno.checks.evidence import Evidence
from dyno.facts.finding import Finding
from dyno.measure.counting import length_is_known


def output_length(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if not s.wanted_output_tokens or s.total_output_tokens >= 0.98 * s.wanted_output_tokens:
        return
    share = s.total_output_tokens / s.wanted_output_tokens
    text = (
        f"{s.total_output_tokens} of {s.wanted_output_tokens} wanted output tokens were produced ({share:.0%}; "
        f"ended by {', '.join(f'{k}: {n}' for k, n in s.finish_reasons.items())})"
    )
    if e.trial.ignore_eos:
        yield Finding(
            "tokens.output_short",
            "doubt",
            text + ", though the end token was to be ignored.",
            "The server doesn't honour ignore_eos, or its context is too short for prompt + output."
            if e.can_ignore_eos
            else "TGI can't be told to ignore the end token. Compare by tokens/s and TPOT, not by requests/s and E2EL.",
        )
    else:
        yield Finding(
            "tokens.output_short",
            "note",
            text + ".",
            "Compare by tokens/s, not by requests/s; or make lengths equal with --ignore-eos."
            if e.can_ignore_eos
            else "Compare by tokens/s, not by requests/s: TGI can't be told to ignore the end token.",
        )


def output_long(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if length_is_known(e.trial) and s.total_output_tokens > 1.02 * s.wanted_output_tokens + s.completed:
        yield Finding(
            "tokens.output_long",
            "doubt",
            f"{s.total_output_tokens} output tokens came where at most {s.wanted_output_tokens} were asked for.",
            "The server doesn't honour the length asked for. Compare by tokens/s and TPOT, not by requests/s and E2EL.",
        )


def believed(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    by = "with the tokenizer" if s.tokens_by.get("tokenizer") else "by chunks"
    if (c := s.impossible) is not None:
        yield Finding(
            "tokens.impossible",
            "doubt",
            f"For {c.requests} of {s.completed} answers the server counts {c.claimed} output tokens. That is "
            "impossible: it is negative, or more than was asked for and more than arrived. "
            f"dyno counted {c.counted} {by}.",
            "All figures go by dyno's count. Look at what fills in the answers' usage: the engine, or a gateway.",
        )
    if s.odd_prompts:
        yield Finding(
            "tokens.impossible",
            "doubt",
            f"For {s.odd_prompts} of {s.completed} answers the server's count of prompt tokens, or of those found in "
            "its cache, is impossible.",
            "All figures go by dyno's count of these prompts. Look at what fills in the answers' usage.",
        )
    if (c := s.miscounted) is not None:
        yield Finding(
            "tokens.miscounted",
            "doubt",
            f"Of {c.requests} answers the server counts {c.claimed} output tokens, and dyno {c.counted}.",
            "All figures go by the server's count. It is right where the model thinks without showing it. Else "
            "--tokenizer is another model's, or the server's usage is wrong.",
        )


def input_length(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if not s.completed:
        return
    if e.counted_by == "approximate":
        yield Finding(
            "tokens.input_approximate",
            "note" if "usage" in s.tokens_by else "doubt",
            f"Prompt lengths were made without a tokenizer: about {s.planned_input_tokens} tokens were meant, "
            f"the server counted {s.total_input_tokens}.",
            "Give --tokenizer (a folder with tokenizer.json, or a Hub name) for prompts of exactly the length asked.",
        )
    elif s.planned_input_tokens and abs(s.total_input_tokens / s.planned_input_tokens - 1) > 0.02:
        longer = s.total_input_tokens > s.planned_input_tokens
        chat = e.trial.target.backend == "openai-chat"
        yield Finding(
            "tokens.input_length",
            "note" if chat and longer else "doubt",
            f"The server counted {s.total_input_tokens} prompt tokens where {s.planned_input_tokens} were meant.",
            "The chat template adds its own tokens to each prompt." if chat and longer
            else "Prompts are cut by the server, or --tokenizer is not this model's.",
        )  # fmt: skip


def counting(e: Evidence) -> Iterator[Finding]:
    by = e.summary.tokens_by
    explained = e.summary.impossible.requests if e.summary.impossible else 0  # by `believed`
    if (count := by.get("tokenizer", 0)) > explained:
        yield Finding(
            "tokens.by_tokenizer",
            "note",
            f"The server gave no usage for {count - explained} answers; their text was tokenized here.",
            "Counts may differ from the server's by a few tokens an answer.",
        )
    if (count := by.get("chunks", 0)) > explained:
        yield Finding(
            "tokens.by_chunks",
            "doubt",
            f"The server gave no usage for {count - explained} answers and there was no tokenizer: each chunk was "
            "taken for one token.",
            "Where chunks carry several tokens, tokens/s and TPOT are wrong. Give --tokenizer.",
        )


def cached(e: Evidence) -> Iterator[Finding]:
    s, found = e.summary, e.cached_tokens
    if not found or not s.total_input_tokens:
        return
    meant = e.trial.workload.prefix_len * s.completed
    by = "" if s.cached_input_tokens is not None else ", by its own counters"
    # A first token or a chat template's first block is shared by all prompts, and is no help to speak of.
    if found > 1.1 * meant + 16 * s.completed + 0.01 * s.total_input_tokens:
        yield Finding(
            "cache.hits",
            "doubt",
            f"{found} of {s.total_input_tokens} prompt tokens ({found / s.total_input_tokens:.0%}) were found in the "
            f"server's prefix cache{by}.",
            "TTFT is that of a warm cache. Use another --seed than the runs before, or turn prefix caching off.",
        )


def sent_before(e: Evidence) -> Iterator[Finding]:
    """The commonest trap: the same command a second time finds its prompts in the server's prefix cache."""
    if e.sent_before is not None and e.cached_tokens is None and e.summary.completed:
        yield Finding(
            "cache.sent_before",
            "doubt",
            f"These very prompts were sent to this address before ({e.sent_before}), and the server doesn't tell "
            "whether its prefix cache still had them.",
            "Unless it was restarted in between or caches no prefixes, TTFT may be too good: use another --seed.",
        )


def buffered(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if s.at_once > 0.1 * s.completed:
        yield Finding(
            "stream.buffered",
            "doubt",
            f"{s.at_once} of {s.completed} answers came all at once, last token with the first: something between the "
            "engine and here holds streams back.",
            "TTFT is then the time of the whole answer, and TPOT and ITL mean nothing. Look for a buffering proxy.",
        )


def bundled(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if s.itl_per_token is not None:
        chunk, token = s.itl.mean, s.itl_per_token.mean
        means = "" if chunk is None or token is None else f" (mean {chunk:.2f} ms), {token:.2f} ms for each token"
        yield Finding(
            "tokens.bundled",
            "note",
            f"Chunks carry {s.total_output_tokens / s.chunks:.2f} tokens on average: ITL is the gap between chunks"
            f"{means}.",
            "Compare ITL with engines that bundle tokens by the per-token figure, or by TPOT.",
        )
