"""A dstack server that is broken or means harm: values of wrong types, words, logs without end, addresses, prices.

A stand-in for dstack's package: it hands on whatever a server may answer.
"""

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dyno.errors import DynoError, RigError
from dyno.facts.elsewhere import DstackSpec, SshSpec
from dyno.facts.study import RigWanted
from dyno.remote import dstack
from test_dstack import job, resolved
from test_hostile_hub import memory_bytes

ESCAPES = "\x1b[2J\x1b]0;owned\x07 red\r\nHost *\n  ProxyCommand touch owned\x00 \u202eabc"
NAN = float("nan")
NAME = "dyno-x-0123456789ab"
LOG = b"dyno-host-key ssh-ed25519 AAAA\r\ndyno-python /usr/bin/python3\r\n"
WRONG: list[Any] = [
    None,
    5,
    -1,
    NAN,
    "x",
    "",
    [],
    {},
    ESCAPES,
    b"x",
    object(),
    10**400,
    True,
    "x" * 10**6,
]


class Absent(Exception):
    pass


class Status(SimpleNamespace):
    value: str

    def is_finished(self) -> bool:
        return self.value in ("terminated", "failed", "done")

    def is_available(self) -> bool:
        return self.value == "idle"

    def is_active(self) -> bool:
        return self.value in ("idle", "pending")


def a_run(status: Any = "running", **more: Any) -> Any:
    last = SimpleNamespace(
        termination_reason_message=None,
        termination_reason=None,
        job_provisioning_data=SimpleNamespace(price=2.5),
    )
    fields = {
        "status_message": None,
        "cost": 1.5,
        "jobs": [job()],
        "latest_job_submission": last,
    }
    return SimpleNamespace(status=Status(value=status), **(fields | more))


class Server:
    """What the package returns, and what it was asked to end."""

    def __init__(self) -> None:
        self.run: Any = a_run()
        self.fleet: Any = SimpleNamespace(instances=[])
        self.log: Callable[[], Any] = lambda: [LOG]
        self.url: Any = "https://gateway.example/x"
        self.plan: Any = None
        self.ended: list[Any] = []
        offers = SimpleNamespace(get_plan=lambda *_: self.plan, apply_plan=lambda *_: None)
        self.client = SimpleNamespace(
            token="t-0123456789",
            runs=SimpleNamespace(
                get=lambda project, name: self._answer(self.run), stop=self._stop
            ),
            fleets=SimpleNamespace(
                get=lambda project, name: self._answer(self.fleet),
                delete=self._delete,
                **vars(offers),
            ),
        )
        self.project = "main"
        self.runs = SimpleNamespace(
            get=lambda name: SimpleNamespace(logs=lambda: self.log(), service_url=self.url)
        )

    def _answer(self, value: Any) -> Any:
        answer = value() if callable(value) else value
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _stop(self, project: str, names: list[str], abort: bool) -> None:
        self.ended += names
        self.run = a_run("terminated")

    def _delete(self, project: str, names: list[str]) -> None:
        self.ended += names
        self.fleet = Absent()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    package = SimpleNamespace(
        Client=SimpleNamespace(from_config=lambda project: made),
        absent=Absent,
        failures=(OSError,),
    )
    monkeypatch.setattr(dstack, "_dstack", lambda: package)
    for name in ("_POLL_S", "_GRACE_S", "_KEYS_S", "_HOST_S", "_LONGEST_END_S"):
        monkeypatch.setattr(dstack, name, 0.01)
    return made


@pytest.fixture
def rented(server: Server, tmp_path: Path) -> dstack.DstackRig:
    (tmp_path / "rigs").mkdir()
    return dstack.DstackRig(NAME, DstackSpec(), tmp_path / "rigs")


def said_or_refused(call: Callable[[], Any]) -> Any:
    """Nothing but dyno's own errors, and no word that a terminal would obey."""
    try:
        answer = call()
    except DynoError as e:
        assert str(e).replace("\n", " ").isprintable() and len(str(e)) <= 2100
        return e
    assert not isinstance(answer, str) or (answer.isprintable() and len(answer) < 1000)
    return answer


# ---- what it answers ----


@pytest.mark.parametrize("k", range(len(WRONG)))
@pytest.mark.parametrize(
    "field",
    [
        "status",
        "status_message",
        "cost",
        "jobs",
        "latest_job_submission",
        "run",
        "fleet",
        "value",
    ],
)
def test_a_run_of_wrong_types_is_described_or_refused(
    field: str, k: int, server: Server, rented: dstack.DstackRig, tmp_path: Path
) -> None:
    if field in ("run", "fleet"):
        setattr(server, field, WRONG[k])
    elif field == "value":
        server.run.status.value = WRONG[k]
    else:
        setattr(server.run, field, WRONG[k])
    said_or_refused(rented.state)
    said_or_refused(rented.end)
    if field in ("jobs", "run") and not (field == "run" and WRONG[k] is None):
        said_or_refused(lambda: rented.up([], lambda words: None))
    assert set(tmp_path.iterdir()) == {tmp_path / "rigs"}


@pytest.mark.parametrize("k", range(len(WRONG)))
def test_a_price_that_is_none_is_unknown(
    k: int, server: Server, rented: dstack.DstackRig
) -> None:
    server.run.latest_job_submission.job_provisioning_data.price = WRONG[k]
    server.run.cost = WRONG[k]
    words = rented.state()
    assert (
        words.startswith("running")
        and words.isprintable()
        and "nan" not in words
        and "-" not in words
    )


ERRORS = [
    ValueError(ESCAPES), KeyError("x"), AttributeError("x"), TypeError("x"), RecursionError(), OSError(ESCAPES),
    MemoryError(), UnicodeDecodeError("utf-8", b"x", 0, 1, "x"), OSError("x" * 10**6), StopIteration(),
    AssertionError(),
]  # fmt: skip


@pytest.mark.parametrize("k", range(len(ERRORS)))
def test_whatever_the_package_raises_is_one_sentence(
    k: int, server: Server, rented: dstack.DstackRig
) -> None:
    server.run = ERRORS[k]
    for call in (
        rented.state,
        rented.end,
        lambda: rented.up([], print),
        lambda: rented.down(print),
    ):
        refused = said_or_refused(call)
        assert (
            isinstance(refused, RigError)
            and str(refused).endswith(".")
            and "\n" not in str(refused)
        )


def test_words_of_a_server_are_shown_without_what_a_terminal_obeys(
    server: Server, rented: dstack.DstackRig
) -> None:
    shown: list[str] = []
    states = iter(
        [
            a_run(),
            a_run("pending", status_message=ESCAPES * 999),
            a_run("pending", status_message=ESCAPES),
        ]
    )
    server.run = lambda: next(states, a_run())
    rented.up([], shown.append)
    assert len(shown) == 2 and all(
        words.isprintable() and len(words) < 400 for words in shown
    )
    server.run = a_run("failed", status_message=ESCAPES)
    with pytest.raises(RigError) as refused:
        rented.up([], shown.append)
    assert str(refused.value).replace("\n", "").isprintable()


OFFERS = [
    SimpleNamespace(
        backend=SimpleNamespace(value=name),
        region=name,
        instance=SimpleNamespace(name=name),
        price=cost,
    )
    for name, cost in [
        (ESCAPES, NAN),
        ("x" * 10**6, -5),
        ("x", "free"),
        ("x", float("inf")),
        ("", None),
        (5, 10**400),
    ]
]


@pytest.mark.parametrize("k", range(len(OFFERS)))
def test_an_offer_is_one_line_with_a_price_or_none(k: int) -> None:
    shown: list[str] = []
    dstack._expect_offers(
        SimpleNamespace(total_offers=1, offers=[OFFERS[k]]), {"type": "task"}, shown.append
    )
    assert (
        shown[0].isprintable()
        and len(shown[0]) < 500
        and shown[0].endswith("unknown USD/h")
    )


# ---- logs ----

LOGS: dict[str, Callable[[], Any]] = {
    "without end": lambda: itertools.repeat(b"x" * 65536),
    "without end, in one line": lambda: itertools.repeat(b"\x1b"),
    "a gigabyte at once": lambda: [bytes(1 << 30)], "nothing": list, "none": lambda: None,
    "texts": lambda: ["text"], "numbers": lambda: [5], "escapes": lambda: [ESCAPES.encode() * 99],
    "not text": lambda: [b"\xff\xfe" * 999], "keys without end": lambda: itertools.repeat(LOG * 99),
    "a path with a line": lambda: [b"dyno-host-key ssh-ed25519 AAAA\ndyno-python /x\nHost *\n"],
    "a key with an option": lambda: [b"dyno-host-key -oProxyCommand=x AAAA\ndyno-python /x\n"],
}  # fmt: skip


@pytest.mark.parametrize("name", LOGS)
def test_a_log_of_any_kind_is_read_in_bounds(
    name: str, server: Server, rented: dstack.DstackRig, tmp_path: Path
) -> None:
    server.log = LOGS[name]
    before = memory_bytes()
    reached = said_or_refused(lambda: rented.up([], lambda words: None))
    assert isinstance(reached, SshSpec | RigError)
    assert memory_bytes() - before < 1200 << 20  # the server's own gigabyte
    assert (
        sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 10_000
    )
    for path in tmp_path.rglob("*.hosts"):
        assert all(line.startswith(f"{NAME} ") for line in path.read_text().splitlines())


# ---- addresses ----

PLACES: list[dict[str, Any]] = [
    {"hostname": value}
    for value in (
        None,
        5,
        "",
        ESCAPES,
        "a b",
        "-oProxyCommand=x",
        "h\nProxyCommand x",
        b"h",
        "h%h",
    )
]
PLACES += [
    {"ssh_port": value}
    for value in (
        None,
        "22",
        "22\nProxyCommand touch owned",
        "22\n",
        0,
        -1,
        65536,
        NAN,
        22.5,
        True,
        [],
        "２２",
        10**400,
    )
]
PLACES += [
    {"username": value}
    for value in (
        None,
        "",
        5,
        ESCAPES,
        "-l",
        "a b",
        "a\nProxyCommand x",
        "%d",
        "ü",
        "$(id)",
    )
]
PLACES += [
    {"ssh_proxy": SimpleNamespace(hostname=host, port=port, username=user)}
    for host, port, user in [
        ("h\nx", 22, "me"),
        ("h", "22\nProxyCommand x", "me"),
        ("h", 22, ESCAPES),
        (None, 22, "me"),
    ]
]
PLACES += [{"ssh_proxy": "none"}, {"ssh_proxy": 5}]


@pytest.mark.parametrize("k", range(len(PLACES)))
def test_an_address_of_any_kind_adds_nothing_to_sshs_settings(
    k: int, server: Server, rented: dstack.DstackRig, tmp_path: Path
) -> None:
    server.run.jobs = [job(**PLACES[k])]
    assert isinstance(said_or_refused(lambda: rented.up([], lambda words: None)), RigError)
    assert not list(tmp_path.rglob("*.config"))


@pytest.mark.parametrize("port", ["32770\nProxyCommand touch owned", "32770", 0, NAN, None])
def test_a_containers_port_of_any_kind_is_refused(
    port: Any, server: Server, rented: dstack.DstackRig
) -> None:
    server.run.jobs[0].job_submissions[-1].job_runtime_data.ports = {10022: port}
    assert isinstance(said_or_refused(lambda: rented.up([], lambda words: None)), RigError)


def test_a_machine_that_moves_between_two_looks_must_show_the_key_of_its_log(
    server: Server, rented: dstack.DstackRig
) -> None:
    """Its addresses are of one look, and each way there ends at a key that SSH checks."""
    looks = itertools.count(1)
    server.run = lambda: a_run(jobs=[job(hostname=f"203.0.113.{next(looks)}")])
    for _ in range(2):
        spec = rented.up([], lambda words: None)
        assert spec.config_file
        settings = resolved(Path(spec.config_file), NAME)
        assert (
            settings["stricthostkeychecking"] in ("yes", "true")
            and settings["hostkeyalias"] == NAME
        )
        text = Path(spec.config_file).read_text()
        assert text.count("203.0.113.") == 1 and "proxycommand" not in text.lower()


@pytest.mark.parametrize(
    "url", [*WRONG, "file:///etc/passwd", "https://h/\nx", "https://h h", "javascript:x"]
)
def test_a_services_address_is_a_url_or_refused(
    url: Any, server: Server, rented: dstack.DstackRig
) -> None:
    server.url = url
    assert isinstance(said_or_refused(rented.service), RigError)


# ---- what is ended ----


@pytest.mark.parametrize("name", ["production", "*", "", "../x", "dyno-y", ESCAPES])
def test_a_run_of_others_is_never_ended_whatever_name_the_server_gives(
    name: str, server: Server, rented: dstack.DstackRig
) -> None:
    server.run = a_run(
        run_name=name, name=name, id=name, run_spec=SimpleNamespace(run_name=name)
    )
    server.fleet = SimpleNamespace(name=name, id=name, instances=[])
    rented.down(lambda words: None)
    assert set(server.ended) == {NAME}


def test_the_fleet_of_others_is_never_deleted(server: Server, tmp_path: Path) -> None:
    dstack.DstackRig(NAME, DstackSpec(fleet="lab"), tmp_path).down(lambda words: None)
    assert server.ended == [NAME], "the run alone"


def test_a_run_that_never_ends_is_an_error_that_says_so(
    server: Server, rented: dstack.DstackRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        server.client.runs, "stop", lambda project, names, abort: server.ended.extend(names)
    )
    with pytest.raises(RigError, match="it may cost money"):
        rented.down(lambda words: None)
    assert server.ended == [NAME, NAME], "asked, then aborted"


def test_a_host_whose_status_never_changes_is_given_up(
    server: Server, tmp_path: Path
) -> None:
    server.fleet = SimpleNamespace(
        instances=[SimpleNamespace(status=Status(value="pending"))]
    )
    rented = dstack.DstackRig(NAME, DstackSpec(host="me@h", key_file="k"), tmp_path)
    with pytest.raises(RigError, match="did not reach me@h in time"):
        rented._wait_for_host(lambda words: None)


def test_names_of_rigs_become_names_of_runs_that_are_one_word() -> None:
    for rig in ("../x", ESCAPES, "-oProxyCommand=x", "", "a b", "ü" * 999):
        name = dstack.run_name(rig, "0123456789ab")
        assert name.isascii() and name.replace("-", "").isalnum() and len(name) <= 41
        assert (
            dstack.configurations(name, RigWanted(dstack=DstackSpec()))[-1]["name"] == name
        )
