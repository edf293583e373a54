"""The client of a trial: how many processes send its requests, and where they run."""

from typing import Annotated, Literal

import msgspec

from dyno.option import Option

MOST_PROCESSES = 1024


class ClientSpec(msgspec.Struct, frozen=True):
    procs: Annotated[
        int | Literal["auto"],
        Option(
            "--procs",
            "N|auto",
            "client processes that share the load; auto: from the figures of `dyno doctor`",
            least=1,
            most=MOST_PROCESSES,
        ),
    ] = 1
    on: Annotated[
        Literal["here", "ray"],
        Option(
            "--on", help="where the client's processes run: this machine or a Ray cluster"
        ),
    ] = "here"
    ray_address: Annotated[
        str | None,
        Option(
            "--ray-address",
            "ADDRESS",
            "address of a running Ray cluster (default: start one on this machine)",
            identity=False,
        ),
    ] = None
