"""Where a rig is, if it is not this machine: over SSH, or rented through dstack. And what dyno has running there."""

from typing import Annotated, Literal

import msgspec

from dyno.option import Option

# Where the load runs. rig: beside the engine, so that no network is in the latencies.
LoadFrom = Literal["rig", "here"]


class SshSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine as OpenSSH reaches it. Keys come from its agent or its own files; dyno reads none."""

    host: Annotated[str, Option(help="user@host, or a name from the SSH configuration")] = (
        ""
    )
    port: Annotated[
        int | None, Option("", None, "port (default: the configuration's, or 22)", least=1)
    ] = None
    key_file: Annotated[
        str | None, Option(help="path of the private key (default: the agent's, or ~/.ssh)")
    ] = None
    config_file: Annotated[
        str | None, Option(help="SSH configuration (default: ~/.ssh/config)")
    ] = None
    folder: Annotated[
        str | None, Option(help="dyno's folder there (default: ~/.local/share/dyno)")
    ] = None
    python: Annotated[
        str | None, Option(help="Python 3.11 or newer there (default: the newest on PATH)")
    ] = None


class DstackSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine that dstack provides. Its server and token come from dstack's own configuration or environment."""

    project: Annotated[
        str | None, Option(help="dstack project (default: the configured one)")
    ] = None
    fleet: Annotated[
        str | None,
        Option(
            help="an existing fleet to use (default: dyno creates one, and deletes it at the end)"
        ),
    ] = None
    host: Annotated[
        str | None,
        Option(help="user@host: a machine of yours, as an SSH fleet that dyno creates"),
    ] = None
    port: Annotated[
        int | None, Option("", None, "its SSH port (default: 22)", least=1, most=65535)
    ] = None
    key_file: Annotated[
        str | None,
        Option(
            help="path of its private key, which dstack's server gets; needed with host"
        ),
    ] = None
    gpu: Annotated[
        str | None,
        Option(
            help="accelerators in dstack's words: MI300X:8, 24GB.. (default: the rig's accelerators)"
        ),
    ] = None
    cpu: Annotated[
        str | None,
        Option(help="processor cores, such as 32.. or arm:64.. (default: dstack's)"),
    ] = None
    memory: Annotated[
        str | None, Option(help="main memory, such as 512GB.. (default: dstack's)")
    ] = None
    disk: Annotated[str | None, Option(help="disk, such as 2TB.. (default: dstack's)")] = (
        None
    )
    shm_size: Annotated[
        str | None, Option(help="shared memory, such as 64GB (default: dstack's)")
    ] = None
    backends: Annotated[
        list[str], Option(help="clouds to consider: aws, runpod, … (default: all)")
    ] = []
    regions: Annotated[list[str], Option(help="regions to consider (default: all)")] = []
    spot: Annotated[bool, Option(help="rent a spot instance, which may be taken away")] = (
        False
    )
    max_price: Annotated[
        float | None, Option("", None, "highest price per hour, in USD", above=0)
    ] = None
    max_duration: Annotated[
        str, Option(help="dstack stops the machine after this time, whatever happens here")
    ] = "1d"
    image: Annotated[
        str | None,
        Option(
            help="container image with Python 3.11 or newer (default: dstack's, for NVIDIA)"
        ),
    ] = None
    docker: Annotated[
        bool,
        Option(
            help="Docker inside, for engines in containers, instead of image (dstack 0.19.16 or newer)"
        ),
    ] = False
    privileged: Annotated[bool, Option(help="run the container in privileged mode")] = False
    volumes: Annotated[
        list[str], Option(help="volumes or folders of the host, such as /data:/root/.cache")
    ] = []
    service_port: Annotated[
        int,
        Option(
            "",
            None,
            "the engine's port, published as a service with client = 'here'",
            least=1,
            most=65535,
        ),
    ] = 8000


# The machine describes itself: its words are a part of a folder's name and of pip's command.
_Word = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_]{1,40}\Z")]
_Minor = Annotated[int, msgspec.Meta(ge=0, le=999)]


class RigPython(msgspec.Struct, frozen=True):
    """The Python that dyno uses on another machine, and what that machine is."""

    python: Annotated[str, msgspec.Meta(max_length=4096)]  # path
    version: tuple[_Minor, _Minor]
    tag: Annotated[str, msgspec.Meta(pattern=r"\A[a-z]{1,20}-[0-9]{1,6}\Z")]  # cpython-311
    system: _Word  # Linux
    machine: _Word  # x86_64
    libc: tuple[  # glibc, 2.36; both empty: another library
        Annotated[str, msgspec.Meta(pattern=r"\A[a-z]{0,20}\Z")],
        Annotated[str, msgspec.Meta(pattern=r"\A(\d{1,3}(\.\d{1,3}){0,3})?\Z")],
    ]


class RigEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Something that dyno has, or may have, running on another machine. Written before it is started there."""

    id: str  # of this entry, and of the job's folder there
    rig: str
    study: str
    folder: str  # the study's folder on this machine
    since: str  # UTC, ISO 8601
    process: int = 0  # the dyno on this machine that watches it; it may have died
    ssh: SshSpec | None = None  # None: not known yet (dstack is still providing it)
    dstack: DstackSpec | None = None
    dstack_run: str | None = None  # its name there


def ssh_problem(host: str) -> str | None:
    """Say why this can't be a host. A leading '-' would be an option of ssh."""
    if not host:
        return 'needs a host: ssh = "user@host".'
    if host.startswith("-") or any(c.isspace() or not c.isprintable() for c in host):
        return f"{host!r} is not user@host or a name from the SSH configuration."
    return None
