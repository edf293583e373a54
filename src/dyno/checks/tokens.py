"""Were prompts and answers as long as requested, who counted, and did a cache answer instead of the engine?"""

import math
from collections.abc import Iterator, Sequence
from operator import itemgetter

from dyno.checks.evidence import Evidence, OfflineEvidence
from dyno.facts.finding import Finding, Level, doubt, note, void
from dyno.facts.imported import Row
from dyno.facts.summary import Summary, reported_share
from dyno.measure.counting import length_is_known
from dyno.measure.points import (
    ASIDE,
    identified,
    input_each,
    load_of,
    locations,
    named,
    output_each,
    speed_tests,
    subject,
)
from dyno.numbers import change, number, percent

FLAT = 1.15  # P99 over median
STEP = 1.3  # first token over one step
FASTER = 1.5  # than the prompt's processing was measured to be
HITS = 0.01
LEAST_HISTORY = 0.75  # of the planned prompt tokens: with fewer, the server cuts histories
# possible share of prompt tokens; of this, the reported part
REUSE_FROM, REUSE_MISSED = 0.05, 0.5
FULL = 0.9  # of the KV cache
_NOT_STREAMED = (
    "Let the server stream token by token, or judge it by E2EL and throughput. "
    "vLLM's TPOT of 0 is not a speed."
)
_LONGER = (
    "Tokens were added, or the tokenizer belongs to another model. State the actual length."
)
RANDOM = ("random", "random-ids", "synthetic")


def output_short(e: Evidence | OfflineEvidence | Row) -> Iterator[Finding]:
    """Answers are shorter than requested."""
    if isinstance(e, Row):
        yield from _output_short_of_row(e)
        return
    if isinstance(e, OfflineEvidence):
        tokens, asked = e.offline.output_tokens, e.offline.wanted_output_tokens
        ended = ""
    else:
        tokens, asked = e.summary.total_output_tokens, e.summary.wanted_output_tokens
        if e.summary.whole and not tokens:  # not counted by the server
            return
        reasons = ", ".join(f"{k}: {n:,}" for k, n in e.summary.finish_reasons.items())
        ended = f"; ended by {reasons}"
    each, wanted = tokens / max(e.completed, 1), asked / max(e.completed, 1)
    if not wanted or each >= 0.98 * wanted:
        return
    advice = ""
    if e.stops_at_eos:
        advice = f"{e.stops_at_eos} can't ignore the end token. Compare tokens/s and TPOT, not requests/s and E2EL."
    elif e.trial.ignore_eos:
        advice = "The engine doesn't honour ignore_eos, or its context is too short for prompt and output."
    level: Level = "doubt" if e.trial.ignore_eos else "note"
    yield Finding(
        "tokens.output_short", level, _output_of_requested(each, wanted, ended), advice
    )


def _output_short_of_row(row: Row) -> Iterator[Finding]:
    if row.kind != "serve" or _lengths_drawn(row) or row.setting("ignore_eos") is True:
        return
    each, wanted = output_each(row), row.number("output_len")
    if each and wanted and each < 0.9 * wanted:
        text = _output_of_requested(each, wanted)
        yield doubt(
            "tokens.output_short", text, locations=locations([row], "total_output_tokens")
        )


def _output_of_requested(each: float, wanted: float, ended: str = "") -> str:
    share = f"{percent(each / wanted)}{ended}"
    return f"Answers have {each:,.0f} of {wanted:,.0f} requested output tokens on average ({share})."


def input_length(e: Evidence | Row) -> Iterator[Finding]:
    """Prompts are longer or shorter than requested."""
    if isinstance(e, Row):
        yield from _input_length_of_row(e)
        return
    s = e.summary
    each, wanted = (
        s.total_input_tokens / max(s.completed, 1),
        s.planned_input_tokens / max(s.completed, 1),
    )
    if e.counted_by == "approximate":
        if s.completed:
            level: Level = "note" if "usage" in s.tokens_by else "doubt"
            text = f"Prompts were generated without a tokenizer: {wanted:,.0f} tokens planned, {each:,.0f} counted."
            yield Finding("tokens.input_approximate", level, text)
        return
    if s.media is not None or s.results is not None:
        return  # images have a finding of their own; a request may have several texts
    yield from _not_as_asked(e, wanted)
    if each and wanted and abs(each / wanted - 1) > 0.02:
        level, advice = _why_other_length(e, each, wanted)
        yield Finding(
            "tokens.input_length", level, _input_of_requested(each, wanted), advice
        )


_FEW_TOKENS = 8  # of an image: no model has so few
_FAR = 0.5  # share of the rule's tokens from which on the two can't be about one image
_NEAR = 0.05


def media(e: Evidence) -> Iterator[Finding]:
    """The server counts other tokens for images than the model's rule."""
    m = e.summary.media
    if m is None or m.media_tokens is None or not m.items:
        return
    each = m.media_tokens / m.items
    if m.ruled_tokens is None:
        if each < _FEW_TOKENS and not m.audio_s:
            text = f"The server counts {number(each)} prompt tokens per image, fewer than any known model has."
            yield Finding("tokens.media", "doubt", text)
        return
    ruled = m.ruled_tokens / m.items
    off = each / ruled - 1
    # Without the server's count of a text alone, marks of a chat template are among the tokens.
    slack = _NEAR if m.template_tokens is not None else 64 / ruled + _NEAR
    if abs(off) <= slack:
        return
    text = (
        f"The server counts {number(each)} prompt tokens per image, but by the rule of {m.rule} it is "
        f"{number(ruled)} ({change(off)})."
    )
    yield Finding("tokens.media", "doubt" if abs(off) > _FAR else "note", text)


def _input_length_of_row(row: Row) -> Iterator[Finding]:
    if (
        row.kind != "serve"
        or _lengths_drawn(row)
        or "rerank" in str(row.setting("dataset") or "")
    ):
        return
    each, wanted = input_each(row), row.number("input_len")
    if not each or not wanted or abs(each / wanted - 1) <= 0.1 or abs(each - wanted) <= 48:
        return
    advice = _LONGER if each > wanted else ""
    lines = locations([row], "total_input_tokens")
    yield doubt("tokens.input_length", _input_of_requested(each, wanted), advice, lines)


def _input_of_requested(each: float, wanted: float) -> str:
    difference = change(each / wanted - 1)
    return f"Prompts have {each:,.0f} tokens on average, but {wanted:,.0f} were requested ({difference})."


def _why_other_length(e: Evidence, each: float, wanted: float) -> tuple[Level, str]:
    """Return the level and the advice for prompts that are not as long as planned."""
    if _history_varies(e) and each > LEAST_HISTORY * wanted:
        return "note", (
            "Text may have fewer tokens than the server generated, and its chat template decides how tools are written."
        )
    if each <= wanted:
        return "doubt", ""
    if e.trial.target.backend == "openai-chat":
        return "note", "The chat template adds its own tokens to each prompt."
    return "doubt", _LONGER


def _not_as_asked(e: Evidence, tokens: float) -> Iterator[Finding]:
    """Prompts of words, which a tokenizer may not have: of a model for another language, or for tests."""
    work = e.trial.workload
    asked = work.input_len + work.prefix_len
    fixed = work.traits.exact and not work.range_ratio_input and not work.classes
    if not fixed or not tokens or abs(tokens - asked) <= max(0.02 * asked, 2):
        return
    text = f"Prompts have {tokens:,.0f} tokens on average, but {asked:,} were requested ({change(tokens / asked - 1)})."
    advice = "The tokenizer hardly knows English words. Give prompts of your own: --dataset-name custom."
    yield doubt("tokens.input_length", text, advice)


def _history_varies(e: Evidence) -> bool:
    """Return whether the length of a history is not known to the token: no tokenizer here counts the answers, or the
    server writes out calls of tools."""
    work = e.trial.workload
    return work.traits.sessions and (e.counted_by != "tokenizer" or work.traits.tools)


def _lengths_drawn(row: Row) -> bool:
    """Lengths were drawn from a range: SGLang's default, and an option of vLLM."""
    ratio = next(
        (
            v
            for n in ("--random-range-ratio", "random_range_ratio")
            if (v := row.setting(n)) is not None
        ),
        None,
    )
    if row.tool == "sglang":
        return ratio not in (1, 1.0)
    return ratio not in (None, 0, 1)


def counted_again(row: Row) -> Iterator[Finding]:
    counted, again = row.get("total_output_tokens"), row.get("retokenized_output_tokens")
    if counted and again is not None and not 0.8 < again / counted < 1.25:
        text = f"The file reports {counted:,.0f} output tokens, but the text of the answers has {again:,.0f}."
        level: Level = "doubt" if not 0.5 < again / counted < 2 else "note"
        lines = locations([row], "total_output_tokens", "retokenized_output_tokens")
        yield Finding("tokens.text_differs", level, text, locations=lines)


def output_long(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if (
        length_is_known(e.trial)
        and s.total_output_tokens > 1.02 * s.wanted_output_tokens + s.completed
    ):
        text = f"{s.total_output_tokens:,} output tokens were received, but {s.wanted_output_tokens:,} requested."
        yield doubt("tokens.output_long", text)


def believed(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    by = "with the tokenizer" if s.tokens_by.get("tokenizer") else "by chunks"
    if (c := s.impossible) is not None:
        text = (
            f"For {c.requests:,} of {s.completed:,} answers the server reports {c.claimed:,} output tokens, which is "
            f"impossible. dyno counted {c.counted:,} {by} and uses that."
        )
        yield doubt("tokens.impossible", text)
    if s.odd_prompts:
        text = (
            f"For {s.odd_prompts:,} of {s.completed:,} answers the server reports an impossible number of prompt or "
            "cached tokens. dyno uses its own count."
        )
        yield doubt("tokens.impossible", text)
    if (c := s.miscounted) is not None:
        text = f"In {c.requests:,} answers the server reports {c.claimed:,} output tokens, dyno counts {c.counted:,}."
        yield doubt("tokens.miscounted", text)


def counting(e: Evidence) -> Iterator[Finding]:
    by = e.summary.tokens_by
    # by `believed`
    explained = e.summary.impossible.requests if e.summary.impossible else 0
    if (count := by.get("tokenizer", 0)) > explained:
        text = f"The server reported no usage for {count - explained:,} answers; dyno tokenized their text."
        yield note("tokens.by_tokenizer", text)
    if (count := by.get("chunks", 0)) > explained:
        if e.summary.whole:
            yield doubt(
                "tokens.by_chunks",
                f"The server reported no usage for {count - explained:,} answers, and there is no tokenizer: their "
                "output tokens are unknown.",
            )
            return
        text = (
            f"The server reported no usage for {count - explained:,} answers, and there is no tokenizer: each chunk "
            "counts as one token."
        )
        yield doubt("tokens.by_chunks", text)


def buffered(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if s.at_once > 0.1 * s.completed:
        counts = f"{s.at_once:,} of {s.completed:,} answers"
        yield doubt(
            "stream.buffered",
            f"{counts} arrived in one piece: the stream is buffered before it reaches dyno.",
        )


def bundled(e: Evidence) -> Iterator[Finding]:
    s = e.summary
    if (per_token := s.latencies.get("itl_per_token")) is not None:
        chunk, token = s.itl.mean, per_token.mean
        known = chunk is not None and token is not None and not s.itl.empty
        means = (
            f": mean ITL {number(chunk)} ms per chunk, {number(token)} per token"
            if known
            else ""
        )
        text = f"A chunk carries {number(s.total_output_tokens / s.chunks, digits=3)} tokens on average{means}."
        yield Finding("tokens.bundled", *_with_tpot(s, text))


def _with_tpot(s: Summary, text: str) -> tuple[Level, str, str]:
    """Return level, text and advice: vLLM's TPOT takes the first chunk for one token."""
    own, vllms = s.own_tpot, s.tpot.mean
    if s.itl.empty:
        return (
            "doubt",
            f"{text} Every answer came in one chunk: TPOT and ITL are unknown.",
            _NOT_STREAMED,
        )
    if own is None or own.empty:
        return "note", text, ""
    if own.mean is not None:
        return (
            "note",
            f"{text} TPOT after the first chunk is {number(own.mean)} ms, vLLM's {number(vllms)}.",
            "",
        )
    if "mean" not in own.bounds:
        return "note", text, ""
    low, high = own.bounds["mean"]
    text += (
        f" How many are in the first chunk is unknown, so TPOT is between {number(low)} and {number(high)} ms; "
        f"vLLM's definition gives {number(vllms)}."
    )
    return (
        "doubt",
        text,
        "Give --tokenizer, or let the server report usage with each event.",
    )


def cached(e: Evidence | OfflineEvidence | Row) -> Iterator[Finding]:
    """A prefix cache answered instead of the engine."""
    if isinstance(e, Row):
        yield from _cached_of_row(e)
    elif isinstance(e, OfflineEvidence):
        hits, read = e.offline.cached_input_tokens, e.offline.input_tokens
        # At a depth the cache holds the context before the test.
        at_depth = e.trial.offline is not None and e.trial.offline.depth
        if hits and read and not at_depth and hits > 0.02 * read:
            yield doubt("cache.prefix_hits", f"{_from_cache(hits, read)}.")
    else:
        s, hits, read = e.summary, e.cached_tokens, e.summary.total_input_tokens
        # A first token or a chat template's first block is shared by all prompts, and hardly helps.
        reused = 1.1 * s.reuse.most_tokens if s.reuse else 0
        shared = max(1.1 * e.trial.workload.prefix_len * s.completed, reused)
        usual = shared + 16 * s.completed + 0.01 * read
        if hits and read and hits > usual:
            source = (
                "" if s.cached_input_tokens is not None else ", by the server's metrics"
            )
            yield doubt("cache.hits", f"{_from_cache(hits, read)}{source}.")


def _cached_of_row(row: Row) -> Iterator[Finding]:
    hits, read = row.get("cached_input_tokens"), row.get("total_input_tokens")
    if not hits or not read or hits <= HITS * read:
        return
    text, lines = _from_cache(hits, read), locations([row], "cached_input_tokens")
    if str(row.setting("dataset") or "").lower() in RANDOM:
        yield doubt("cache.hits", f"{text}, although prompts are random.", locations=lines)
    else:
        yield note("cache.hits", f"{text}.", "State it with the figures.", lines)


def _from_cache(hits: float, read: float) -> str:
    return f"{hits:,.0f} of {read:,.0f} prompt tokens ({percent(hits / read)}) came from the prefix cache"


def reuse_missed(e: Evidence) -> Iterator[Finding]:
    """The traffic repeats prefixes, and the server processed them again."""
    s, reported = e.summary, reported_share(e.summary, e.telemetry)
    off = e.target.prefix_caching is False
    if reported is None and off:  # then it may not say so
        reported = 0.0
    if s.reuse is None or reported is None or s.reuse.possible_share < REUSE_FROM:
        return
    if reported >= REUSE_MISSED * s.reuse.possible_share:
        return
    why = f"the server reports {percent(reported)}."
    if off:
        why = "but prefix caching is off."
    elif e.target.kv_cache_tokens and _cache_was_full(e):
        why += f" Its cache of {e.target.kv_cache_tokens:,} tokens was full, so prefixes were evicted."
    share = percent(s.reuse.possible_share)
    yield note(
        "cache.reuse_missed",
        f"A prefix cache could hold {share} of the prompt tokens, {why}",
    )


def _cache_was_full(e: Evidence) -> bool:
    if not e.telemetry:
        return False
    return any((engine.kv_peak_share or 0) > FULL for engine in e.telemetry.engines)


def sent_before(e: Evidence) -> Iterator[Finding]:
    """This is the commonest trap: the same command a second time finds its prompts in the server's prefix cache."""
    if e.sent_before is not None and e.cached_tokens is None and e.summary.completed:
        text = (
            f"The same prompts were sent to this address before ({e.sent_before}), and the server doesn't report "
            "cache hits."
        )
        yield doubt("cache.sent_before", text)


def cache_emptied(e: Evidence) -> Iterator[Finding]:
    if (
        e.cache_emptied is False
        and e.target.prefix_caching is not False
        and not e.cached_tokens
    ):
        known = e.cached_tokens is not None
        hits = ", but the server reported no cache hits" if known else ""
        text = f"The server's prefix cache could not be emptied before the load{hits}."
        yield Finding("cache.not_emptied", "note" if known else "doubt", text)


def depth_missed(e: OfflineEvidence) -> Iterator[Finding]:
    """The context before a test must not be part of it."""
    depth = e.trial.offline.depth if e.trial.offline else None
    asked, o = e.trial.workload.input_len, e.offline
    if not depth or not asked or not o.completed:
        return
    counted = (o.input_tokens - (o.cached_input_tokens or 0)) / o.completed
    if counted > 1.05 * asked:
        missed = f"part of the {depth:,} before them was not cached"
        text = f"Each test processed {counted:,.0f} tokens instead of {asked:,}: {missed}."
        yield void("cache.depth_missed", text)


def warm(rows: Sequence[Row]) -> Iterator[Finding]:
    """A single stream with prompts of all lengths gets each first token within one step."""
    for row in rows:
        middle, tail, step = (
            row.get(n) for n in ("median_ttft_ms", "p99_ttft_ms", "median_tpot_ms")
        )
        read, first = input_each(row), row.get("mean_ttft_ms")
        if not (middle and tail and step and read and first) or not _is_one_stream_of_texts(
            row
        ):
            continue
        if read < 64 or middle > STEP * step or tail > FLAT * middle:
            continue
        text = (
            f"{subject(row)}: TTFT is {number(middle)} ms (median) and {number(tail)} (p99), about one decoding step "
            f"({number(step)} ms), for {read:,.0f} prompt tokens on average"
        )
        lines = locations([row], "median_ttft_ms", "p99_ttft_ms")
        witness = _witness(row, rows, read, first)
        if witness is None:
            yield note("cache.warm", f"{text}.", locations=lines)
        else:
            test, speed, test_lines = witness
            needs = f"{test} needs {number(read / speed * 1000)} ms for that"
            yield doubt("cache.warm", f"{text}, but {needs}.", locations=lines + test_lines)


def _is_one_stream_of_texts(row: Row) -> bool:
    """Return whether requests came one after the other, and their prompts differ in length."""
    if row.kind != "serve" or row.number("concurrency") != 1:
        return False
    return str(row.setting("dataset") or "").lower() not in ("", *RANDOM)


def _witness(
    row: Row, rows: Sequence[Row], read: float, first_ms: float
) -> tuple[str, float, list[str]] | None:
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
    text = f"{best.setting('test')} of {best.label or best.setting('model')} at {number(speed)} tok/s"
    return text, speed, locations([best], "speed")


def later_faster(rows: Sequence[Row]) -> Iterator[Finding]:
    """A repeated run has much earlier first tokens."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if _first_tokens_repeat(row):
            settings = tuple(
                sorted((k, str(s.value)) for k, s in row.settings.items() if k not in ASIDE)
            )
            groups.setdefault((row.file, settings, row.label, row.section), []).append(row)
    for first, *others in groups.values():
        read = first.get("total_input_tokens")
        later = [r for r in others if read and r.get("total_input_tokens") == read]
        if not later:
            continue
        best = min(later, key=lambda r: r.figures["mean_ttft_ms"].value)
        a, b = first.figures["mean_ttft_ms"].value, best.figures["mean_ttft_ms"].value
        step_a, step_b = first.get("mean_tpot_ms") or 0, best.get("mean_tpot_ms") or 0
        if b < 0.6 * a and step_b > 0.8 * step_a:
            times = f"{number(b)} instead of {number(a)} ms"
            text = f"{subject(first)}: a repeat has a mean TTFT of {times}, but is not faster otherwise."
            yield doubt(
                "cache.later_faster",
                text,
                locations=locations([first, best], "mean_ttft_ms"),
            )


def _first_tokens_repeat(row: Row) -> bool:
    """Return whether a repeat of this run should have the same time to first token."""
    first_ms = row.get("mean_ttft_ms")
    if (
        row.kind != "serve"
        or row.form == "table"
        or not first_ms
        or not identified(row)
        or not load_of(row)
    ):
        return False
    # A first token that waits in a queue depends on all else.
    return first_ms / 1000 <= 0.05 * (row.get("duration_s") or 0)
