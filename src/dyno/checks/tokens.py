"""Were prompts and answers as long as requested, who counted, and did a cache answer instead of the engine?"""

import math
from collections.abc import Iterator, Sequence
from operator import itemgetter

from dyno.checks.evidence import Circumstances, Evidence, OfflineEvidence
from dyno.facts.finding import Finding, doubt, note, void
from dyno.facts.imported import Row
from dyno.measure.counting import length_is_known
from dyno.measure.points import ASIDE, input_each, load_of, locations, named, output_each, speed_tests, subject

FLAT = 1.15  # P99 over median
STEP = 1.3  # first token over one step
FASTER = 1.5  # than the prompt's processing was measured to be
HITS = 0.01
RANDOM = ("random", "random-ids", "synthetic")


def output_short(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    ended = f"; ended by {', '.join(f'{k}: {n}' for k, n in s.finish_reasons.items())}"
    ignored, usual = (
        "The server doesn't honour ignore_eos, or its context is too short for prompt + output.",
        "Compare by tokens/s, not by requests/s; or make lengths equal with --ignore-eos.",
    )
    if not e.can_ignore_eos:
        ignored, usual = (
            "TGI can't be told to ignore the end token. Compare by tokens/s and TPOT, not by requests/s and E2EL.",
            "Compare by tokens/s, not by requests/s: TGI can't be told to ignore the end token.",
        )
    yield from _output_short(
        e, s.total_output_tokens, s.wanted_output_tokens, ended, ignored if e.trial.ignore_eos else usual
    )


def output_short_offline(e: OfflineEvidence) -> Iterator[Finding]:
    advice = "Compare by tokens/s, not by requests/s."
    if e.trial.ignore_eos:
        advice = (
            "Its context is too short for prompt + output, or it ends answers by another rule. Latency and requests/s "
            "are of less work than asked."
        )
    yield from _output_short(e, e.offline.output_tokens, e.offline.wanted_output_tokens, "", advice)


def _output_short(e: Circumstances, produced: int, wanted: int, ended: str, advice: str) -> Iterator[Finding]:
    if wanted and produced < 0.98 * wanted:
        yield Finding(
            "tokens.output_short",
            "doubt" if e.trial.ignore_eos else "note",
            f"{produced} of {wanted} wanted output tokens were produced ({produced / wanted:.0%}{ended})"
            + (", though the end token was to be ignored." if e.trial.ignore_eos else "."),
            advice,
        )


def output_short_row(row: Row) -> Iterator[Finding]:
    each, wanted = output_each(row), row.number("output_len")
    if row.kind != "serve" or _lengths_drawn(row) or row.setting("ignore_eos") is True:
        return
    if each and wanted and each < 0.9 * wanted:
        text = f"{each:,.0f} tokens were made for a request, where {wanted:,.0f} were asked for ({each / wanted:.0%})."
        advice = "Answers ended early. Use --ignore-eos, or label the row by what was made."
        yield doubt("tokens.output_short", text, advice, locations([row], "total_output_tokens"))


def input_length_row(row: Row) -> Iterator[Finding]:
    each, wanted = input_each(row), row.number("input_len")
    if row.kind != "serve" or _lengths_drawn(row) or "rerank" in str(row.setting("dataset") or ""):
        return
    if each and wanted and abs(each / wanted - 1) > 0.1 and abs(each - wanted) > 48:
        why = "Prompts were cut" if each < wanted else "Something was added to them"
        they, share = "" if each < wanted else "they were ", each / wanted - 1
        text = f"Prompts had {each:,.0f} tokens on average, where {wanted:,.0f} were asked for ({share:+.0%})."
        advice = f"{why}, or {they}counted by another tokenizer. Label the row by what was sent."
        yield doubt("tokens.input_length", text, advice, locations([row], "total_input_tokens"))


def _lengths_drawn(row: Row) -> bool:
    """Lengths were drawn from a range: SGLang's default, and an option of vLLM."""
    ratio = next((v for n in ("--random-range-ratio", "random_range_ratio") if (v := row.setting(n)) is not None), None)
    if row.tool == "sglang":
        return ratio not in (1, 1.0)
    return ratio not in (None, 0, 1)


def counted_again(row: Row) -> Iterator[Finding]:
    counted, text = row.get("total_output_tokens"), row.get("retokenized_output_tokens")
    if counted and text is not None and not 0.8 < text / counted < 1.25:
        yield Finding(
            "tokens.text_differs",
            "doubt" if not 0.5 < text / counted < 2 else "note",
            f"{counted:,.0f} tokens are counted as made, and the text of the answers has {text:,.0f}.",
            "What was asked for was counted and not what came, or the text holds what another tokenizer made. Look at "
            "some answers before tokens/s is used.",
            locations([row], "total_output_tokens", "retokenized_output_tokens"),
        )


def output_long(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if length_is_known(e.trial) and s.total_output_tokens > 1.02 * s.wanted_output_tokens + s.completed:
        yield doubt(
            "tokens.output_long",
            f"{s.total_output_tokens} output tokens came where at most {s.wanted_output_tokens} were asked for.",
            "The server doesn't honour the length asked for. Compare by tokens/s and TPOT, not by requests/s and E2EL.",
        )


def believed(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    by = "with the tokenizer" if s.tokens_by.get("tokenizer") else "by chunks"
    if (c := s.impossible) is not None:
        yield doubt(
            "tokens.impossible",
            f"For {c.requests} of {s.completed} answers the server counts {c.claimed} output tokens. That is "
            "impossible: it is negative, or more than was asked for and more than arrived. "
            f"dyno counted {c.counted} {by}.",
            "All figures go by dyno's count. Look at what fills in the answers' usage: the engine, or a gateway.",
        )
    if s.odd_prompts:
        yield doubt(
            "tokens.impossible",
            f"For {s.odd_prompts} of {s.completed} answers the server's count of prompt tokens, or of those found in "
            "its cache, is impossible.",
            "All figures go by dyno's count of these prompts. Look at what fills in the answers' usage.",
        )
    if (c := s.miscounted) is not None:
        yield doubt(
            "tokens.miscounted",
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
        text = f"The server gave no usage for {count - explained} answers; their text was tokenized here."
        advice = "Counts may differ from the server's by a few tokens an answer."
        yield note("tokens.by_tokenizer", text, advice)
    if (count := by.get("chunks", 0)) > explained:
        yield doubt(
            "tokens.by_chunks",
            f"The server gave no usage for {count - explained} answers and there was no tokenizer: each chunk was "
            "taken for one token.",
            "Where chunks carry several tokens, tokens/s and TPOT are wrong. Give --tokenizer.",
        )


def buffered(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if s.at_once > 0.1 * s.completed:
        yield doubt(
            "stream.buffered",
            f"{s.at_once} of {s.completed} answers came all at once, last token with the first: something between the "
            "engine and here holds streams back.",
            "TTFT is then the time of the whole answer, and TPOT and ITL mean nothing. Look for a buffering proxy.",
        )


def bundled(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if s.itl_per_token is not None:
        chunk, token = s.itl.mean, s.itl_per_token.mean
        means = "" if chunk is None or token is None else f" (mean {chunk:.2f} ms), {token:.2f} ms for each token"
        yield note(
            "tokens.bundled",
            f"Chunks carry {s.total_output_tokens / s.chunks:.2f} tokens on average: ITL is the gap between chunks"
            f"{means}.",
            "Compare ITL with engines that bundle tokens by the per-token figure, or by TPOT.",
        )


def cached(e: Evidence) -> Iterator[Finding]:
    s, hits = e.summary, e.cached_tokens
    if not hits or not s.total_input_tokens:
        return
    meant = e.trial.workload.prefix_len * s.completed
    by = "" if s.cached_input_tokens is not None else ", by its own counters"
    # A first token or a chat template's first block is shared by all prompts, and is no help to speak of.
    if hits > 1.1 * meant + 16 * s.completed + 0.01 * s.total_input_tokens:
        yield doubt(
            "cache.hits",
            f"{hits} of {s.total_input_tokens} prompt tokens ({hits / s.total_input_tokens:.0%}) were found in the "
            f"server's prefix cache{by}.",
            "TTFT is that of a warm cache. Use another --seed than the runs before, or turn prefix caching off.",
        )


def cached_offline(e: OfflineEvidence) -> Iterator[Finding]:
    o = e.offline
    at_a_depth = (
        e.trial.offline is not None and e.trial.offline.depth
    )  # then the cache holds the context before the test
    share = (o.cached_input_tokens or 0) / o.input_tokens if o.input_tokens else 0.0
    if share > 0.02 and not at_a_depth:
        yield doubt(
            "cache.prefix_hits",
            f"{share:.0%} of the prompt tokens came from the engine's prefix cache and were not processed.",
            "Prefill looks faster than it is. Turn the cache off (--no-enable-prefix-caching), unless it is what "
            "is measured.",
        )


def cached_rows(rows: Sequence[Row]) -> Iterator[Finding]:
    for row in rows:
        hits, read = row.get("cached_input_tokens"), row.get("total_input_tokens")
        if hits and read and hits > HITS * read:
            drawn = str(row.setting("dataset") or "").lower() in RANDOM
            yield Finding(
                "cache.hits",
                "doubt" if drawn else "note",
                f"{hits:,.0f} of {read:,.0f} prompt tokens ({hits / read:.0%}) came from the prefix cache"
                + (", with prompts that are said to be random." if drawn else "."),
                "They cost nothing, so that time to first token and throughput are too good. Use another seed, or "
                "empty the cache before each run." if drawn else "Say so with the figures.",
                locations([row], "cached_input_tokens"),
            )  # fmt: skip


def sent_before(e: Evidence) -> Iterator[Finding]:
    """The commonest trap: the same command a second time finds its prompts in the server's prefix cache."""
    if e.sent_before is not None and e.cached_tokens is None and e.summary.completed:
        yield doubt(
            "cache.sent_before",
            f"These very prompts were sent to this address before ({e.sent_before}), and the server doesn't tell "
            "whether its prefix cache still had them.",
            "Unless it was restarted in between or caches no prefixes, TTFT may be too good: use another --seed.",
        )


def cache_emptied(e: Evidence) -> Iterator[Finding]:
    if e.cache_emptied is False and e.target.prefix_caching is not False and not e.cached_tokens:
        said = "" if e.cached_tokens is None else ", though the server tells of no hit"
        text = f"The server's prefix cache could not be emptied before the load{said}."
        advice = "Turn it off (prefix_caching = false), or start the engine anew for each trial."
        yield Finding("cache.not_emptied", "note" if said else "doubt", text, advice)


def depth_missed(e: OfflineEvidence) -> Iterator[Finding]:
    """The context before a test must not be part of it."""
    depth = e.trial.offline.depth if e.trial.offline else None
    asked, o = e.trial.workload.input_len, e.offline
    if not depth or not asked or not o.completed:
        return
    counted = (o.input_tokens - (o.cached_input_tokens or 0)) / o.completed
    if counted > 1.05 * asked:
        yield void(
            "cache.depth_missed",
            f"{counted:.0f} tokens were processed in each test, and {asked} were meant: part of the {depth} before "
            "them were not in the cache.",
            "The speed is of all of them, at a smaller depth. Take a depth that the engine's cache keeps whole (vLLM "
            "keeps blocks, of 16 tokens on a GPU and 128 on a CPU), and see that the prefix cache is on.",
        )


def warm(rows: Sequence[Row]) -> Iterator[Finding]:
    """A single stream with prompts of all lengths gets each first token within one step."""
    for row in rows:
        middle, tail, step = (row.get(n) for n in ("median_ttft_ms", "p99_ttft_ms", "median_tpot_ms"))
        read, first = input_each(row), row.get("mean_ttft_ms")
        if row.kind != "serve" or row.number("concurrency") != 1 or not (middle and tail and step and read and first):
            continue
        varied = str(row.setting("dataset") or "").lower() not in ("", *RANDOM)
        if read < 64 or middle > STEP * step or tail > FLAT * middle or not varied:
            continue
        witness = _witness(row, rows, read, first)
        yield Finding(
            "cache.warm",
            "doubt" if witness else "note",
            f"{subject(row)}: the first token took {middle:,.1f} ms at the median and {tail:,.1f} at P99, about one "
            f"step ({step:,.1f} ms), with {read:,.0f} prompt tokens on average"
            + (f", where {witness[0]} needs {read / witness[1] * 1000:,.0f} ms for so many." if witness else "."),
            "So it is when prompts lie in the prefix cache from an earlier run. Empty it, or restart the server.",
            locations([row], "median_ttft_ms", "p99_ttft_ms") + (witness[2] if witness else []),
        )


def _witness(row: Row, rows: Sequence[Row], read: float, first_ms: float) -> tuple[str, float, list[str]] | None:
    """Return the fastest prompt processing of a model of this size among the same results."""
    size = named(str(row.setting("model") or row.label)).billions
    tests = [
        (r.figures["speed"].value, r)
        for r in speed_tests(rows, "pp")
        if size and abs((r.number("parameters") or 0) / 1e9 / size - 1) < 0.15
    ]
    speed, best = max(tests, key=itemgetter(0), default=(math.inf, row))
    if read / speed * 1000 < FASTER * first_ms:
        return None
    text = f"{best.setting('test')} of {best.label or best.setting('model')} at {speed:,.0f} tok/s"
    return text, speed, locations([best], "speed")


def later_faster(rows: Sequence[Row]) -> Iterator[Finding]:
    """A repeated run has much earlier first tokens."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        # A first token that waits in a queue depends on all else.
        queue = (row.get("mean_ttft_ms") or 0) / 1000 > 0.05 * (row.get("duration_s") or 0)
        if row.kind == "serve" and row.form != "table" and row.get("mean_ttft_ms") and load_of(row) and not queue:
            settings = tuple(sorted((k, str(s.value)) for k, s in row.settings.items() if k not in ASIDE))
            groups.setdefault((row.file, settings, row.label, row.section), []).append(row)
    for same in groups.values():
        first, read = same[0], same[0].get("total_input_tokens")
        later = [r for r in same[1:] if read and r.get("total_input_tokens") == read]
        if not later:
            continue
        best = min(later, key=lambda r: r.figures["mean_ttft_ms"].value)
        a, b = first.figures["mean_ttft_ms"].value, best.figures["mean_ttft_ms"].value
        if b < 0.6 * a and (best.get("mean_tpot_ms") or 0) > 0.8 * (first.get("mean_tpot_ms") or 0):
            yield doubt(
                "cache.later_faster",
                f"{subject(first)}: the same load again has its first tokens after {b:,.0f} ms, where they took "
                f"{a:,.0f} at first, and is no faster otherwise.",
                "The prompts of the first run lay in the prefix cache, or the first run was the warm-up.",
                locations([first, best], "mean_ttft_ms"),
            )
