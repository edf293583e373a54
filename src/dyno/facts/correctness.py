"""The correctness check around a timed trial: a few fixed prompts, answered greedily before and after the load."""

import msgspec

MAX_TOKENS = 16
# For base and chat models, small and large ones. Their answers have nothing in common and repeat nothing.
PROMPTS = (
    "Count from 1 to 20: 1, 2, 3, 4, 5,",
    "The capital of France is",
    "Copy this: river stone 42 lamp bridge",
    "def area(width, height):\n    return",
    "What is 12 + 30?",
)


class GreedyAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    prompt: str
    text: str = ""  # with reasoning, where the server sends it
    finish_reason: str | None = None
    output_tokens: int | None = None  # by the server
    # where each token ends in the text; []: chunks are not single tokens
    token_ends: list[int] = []
    reasoning: bool = False
    latency_ms: float = 0.0  # from sending to the end
    replica: int = 0  # index of the URL
    error: str | None = None
    error_detail: str = ""


class Correctness(msgspec.Struct, frozen=True, omit_defaults=True):
    """All answers of the check, in no figure of the trial. `again`: answers that changed, asked for once more."""

    before: list[GreedyAnswer]
    after: list[GreedyAnswer] = []
    again: list[GreedyAnswer] = []

    @property
    def sent(self) -> int:
        return len(self.before) + len(self.after) + len(self.again)

    @property
    def answers(self) -> list[GreedyAnswer]:
        return [*self.before, *self.after, *self.again]

    def changed(self) -> list[tuple[GreedyAnswer, GreedyAnswer]]:
        """Return answers before and after the load that differ, where both were completed."""
        by_prompt = {(answer.replica, answer.prompt): answer for answer in self.after}
        changed = []
        for before in self.before:
            after = by_prompt.get((before.replica, before.prompt))
            if after is None or before.error or after.error:
                continue
            if after.text != before.text:
                changed.append((before, after))
        return changed
