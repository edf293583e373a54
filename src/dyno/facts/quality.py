"""Quality: how well an engine answers. What is asked of it, its answers item by item, and the scores."""

from typing import Annotated, Any, Literal

import msgspec

from dyno.option import Option

Form = Literal["chat", "completions"]
AnswerForm = Literal["text", "json", "json-words", "tool"]
RIGHT = "exact_match"
# of answers with a prescribed form, besides: they have it, they are JSON
FORM_METRICS = ("valid", "parsed")


class QualitySpec(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A study's [quality], or the flags of `dyno eval`."""

    tasks: Annotated[
        list[str],
        Option(
            "--tasks",
            "TASK",
            "built-in tasks (all: builtin), or tasks of lm-evaluation-harness",
            nargs="+",
            subject=False,
        ),
    ] = msgspec.field(default_factory=lambda: ["builtin"])
    limit: Annotated[
        int | None,
        Option(
            "--limit",
            "N",
            "items of each task (default: 100 of a built-in one, else all)",
            least=1,
        ),
    ] = None
    num_fewshot: Annotated[
        int | None,
        Option(
            "--num-fewshot",
            "N",
            "examples before each question (default: the task's; built-in: 0 in chat, 3 in completions)",
            least=0,
            setting="n_shot",
        ),
    ] = None
    form: Annotated[
        Form | None,
        Option(
            "--form",
            None,
            "route that is asked (default: chat; for lm-eval's tasks completions)",
            setting="form",
        ),
    ] = None
    choices: Annotated[
        bool, Option("--choices", help="ask built-in tasks with four choices")
    ] = False
    answer_form: Annotated[
        AnswerForm,
        Option(
            "--answer-form",
            None,
            "form of answers to built-in tasks: json has a schema, tool is a call; json-words asks for the schema in "
            "words alone",
        ),
    ] = "text"
    concurrency: Annotated[
        list[int],
        Option(
            "--concurrency",
            "N",
            "requests in flight; of several, each is a pass over all items",
            nargs="+",
            least=1,
            setting="--concurrency",
            subject=False,
        ),
    ] = msgspec.field(default_factory=lambda: [1])
    max_tokens: Annotated[
        int | None,
        Option(
            "--max-tokens",
            "N",
            "token limit of an answer (default: the task's; built-in: 64, with --answer-form 128)",
            least=1,
            setting="max_tokens",
        ),
    ] = None
    seed: Annotated[
        int,
        Option(
            "--seed", "N", "seed of built-in items and of examples", least=0, identity=False
        ),
    ] = 0
    chat_template: Annotated[
        bool,
        Option(
            "--apply-chat-template",
            help="ask lm-eval's tasks by the chat route: the server applies the model's template",
            setting="chat_template",
        ),
    ] = False
    system: Annotated[
        str | None,
        Option(
            "--system-instruction",
            "TEXT",
            "system message (default: none)",
            setting="system",
        ),
    ] = None
    include_path: Annotated[
        str | None,
        Option(
            "--include-path",
            "DIR",
            "folder with more task files for lm-eval (default: none)",
        ),
    ] = None
    allow_task_code: Annotated[
        bool,
        Option(
            "--allow-task-code",
            help="run Python code of the task files in --include-path, with your rights",
            identity=False,
        ),
    ] = False
    gen_kwargs: Annotated[
        dict[str, Any], Option(help="sampling parameters for lm-eval")
    ] = {}


class ItemAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """One item as it was answered: a line of answers-N.jsonl."""

    task: str
    item: str  # unique within its task
    metric: str
    score: float  # 1: right
    target: str  # the right answer
    answer: str = ""  # as generated; of log-likelihoods, the choice that had the highest
    extracted: str | None = None  # what was compared; None: nothing could be extracted
    filter: str = ""  # lm-eval's way to extract it
    prompt_sha256: str = ""  # the first 16 digits
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    # where a form is prescribed: whether it is JSON, whether it has the form, and what is wrong with that
    parsed: bool | None = None
    valid: bool | None = None
    problem: str = ""

    def score_by(self, metric: str) -> float:
        """Return the score of a metric: of the answer's own, or of its form."""
        if metric in FORM_METRICS and self.valid is not None:
            return float(bool(self.valid if metric == "valid" else self.parsed))
        return self.score


class Sitting(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a pass without an interruption: an interrupted trial has several."""

    concurrency: int
    process: str | None = None  # which start of the engine answered; None: not dyno's
    duration_s: float | None = None  # None: it was cut off
    # task and item of each request in exchanges.spool, until it is decoded
    pending: list[tuple[str, str]] = []


class TaskScore(msgspec.Struct, frozen=True, omit_defaults=True):
    task: str
    metric: str
    score: float
    items: int
    stderr: float | None = None
    filter: str = ""
    version: str = ""  # of the task
    n_shot: int = 0
    chance: float | None = None  # the score of guessing
    higher_is_better: bool = True


class QualityPass(msgspec.Struct, frozen=True, omit_defaults=True):
    """All items once, at one concurrency."""

    concurrency: int
    scores: list[TaskScore]
    duration_s: float
    failed: int = 0  # requests without an answer
    cut: int = 0  # answers that the token limit ended
    not_extracted: int = 0
    truncated: int = 0  # prompts of which the server dropped a part


class QualitySummary(msgspec.Struct, frozen=True, omit_defaults=True):
    form: Form
    passes: list[QualityPass]
    tools: dict[str, str] = {}  # name → version of what asked: dyno, lm-eval
    template_sha256: str | None = None
    process: str | None = None  # which start of the engine answered; None: not dyno's
    load_changes: "PairedDifference | None" = None  # the last pass against the first

    @property
    def scores(self) -> list[TaskScore]:
        return self.passes[0].scores

    @property
    def items(self) -> int:
        """Return the items of all tasks, however many metrics these have."""
        return sum({score.task: score.items for score in self.scores}.values())


class PairedDifference(msgspec.Struct, frozen=True, omit_defaults=True):
    """B against A on the same items."""

    items: int
    score_a: float
    score_b: float
    only_a: int  # items that A alone has right
    only_b: int
    difference: float  # B - A
    low: float  # its interval, 95 %
    high: float
    p: float  # of a difference as large by chance alone
    detectable: float  # the smallest difference that these items would show, 8 times of 10
    # for one of this size; None: it is shown, or there is none
    items_needed: int | None = None
