"""An engine as a contributor adds it: one file, as in engines/kinds. Its program is dyno's fake engine."""

import sys
from typing import TYPE_CHECKING, Any

from dyno.engines.kinds.base import (
    EngineKind,
    KnownCommand,
    Program,
    flag,
    one_of,
    with_dtype,
)
from dyno.engines.kinds.recipe import KnownImage, Recipe
from dyno.engines.kinds.routes import Cards, json_object
from dyno.facts.engine import EngineSpec

if TYPE_CHECKING:
    from dyno.http import Client

_DOCUMENT = "https://example.org/quick/docker"


class Quick(EngineKind):
    name = "quick"
    title = "QuickServe"
    about = "QuickServe: answers before it is asked"

    packages = ("quickserve",)
    companions = ("quick-kernels",)
    programs = ("quickd",)
    in_container = ("quickd",)
    recipes = {
        "cpu": Recipe(
            package="quickserve",
            module="quickserve",
            check=("python", "-c", "import quickserve"),
        )
    }
    images = (
        KnownImage("quick", "cuda", "example.org/quick:q{version}", _DOCUMENT, since="2"),
    )
    version_in_tag = r"\bq(\d+\.\d+)"

    options = {
        "dtype": one_of("--type", {"bf16": "bfloat16"}),
        "max_num_seqs": flag("--lanes"),
        "max_model_len": flag("--reach", since="2"),
    }
    own_flags = {"--turbo": ("2", "", "It is always on.")}

    fetches = True

    variables = ("QUICK_LANES_MAXIMUM",)
    variable_prefixes = ("QUICK_",)
    compile_caches = {"QUICK_CACHE": "quick"}

    log = {"kv_cache_tokens": (r"cache of (\d+) tokens",)}
    remarks = {"fallback": r"walks instead of running"}
    remark_words = ("walks",)

    server_order = 5
    metrics = {
        "running_requests": ("quick_running",),
        "output_tokens": ("quick_tokens_total",),
    }

    can_ignore_eos = False

    aliases = ("quickserve", "quick-serve")
    commands = (
        KnownCommand(("quickd",), r"\bquickd\b", "server", short={"z": "max_num_seqs"}),
    )
    version_title = "quickserve version"
    version_dumps = (r"Quick\s+(\d\S+) starts",)
    version_words = ("Quick",)

    def own_program(self) -> Program | None:
        return Program(
            [sys.executable, "-P", "-m", "dyno.engines.fake"],
            "2.1",
            where="tests",
            embedded=True,
        )

    def argv(self, spec: EngineSpec, program: Program, port: int) -> list[str]:
        own = self.flags(with_dtype(spec), program.version, leave=("served_name",))
        return [*program.argv, str(port), f"model={self.model_of(spec)}", *own]

    def read_server(self, client: "Client", cards: Cards) -> dict[str, Any] | None:
        info = json_object(client, "/quick")
        return (
            {"version": info["quick"], "slots": info.get("lanes")}
            if "quick" in info
            else None
        )


KIND = Quick()
