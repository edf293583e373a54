"""Read the chosen letter from an answer to a question with choices. An answer that names no letter, or several, has
none: a guess would score a choice that the model didn't make."""

import re

from dyno.workload.tasks import LETTERS

# Words that may follow a chosen A. Before any other word it is the article: "A good choice would be C."
_AFTER_A = "is|was|because|since|as|which|would|seems|looks|must|should|given|due|and|or|but|not|it"
_ARTICLE = rf"(?!A\s+(?!(?:{_AFTER_A})\b)[a-z])"
# A capital letter by itself, perhaps in brackets or quotes. Not a part of a word, a number or a name such as C++.
_LETTER = (
    rf"""(?:{_ARTICLE}(?<![\w'’])[("'“‘\[]?([{LETTERS}])(?![\w+#%°])(?!['’]\w)(?!\.\w))"""
)
_NOUN = (
    r"(?:answer|choice|option|solution|response|selection|pick|letter|one|statement|result)"
)
_VERB = r"(?:is|was|be|are|equals|remains|appears to be|seems to be|[=:]|['’]s)"
_DOUBT = r"\b(?:not|never|neither|nor|either|isn['’]t|can['’]t|cannot|unlikely|wrong|incorrect|eliminate|except|if)\b"
# "The answer is C", "my final choice, I think, would be C", "correct option: C": no other sentence between.
_OPTION = r"(?:(?i:option|choice|answer|letter)\s+)?"
_NOUN_IS = rf"(?i:\b{_NOUN}\b)(?:(?!{_DOUBT})[^.!?;\n]){{0,60}}?(?:\b|(?<=\s)){_VERB}\s*:?\s*{_OPTION}{_LETTER}"
_IT_IS = (
    r"(?i:\b(?:it|that|this|which)(?:['’]s|\s+(?:is|was|(?:must|should|would|has to)\s+be)))"
    rf"\s+{_OPTION}{_LETTER}"
)
_I_CHOOSE = (
    r"(?i:\b(?:I|we|I['’](?:d|ll)|let['’]s)\s+(?:would\s+|will\s+|must\s+|should\s+)?"
    r"(?:go with|went with|pick|picked|choose|chose|select|selected|opt for|say|answer|vote for))"
    rf"\s+{_OPTION}{_LETTER}"
)
_IS_RIGHT = (
    rf"{_LETTER}[)\]\"'”’]?\s+(?:is|was|must be|would be|should be|seems|looks)\s+"
    r"(?:(?:clearly|definitely|the|my|only|most)\s+)*"
    rf"(?:correct|right|true|best|{_NOUN})\b"
)
_NAMED = rf"^(?i:the\s+)?(?i:(?:final\s+|correct\s+)?{_NOUN})\s*(?:[:=-]\s*)?{_LETTER}(?!\s+(?:is|was)\b)"
_UNSURE = re.compile(
    r"(?i)\b(?:if|unless|whether|doubt|not|neither|\w+n['’]t)\b[^,;:.!?\n]*$"
)
_CLAIMS = [re.compile(text) for text in (_NOUN_IS, _IT_IS, _I_CHOOSE, _IS_RIGHT, _NAMED)]
_FINAL = [
    re.compile(text)
    for text in (
        rf"\\boxed[\s{{(]*([{LETTERS}])[\s}})]",
        rf"(?i:<answer>)\s*\(?([{LETTERS}])\b",
        rf"(?i:\bfinal\s+(?:answer|choice))\b[^.!?;\n]{{0,20}}?(?:{_VERB})\s*{_LETTER}",
    )
]
# At the beginning: "B", "B) 17", "(B)", "B. 17", "B: 17", "B 17", "B, because …", "B because …".
_FIRST = re.compile(
    rf"^[\s(\[\"'“‘]*([{LETTERS}])(?:$|[)\]:.\"'”’](?!\w)|\s*[,–—-]\s|\s*\n|\s+(?:because|since|as)\b|\s+\(|\s+\d[\d.,\s]*$)"
)
_ALONE = re.compile(rf"^[\s(\[\"'“‘]*([{LETTERS}{LETTERS.lower()}])[)\].:\"'”’\s]*$")
# Several in one breath: "A or B", "A, C and D", "both A and B", "B/C".
_SEVERAL = re.compile(
    rf"(?<!\w)[(]?([{LETTERS}])[)]?\s*(?:,|/|&|\bor\b|\band\b|,\s*or\b)\s*(?:(?:or|and|option|choice)\s+)*[(]?([{LETTERS}])(?!\w)"
)
_LISTED = re.compile(rf"(?m)^\s*[(]?([{LETTERS}])[).:]")
_MENTION = re.compile(_LETTER)
_RETRACTED = re.compile(
    r"(?i)\b(?:wait|actually|correction|sorry|scratch that|I mean|on second thought|no,)"
)
_MARKUP = re.compile(r"[*_`$]+|\\text\b")


def chosen(text: str) -> str | None:
    """Return the letter that an answer chooses; None: none, or it isn't clear which."""
    text = _MARKUP.sub("", text.rpartition("</think>")[2]).strip()
    if alone := _ALONE.match(text):
        return alone[1].upper()
    if final := _letters(_FINAL, text):
        return _only(final)
    if (retracted := [*_RETRACTED.finditer(text)]) and _MENTION.search(
        text, retracted[-1].end()
    ):
        text = text[retracted[-1].end() :].strip(" ,.:;!–—-")
    claimed = _letters(_CLAIMS, text)
    first = _FIRST.match(text)
    listed = {*_LISTED.findall(text)}
    # else the choices are repeated
    if first and not (len(listed) > 1 and first[1] in listed):
        claimed.add(first[1])
    if any({*pair} & claimed and pair[0] != pair[1] for pair in _SEVERAL.findall(text)):
        return None
    return _only(claimed)


def _letters(patterns: list[re.Pattern[str]], text: str) -> set[str]:
    """Letters of claims, except those of a clause that denies or supposes them."""
    claims = (match for pattern in patterns for match in pattern.finditer(text))
    return {match[1] for match in claims if not _UNSURE.search(text[: match.start()])}


def _only(letters: set[str]) -> str | None:
    return next(iter(letters)) if len(letters) == 1 else None
