"""Engines in simulated time that know where each request's time went: schedulers of several kinds, one step at a time.

`simulate` drives one with a load and gives back dyno's records of it, and the truth. The truth of a request is what its
scheduler did with it; explain sees nothing but the records.
"""

import bisect
import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

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
    sigma: float = 0.0  # of a step's length, lognormal, instead of `noise`
    context_ms: float = 0.0  # of a step, for each 1000 tokens of context in it
    waiting_ms: float = 0.0  # of a step, for each waiting request: it looks at all of them
    slower: float = 0.0  # by that share steps become longer over a minute
    heat: float = (
        0.0  # by that share steps are longer for two seconds after 5,000 tokens of prompts
    )
    halt_ms: float = 0.0  # the server does nothing for so long (a collection), …
    halt_every_ms: float = 1000.0  # … that often on average
    halts: int = 1_000_000  # at most
    halt_steps: int = 0  # instead: after every so many steps
    neighbour: float = 0.0  # steps are longer by that share in every other second
    drafted: int = 0  # tokens that a step may add to a stream's own one
    drafted_together: bool = True  # in one chunk
    events_of_steps: bool = False  # what leaves the engine at one moment is one chunk
    multistep: int = 1  # tokens leave the engine so many at a time
    tick_ms: float = 0.0  # requests are admitted at multiples of that
    cached: float = 0.0  # this share of the prompts is in a cache, all but a tenth
    cached_reported: bool = True
    swap_ms: float | None = None  # of each preempted token, there and back; None: recompute
    lanes: int = 1  # streams belong to one of them; a step is one of a lane (adapters)
    workers: int = 1  # engines behind one address
    front_ms: float = 0.0  # of each prompt in a server's single front end, …
    front_token_ms: float = 0.0  # … and of each of its tokens
    front_blocks: bool = False  # no token leaves the server meanwhile
    gate_rps: float | None = None  # a gateway passes on so many requests a second
    proxy_chunks: int = 1  # a proxy passes on so many tokens at once
    proxy_rate: float | None = None  # tokens/s of each stream, at most
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
    lane: int = 0
    cached: int = 0  # tokens of the prompt
    swapped: bool = False
    preemptions: int = 0

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
        self._lane = 0
        self._tick = -1  # of the last admission
        self._halt_at = self._next_halt(0.0)
        self._halted = self._steps = 0
        self._heats: list[tuple[float, int]] = []  # when prompts were processed, tokens
        self._swapped = 0  # tokens, in this step
        # of the last step: the share of its time that is a stall, and for whom
        self._stalled = 0.0
        self._beside: list[Job] = []

    def add(self, job: Job, now: float) -> None:
        job.arrived = now
        job.to_process = job.prompt - job.cached
        if self.rules.apart:
            begin = max(now, self.elsewhere_free)
            job.scheduled = begin
            self.elsewhere_free = begin + self._cost(begin, [], job.to_process)
            heapq.heappush(self.elsewhere, (self.elsewhere_free, job.index, job))
        else:
            self.waiting.append(job)

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.prefilling or self.decoding or self.elsewhere)

    def next_event(self, now: float) -> float | None:
        """When something happens without a step: a prompt elsewhere is done."""
        events = [self.elsewhere[0][0]] if self.elsewhere else []
        if self.rules.tick_ms and self.waiting:
            events.append((self._tick + 1) * self.rules.tick_ms + 1e-6)
        return max(min(events), now) if events else None

    def _cost(self, now: float, decode: list[Job], tokens: int) -> float:
        """The length of a step, without halts and swaps."""
        r = self.rules
        cost = r.overhead_ms + tokens * r.token_ms
        cost += self._plain(decode) if decode or not tokens else r.step_ms / 2
        return cost * self._factor(now) * (1 + r.heat * self._heated(now, tokens))

    def _heated(self, now: float, tokens: int) -> float:
        """How warm the machine is, from 0 to 1, by the prompts of the last two seconds."""
        warm = sum(n for at, n in self._heats if at >= now - 2000)
        self._heats = [*self._heats[-200:], (now, tokens)] if tokens else self._heats
        return min(warm / 5000, 1.0)

    def _plain(self, decode: list[Job]) -> float:
        r = self.rules
        contexts = sum(j.context for j in decode) / 1000 if r.context_ms else 0.0
        looks = len(self.waiting) * r.waiting_ms
        return r.step_ms + len(decode) * r.stream_ms + contexts * r.context_ms + looks

    def _factor(self, now: float) -> float:
        r = self.rules
        factor = 1 + r.slower * min(now / 60_000, 1)
        if r.neighbour and now // 1000 % 2:
            factor *= 1 + r.neighbour
        if r.sigma:
            return factor * self.rng.lognormvariate(-(r.sigma**2) / 2, r.sigma)
        return factor * max(self.rng.gauss(1.0, r.noise), 0.5)

    def _next_halt(self, now: float) -> float:
        r = self.rules
        return (
            now + self.rng.expovariate(1 / r.halt_every_ms) if r.halt_ms else float("inf")
        )

    def _halts(self, end: float) -> float:
        """The time for which the server did nothing during a step that would end then."""
        if self.rules.halt_steps:
            self._steps += 1
            return self.rules.halt_ms if self._steps % self.rules.halt_steps == 0 else 0.0
        if end < self._halt_at:
            return 0.0
        self._halt_at = self._next_halt(end + self.rules.halt_ms)
        self._halted += 1
        if self._halted >= self.rules.halts:
            self._halt_at = float("inf")
        return self.rules.halt_ms

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
        end = now + self._cost(now, decode, tokens)
        aside = self._halts(end) + self._swapped * (self.rules.swap_ms or 0.0)
        self._swapped = 0
        self._account(now, end, decode, tokens)
        end += aside
        for job in self._beside:
            job.truth["decode"] += aside
        for job, n in prefill:
            job.to_process -= n
            if not job.to_process:
                self._token(job, end)
                self.prefilling.remove(job)
                if job.output > len(job.made):
                    self.decoding.append(job)
        for job in decode:
            self._tokens(job, end)
        for job in [j for j in self.decoding if len(j.made) >= j.output]:
            self.decoding.remove(job)
            self.finished.append(job)
        self.finished += [j for j, n in prefill if not j.to_process and j.output == 1]
        self._preempt(end)
        return end

    # ---- which requests ----

    def _begin(self, now: float) -> None:
        r = self.rules
        if r.tick_ms and now // r.tick_ms <= self._tick:
            return
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
        if r.tick_ms:
            self._tick = int(now // r.tick_ms)
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
            if job.swapped:
                self._swapped += job.context
                job.swapped = False
                self.decoding.append(job)
            else:
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
        if self.rules.lanes > 1 and self.decoding:
            lanes = sorted({job.lane for job in self.decoding})
            self._lane = next((lane for lane in lanes if lane > self._lane), lanes[0])
            return [job for job in self.decoding if job.lane == self._lane]
        most = self.rules.turns
        if most is None or len(self.decoding) <= most:
            return list(self.decoding)
        self._turn = (self._turn + most) % len(self.decoding)
        return [self.decoding[(self._turn + i) % len(self.decoding)] for i in range(most)]

    # ---- what it does with them ----

    def _account(self, now: float, end: float, decode: list[Job], tokens: int) -> None:
        r = self.rules
        plain = r.overhead_ms + self._plain(decode)
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

    def _tokens(self, job: Job, end: float) -> None:
        """Add a stream's token, and those drafted ones that are accepted."""
        drafted = sum(self.rng.random() < 0.6 for _ in range(self.rules.drafted))
        for _ in range(min(1 + drafted, job.output - len(job.made))):
            self._token(job, end)

    def _preempt(self, now: float) -> None:
        limit = self.rules.kv_tokens
        while limit is not None and self._used() > limit and len(self.decoding) > 1:
            job = self.decoding.pop()
            job.preempted_at = now
            job.preemptions += 1
            job.swapped = self.rules.swap_ms is not None
            job.to_process = 0 if job.swapped else job.context
            self._swapped += job.context if job.swapped else 0
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
        "client_wait": t["client_wait"], "connection": t["connection"], "network": 0.0, "front_end": t["network"],
        "queue": t["queue"],
        "prefill_bound": 0.0, "prefill_above": t["prefill"], "first_delivery": t["first_delivery"],
        "decode_bound": 0.0, "decode_above": t["decode"], "stall": t["stall"], "preemption": t["preemption"],
        "later_delivery": t["delivery"] - t["first_delivery"],
    }  # fmt: skip
    return sum(own[atom] for atom in covers)


def simulate(rules: Rules, load: Load, claims: Sequence[str] = ()) -> Simulated:
    """`claims`: what the server reports of each request: queue, prefill, decode."""
    done = _Simulation(rules, load).run()
    preempted = sum(job.preemptions for job in done)
    records = [record_of(job, claims, rules) for job in done]
    return Simulated(records, done, preempted)


class _Worker:
    def __init__(self, rules: Rules) -> None:
        self.scheduler = Scheduler(rules)
        self.now = 0.0


class _Simulation:
    """A client, what is before the engines, and the engines, each with its own clock."""

    def __init__(self, rules: Rules, load: Load) -> None:
        self._rules, self._load = rules, load
        self._workers = [
            _Worker(replace(rules, seed=rules.seed + 100 * i)) for i in range(rules.workers)
        ]
        self._jobs = list(reversed(_jobs(load, rules)))
        self._rng = random.Random(rules.seed + 1)
        self._arrivals: list[tuple[float, int, Job]] = []  # at the server
        self._ready: list[tuple[float, int, Job]] = []  # behind its front end
        self._free: list[tuple[float, int]] = []  # when the client sees ends
        self._counted = itertools.count()
        self._open = 0
        self._gate = self._front = float("-inf")
        self._busy: list[tuple[float, float]] = []  # of the front end
        self._ended: list[Job] = []

    def run(self) -> list[Job]:
        self._fill(0.0)
        while True:
            busy = [w for w in self._workers if not w.scheduler.idle]
            moments = [
                heap[0][0] for heap in (self._arrivals, self._ready, self._free) if heap
            ]
            if not busy and not moments:
                break
            worker = min(busy, key=lambda w: w.now, default=None)
            if worker is None or (moments and min(moments) <= worker.now):
                self._event()
            else:
                self._step(worker, min(moments, default=None))
        for job in self._ended:
            _times(job)
        return self._ended

    def _fill(self, now: float) -> None:
        load = self._load
        while self._jobs and (load.concurrency is None or self._open < load.concurrency):
            job = self._jobs.pop()
            job.due = max(job.due, now) if load.rate is None else job.due
            job.connecting = load.connect_ms
            job.sent = max(job.due, now) + load.client_ms + load.connect_ms
            at = job.sent + self._rules.network_ms
            heapq.heappush(self._arrivals, (at, job.index, job))
            self._open += 1

    def _event(self) -> None:
        """Do what comes first of all that is no step."""
        heaps = (self._free, self._ready, self._arrivals)
        first = min((h for h in heaps if h), key=lambda h: h[0][0])
        if first is self._free:
            self._open -= 1
            self._fill(heapq.heappop(self._free)[0])
        elif first is self._arrivals:
            self._receive(*heapq.heappop(self._arrivals))
        else:
            at, index, job = heapq.heappop(self._ready)
            worker = self._workers[index % len(self._workers)]
            worker.now = max(worker.now, at)
            worker.scheduler.add(job, at)

    def _receive(self, at: float, index: int, job: Job) -> None:
        r = self._rules
        if r.gate_rps is not None:
            self._gate = at = max(at, self._gate + 1e3 / r.gate_rps)
        cost = r.front_ms + r.front_token_ms * job.prompt
        if cost:
            begin = max(at, self._front)
            self._front = at = begin + cost
            self._busy.append((begin, at))
        heapq.heappush(self._ready, (at, index, job))

    def _step(self, worker: _Worker, until: float | None) -> None:
        """`until`: when something else happens next, at the latest."""
        scheduler = worker.scheduler
        end = scheduler.step(worker.now)
        for job in scheduler.finished:
            deliver(job, self._rules, self._rng, self._busy)
            heapq.heappush(self._free, (job.seen[-1], next(self._counted)))
            self._ended.append(job)
        scheduler.finished = []
        if end is not None:
            worker.now = end
            return
        events = [] if until is None else [until]
        if (own := scheduler.next_event(worker.now)) is not None:
            events.append(own)
        others = [w.now for w in self._workers if w is not worker and w.now > worker.now]
        events += others if not scheduler.idle else []
        if events:
            worker.now = max(worker.now, min(events))


def _jobs(load: Load, rules: Rules) -> list[Job]:
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
                lane=i % rules.lanes,
                cached=prompt * 9 // 10 if i % 100 < 100 * rules.cached else 0,
            )
        )
    return jobs


def deliver(
    job: Job, rules: Rules, rng: random.Random, busy: Sequence[tuple[float, float]] = ()
) -> None:
    """Bring its tokens to the client, in order. `busy`: when the server's front end was."""
    left = _leaving(job, rules)
    if rules.front_blocks:
        left = [_after(moment, busy) for moment in left]
    seen = 0.0
    for n, made in enumerate(left):
        seen = max(seen, made + rules.delivery(rng, n, made) + rules.network_ms)
        if n and rules.proxy_rate:
            seen = max(seen, job.seen[-1] + 1e3 / rules.proxy_rate)
        job.seen.append(seen)
    if rules.proxy_chunks > 1:
        size = rules.proxy_chunks
        last = len(job.seen) - 1
        job.seen = [
            job.seen[min(n // size * size + size - 1, last)] for n in range(last + 1)
        ]


def _leaving(job: Job, rules: Rules) -> list[float]:
    """When its tokens leave the engine. The first and the last don't wait for others."""
    size, last = rules.multistep, len(job.made) - 1
    return [job.made[min(-(-n // size) * size, last)] for n in range(last + 1)]


def _after(moment: float, busy: Sequence[tuple[float, float]]) -> float:
    """The end of what the front end does then, and of what it does next without a break."""
    place = bisect.bisect_right(busy, (moment, float("inf"))) - 1
    return max(moment, busy[place][1]) if place >= 0 else moment


def _times(job: Job) -> None:
    t = job.truth
    assert job.scheduled is not None
    t["client_wait"] = job.sent - job.due - job.connecting
    t["connection"] = job.connecting
    t["network"] = job.arrived - job.sent
    t["queue"] = job.scheduled - job.arrived
    t["prefill"] = job.made[0] - job.scheduled
    t["delivery"] = job.seen[-1] - job.made[-1]
    t["first_delivery"] = job.seen[0] - job.made[0]
    # What none of its steps accounts for: it was decoding, and waited for its turn or for the engine.
    t["decode"] += job.made[-1] - job.made[0] - t["decode"] - t["stall"] - t["preemption"]


def record_of(job: Job, claims: Sequence[str], rules: Rules | None = None) -> Record:
    rules = rules or Rules()
    t = job.truth
    said = {
        "queue": t["queue"],
        "prefill": t["prefill"],
        "decode": job.made[-1] - job.made[0],
    }
    chunks = job.seen
    if rules.events_of_steps:
        chunks = sorted(set(job.seen))
    elif rules.drafted_together:
        chunks = [
            seen
            for n, seen in enumerate(job.seen)
            if n + 1 == len(job.made) or job.made[n] != job.made[n + 1]
        ]
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
        cached_tokens=job.cached if job.cached and rules.cached_reported else None,
        first_tokens=1,
        tokens_by="usage",
        connecting_ns=round(job.connecting * MS),
        status=200,
        chunk_ns=[round(t * MS) for t in chunks],
        finish_reason="length",
        done=True,
        **times,
    )
