"""Built-in tasks: questions with exact answers, generated from a seed, so that nothing is downloaded.

A good model finds them easy, a small one can learn them. Each question has a free form, with one right text, and a form
with four choices.
"""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import NamedTuple

LETTERS = "ABCD"
SIZES = (1, 2, 3)  # small to large: digits, words, entries
MAX_TOKENS = 64  # enough for every answer
_NOUNS = """
anchor angle autumn basin bell bird blade book bridge brook camp card cave chain chair circle clock coin copper corner
cotton crane crown desk door drum engine farm ferry field film fire flower fork forest garden gate glove grain harbor
hill hook house island kettle kitchen ladder lake lamp lantern leaf letter lion list maple market marsh meadow metal
mill mirror moon moss motor needle nest oak ocean olive organ paint park pearl pepper piano pipe plate pond port queen
radio rain river road roof room rope rose salt sand seed shadow sheet shield ship shore signal snow song spoon spring
star stone story stream table tailor tent thread tide timber tower town trail train tree tunnel valley violin wagon
watch wheel wind window winter wood yard
"""
NOUNS = _NOUNS.split()


class Item(NamedTuple):
    """A question, its answer, and wrong answers that look like it."""

    id: str  # 'arithmetic-2-17': task, size and number
    task: str
    question: str
    answer: str
    wrong: Sequence[str] = ()

    @property
    def value(self) -> int | str | list[int | str]:
        """Return the answer as JSON has it: a number, a text, or a list of these."""
        parts = self.answer.split(", ")
        return [_scalar(part) for part in parts] if len(parts) > 1 else _scalar(self.answer)

    def with_choices(self) -> tuple[str, str]:
        """Return the question with four choices, and the letter of the right one."""
        right = Random(self.id).randrange(len(LETTERS))
        texts = [*self.wrong[:right], self.answer, *self.wrong[right:]]
        listed = "\n".join(
            f"{letter}) {text}" for letter, text in zip(LETTERS, texts, strict=True)
        )
        return f"{self.question}\n{listed}", LETTERS[right]


def _scalar(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


Draft = tuple[str, str, Iterator[str]]  # question, answer, texts that may be wrong answers


def _arithmetic(rng: Random, size: int) -> Draft:
    sign = rng.choice("+-*" if size < 3 else "+-")
    most = 10**size - 1
    a, b = rng.randint(0, most), rng.randint(0, 9 if sign == "*" else most)
    if sign == "-":
        a, b = max(a, b), min(a, b)
        right = a - b
    elif sign == "+":
        right = a + b
    else:
        right = a * b
    return f"What is {a} {sign} {b}?", str(right), _near(rng, right)


def _near(rng: Random, right: int) -> Iterator[str]:
    """Yield numbers near the right one, without end."""
    while True:
        yield str(abs(right + rng.choice((-100, -10, -2, -1, 1, 2, 10, 11, 100))))


def _copy(rng: Random, size: int) -> Draft:
    words = _mixed(rng, 3 * size + rng.randrange(3))
    return (
        f"Copy this: {' '.join(words)}",
        " ".join(words),
        (" ".join(_changed(rng, words)) for _ in iter(int, 1)),
    )


def _recall(rng: Random, size: int) -> Draft:
    """Ask for one of the codes of named things. Large: some 40 entries, 300 tokens and more."""
    fewest, most = {1: (3, 6), 2: (8, 14), 3: (25, 40)}[size]
    names = rng.sample(NOUNS, rng.randint(fewest, most))
    codes = [str(rng.randint(100, 999)) for _ in names]
    asked = rng.randrange(len(names))
    listed = ", ".join(f"{name} {code}" for name, code in zip(names, codes, strict=True))
    return (
        f"The codes are: {listed}. What is the code of {names[asked]}?",
        codes[asked],
        _others(rng, codes),
    )


def _sort(rng: Random, size: int) -> Draft:
    count = 2 * size + 1 + rng.randrange(2)
    if rng.random() < 0.5:
        words = rng.sample(NOUNS, count)
        return _sorting(rng, "words by the alphabet", words, sorted(words))
    numbers = rng.sample(range(100), count)
    return _sorting(
        rng,
        "numbers from small to large",
        list(map(str, numbers)),
        list(map(str, sorted(numbers))),
    )


def _sorting(rng: Random, what: str, texts: list[str], right: list[str]) -> Draft:
    return (
        f"Sort these {what}: {', '.join(texts)}",
        ", ".join(right),
        (", ".join(_swapped(rng, right)) for _ in iter(int, 1)),
    )


def _count(rng: Random, size: int) -> Draft:
    word, *others = rng.sample(NOUNS, 3 + size)
    times = rng.randint(0, 2 + 2 * size)
    words = [word] * times + [
        rng.choice(others) for _ in range(rng.randint(2, 3 * size + 2))
    ]
    rng.shuffle(words)
    near = (str(rng.randint(max(0, times - 3), times + 3)) for _ in iter(int, 1))
    return f"How often is {word} in this list: {', '.join(words)}?", str(times), near


TASKS: dict[str, Callable[[Random, int], Draft]] = {
    "arithmetic": _arithmetic,
    "copy": _copy,
    "recall": _recall,
    "sort": _sort,
    "count": _count,
}


def item(task: str, size: int, number: int, seed: int = 0) -> Item:
    """Return one item: the same for the same arguments, on every machine."""
    rng = Random(f"{task}/{size}/{number}/{seed}")
    return draw(task, size, rng, f"{task}-{size}-{number}")


def draw(task: str, size: int, rng: Random, name: str = "") -> Item:
    question, answer, candidates = TASKS[task](rng, size)
    wrong: list[str] = []
    for text in candidates:
        if text != answer and text not in wrong:
            wrong.append(text)
        if len(wrong) == len(LETTERS) - 1:
            break
    return Item(name, task, question, answer, wrong)


def items(tasks: Sequence[str], count: int, seed: int = 0) -> list[Item]:
    """Return `count` items of each task, the sizes in turn."""
    return [
        item(task, SIZES[n % len(SIZES)], n, seed) for task in tasks for n in range(count)
    ]


# ---- parts of questions ----


def _mixed(rng: Random, count: int) -> list[str]:
    """Return words, with a number here and there."""
    return [
        str(rng.randint(10, 99)) if rng.random() < 0.2 else rng.choice(NOUNS)
        for _ in range(count)
    ]


def _changed(rng: Random, words: list[str]) -> list[str]:
    place = rng.randrange(len(words))
    return [*words[:place], rng.choice(NOUNS), *words[place + 1 :]]


def _swapped(rng: Random, words: list[str]) -> list[str]:
    a, b = rng.sample(range(len(words)), 2)
    out = list(words)
    out[a], out[b] = out[b], out[a]
    return out


def _others(rng: Random, codes: list[str]) -> Iterator[str]:
    yield from rng.sample(codes, min(len(codes), 8))
    while True:
        yield str(rng.randint(100, 999))
