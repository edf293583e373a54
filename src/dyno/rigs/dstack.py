"""A machine that dstack provides: what is asked for, how it is submitted, reached over SSH, and given back.

dstack is optional (the extra `dstack`) and slow to import: only a function that talks to its server imports it.
"""

import contextlib
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from dyno import secrets
from dyno.errors import RigError, UsageError
from dyno.facts.elsewhere import DstackSpec, SshSpec
from dyno.facts.study import RigWanted
from dyno.numbers import many, price
from dyno.visible import plain

Say = Callable[[str], None]
Configuration = dict[str, Any]

_SSHD_PORT = 10022  # of dstack's sshd in a container
# The container tells its host keys and its Python through dstack's log, which comes from the server by an authenticated
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


def configurations(name: str, rig: RigWanted) -> list[Configuration]:
    """Return what is submitted: a fleet of its own, unless the study names one, and a task or service that waits."""
    spec = rig.dstack or DstackSpec()
    count = f":{rig.accelerators}" if rig.accelerators else ""
    gpu = spec.gpu or (f"{rig.accelerator}{count}" if rig.accelerator else None)
    resources = _given(gpu=gpu, memory=spec.memory, disk=spec.disk, shm_size=spec.shm_size)
    profile = _given(backends=spec.backends, regions=spec.regions, max_price=spec.max_price)
    profile["spot_policy"] = "spot" if spec.spot else "on-demand"
    run: Configuration = {"type": "task", "name": name}
    if rig.client == "here":
        run = {"type": "service", "name": name, "port": spec.service_port}
    run |= _given(image=spec.image, privileged=spec.privileged, volumes=spec.volumes, resources=resources)
    run |= {**profile, "fleets": [spec.fleet or name], "max_duration": spec.max_duration, "commands": _WAITING}
    if spec.fleet:
        return [run]
    fleet: Configuration = {"type": "fleet", "name": name}
    if spec.host:
        user, _, hostname = spec.host.rpartition("@")
        host = _given(hostname=hostname, user=user, port=spec.port)
        return [fleet | {"ssh_config": _given(identity_file=spec.key_file, hosts=[host])}, run]
    # No machine is there before the task, or a moment after it.
    return [fleet | {"nodes": "0..1", "idle_duration": "0s"} | _given(resources=resources) | profile, run]


def as_yaml(configs: list[Configuration]) -> str:
    """Write them as files for `dstack apply`."""
    return "---\n".join(msgspec.yaml.encode(config).decode() for config in configs)


def run_name(rig: str, entry: str) -> str:
    """Name a run: dstack takes up to 41 small letters, digits and dashes."""
    return f"dyno-{re.sub('[^a-z0-9]+', '-', rig.lower())[:20].strip('-')}-{entry}".replace("--", "-")


class DstackRig:
    """One run on dstack's server, and its fleet where dyno creates it. `folder` gets the files that SSH needs."""

    def __init__(self, name: str, spec: DstackSpec, folder: Path) -> None:
        self.name, self.spec = name, spec
        self._key, self._hosts, self._config = (folder / f"{name}.{end}" for end in ("key", "hosts", "config"))
        with _translated("dstack is not configured here"):
            self._api = _dstack_api().Client.from_config(spec.project)
        secrets.learn([self._api.client.token or ""])
        self._project = self._api.project

    def up(self, configs: list[Configuration], say: Say) -> SshSpec:
        """Submit what isn't submitted yet, wait until it runs, and return how SSH reaches it."""
        with _translated(f"dstack did not provide {self.name}"):
            run = self._run()
            if run is not None and run.status.is_finished():
                raise RigError(f"dstack's run {self.name} has ended: {_reason(run)}")
            if run is None:
                self._submit(configs, say)
            return self._reached(self._running(say))

    def state(self) -> str:
        """Describe it in a few words, for a list."""
        with _translated("dstack's state is unknown"):
            run, fleet = self._run(), self._fleet()
        if run is None:
            return "not submitted" if fleet is None else "a fleet, and no run"
        words = run.status_message or run.status.value
        hourly = _hourly(run)
        return f"{words}, {price(hourly)} USD/h, {price(run.cost)} USD so far" if hourly else words

    def down(self, say: Say) -> None:
        """End the run and the fleet that dyno created, and wait until they have ended. Again is no error."""
        with _translated(f"dstack may still run {self.name}"):
            if (run := self._run()) is not None and not run.status.is_finished():
                say(f"Stopping {self.name} on dstack …")
                self._stop(abort=False)
                if not self._ended(_GRACE_S):
                    self._stop(abort=True)
                    self._expect_end(self._ended(_LONGEST_END_S))
            if self.spec.fleet is None and self._fleet() is not None:
                self._api.client.fleets.delete(self._project, [self.name])
                self._expect_end(_until(lambda: self._fleet() is None, _LONGEST_END_S))
        for path in (self._key, self._key.with_suffix(".key.pub"), self._hosts, self._config):
            path.unlink(missing_ok=True)

    @property
    def service(self) -> tuple[str, str]:
        """Return the service's URL and the token that it wants."""
        with _translated("dstack has no such service"):
            return self._api.runs.get(self.name).service_url, self._api.client.token

    # ---- submission ----

    def _submit(self, configs: list[Configuration], say: Say) -> None:
        *fleets, run = configs
        for config in fleets:
            if self._fleet() is None:
                self._create_fleet(config, say)
        self._make_key()
        public = self._key.with_suffix(".key.pub").read_text()
        plan = self._api.runs.get_run_plan(_parsed(run), ssh_key_pub=public)
        _expect_offers(plan.job_plans[0], run, say)
        self._api.runs.apply_plan(plan, reserve_ports=False)

    def _create_fleet(self, config: Configuration, say: Say) -> None:
        from dstack._internal.core.models.fleets import FleetSpec
        from dstack._internal.core.models.profiles import Profile

        fleet = _parsed(config)
        if fleet.ssh_config is not None:
            fleet.ssh_config.ssh_key = self._host_key_pair()
        spec = FleetSpec(configuration=fleet, profile=Profile(name="default"))
        plan = self._api.client.fleets.get_plan(self._project, spec)
        if fleet.ssh_config is None:
            _expect_offers(plan, config, say)
        self._api.client.fleets.apply_plan(self._project, plan)
        if fleet.ssh_config is not None:
            say(f"dstack connects to {self.spec.host} …")
            self._wait_for_host()

    def _host_key_pair(self) -> Any:
        """Read the key of a machine of the user's: dstack's server logs in with it."""
        from dstack._internal.core.models.instances import SSHKey

        if self.spec.key_file is None:
            raise UsageError("dstack.host needs dstack.key_file: the private key with which dstack's server logs in.")
        path = Path(self.spec.key_file).expanduser()
        try:
            private = path.read_text()
        except (OSError, UnicodeDecodeError) as e:
            raise UsageError(f"dstack.key_file {path} can't be read: {e}.") from None
        secrets.learn([private, *private.splitlines()])
        return SSHKey(public=_public_half(path), private=private)

    def _wait_for_host(self) -> None:
        while (fleet := self._fleet()) is not None:
            [instance] = fleet.instances
            if instance.status.is_available():
                return
            if not instance.status.is_active():
                why = instance.termination_reason_message or instance.termination_reason or instance.status.value
                raise RigError(f"dstack could not use {self.spec.host}: {why}. Its server's log has more.")
            time.sleep(_POLL_S)
        raise RigError(f"dstack's fleet {self.name} was deleted while dyno waited for {self.spec.host}.")

    def _make_key(self) -> None:
        """Create a key for this one machine, which ends with it."""
        self._key.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not self._key.exists():
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.name, "-f", str(self._key)]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)

    # ---- the way there ----

    def _running(self, say: Say) -> Any:
        last = ""
        while (run := self._run()) is not None and not run.status.is_finished():
            if run.status.value == "running":
                return run
            if (words := run.status_message or run.status.value) != last:
                say(f"{self.name} on dstack: {words}")
                last = words
            time.sleep(_POLL_S)
        raise RigError(f"dstack's run {self.name} ended before it was ready: {_reason(run)}{self._last_lines()}")

    def _reached(self, run: Any) -> SshSpec:
        log = ""

        def complete() -> bool:
            nonlocal log
            log = self._log()
            return _PYTHON.search(log) is not None

        if not _until(complete, _KEYS_S) or not _HOST_KEY.search(log):
            raise RigError(
                f"The container of {self.name} reported no SSH host key, so dyno can't verify it. The image needs "
                f"ssh-keyscan and a shell.{self._last_lines()}"
            )
        hops, verified = _hops(self.name, run.jobs[0])
        keys = dict.fromkeys(_HOST_KEY.findall(log))
        self._hosts.write_text("".join(f"{self.name} {key}\n" for key in keys))
        self._config.write_text(ssh_config(hops, self._key, self._hosts if verified else None))
        python = _PYTHON.search(log)
        return SshSpec(host=self.name, config_file=str(self._config), python=python and python[1])

    def _log(self) -> str:
        pieces = self._api.runs.get(self.name).logs()
        return b"".join(pieces).decode(errors="replace").replace("\r\n", "\n")

    def _last_lines(self) -> str:
        with contextlib.suppress(Exception):  # a log is a help: its absence hides no other error
            if lines := self._log().splitlines()[-5:]:
                return " Its last lines:\n" + plain("\n".join(f"  {line}" for line in lines))
        return ""

    # ---- dstack's server ----

    def _run(self) -> Any:
        with _absent_is_none():
            return self._api.client.runs.get(self._project, self.name)

    def _fleet(self) -> Any:
        with _absent_is_none():
            return self._api.client.fleets.get(self._project, self.name)

    def _stop(self, abort: bool) -> None:
        self._api.client.runs.stop(self._project, [self.name], abort)

    def _ended(self, limit_s: float) -> bool:
        return _until(lambda: (run := self._run()) is None or run.status.is_finished(), limit_s)

    def _expect_end(self, ended: bool) -> None:
        if not ended:
            raise RigError(f"It has not ended after {_LONGEST_END_S / 60:g} min. `dyno rigs down` tries again.")


def ssh_config(hops: list[tuple[str, str, int, str]], key: Path, hosts: Path | None) -> str:
    """Write OpenSSH's configuration for a chain of hosts (alias, name, port, user), the last of them the rig.

    The rig's own key is checked against the file `hosts`. Hosts on the way have unknown keys: they only carry a
    connection that is encrypted between this machine and the rig. None: the user's own known hosts apply.
    """
    unknown = ["StrictHostKeyChecking no", "UserKnownHostsFile /dev/null", "LogLevel ERROR"]
    lines, before = [], ""
    for alias, name, port, user in hops:
        options = [f"HostName {name}", f"Port {port}", f"User {user}", f'IdentityFile "{key}"', "IdentitiesOnly yes"]
        if alias != hops[-1][0]:
            options += unknown
        elif hosts is not None:
            options += ["StrictHostKeyChecking yes", f"HostKeyAlias {alias}", f'UserKnownHostsFile "{hosts}"']
        options += [f"ProxyJump {before}"] if before else []
        lines += [f"Host {alias}", *(f"    {option}" for option in options)]
        before = alias
    return "\n".join([*lines, ""])


def _hops(name: str, job: Any) -> tuple[list[tuple[str, str, int, str]], bool]:
    """Return the chain to a job's container, and whether its end is the container's own sshd."""
    proxied = job.job_connection_info
    if proxied is not None and proxied.sshproxy_hostname is not None:
        return [(name, proxied.sshproxy_hostname, proxied.sshproxy_port or 22, proxied.sshproxy_upstream_id)], False
    submission = job.job_submissions[-1]
    machine, runtime = submission.job_provisioning_data, submission.job_runtime_data
    ports = (runtime and runtime.ports) or {}
    user = (runtime and runtime.username) or (job.job_spec.user and job.job_spec.user.username) or "root"
    jump = machine.ssh_proxy
    hops = [(f"{name}-jump", jump.hostname, jump.port, jump.username)] if jump else []
    if machine.dockerized:
        hops.append((f"{name}-host", machine.hostname, machine.ssh_port, machine.username))
        hops.append((name, "localhost", ports.get(_SSHD_PORT, _SSHD_PORT), user))
    else:
        hops.append((name, machine.hostname, machine.ssh_port, user))
    return hops, True


def _expect_offers(plan: Any, config: Configuration, say: Say) -> None:
    """Refuse what dstack has no machine for: the run would fail, or wait unseen."""
    if not plan.total_offers:
        wanted = {k: v for k, v in config.items() if k in ("resources", "backends", "regions", "max_price", "fleets")}
        raise RigError(
            f"dstack has no offers for the {config['type']} {config['name']}: {shlex.join(_words(wanted))}. No machine "
            "was started. Change [rigs.NAME.dstack], or add a backend to dstack's project."
        )
    best = plan.offers[0]
    where = f"{best.backend.value} {best.region} {best.instance.name}"
    say(
        f"dstack has {many(plan.total_offers, 'offer')} for {config['name']}; the first: {where}, {price(best.price)} USD/h."
    )


def _words(wanted: Configuration) -> Iterator[str]:
    for key, value in wanted.items():
        values = value.items() if isinstance(value, dict) else [(key, value)]
        yield from (f"{k}={','.join(map(str, v)) if isinstance(v, list) else v}" for k, v in values)


def _hourly(run: Any) -> float:
    machine = run.latest_job_submission and run.latest_job_submission.job_provisioning_data
    return machine.price if machine and not run.status.is_finished() else 0.0


def _reason(run: Any) -> str:
    if run is None:
        return "it was deleted."
    last = run.latest_job_submission
    words = (last and (last.termination_reason_message or last.termination_reason)) or run.error or run.status_message
    return plain(words or run.status.value).rstrip(".") + "."


def _given(**values: Any) -> Configuration:
    return {key: value for key, value in values.items() if value}


def _parsed(config: Configuration) -> Any:
    from dstack._internal.core.models.configurations import parse_apply_configuration

    return parse_apply_configuration(config)


def _public_half(path: Path) -> str:
    command = ["ssh-keygen", "-y", "-P", "", "-f", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise UsageError(f"dstack.key_file {path} is not a private key without a passphrase, which dstack needs.")
    return done.stdout


def _until(condition: Callable[[], bool], limit_s: float) -> bool:
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_S)
    return True


def _dstack_api() -> Any:
    try:
        import dstack.api
    except ImportError as e:
        raise UsageError(
            f"A rig with `dstack` needs the package dstack ({e}). Install it: pip install 'llm-dyno[dstack]'."
        ) from None
    return dstack.api


@contextlib.contextmanager
def _absent_is_none() -> Iterator[None]:
    from dstack._internal.core.errors import ResourceNotExistsError

    with contextlib.suppress(ResourceNotExistsError):
        yield


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    """Turn dstack's errors into one sentence of dyno's."""
    _dstack_api()
    import requests
    from dstack._internal.core.errors import DstackError

    try:
        yield
    except (DstackError, requests.RequestException, subprocess.CalledProcessError, OSError) as e:
        raise RigError(f"{what}: {plain(str(e)).strip().rstrip('.')}.") from None
