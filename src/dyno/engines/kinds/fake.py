"""The fake engine as a kind: its args are words such as first_ms=20, gap_ms=5 or fault=die@100."""

import sys
from typing import TYPE_CHECKING, Any

from dyno.engines.fake import FakeSpec, as_words, changed
from dyno.engines.kinds.base import PROFILE_ROUTES, EngineFlag, EngineKind, Program
from dyno.errors import UsageError
from dyno.facts.engine import EngineSpec

if TYPE_CHECKING:
    from dyno.http import Client


class FakeKind(EngineKind):
    name = "fake"
    title = "the fake engine"
    about = "answers at given times, with faults on demand"
    computes = False
    profiler = PROFILE_ROUTES

    options = dict.fromkeys(
        ("served_name", "max_model_len", "prefix_caching"), EngineFlag(lambda _: ())
    )

    in_documents = False

    def default_name(self, spec: EngineSpec) -> str:
        return spec.model or FakeSpec().model

    def implied(self, spec: EngineSpec, program: Program) -> dict[str, Any]:
        return {"prefix_caching": changed(self._own(spec), spec.args).prefix_cache}

    def own_program(self) -> Program | None:
        # -P: a folder named dyno in the current one is not this package.
        return Program(
            [sys.executable, "-P", "-m", "dyno.engines.fake"],
            "fake",
            where="part of dyno",
            embedded=True,
        )

    def argv(self, spec: EngineSpec, program: Program, port: int) -> list[str]:
        self.flags(spec, None)  # a setting that it can't do is an error here too
        if spec.host != "127.0.0.1":
            raise UsageError(
                f"The fake engine listens at 127.0.0.1, not at {spec.host}. Remove the host."
            )
        return [*program.argv, str(port), *as_words(self._own(spec))]

    def _own(self, spec: EngineSpec) -> FakeSpec:
        """Return what the settings make of it. The args come behind its words."""
        default = FakeSpec()
        own = FakeSpec(
            model=spec.served_name or spec.model or default.model,
            max_model_len=spec.max_model_len or default.max_model_len,
            prefix_cache=bool(spec.prefix_caching),
        )
        changed(own, spec.args)
        return own

    def reset_cache(self, client: "Client") -> bool:
        return client.call("/reset_prefix_cache", {})[0] == 200


KIND = FakeKind()
