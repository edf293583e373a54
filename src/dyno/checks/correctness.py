"""Were the answers around the load sensible, and still the same after it? Judged by greedy answers to fixed prompts.

Wrong answers as engines give them: one token without end where logits are NaN ("!!!!", "GGGG"), nothing at all, bytes
that are no text, one answer whatever the prompt. A short answer of a good model may look like one of these by chance,
so all answers must.
"""

import re
from collections.abc import Iterator, Sequence

from dyno.checks.evidence import Evidence
from dyno.facts.correctness import GreedyAnswer
from dyno.facts.finding import Finding, Level, doubt, note
from dyno.numbers import many, percent
from dyno.visible import visible

# a short text, four times and more
_REPEATED = re.compile(r"(.{1,12}?)\1{3,}(.{0,11})", re.S)
_LONG = 8  # characters: a shorter answer may be a repetition
_UNREADABLE = re.compile("[\ufffd\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_MUCH = 0.2  # of the characters
_SHOWN = 60  # characters of an answer in a sentence


def failed(e: Evidence) -> Iterator[Finding]:
    answers = e.correctness.answers if e.correctness else []
    lost = [a for a in answers if a.error]
    if e.correctness and lost:
        when = "before" if lost[0] in e.correctness.before else "after"
        text = f"{len(lost)} of {many(len(answers), 'request')} of the correctness check failed"
        why = f"{lost[0].error}: {visible(lost[0].error_detail)[:200]}"
        yield doubt("correctness.failed", f"{text}, the first {when} the load ({why}).")


def nonsense(e: Evidence) -> Iterator[Finding]:
    """Judge each side and each replica by itself: one of them may be broken, or break under the load."""
    if e.correctness is None or (
        e.trial.engine is not None and e.trial.engine.load_format == "dummy"
    ):
        return  # random weights, by intent
    urls = e.trial.target.urls
    for when, side in (("before", e.correctness.before), ("after", e.correctness.after)):
        for replica, url in enumerate(urls):
            answers = [a for a in side if a.replica == replica and not a.error]
            if not answers:
                continue
            where = f" of {url}" if len(urls) > 1 else ""
            which = f"All {len(answers)} greedy answers{where} {when} the load"
            if len(answers) == 1:
                which = f"The only greedy answer{where} {when} the load"
            finding = _empty(answers, which) or _garbage(answers, which)
            if finding is not None:
                yield finding
                return


def _empty(answers: Sequence[GreedyAnswer], which: str) -> Finding | None:
    if any(a.text.strip() for a in answers):
        return None
    text = f"{which} {'are' if len(answers) > 1 else 'is'} empty."
    tokens = max(a.output_tokens or 0 for a in answers)
    if tokens > 1:  # reasoning that a server doesn't send looks the same
        return doubt(
            "correctness.empty",
            f"{text} The server counts up to {tokens} tokens in an answer.",
        )
    return Finding("correctness.empty", _level(answers), text)


def _garbage(answers: Sequence[GreedyAnswer], which: str) -> Finding | None:
    """Return a finding if all answers are repetitions, unreadable, or the same."""
    texts = [a.text.strip() for a in answers]
    example = f"{_short(answers[0].prompt)} → {_short(texts[0])}"
    units = {_unit(text) for text in texts}
    if None not in units:
        one_character = len(units) == 1 and len(units.pop() or "") == 1
        level = _level(answers) if one_character else "doubt"
        return Finding(
            "correctness.garbage", level, f"{which} only repeat a short text: {example}."
        )
    whole = "".join(texts)
    unreadable = len(_UNREADABLE.findall(whole)) / len(whole)
    if unreadable >= _MUCH:
        text = (
            f"{which}: {percent(unreadable)} of the characters are unreadable: {example}."
        )
        return doubt("correctness.garbage", text)
    if len(texts) > 2 and len(set(texts)) == 1 and not _has_thoughts(answers):
        # else they may differ later
        ended = all(a.finish_reason == "stop" for a in answers)
        text = f"{which} are the same, whatever the prompt: {_short(texts[0])}."
        return Finding("correctness.garbage", "void" if ended else "doubt", text)
    return None


def _has_thoughts(answers: Sequence[GreedyAnswer]) -> bool:
    """Return whether an answer has reasoning: these may begin alike."""
    return any(a.reasoning or "<think>" in a.text for a in answers)


def _level(answers: Sequence[GreedyAnswer]) -> Level:
    return "void" if len(answers) > 1 else "doubt"


def _unit(text: str) -> str | None:
    """Return the text that an answer repeats from its beginning to its end; None: it doesn't."""
    match = _REPEATED.fullmatch(text)
    if match is None or len(text) < _LONG or not match[1].startswith(match[2]):
        return None
    return match[1].strip()


def changed(e: Evidence) -> Iterator[Finding]:
    if e.correctness is None or not (pairs := e.correctness.changed()):
        return
    before, after = pairs[0]
    again = {(a.replica, a.prompt): a.text for a in e.correctness.again if not a.error}
    words = f"To {_short(before.prompt)}: before {_short(before.text)}, after {_short(after.text)}."
    share = f"{len(pairs)} of {many(len(e.correctness.after), 'greedy answer')} changed"
    if any(again.get((a.replica, a.prompt), a.text) != a.text for _, a in pairs):
        text = f"{share} between requests: the server is not deterministic at temperature 0. {words}"
        yield note("correctness.not_deterministic", text)
    else:
        yield doubt(
            "correctness.changed",
            f"{share} after the load, and stayed so when asked again. {words}",
        )


def _short(text: str) -> str:
    text = visible(text.strip().replace("\n", "⏎"))
    return f"'{text}'" if len(text) <= _SHOWN else f"'{text[: _SHOWN - 1]}…'"
