"""A machine that dstack provides: what is asked for, how it is submitted, reached over SSH, and given back.

dstack is optional (the extra `dstack`) and slow to import: only a function that talks to its server imports it.
"""

import contextlib
import functools
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from dyno import secrets
from dyno.errors import DynoError, RigError
from dyno.facts.elsewhere import DstackSpec, SshSpec
from dyno.facts.study import RigWanted
from dyno.numbers import many, money, price
from dyno.saying import Say
from dyno.visible import one_line, plain

Configuration = dict[str, Any]
Hop = tuple[str, str, int, str]  # alias, host, port, user

_SSHD_PORT = 10022  # of dstack's sshd in a container
# The container writes its host keys and its Python to dstack's log, which comes from the server by an authenticated
# connection: SSH then knows whom it reaches. Afterwards it waits until dyno or dstack stops it.
_WAITING = [
    f"ssh-keyscan -p {_SSHD_PORT} localhost 2>/dev/null | sed 's/^[^ ]*/dyno-host-key/'",
    'echo "dyno-python $(command -v python3)"',
    "sleep infinity",
]
_HOST_KEY = re.compile(r"^dyno-host-key ([a-z0-9@.-]+ [A-Za-z0-9+/=]+)\s*$", re.M)
_PYTHON = re.compile(r"^dyno-python (/\S+)\s*$", re.M)
_POLL_S = 2.0
_GRACE_S = 60.0  # a run that has not stopped by then is aborted
_LONGEST_END_S = 600.0  # a cloud may take minutes to end a machine
_KEYS_S = 120.0  # for the container's first lines to reach the server
_HOST_S = 660.0  # dstack gives a host up after 10 min
# of a log that is looked at: the container's first lines are all that dyno needs
_LOG_BYTES, _LOG_S = 1 << 20, 30.0
_MOST_KEYS = 16
_LONGEST = 300  # characters of the server's words in one line


def configurations(name: str, rig: RigWanted) -> list[Configuration]:
    """Return what is submitted: a fleet of its own, unless the study names one, and a task or service that waits."""
    spec = rig.dstack or DstackSpec()
    count = f":{rig.accelerators}" if rig.accelerators else ""
    gpu = spec.gpu or (f"{rig.accelerator}{count}" if rig.accelerator else None)
    resources = _given(
        cpu=spec.cpu, gpu=gpu, memory=spec.memory, disk=spec.disk, shm_size=spec.shm_size
    )
    profile = _given(backends=spec.backends, regions=spec.regions, max_price=spec.max_price)
    profile["spot_policy"] = "spot" if spec.spot else "on-demand"
    run: Configuration = {"type": "task", "name": name}
    if rig.client == "here":
        run = {"type": "service", "name": name, "port": spec.service_port}
    run |= _given(
        image=spec.image,
        docker=spec.docker,
        privileged=spec.privileged,
        volumes=spec.volumes,
        resources=resources,
    )
    run |= {
        **profile,
        "fleets": [spec.fleet or name],
        "max_duration": spec.max_duration,
        "commands": _WAITING,
    }
    if spec.fleet:
        return [run]
    fleet: Configuration = {"type": "fleet", "name": name}
    if spec.host:
        user, _, hostname = spec.host.rpartition("@")
        host = _given(hostname=hostname, user=user, port=spec.port)
        return [
            fleet | {"ssh_config": _given(identity_file=spec.key_file, hosts=[host])},
            run,
        ]
    # No machine is there before the task, or a moment after it.
    return [
        fleet
        | {"nodes": "0..1", "idle_duration": "0s"}
        | _given(resources=resources)
        | profile,
        run,
    ]


def as_yaml(configs: list[Configuration]) -> str:
    """Write them as files for `dstack apply`."""
    return "---\n".join(msgspec.yaml.encode(config).decode() for config in configs)


def run_name(rig: str, entry: str) -> str:
    """Name a run: dstack takes up to 41 small letters, digits and dashes."""
    return f"dyno-{re.sub('[^a-z0-9]+', '-', rig.lower())[:20].strip('-')}-{entry}".replace(
        "--", "-"
    )


class DstackRig:
    """One run on dstack's server, and its fleet where dyno creates it. `folder` gets the files that SSH needs."""

    def __init__(self, name: str, spec: DstackSpec, folder: Path) -> None:
        self.name, self.spec = name, spec
        self._key, self._hosts, self._config = (
            folder / f"{name}.{end}" for end in ("key", "hosts", "config")
        )
        self._public_key = folder / f"{name}.key.pub"
        advice = " Run `dstack project add`, or set DSTACK_SERVER_URL, DSTACK_TOKEN and DSTACK_PROJECT."
        with _translated("dstack is not configured here", advice):
            self._api = _dstack().Client.from_config(spec.project)
            secrets.learn([self._api.client.token])
            self._project = self._api.project

    def up(self, configs: list[Configuration], say: Say) -> SshSpec:
        """Submit what isn't submitted yet, wait until it runs, and return how SSH reaches it."""
        with _translated(f"dstack did not provide {self.name}"):
            if self._run() is None:
                self._submit(configs, say)
            return self._reached(self._running(say))

    def state(self) -> str:
        """Describe it in a few words, for a list."""
        with _translated("dstack"):
            run, fleet = self._run(), self._fleet()
            if run is None:
                return "not submitted" if fleet is None else "a fleet without a run"
            words = _short(run.status_message or run.status.value)
            machine = (
                run.latest_job_submission
                and run.latest_job_submission.job_provisioning_data
            )
            if machine is None or not machine.price or run.status.is_finished():
                return words
            return f"{words}, {_usd(machine.price, price)} USD/h, {_usd(run.cost, money)} USD so far"

    def end(self) -> str:
        """Return why it has ended, as a sentence; '' where it has not."""
        with _translated("dstack"):
            return self._end_of(self._run())

    def down(self, say: Say) -> None:
        """End the run and the fleet that dyno created, and wait until they have ended. Repeating it does no harm."""
        with _translated(f"dstack may still run {self.name}"):
            if not self._has_ended():
                say(f"stopping {self.name} on dstack")
                self._api.client.runs.stop(self._project, [self.name], abort=False)
                if not _until(self._has_ended, _GRACE_S):
                    self._api.client.runs.stop(self._project, [self.name], abort=True)
            gone = _until(self._has_ended, _LONGEST_END_S)
            if gone and self.spec.fleet is None and self._fleet() is not None:
                self._api.client.fleets.delete(self._project, [self.name])
                gone = _until(lambda: self._fleet() is None, _LONGEST_END_S)
            if not gone:
                raise RigError(
                    f"dstack has not ended {self.name} after {_LONGEST_END_S / 60:g} min, and it may cost money. "
                    "`dyno rigs down` tries again."
                )
        for path in (self._key, self._public_key, self._hosts, self._config):
            path.unlink(missing_ok=True)

    def service(self) -> tuple[str, str]:
        """Return the service's URL, and the token that it takes."""
        with _translated(f"dstack does not serve {self.name}"):
            url = self._api.runs.get(self.name).service_url
            if not isinstance(url, str) or not re.fullmatch(r"https?://[!-~]{1,2000}", url):
                raise RigError(
                    f"dstack reports {_short(url)!r} as the address of {self.name}, which is not a URL."
                )
            return url, self._api.client.token

    # ---- submission ----

    def _submit(self, configs: list[Configuration], say: Say) -> None:
        *fleets, run = configs
        for config in fleets:
            if self._fleet() is None:
                self._create_fleet(config, say)
        if self.spec.host and not self.spec.fleet:
            self._wait_for_host(say)
        if not self._key.exists():  # for this one machine, and gone with it
            self._key.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            command = [
                "ssh-keygen",
                "-q",
                "-t",
                "ed25519",
                "-N",
                "",
                "-C",
                self.name,
                "-f",
                str(self._key),
            ]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        plan = self._api.runs.get_run_plan(
            _dstack().parse(run), ssh_key_pub=self._public_key.read_text()
        )
        _expect_offers(plan.job_plans[0], run, say)
        self._api.runs.apply_plan(plan, reserve_ports=False)

    def _create_fleet(self, config: Configuration, say: Say) -> None:
        fleet = _dstack().parse(config)
        if fleet.ssh_config is not None:
            fleet.ssh_config.ssh_key = _key_pair(self.spec.key_file)
        plan = self._api.client.fleets.get_plan(self._project, _dstack().fleet_spec(fleet))
        if fleet.ssh_config is None:
            _expect_offers(plan, config, say)
        self._api.client.fleets.apply_plan(self._project, plan)

    def _wait_for_host(self, say: Say) -> None:
        say(f"dstack connects to {self.spec.host}, for at most 10 min")
        end = time.monotonic() + _HOST_S
        while (fleet := self._fleet()) is not None and fleet.instances:
            instance = fleet.instances[0]
            if instance.status.is_available():
                return
            if not instance.status.is_active():
                why = (
                    instance.termination_reason_message
                    or instance.termination_reason
                    or instance.status.value
                )
                raise RigError(
                    f"dstack could not use {self.spec.host}: {_short(why)}. Its server's log has more."
                )
            if time.monotonic() > end:
                raise RigError(
                    f"dstack did not reach {self.spec.host} in time. Its server's log has more."
                )
            time.sleep(_POLL_S)
        raise RigError(
            f"dstack has no {self.spec.host} in the fleet {self.name} any more. Its server's log has more."
        )

    # ---- the way there ----

    def _running(self, say: Say) -> Any:
        last = ""
        while not (why := self._end_of(run := self._run())):
            if run.status.value == "running":
                return run
            if (words := _short(run.status_message or run.status.value)) != last:
                say(f"{self.name} on dstack: {words}")
                last = words
            time.sleep(_POLL_S)
        raise RigError(f"{why}{self._last_lines()}")

    def _reached(self, run: Any) -> SshSpec:
        if not _until(
            lambda: _PYTHON.search(self._log()) is not None, _KEYS_S
        ) or not _HOST_KEY.search(self._log()):
            raise RigError(
                f"The container of {self.name} did not report its SSH host key, so dyno can't verify it. The image "
                f"needs a shell, Python and ssh-keyscan.{self._last_lines()}"
            )
        log = self._log()
        hops, verified = _hops(self.name, run.jobs[0])
        self._hosts.write_text(
            "".join(f"{self.name} {key}\n" for key in _HOST_KEY.findall(log)[:_MOST_KEYS])
        )
        self._config.write_text(
            ssh_config(hops, self._key, self._hosts if verified else None)
        )
        return SshSpec(
            host=self.name, config_file=str(self._config), python=_PYTHON.findall(log)[0]
        )

    def _log(self) -> str:
        """Return the beginning of what the container printed. A terminal was between."""
        begun, end = bytearray(), time.monotonic() + _LOG_S
        for part in self._api.runs.get(self.name).logs():
            begun += part[:_LOG_BYTES]
            if len(begun) >= _LOG_BYTES or time.monotonic() > end:
                break
        return bytes(begun[:_LOG_BYTES]).decode(errors="replace").replace("\r", "")

    def _last_lines(self) -> str:
        # the log explains an error, and must not replace it
        with contextlib.suppress(Exception):
            if lines := plain(self._log()).splitlines()[-5:]:
                return "\n".join(
                    [" Its last lines:", *(f"  {line[:_LONGEST]}" for line in lines)]
                )
        return ""

    # ---- dstack's server ----

    def _run(self) -> Any:
        with _absent_is_none():
            return self._api.client.runs.get(self._project, self.name)

    def _has_ended(self) -> bool:
        return (run := self._run()) is None or run.status.is_finished()

    def _end_of(self, run: Any) -> str:
        """Say why a run has ended. Empty: it has not."""
        if run is None:
            return f"dstack has no run {self.name} any more."
        if not run.status.is_finished() and run.status.value != "terminating":
            return ""
        job = run.latest_job_submission
        why = run.status_message
        if job:
            why = job.termination_reason_message or job.termination_reason or why
        return f"dstack ended {self.name}: {_short(why).rstrip('.')}."

    def _fleet(self) -> Any:
        with _absent_is_none():
            return self._api.client.fleets.get(self._project, self.name)


def ssh_config(hops: list[Hop], key: Path, hosts: Path | None) -> str:
    """Write OpenSSH's configuration for a chain of hosts, the last of them the rig.

    The rig's key is checked against the file `hosts`; None: the user's known hosts. The keys of hosts on the way are
    unknown. They only carry a connection that is encrypted between this machine and the rig.
    """
    lines, before = [], ""
    for alias, name, port, user in hops:
        _check_hop(name, port, user)
        lines += [f"Host {alias}", f"HostName {name}", f"Port {port}", f"User {user}"]
        lines += [f'IdentityFile "{key}"', "IdentitiesOnly yes"]
        if before:
            lines.append(f"ProxyJump {before}")
        if alias != hops[-1][0]:
            lines += [
                "StrictHostKeyChecking no",
                "UserKnownHostsFile /dev/null",
                "LogLevel ERROR",
            ]
        elif hosts is not None:
            lines += [
                "StrictHostKeyChecking yes",
                f"HostKeyAlias {alias}",
                f'UserKnownHostsFile "{hosts}"',
            ]
        before = alias
    return "".join(f"{line}\n" for line in lines)


def _check_hop(name: Any, port: Any, user: Any) -> None:
    """Refuse what is more than an address: a line end in it would add settings of SSH, such as a ProxyCommand. The
    machine itself reports its user."""
    if (
        not _is_word(name, r"[\w.:][\w.:-]{0,254}")
        or not _is_word(user, r"[\w.@+][\w.@+-]{0,254}")
        or not _is_port(port)
    ):
        where = _short(f"{user}@{name}:{port}")
        raise RigError(f"dstack reports a machine at {where!r}, which is not an address.")


def _is_word(value: Any, form: str) -> bool:
    return isinstance(value, str) and re.fullmatch(form, value, re.A) is not None


def _is_port(value: Any) -> bool:
    return type(value) is int and 1 <= value <= 65535


def _hops(name: str, job: Any) -> tuple[list[Hop], bool]:
    """Return the chain to a job's container, and whether its end is the container's own sshd."""
    proxy = job.job_connection_info
    if proxy is not None and proxy.sshproxy_hostname is not None:
        return [
            (
                name,
                proxy.sshproxy_hostname,
                proxy.sshproxy_port or 22,
                proxy.sshproxy_upstream_id,
            )
        ], False
    submission = job.job_submissions[-1]
    machine, runtime = submission.job_provisioning_data, submission.job_runtime_data
    user = "root"
    for known in (runtime, job.job_spec.user):
        if known and known.username:
            user = known.username
            break
    jump = machine.ssh_proxy
    hops = []
    if jump:
        hops.append((f"{name}-jump", jump.hostname, jump.port, jump.username))
    if machine.dockerized:
        port = _SSHD_PORT
        if runtime and runtime.ports:
            port = runtime.ports.get(_SSHD_PORT, _SSHD_PORT)
        hops.append((f"{name}-host", machine.hostname, machine.ssh_port, machine.username))
        hops.append((name, "localhost", port, user))
    else:
        hops.append((name, machine.hostname, machine.ssh_port, user))
    return hops, True


def _expect_offers(plan: Any, config: Configuration, say: Say) -> None:
    """Refuse what dstack has no machine for: the run would fail later, in fewer words."""
    if not plan.total_offers:
        keys = ("resources", "backends", "regions", "max_price", "spot_policy", "fleets")
        wanted = msgspec.json.encode(
            {key: config[key] for key in keys if key in config}
        ).decode()
        raise RigError(
            f"dstack has no offers for this {config['type']}: {wanted}. No machine was started. Change the rig's "
            "dstack settings, or check the fleets and backends of the dstack project."
        )
    first, offers = plan.offers[0], many(plan.total_offers, "offer")
    names = dict.fromkeys((first.backend.value, first.region, first.instance.name))
    where = _short(" ".join(map(str, names)))
    say(
        f"dstack has {offers} for this {config['type']}; the first: {where}, {_usd(first.price, price)} USD/h"
    )


def _usd(value: Any, written: Callable[[float], str]) -> str:
    is_amount = isinstance(value, int | float) and 0 <= value < 1e9  # NaN is not
    return written(value) if is_amount else "unknown"


def _short(words: Any) -> str:
    """Write the server's words in one line, without what a terminal would obey."""
    return one_line(str(words)[: 10 * _LONGEST])[:_LONGEST]


def _key_pair(path: str | None) -> Any:
    """Read the key of a machine of the user's: dstack's server logs in with it."""
    try:
        public, _, private, _ = _dstack().read_key(path or "")
    except (OSError, ValueError) as e:
        raise RigError(
            f"dstack.key_file = {path!r} is not a private key without a passphrase: {e}."
        ) from None
    if private is None:
        raise RigError(
            f"dstack.key_file = {path!r} is a public key. dstack's server needs the private one."
        )
    secrets.learn(private.splitlines())
    return _dstack().key_pair(public=public, private=private)


def _given(**values: Any) -> Configuration:
    return {key: value for key, value in values.items() if value}


def _until(condition: Callable[[], bool], limit_s: float) -> bool:
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_S)
    return True


@functools.cache
def _dstack() -> Any:
    """Import what dyno uses of dstack. Its API for runs is public; that for fleets takes values of inner modules."""
    try:
        import requests
        from dstack import api
        from dstack._internal.core import errors
        from dstack._internal.core.models import configurations, fleets, instances, profiles
        from dstack._internal.utils import ssh
    except ImportError as e:
        raise RigError(
            f"A rig with `dstack` needs the package dstack ({e}). In a clone of dyno: pip install '.[dstack]'."
        ) from None
    return SimpleNamespace(
        Client=api.Client,
        parse=configurations.parse_apply_configuration,
        fleet_spec=lambda fleet: fleets.FleetSpec(
            configuration=fleet, profile=profiles.Profile(name="default")
        ),
        key_pair=instances.SSHKey,
        read_key=ssh.resolve_ssh_key,
        absent=errors.ResourceNotExistsError,
        failures=(
            errors.DstackError,
            requests.RequestException,
            subprocess.CalledProcessError,
            OSError,
        ),
    )


@contextlib.contextmanager
def _absent_is_none() -> Iterator[None]:
    with contextlib.suppress(_dstack().absent):
        yield


@contextlib.contextmanager
def _translated(what: str, advice: str = "") -> Iterator[None]:
    """Turn dstack's errors into one sentence of dyno's; also those of an answer that isn't what it should be."""
    failures = _dstack().failures
    try:
        yield
    except DynoError:
        raise
    except failures as e:
        raise RigError(f"{what}: {_short(e).rstrip('.')}.{advice}") from None
    except (
        Exception
    ) as e:  # its package reads what its server answers, and raises whatever it may
        why = _short(f"{type(e).__name__}: {e}").rstrip(".")
        raise RigError(
            f"{what}: its server answered something that dyno doesn't understand ({why}). Check that the server's and "
            "the package's versions fit."
        ) from None
