"""The letter that an answer chooses: what is read, and what is left alone because it is not clear."""

import pytest

from dyno.quality.ask import chosen

# Answers, and the letter that a person would say they choose. None: none, or it is not clear which.
CASES: list[tuple[str, str | None]] = [
    ("B", "B"),
    (" B) 17", "B"),
    ("(C)", "C"),
    ("The answer is D.", "D"),
    ("Because", None),
    ("I don't know", None),
    ("", None),
    ("A good choice would be C.", "C"),
    ("A", "A"),
    ("A.", "A"),
    ("a", "A"),
    ("(b)", "B"),
    ("b.", "B"),
    ("**C**", "C"),
    ("**C) 17**", "C"),
    ("`D`", "D"),
    ("A) 17", "A"),
    ("A: 17", "A"),
    ("A 17", "A"),
    ("A, because 3 + 4 is 7.", "A"),
    ("A because it is sorted.", "A"),
    ("The answer is A.", "A"),
    ("The answer is A because of the order.", "A"),
    ("The answer is A good deal larger.", None),
    ("A correct answer is B.", "B"),
    ("A number of options fit, but the answer is D.", "D"),
    ("A closer look shows that B is correct.", "B"),
    ("A is correct.", "A"),
    ("A is the correct answer.", "A"),
    ("Option A", "A"),
    ("Option A is correct.", "A"),
    ("option B", "B"),
    ("Choice: C", "C"),
    ("Answer: B", "B"),
    ("ANSWER: B", "B"),
    ("Answer B", "B"),
    ("answer is (C)", "C"),
    ("The correct answer is option C.", "C"),
    ("The correct option is: **D**", "D"),
    ("My final answer is B.", "B"),
    ("Final answer: C", "C"),
    ("The best choice here, I think, is D.", "D"),
    ("It's C.", "C"),
    ("It is C.", "C"),
    ("That would be D.", "D"),
    ("It must be B) 17.", "B"),
    ("I'd go with C.", "C"),
    ("I would choose B.", "B"),
    ("I pick D", "D"),
    ("Let's go with A.", "A"),
    ("I choose A.", "A"),
    ("\\boxed{C}", "C"),
    ("$\\boxed{\\text{B}}$", "B"),
    ("<answer>D</answer>", "D"),
    ("<think>Perhaps A? The answer is A.</think>C", "C"),
    ("A) 12\nB) 13\nC) 14\nD) 15\nThe answer is C.", "C"),
    ("A) 12\nB) 13\nC) 14\nD) 15", None),
    ("A or B", None),
    ("The answer is A or B.", None),
    ("The answer is either A or C.", None),
    ("Both A and B are correct.", None),
    ("A and C", None),
    ("A, B", None),
    ("B/C", None),
    ("The answer is not A.", None),
    ("The answer isn't B.", None),
    ("A is not correct.", None),
    ("B is wrong, C is right.", "C"),
    ("Option B is wrong.", None),
    ("I can't say whether it is A or B.", None),
    ("The answer is A. The answer is C.", None),
    ("At first the answer is A, but wait, the answer is C.", "C"),
    ("B, no, wait, C", "C"),
    ("The answer is A. Final answer: C", "C"),
    ("B. A is too small, and C is too large.", "B"),
    ("C++ is a language", None),
    ("Apple", None),
    ("Dog", None),
    ("D-day", None),
    ("A dog", None),
    ("A 17-year-old", None),
    ("Vitamin C", None),
    ("A\n\nExplanation: 3 + 4 = 7", "A"),
    ("B - the second one", "B"),
    ('"C"', "C"),
    ("The answer is 'D'.", "D"),
    ("The answer's B.", "B"),
    ("The answer: A", "A"),
    ("The answer would be A, since it is the smallest.", "A"),
    ("Answer: A) 42", "A"),
    ("Answer: (A)", "A"),
    ("The letter is C", "C"),
    ("Sure! The correct answer is:\n\nB) 17", "B"),
    ("The answer is:\nC", "C"),
    ("Of the four, only D is correct.", "D"),
    ("I think C is the best answer", "C"),
    ("If the answer is A, then 3 is 4.", None),
    ("A possible answer is B", "B"),
    ("A guess: D", None),
    ("I don't think the answer is C.", None),
    ("The answer can't be C.", None),
    ("The answer is C, not A.", "C"),
    ("Not A. The answer is B.", "B"),
    ("The answer is 17.", None),
    ("17", None),
    ("None of them", None),
    ("All of A, B, C and D", None),
    ("The answer is B and not C.", "B"),
]


@pytest.mark.parametrize(("text", "letter"), CASES)
def test_the_chosen_letter_is_the_one_that_a_reader_would_name(
    text: str, letter: str | None
) -> None:
    assert chosen(text) == letter


def test_the_article_a_is_not_an_answer() -> None:
    assert chosen("A good choice would be C.") == "C"
    assert chosen("A sorted list starts with the smallest word.") is None


@pytest.mark.parametrize("letter", "ABCD")
@pytest.mark.parametrize(
    "phrase",
    ["{}", "{})", "({})", "{}.", "**{}**", "{}: 17", "Answer: {}", "The answer is {}.",
     "The correct answer is option {}.",
     "The correct choice would be {}.", "I would go with {}.", "{} is correct.", "{} is the right answer.",
     "{}, because it fits.", "After a look at all of them, the best option is {}.",
     "It must be {}.", "Final answer: {}"],
)  # fmt: skip
def test_every_letter_is_read_in_every_phrase(letter: str, phrase: str) -> None:
    assert chosen(phrase.format(letter)) == letter


@pytest.mark.parametrize(
    "phrase",
    [
        "{} or {}",
        "{} and {}",
        "The answer is {} or {}.",
        "{}/{}",
        "Either {} or {}.",
        "The answer is {}. The answer is {}.",
    ],
)
def test_two_letters_are_not_a_choice(phrase: str) -> None:
    for one, other in (("A", "B"), ("C", "A"), ("B", "D")):
        assert chosen(phrase.format(one, other)) is None
