"""Were all requests answered, with what was asked for? By what a result tells of itself."""

from collections.abc import Iterator
from statistics import mean, median

import msgspec

from dyno.checks.requests import failures
from dyno.facts.finding import Finding
from dyno.facts.imported import Row
from dyno.measure.points import at, input_each, output_each, sent

EMPTY = 0.01  # of the answers: from here on they change the figures


def failed(row: Row) -> Iterator[Finding]:
    done, asked = row.get("completed"), sent(row)
    if row.kind == "serve" and done == 0 and asked is None:  # nobody tells how many failed
        yield Finding(
            "requests.none_completed",
            "void",
            "No request was completed.",
            "Nothing was measured. Look at the server's log.",
            at([row], "completed"),
        )
    if row.kind != "serve" or done is None or asked is None or asked[0] <= done:
        return
    for finding in failures(
        int(asked[0] - done), int(asked[0]), int(done), f": {asked[1]} says {asked[0]:,.0f}" * bool(asked[1])
    ):
        yield msgspec.structs.replace(finding, locations=at([row], "completed", "failed"))


def more_than_asked(row: Row) -> Iterator[Finding]:
    done, asked = row.get("completed"), row.settings.get("num_prompts")
    if row.kind == "serve" and done and asked and isinstance(asked.value, int) and done > asked.value:
        yield Finding(
            "consistency.command",
            "doubt",
            f"{done:,.0f} requests were completed, where {asked.value:,} were asked for"
            + (f" on line {asked.line}." if asked.line else ", as who imported it says."),
            "The command is not the one of this result.",
            [row.setting_location("num_prompts"), *at([row], "completed")],
        )


def empty(row: Row) -> Iterator[Finding]:
    """Answers without a token that count as successes."""
    s, done = row.samples, row.get("completed")
    if s is None or not s.output_lens or not done:
        return
    failures = sum(bool(e) for e in s.errors) if s.errors else max(len(s.output_lens) - int(done), 0)
    none = sum(n == 0 for n in s.output_lens) - failures
    if none > 0:
        yield Finding(
            "requests.empty",
            "void" if none > 0.1 * done else "doubt" if none > EMPTY * done else "note",
            f"{none:,} of {done:,.0f} answers that count as successes are empty ({none / done:.0%}).",
            "They are no work: leave them out of the rate and the latencies, and find out why the model ends at once "
            "(a base model that is asked as if it could chat, a prompt that is cut).",
            at([row], "completed"),
        )  # fmt: skip


def zeros_in_mean(row: Row) -> Iterator[Finding]:
    s, told = row.samples, row.figures.get("mean_ttft_ms")
    if s is None or told is None or not told.value:
        return
    real = [t for t in s.ttfts_ms if t > 0]
    zeros = len(s.ttfts_ms) - len(real)
    if not zeros or not real:
        return
    # A failed request is kept with zero and left out of the mean by vLLM: only what is inside is wrong.
    with_zeros = sum(real) / len(s.ttfts_ms)
    if abs(with_zeros / told.value - 1) < 0.005 and zeros > 0.002 * len(s.ttfts_ms):
        shown = row.get("median_ttft_ms")
        also = f", the median {shown:,.0f} becomes {median(real):,.0f}" if shown is not None else ""
        yield Finding(
            "requests.zeros_in_mean",
            "void" if zeros > 0.01 * len(s.ttfts_ms) else "doubt",
            f"{zeros:,} of {len(s.ttfts_ms):,} first tokens are counted as 0 ms: the mean TTFT of "
            f"{told.value:,.0f} ms is {mean(real):,.0f} ms over those that came{also}.",
            "Use the figures over requests with a token.",
            at([row], "mean_ttft_ms", "median_ttft_ms"),
        )


def errors_among_successes(row: Row) -> Iterator[Finding]:
    s, done = row.samples, row.get("completed")
    if s is None or not s.errors or done is None:
        return
    wrong = sum(bool(e) for e in s.errors)
    counted = wrong - max(len(s.errors) - int(done), 0)
    if counted > 0:
        example = next(e for e in s.errors if e)
        yield Finding(
            "requests.errors_counted",
            "doubt",
            f"{wrong:,} requests have an error, {counted:,} of them count as completed: {example[:120]!r}.",
            "Their tokens are part of the throughput. Leave them out.",
            at([row], "completed"),
        )


def lengths(row: Row) -> Iterator[Finding]:
    """Tokens made and read against those that were asked for."""
    if row.kind != "serve" or _spread_wanted(row):
        return
    made, wanted = output_each(row), row.number("output_len")
    if made and wanted and made < 0.9 * wanted and row.setting("ignore_eos") is not True:
        yield Finding(
            "tokens.output_short",
            "doubt",
            f"{made:,.0f} tokens were made for a request, where {wanted:,.0f} were asked for ({made / wanted:.0%}).",
            "Answers ended early. Use --ignore-eos, or label the row by what was made.",
            at([row], "total_output_tokens"),
        )
    read, asked = input_each(row), row.number("input_len")
    if (
        read
        and asked
        and "rerank" not in str(row.setting("dataset") or "")
        and abs(read / asked - 1) > 0.1
        and abs(read - asked) > 48
    ):
        yield Finding(
            "tokens.input_length",
            "doubt",
            f"Prompts had {read:,.0f} tokens on average, where {asked:,.0f} were asked for ({read / asked - 1:+.0%}).",
            (
                "Prompts were cut, or counted by another tokenizer."
                if read < asked
                else "Something was added to them, or they were counted by another tokenizer."
            )
            + " Label the row by what was sent.",
            at([row], "total_input_tokens"),
        )


def _spread_wanted(row: Row) -> bool:
    """Lengths were drawn from a range: SGLang does so unless it is told not to, vLLM where it is told to."""
    ratio = next((v for n in ("--random-range-ratio", "random_range_ratio") if (v := row.setting(n)) is not None), None)
    if row.tool == "sglang":
        return ratio not in (1, 1.0)
    return ratio not in (None, 0, 1)


def counted_again(row: Row) -> Iterator[Finding]:
    """Tokens that were counted as made against those that the answers' text has."""
    told, text = row.get("total_output_tokens"), row.get("retokenized_output_tokens")
    if told and text is not None and not 0.8 < text / told < 1.25:
        yield Finding(
            "tokens.text_differs",
            "doubt" if not 0.5 < text / told < 2 else "note",
            f"{told:,.0f} tokens are counted as made, and the text of the answers has {text:,.0f}.",
            "What was asked for was counted and not what came, or the text holds what another tokenizer made. Look at "
            "some answers before tokens/s is used.",
            at([row], "total_output_tokens", "retokenized_output_tokens"),
        )
