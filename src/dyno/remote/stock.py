"""What a machine over SSH has already: asked in a few seconds before a study, with nothing installed there."""

import re
from typing import Annotated

import msgspec

from dyno.errors import RigError
from dyno.facts.elsewhere import SshSpec
from dyno.remote.ssh import SshMachine

# Of documentation, or not filled in yet: user@host, h100.example.com.
_PLACEHOLDER = re.compile(
    r"(^|[@.])(host|hostname|my-?host|example|invalid|test)(\.(com|org|net))?$", re.I
)
_Name = Annotated[str, msgspec.Meta(max_length=300)]


class RigStock(msgspec.Struct, frozen=True):
    free_bytes: Annotated[int, msgspec.Meta(ge=0)]
    home: Annotated[str, msgspec.Meta(max_length=4096)]
    models: list[_Name]  # names of recipes
    engines: list[_Name]  # vllm-0.32.0-cuda

    def has_engine(self, kind: str, version: str | None) -> bool:
        begin = f"{kind}-{version}" if version else f"{kind}-"
        return any(
            name == begin or name.startswith((begin, f"{begin}-")) for name in self.engines
        )


def ask(ssh: SshSpec) -> RigStock | str:
    """Return what is there, or why it was not asked."""
    if _PLACEHOLDER.search(ssh.host):
        return f"{ssh.host} is a placeholder"
    try:
        machine = SshMachine(ssh, "stock")
    except RigError as e:
        return str(e)
    try:
        return msgspec.convert(machine.ask("stock"), RigStock)
    except RigError as e:
        return str(e)
    except msgspec.ValidationError:
        return f"{ssh.host} answered with something else than its stock"
    finally:
        machine.close()
