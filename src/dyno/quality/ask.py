"""Ask built-in tasks: prompts from items, and scores from answers."""

import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from hashlib import sha256
from math import sqrt
from statistics import mean
from typing import Any, NamedTuple

import msgspec

from dyno.facts.quality import (
    FORM_METRICS,
    RIGHT,
    Form,
    ItemAnswer,
    QualitySpec,
    TaskScore,
)
from dyno.facts.record import Record
from dyno.quality import forms
from dyno.workload.request import ChatRequest, Request, ToolRequest
from dyno.workload.spec import WorkloadSpec
from dyno.workload.tasks import LETTERS, MAX_TOKENS, SIZES, TASKS, Item, item, items

BUILTIN = "builtin"  # all of them
# of the items: a change of workload/tasks.py that changes a question needs another
VERSION = "1"
ITEMS = 100  # of each task, unless the spec says otherwise
OTHER_ITEMS = 1000  # guessed, of a task of lm-eval
END = "\n\n"  # of an answer in the completions form
_TEMPLATE = 256  # tokens that a chat template may add
_SHOTS: dict[Form, int] = {"chat": 0, "completions": 3}
_EXAMPLES = 1_000_000  # numbers of examples: no item has such a one


class Question(NamedTuple):
    """An item as it is asked."""

    item: Item
    target: str
    request: Request

    @property
    def key(self) -> tuple[str, str]:
        return self.item.task, self.item.id


def own_tasks(spec: QualitySpec) -> list[str]:
    """Return the built-in tasks of a spec; all others are lm-eval's."""
    named = dict.fromkeys(
        each for task in spec.tasks for each in (TASKS if task == BUILTIN else [task])
    )
    return [task for task in named if task in TASKS]


def other_tasks(spec: QualitySpec) -> list[str]:
    return list(
        dict.fromkeys(task for task in spec.tasks if task != BUILTIN and task not in TASKS)
    )


def form_of(spec: QualitySpec) -> Form:
    """Return the form of built-in tasks, or where there are none, that of the others."""
    return (spec.form or "chat") if own_tasks(spec) else lm_form(spec)


def lm_form(spec: QualitySpec) -> Form:
    """Return the form of lm-eval's tasks: without a template, as its own command has it."""
    return spec.form or ("chat" if spec.chat_template else "completions")


def shots(spec: QualitySpec) -> int:
    return _SHOTS[form_of(spec)] if spec.num_fewshot is None else spec.num_fewshot


def problem(spec: QualitySpec) -> tuple[str, str] | None:
    """Return the key of a spec that is wrong, and why; None where none is."""
    return _wrong_task(spec) or _wrong_form(spec) or _wrong_concurrency(spec)


def _wrong_task(spec: QualitySpec) -> tuple[str, str] | None:
    for task in other_tasks(spec):
        near = get_close_matches(task, [BUILTIN, *TASKS], 1, 0.8)
        if near and "_" not in task:  # lm-eval has many with one: arithmetic_2da
            return "tasks", f"there is no task {task!r}. Did you mean {near[0]}?"
    return None if spec.tasks else ("tasks", "is an empty list.")


def _wrong_concurrency(spec: QualitySpec) -> tuple[str, str] | None:
    if not spec.concurrency:
        return "concurrency", "is an empty list."
    if wrong := [c for c in spec.concurrency if c < 1]:
        return "concurrency", f"must be at least 1, but is {wrong[0]}."
    if len({*spec.concurrency}) < len(spec.concurrency):
        return "concurrency", "names a value twice."
    return None


def _wrong_form(spec: QualitySpec) -> tuple[str, str] | None:
    why = "" if spec.answer_form == "text" else _no_form(spec)
    return ("answer_form", f"{spec.answer_form} {why}") if why else None


def _no_form(spec: QualitySpec) -> str:
    """Say why answers can't have the form that is asked for; '' where they can."""
    if other_tasks(spec):
        return "is for built-in tasks alone."
    if spec.choices or form_of(spec) == "completions":
        return "needs the chat form, without choices."
    if spec.answer_form == "tool" and shots(spec):
        return "takes no examples: a call isn't shown as text."
    return ""


def most_tokens(spec: QualitySpec) -> int:
    """Return the token limit of an answer to a built-in task."""
    return spec.max_tokens or (
        MAX_TOKENS if spec.answer_form == "text" else forms.MAX_TOKENS
    )


def describe(spec: QualitySpec) -> str:
    """Say what is asked, in a line."""
    parts = [
        f"{count} items of {', '.join(own)}"
        for own in [own_tasks(spec)]
        if own
        for count in [_count(spec)]
    ]
    others = ", ".join(other_tasks(spec))
    limit = f"{spec.limit:,} items" if spec.limit else "all items"
    parts += [f"{limit} of each of lm-eval's {others}"] if others else []
    return f"{' and '.join(parts)}, at concurrency {', '.join(map(str, spec.concurrency))}"


def _count(spec: QualitySpec) -> int:
    return len(own_tasks(spec)) * (spec.limit or ITEMS)


def workload(spec: QualitySpec) -> WorkloadSpec:
    """Return what a trial's workload says of it: how many are asked in each pass, as far as known."""
    others = len(other_tasks(spec)) * (spec.limit or OTHER_ITEMS)
    return WorkloadSpec(
        "quality",
        num_prompts=_count(spec) + others,
        output_len=most_tokens(spec),
    )


def questions(
    spec: QualitySpec, count: Callable[[str], int] | None = None
) -> list[Question]:
    """Return the questions of all built-in tasks. `count`: counts the tokens of a prompt, where that is known."""
    return [
        _question(spec, one, count)
        for one in items(own_tasks(spec), spec.limit or ITEMS, spec.seed)
    ]


def longest(spec: QualitySpec) -> int | None:
    """Return the most tokens that a question may have with its answer; None for lm-eval's tasks. No token is shorter
    than a character."""
    if other_tasks(spec):
        return None
    characters = [question.request.prompt_tokens for question in questions(spec, len)]
    return max(characters) + _TEMPLATE + most_tokens(spec)


def _question(spec: QualitySpec, one: Item, count: Callable[[str], int] | None) -> Question:
    # Small examples of the same task: they show the form of an answer and cost few tokens.
    shown = [item(one.task, SIZES[0], _EXAMPLES + n, spec.seed) for n in range(shots(spec))]
    *examples, (question, target) = [
        _question_and_answer(spec, each) for each in (*shown, one)
    ]
    build = _completion if form_of(spec) == "completions" else _chat
    request = build(spec, examples, question, count)
    if body := forms.body(spec.answer_form, one):
        request = _with_body(request, body)
    return Question(one, target, request)


def _with_body(request: Request, body: dict[str, Any]) -> ToolRequest:
    before = request.before if isinstance(request, ChatRequest) else []
    asked = [*before, ("user", request.prompt)]
    return ToolRequest(
        request.prompt,
        request.prompt_tokens,
        request.output_tokens,
        messages=[{"role": role, "content": text} for role, text in asked],
        body=body,
    )


def _completion(
    spec: QualitySpec,
    examples: Sequence[tuple[str, str]],
    question: str,
    count: Callable[[str], int] | None,
) -> Request:
    """Return a request with system prompt, examples and question as one text."""
    parts = [spec.system] if spec.system else []
    parts += [f"Question: {asked}\nAnswer: {answer}" for asked, answer in examples]
    text = END.join([*parts, f"Question: {question}\nAnswer:"])
    return Request(text, count(text) if count else 0, most_tokens(spec))


def _chat(
    spec: QualitySpec,
    examples: Sequence[tuple[str, str]],
    question: str,
    count: Callable[[str], int] | None,
) -> Request:
    """Return a request with system prompt and examples as messages before the question."""
    before = [("system", spec.system)] if spec.system else []
    for asked, answer in examples:
        before += [("user", asked), ("assistant", answer)]
    texts = [*(text for _, text in before), question]
    tokens = sum(map(count, texts)) if count else 0
    return ChatRequest(question, tokens, most_tokens(spec), before)


def _question_and_answer(spec: QualitySpec, one: Item) -> tuple[str, str]:
    if spec.answer_form != "text":
        return forms.question(spec.answer_form, one), forms.answer(one)
    return one.with_choices() if spec.choices else (one.question, one.answer)


def sha(request: Request) -> str:
    """Return a digest of a prompt: a form that is prescribed beside it is no part of it."""
    whole: object = request.prompt
    if isinstance(request, ChatRequest):
        whole = [request.before, request.prompt]
    elif isinstance(request, ToolRequest):
        before = [(m["role"], m["content"]) for m in request.messages[:-1]]
        whole = [before, request.prompt]
    return sha256(msgspec.json.encode(whole)).hexdigest()[:16]


def answered(spec: QualitySpec, question: Question, record: Record) -> ItemAnswer:
    """Score an answer: the whole text, or the letter of a choice."""
    text, complete, _ = (
        record.text.partition(END)
        if form_of(spec) == "completions"
        else (record.text, "", "")
    )
    extracted = _extracted(spec, text) if record.error is None else None
    right, form = extracted == question.target, None
    if spec.answer_form != "text":
        form = forms.judge(spec.answer_form, question.item, record)
        right, extracted = form.right, form.extracted
    return ItemAnswer(
        task=question.item.task,
        item=question.item.id,
        metric=RIGHT,
        score=float(right),
        target=question.target,
        answer=record.text,
        extracted=extracted,
        prompt_sha256=sha(question.request),
        prompt_tokens=record.prompt_tokens,
        output_tokens=record.output_tokens,
        # The limit has cut nothing where the answer had ended before: not every server takes a stop text.
        finish_reason="stop" if complete else record.finish_reason,
        error=record.error and f"{record.error}: {record.error_detail}"[:300],
        parsed=form.parsed if form else None,
        valid=form.valid if form else None,
        problem=form.problem if form else "",
    )


def _extracted(spec: QualitySpec, text: str) -> str | None:
    if not spec.choices:
        return text.strip().removesuffix(".") or None
    return chosen(text)


def scores(spec: QualitySpec, answers: Sequence[ItemAnswer]) -> list[TaskScore]:
    """Score built-in tasks."""
    of_form = FORM_METRICS if spec.answer_form != "text" else ()
    out = []
    for task in own_tasks(spec):
        own = [answer for answer in answers if answer.task == task]
        for metric in (RIGHT, *of_form) if own else ():
            each = [answer.score_by(metric) for answer in own]
            score = TaskScore(
                task,
                metric,
                mean(each),
                len(each),
                standard_error(each),
                version=VERSION,
                n_shot=shots(spec),
                chance=_chance(spec) if metric == RIGHT else None,
            )
            out.append(score)
    return out


def _chance(spec: QualitySpec) -> float:
    return 1 / len(LETTERS) if spec.choices else 0.0


def standard_error(values: Sequence[float]) -> float | None:
    """Return the standard error of the mean; None: one value has none."""
    if len(values) < 2:
        return None
    centre = mean(values)
    return sqrt(sum((v - centre) ** 2 for v in values) / (len(values) - 1) / len(values))


def dropped(
    answers: Iterable[ItemAnswer],
    asked: Callable[[ItemAnswer], tuple[int, int]],
    limit: int | None,
) -> int:
    """Count prompts of which the server dropped a part. `asked`: their tokens, 0 where unknown, and characters.

    Where no tokenizer counts them: prompts of different lengths that fill the context to the same token."""
    seen = [
        (answer.prompt_tokens, *asked(answer)) for answer in answers if answer.prompt_tokens
    ]
    if any(tokens for _, tokens, _ in seen):
        return sum(got < tokens for got, tokens, _ in seen)
    return _cut_to_context([(got, letters) for got, _, letters in seen], limit)


def _cut_to_context(prompts: Sequence[tuple[int, int]], limit: int | None) -> int:
    """Count prompts that fill the context to the same token, though their characters differ. `prompts`: tokens by the
    server, and characters."""
    most = max((got for got, _ in prompts), default=0)
    if limit is None or most < limit - 2 * MAX_TOKENS:
        return 0
    full = [letters for got, letters in prompts if got == most]
    differ = len(full) > 1 and max(full) > 1.1 * min(full)
    return len(full) if differ else 0


# ---- the letter that an answer to a question with choices names ----
# An answer that names no letter, or several, has none: a guess would score a choice that the model didn't make.

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
