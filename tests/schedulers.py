"""Engines in simulated time that know where each request's time went: schedulers of several kinds, one step at a time.

`simulate` drives one with a load and gives back dyno's records of it, and the truth. The truth of a request is what its
scheduler did with it; explain sees nothing but the records.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dyno.facts.record import Record

MS = 1_000_000
KINDS = (
    "client_wait", "connection", "network", "queue", "prefill", "decode", "stall", "preemption", "delivery",
    "first_delivery",
)  # fmt: skip


@dataclass
class Rules:
    """How a scheduler works, and what its steps cost in ms."""

    slots: int = 64
    order: str = "fcfs"  # shortest, priority, last: which waiting request comes next
    chunk: int | None = None  # tokens of a step; None: a whole prompt is a step of its own
    prefills_at_once: int = 1
    decode_first: bool = (
        False  # a prompt begins only when no more than half of the slots decode
    )
    batch: int | None = (
        None  # so many requests are begun together, when the ones before have all ended
    )
    apart: bool = False  # prompts are processed on another machine
    kv_tokens: int | None = (
        None  # of the cache: where they are used up, the latest request is preempted
    )
    turns: int | None = None  # at most so many streams get a token in a step, in turns
    overhead_ms: float = 0.5
    step_ms: float = 8.0
    stream_ms: float = 0.1
    token_ms: float = 0.06  # of a prompt
    noise: float = 0.02
    # what a token waits for after it was made: (rng, number, made_ms) → ms
    delivery: Callable[[random.Random, int, float], float] = lambda rng, n, made: 0.2
    network_ms: float = 0.05
    seed: int = 1


@dataclass
class Job:
    index: int
    prompt: int
    output: int
    due: float  # ms
    sent: float = 0.0
    connecting: float = 0.0
    arrived: float = 0.0
    priority: int = 0
    scheduled: float | None = None
    to_process: int = (
        0  # tokens of the prompt (and after a preemption, of the answer so far)
    )
    made: list[float] = field(default_factory=list)
    seen: list[float] = field(default_factory=list)
    truth: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    preempted_at: float | None = None

    @property
    def context(self) -> int:
        return self.prompt + len(self.made)


class Scheduler:
    """One engine. `step(now)` does one step: it returns how long that takes."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.rng = random.Random(rules.seed)
        self.waiting: list[Job] = []
        self.prefilling: list[Job] = []
        self.decoding: list[Job] = []
        self.elsewhere: list[tuple[float, Job]] = []  # prompts on another machine
        self.elsewhere_free = 0.0
        self.finished: list[Job] = []
        self._turn = 0
        # of the last step: the share of its time that is a stall, and for whom
        self._stalled = 0.0
        self._beside: list[Job] = []

    def add(self, job: Job, now: float) -> None:
        job.arrived = now
        job.to_process = job.prompt
        if self.rules.apart:
            begin = max(now, self.elsewhere_free)
            job.scheduled = begin
            self.elsewhere_free = begin + self._cost(0, job.prompt)
            heapq.heappush(self.elsewhere, (self.elsewhere_free, job.index, job))
        else:
            self.waiting.append(job)

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.prefilling or self.decoding or self.elsewhere)

    def next_event(self, now: float) -> float | None:
        """When something happens without a step: a prompt elsewhere is done."""
        return self.elsewhere[0][0] if self.elsewhere else None

    def _cost(self, streams: int, tokens: int) -> float:
        r = self.rules
        cost = r.overhead_ms + tokens * r.token_ms
        if streams or not tokens:
            cost += r.step_ms + streams * r.stream_ms
        else:
            cost += r.step_ms / 2
        return cost * max(self.rng.gauss(1.0, r.noise), 0.5)

    def step(self, now: float) -> float | None:
        """Do one step that begins now. Return its end; None: there is nothing to do."""
        while self.elsewhere and self.elsewhere[0][0] <= now:
            done, _, job = heapq.heappop(self.elsewhere)
            job.made.append(done)
            self.decoding.append(job) if job.output > 1 else self.finished.append(job)
        self._begin(now)
        prefill = self._prefill_work()
        mixed = self.rules.chunk is not None
        decode = self._decode_work() if mixed or not prefill else []
        if not prefill and not decode:
            self._beside = []
            return None
        tokens = sum(n for _, n in prefill)
        end = now + self._cost(len(decode), tokens)
        self._account(now, end, decode, tokens)
        for job, n in prefill:
            job.to_process -= n
            if not job.to_process:
                self._token(job, end)
                self.prefilling.remove(job)
                if job.output > len(job.made):
                    self.decoding.append(job)
        for job in decode:
            self._token(job, end)
        for job in [j for j in self.decoding if len(j.made) >= j.output]:
            self.decoding.remove(job)
            self.finished.append(job)
        self.finished += [j for j, n in prefill if not j.to_process and j.output == 1]
        self._preempt(end)
        return end

    # ---- which requests ----

    def _begin(self, now: float) -> None:
        r = self.rules
        if r.batch is not None:
            if not self.prefilling and not self.decoding and self.waiting:
                self._admit(self.waiting[: r.batch], now)
            return
        if r.order == "shortest":
            self.waiting.sort(key=lambda j: j.prompt)
        elif r.order == "priority":
            self.waiting.sort(key=lambda j: (j.priority, j.arrived))
        elif r.order == "last":
            self.waiting.sort(key=lambda j: -j.arrived)
        if r.decode_first and len(self.decoding) > r.slots // 2:
            return
        free = r.slots - len(self.prefilling) - len(self.decoding)
        free = min(free, r.prefills_at_once - len(self.prefilling))
        while free > 0 and self.waiting and self._fits(self.waiting[0]):
            self._admit(self.waiting[:1], now)
            free -= 1

    def _fits(self, job: Job) -> bool:
        limit = self.rules.kv_tokens
        return limit is None or self._used() + job.context + 8 <= limit

    def _used(self) -> int:
        return sum(j.context for j in (*self.prefilling, *self.decoding))

    def _admit(self, jobs: list[Job], now: float) -> None:
        for job in list(jobs):
            self.waiting.remove(job)
            if job.scheduled is None:
                job.scheduled = now
            self.prefilling.append(job)

    def _prefill_work(self) -> list[tuple[Job, int]]:
        budget = self.rules.chunk
        if budget is None:
            return [(job, job.to_process) for job in self.prefilling]
        budget -= len(self.decoding)
        work = []
        for job in self.prefilling:
            n = min(job.to_process, budget)
            if n > 0:
                work.append((job, n))
                budget -= n
        return work

    def _decode_work(self) -> list[Job]:
        most = self.rules.turns
        if most is None or len(self.decoding) <= most:
            return list(self.decoding)
        self._turn = (self._turn + most) % len(self.decoding)
        return [self.decoding[(self._turn + i) % len(self.decoding)] for i in range(most)]

    # ---- what it does with them ----

    def _account(self, now: float, end: float, decode: list[Job], tokens: int) -> None:
        r = self.rules
        plain = r.overhead_ms + r.step_ms + len(decode) * r.stream_ms
        self._stalled = 0.0
        if tokens:
            whole = plain + tokens * r.token_ms
            self._stalled = tokens * r.token_ms / whole if decode else 1.0
        self._beside = list(self.decoding)
        self.lengthen(end - now)

    def lengthen(self, by: float) -> None:
        """Count so much of the last step's time for those that decode or wait beside it."""
        for job in self._beside:
            job.truth["stall"] += self._stalled * by
            job.truth["decode"] += (1 - self._stalled) * by

    def _token(self, job: Job, end: float) -> None:
        if job.preempted_at is not None:
            job.truth["preemption"] += end - job.preempted_at
            job.preempted_at = None
        job.made.append(end)

    def _preempt(self, now: float) -> None:
        limit = self.rules.kv_tokens
        while limit is not None and self._used() > limit and len(self.decoding) > 1:
            job = self.decoding.pop()
            job.preempted_at = now
            job.to_process = job.context
            self.waiting.insert(0, job)


# ---- the load, in simulated time ----


@dataclass
class Load:
    count: int = 200
    concurrency: int | None = 16
    rate: float | None = None  # requests/s; None: as soon as there is room
    burst: int = 1
    prompt: tuple[int, int] = (64, 256)
    long_every: int = 0  # every so many-th prompt is long
    long_prompt: int = 4096
    output: tuple[int, int] = (32, 96)
    connect_ms: float = 0.0
    client_ms: float = 0.05  # the client is late by that
    priorities: int = 1
    seed: int = 7


@dataclass
class Simulated:
    records: list[Record]
    jobs: list[Job]
    preemptions: int

    def truth(self, covers: Sequence[str]) -> float:
        return sum(true_part(job, covers) for job in self.jobs)


def true_part(job: Job, covers: Sequence[str]) -> float:
    """Return the true time (ms) of a part that covers these atoms of dyno's."""
    t = job.truth
    own = {
        "client_wait": t["client_wait"], "connection": t["connection"], "network": t["network"], "queue": t["queue"],
        "prefill_bound": 0.0, "prefill_above": t["prefill"], "first_delivery": t["first_delivery"],
        "decode_bound": 0.0, "decode_above": t["decode"], "stall": t["stall"], "preemption": t["preemption"],
        "later_delivery": t["delivery"] - t["first_delivery"],
    }  # fmt: skip
    return sum(own[atom] for atom in covers)


def simulate(rules: Rules, load: Load, claims: Sequence[str] = ()) -> Simulated:
    """`claims`: what the server reports of each request: queue, prefill, decode."""
    scheduler = Scheduler(rules)
    jobs = _jobs(load)
    rng = random.Random(rules.seed + 1)
    arrivals: list[tuple[float, int, Job]] = []
    waiting = list(reversed(jobs))
    open_now = 0
    done: list[Job] = []

    def send(job: Job, now: float) -> None:
        job.due = max(job.due, now) if load.rate is None else job.due
        job.connecting = load.connect_ms
        job.sent = max(job.due, now) + load.client_ms + load.connect_ms
        heapq.heappush(arrivals, (job.sent + rules.network_ms, job.index, job))

    def fill(now: float) -> None:
        nonlocal open_now
        while waiting and (load.concurrency is None or open_now < load.concurrency):
            send(waiting.pop(), now)
            open_now += 1

    fill(0.0)
    now = 0.0
    counted = itertools.count()
    free: list[tuple[float, int]] = []  # when the client sees ends
    while arrivals or free or not scheduler.idle:
        while arrivals and arrivals[0][0] <= now:
            at, _, job = heapq.heappop(arrivals)
            scheduler.add(job, at)
        while free and free[0][0] <= now:
            at, _ = heapq.heappop(free)
            open_now -= 1
            fill(at)
        end = scheduler.step(now)
        for job in scheduler.finished:
            _deliver(job, rules, rng)
            heapq.heappush(free, (job.seen[-1], next(counted)))
            done.append(job)
        scheduler.finished = []
        if end is not None:
            now = end
            continue
        events = [queue[0][0] for queue in (arrivals, free) if queue]
        if (own := scheduler.next_event(now)) is not None:
            events.append(own)
        if not events:
            break
        now = max(now, min(events))
    preempted = sum(job.truth["preemption"] > 0 for job in done)
    return Simulated([record_of(job, claims) for job in done], done, preempted)


def _jobs(load: Load) -> list[Job]:
    rng = random.Random(load.seed)
    jobs = []
    for i in range(load.count):
        prompt = rng.randint(*load.prompt)
        if load.long_every and i % load.long_every == load.long_every - 1:
            prompt = load.long_prompt
        due = 0.0 if load.rate is None else i // load.burst * load.burst / load.rate * 1e3
        jobs.append(
            Job(
                i,
                prompt,
                rng.randint(*load.output),
                due,
                priority=rng.randrange(load.priorities),
            )
        )
    return jobs


def _deliver(job: Job, rules: Rules, rng: random.Random) -> None:
    """Bring its tokens to the client, in order."""
    seen = 0.0
    for n, made in enumerate(job.made):
        seen = max(seen, made + rules.delivery(rng, n, made) + rules.network_ms)
        job.seen.append(seen)
    t = job.truth
    t["client_wait"] = job.sent - job.due - job.connecting
    t["connection"] = job.connecting
    t["network"] = job.arrived - job.sent
    t["queue"] = job.scheduled - job.arrived
    t["prefill"] = job.made[0] - job.scheduled
    t["delivery"] = job.seen[-1] - job.made[-1]
    t["first_delivery"] = job.seen[0] - job.made[0]
    # What none of its steps accounts for: it was decoding, and waited for its turn or for the engine.
    t["decode"] += job.made[-1] - job.made[0] - t["decode"] - t["stall"] - t["preemption"]


def record_of(job: Job, claims: Sequence[str]) -> Record:
    t = job.truth
    said = {
        "queue": t["queue"],
        "prefill": t["prefill"],
        "decode": job.made[-1] - job.made[0],
    }
    times = {f"server_{name}_ns": round(said[name] * MS) for name in claims}
    return Record(
        index=job.index,
        due_ns=round(job.due * MS),
        sent_ns=round(job.sent * MS),
        end_ns=round(job.seen[-1] * MS),
        prompt_tokens_planned=job.prompt,
        prompt_tokens=job.prompt,
        output_tokens_wanted=job.output,
        output_tokens=job.output,
        first_tokens=1,
        tokens_by="usage",
        connecting_ns=round(job.connecting * MS),
        status=200,
        chunk_ns=[round(t * MS) for t in job.seen],
        finish_reason="length",
        done=True,
        **times,
    )
