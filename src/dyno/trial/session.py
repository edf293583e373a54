"""A session: what holds while trials run on one server, and who watches them."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from dyno.engines.kinds import kind_of, metric_names
from dyno.engines.kinds.base import PROFILE_ROUTES
from dyno.errors import TargetError
from dyno.facts.target import TargetFacts, TargetSpec
from dyno.facts.trial import TrialSpec
from dyno.http import Client, EncodedBody, Url
from dyno.load.progress import Stop
from dyno.load.protocols import Asked, protocol_of
from dyno.numbers import count, many, number
from dyno.option import setting_name
from dyno.probe import host, server
from dyno.probe.telemetry import metrics
from dyno.remote.engine import HeldFleet
from dyno.trial.fleet import Fleet
from dyno.trial.watcher import Watcher
from dyno.workload.request import Request

IDLE_WITHIN_S = 60.0
_LOOK_S = 0.2
_TRACE_S = 600.0  # to write a trace
_IDLE_CORES = 0.1
_PAUSES_S = (0.0, 0.5, 1.0)  # before each try of a test request


class Session(msgspec.Struct, frozen=True):
    """One start of an engine by dyno, or a server that runs already."""

    target: TargetFacts
    headers: dict[str, str]  # sent with each request; their values reach no file
    watcher: Watcher = msgspec.field(default_factory=Watcher)
    stop: Stop = msgspec.field(default_factory=Stop)
    fleet: Fleet | HeldFleet | None = None  # None: dyno hasn't started the server
    tested: bool = False  # it has completed a test request

    @property
    def core(self) -> int | None:
        """The core that the engine leaves to the wire."""
        return self.fleet.client_core if self.fleet else None

    def cpu_s(self) -> float | None:
        """CPU seconds of the engine so far. None: not dyno's own process."""
        return self.fleet.cpu_s() if self.fleet else None

    def round_trip_ns(self) -> int | None:
        """Time that a byte takes to an engine on another machine and back. None: it is on this one, or unknown."""
        return self.fleet.round_trip_ns() if self.fleet else None

    def test(self, trial: TrialSpec) -> int:
        """Send one test request to each copy of the server, and return how many were sent: 0 if they are turned off.

        A wrong model, route or key ends the trial here, in the server's words. A failure that may pass is tried again.
        """
        if trial.ready_check_timeout_s == 0:
            return 0
        for url in () if self.tested else trial.target.urls:
            for pause_s in _PAUSES_S:
                time.sleep(pause_s)
                body, limit_s = (
                    _test_body(trial, self.target.model),
                    trial.load.request_timeout_s,
                )
                last = server.attempt(
                    Url(url),
                    self.headers,
                    trial.target.endpoint,
                    body,
                    limit_s,
                    trial.target,
                )
                if last.completed or last.settled:
                    break
            if not last.completed:
                words = (
                    f"A test request to {url}{trial.target.endpoint} failed"
                    if last.status
                    else "No test request"
                )
                raise TargetError(
                    f"{words}: {last.problem.rstrip('.')}. {self._advice(last.status, trial)}"
                )
        return len(trial.target.urls)

    @property
    def unlisted(self) -> str:
        """Return what the server lists in place of the requested model. '': it lists that one, or nothing."""
        listed = self.target.models_listed
        if not listed or self.target.model in listed:
            return ""
        return f"the server lists {', '.join(listed[:5])}, not {self.target.model}"

    def _advice(self, status: int, trial: TrialSpec) -> str:
        if status in (401, 403):
            return f"Check the API key: set OPENAI_API_KEY or {setting_name('--header')}."
        if status in (400, 404, 422) and self.unlisted:
            words = self.unlisted[0].upper() + self.unlisted[1:]
            return f"{words}: check {setting_name('--model')}."
        if status in (404, 405):
            return f"Check {setting_name('--endpoint')} and {setting_name('--backend')}."
        if status in (400, 422):
            return f"Check {setting_name('--model')}, {setting_name('--backend')} and {setting_name('--extra-body')}."
        ready = setting_name("--ready-check-timeout-sec")
        return f"Read the server's log. {ready} S waits for a server, 0 skips this test."

    def empty_cache(self, spec: TargetSpec) -> bool:
        """Empty the prefix caches of all copies of the server; False where one can't."""
        name = self.fleet.facts.kind if self.fleet else self.target.kind
        if name is None:
            return False
        done = True
        with _clients(spec, self.headers, timeout_s=60) as clients:
            for client in clients:
                try:
                    done = kind_of(name).reset_cache(client) and done
                except TargetError:
                    done = False
        return done

    def profile(self, spec: TargetSpec, begin: bool) -> None:
        """Start or stop the engine's profiler, of all copies of the server."""
        name = self.fleet.facts.kind if self.fleet else self.target.kind
        routes = kind_of(name).profiler if name else PROFILE_ROUTES
        if routes is None:
            raise TargetError(
                f"The server has no routes that start a profiler. Remove {setting_name('--profile')}."
            )
        start, stop = routes
        route = start if begin else stop
        with _clients(spec, self.headers, timeout_s=_TRACE_S) as clients:
            for client in clients:
                status, answer = client.call(route, {})
                if status != 200:
                    raise TargetError(
                        f"{client.url}{route} answers {status}: {str(answer)[:200]}. Start the server with its "
                        "profiler. vLLM: --profiler-config "
                        '\'{"profiler": "torch", "torch_profiler_dir": "FOLDER"}\'.'
                    )

    def wait_idle(self, spec: TargetSpec, within_s: float = IDLE_WITHIN_S) -> None:
        """Wait until the engine rests: what an earlier load has left to do would be measured with the next one.

        By the engine's own metrics; by the CPU time of its processes where it has none and they are ours. Where neither
        is known, don't wait. Raise TargetError if it never rests.
        """
        deadline = time.monotonic() + within_s
        with _clients(spec, self.headers, timeout_s=10) as clients:
            while busy := self._busy(clients):
                if time.monotonic() > deadline:
                    raise TargetError(
                        f"{spec.base_url} is not idle: {busy}, {count(within_s)} s after dyno's last request. Is "
                        "another client using it?"
                    )
                time.sleep(_LOOK_S)

    def _busy(self, clients: Sequence[Client]) -> str:
        """Describe what the engine works on; empty: nothing."""
        counts = [count for client in clients if (count := _requests(client)) is not None]
        if counts:
            return f"it works on {many(sum(counts), 'request')}" if sum(counts) else ""
        before = self.cpu_s()
        if before is None:
            return ""
        time.sleep(_LOOK_S)
        cores = ((self.cpu_s() or before) - before) / _LOOK_S
        return f"its processes use {number(cores)} cores" if cores > _IDLE_CORES else ""


def _requests(client: Client) -> float | None:
    """Running and waiting requests, by the server's metrics; None: unknown."""
    try:
        status, answer = client.call("/metrics")
    except TargetError:
        return None
    values = (
        metrics.read(answer, metric_names())
        if status == 200 and isinstance(answer, str)
        else {}
    )
    if "running_requests" not in values:
        return None
    return values["running_requests"] + values.get("waiting_requests", 0.0)


@contextlib.contextmanager
def _clients(
    spec: TargetSpec, headers: dict[str, str], timeout_s: float = 30
) -> Iterator[list[Client]]:
    """Open a client for each copy of the server."""
    with contextlib.ExitStack() as closing:
        opened = [Client(Url(url), headers, spec, timeout_s=timeout_s) for url in spec.urls]
        for client in opened:
            closing.callback(client.close)
        yield opened


def attach(
    trial: TrialSpec, headers: dict[str, str], watcher: Watcher, stop: Stop
) -> Session:
    """Wait for a running server where that is asked for, and ask it what it serves."""
    if trial.ready_check_timeout_s:
        watcher.phase("Waiting for the server")
        for url in trial.target.urls:
            _wait_until_ready(trial, Url(url), headers)
    with _clients(trial.target, headers) as clients:
        facts = server.read_targets(clients, trial.target)
    return Session(facts, headers, watcher, stop, tested=bool(trial.ready_check_timeout_s))


def _wait_until_ready(trial: TrialSpec, url: Url, headers: dict[str, str]) -> None:
    model = trial.target.served_model_name or trial.target.model
    if model is None:
        client = Client(url, headers, trial.target)
        with contextlib.suppress(TargetError):
            model = server.read_target(client, trial.target).model
        client.close()
    wait_s = trial.ready_check_timeout_s or 0.0
    server.wait_ready(
        url,
        headers,
        trial.target.endpoint,
        _test_body(trial, model or ""),
        wait_s,
        trial.target,
    )


def _test_body(trial: TrialSpec, model: str) -> EncodedBody:
    """Return a request like those of the load, with a prompt of its own and as few tokens as it may ask for."""
    request = Request("Are you ready?", 4, fewest_tokens(trial))
    protocol = protocol_of(trial.api)
    return protocol.request(request, asked_of(trial, model))


def fewest_tokens(trial: TrialSpec) -> int:
    """Return how few tokens a request may ask for."""
    least = trial.extra_body.get("min_tokens")
    return least if isinstance(least, int) and least > 0 else 1


def asked_of(trial: TrialSpec, model: str) -> Asked:
    """Return the fields that all requests of a trial have."""
    extra = trial.extra_body
    if trial.chat_template_kwargs and protocol_of(trial.api).chat:
        # The server applies the template, and takes its variables by this field.
        extra = {"chat_template_kwargs": trial.chat_template_kwargs, **extra}
    return Asked(model, trial.ignore_eos, trial.sampling, extra)


def others_s(
    engine_cpu_s: Callable[[], float | None], decoders_cpu_s: float = 0.0
) -> float | None:
    """CPU seconds that neither dyno nor the engine that it started has used. None: unknown. `decoders_cpu_s`: of
    dyno's processes that decode while the load runs."""
    busy, engine = host.busy_s(), engine_cpu_s()
    # with processes that have ended: those of the client
    own = sum(os.times()[:4]) + decoders_cpu_s
    return None if busy is None or engine is None else busy - engine - own
