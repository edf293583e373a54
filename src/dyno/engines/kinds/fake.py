"""The fake engine as a kind: its args are words such as first_ms=20, gap_ms=5 or fault=die@100."""

import sys
from typing import Any

from dyno.engines.fake import FakeSpec, as_words, changed
from dyno.engines.kinds.base import EngineFlag, EngineKind, Program
from dyno.errors import UsageError
from dyno.facts.engine import EngineSpec


class FakeKind(EngineKind):
    name = "fake"
    title = "the fake engine"
    computes = False
    options = {
        **dict.fromkeys(("served_name", "max_model_len"), EngineFlag(lambda _: ())),
        "prefix_caching": EngineFlag(lambda on: {False: ()}[on]),  # it has none
    }

    def default_name(self, spec: EngineSpec) -> str:
        return spec.model or FakeSpec().model

    def implied(self, spec: EngineSpec, program: Program) -> dict[str, Any]:
        return {"prefix_caching": False}

    def own_program(self) -> Program | None:
        # -P: a folder named dyno in the current one is not this package.
        return Program([sys.executable, "-P", "-m", "dyno.engines.fake"], "fake", where="part of dyno", embedded=True)

    def argv(self, spec: EngineSpec, program: Program, port: int) -> list[str]:
        self.flags(spec, None)  # a setting that it can't do is an error here too
        if spec.host != "127.0.0.1":
            raise UsageError(f"The fake engine listens at 127.0.0.1, not at {spec.host}. Remove the host.")
        default = FakeSpec()
        own = FakeSpec(
            model=spec.served_name or spec.model or default.model,
            max_model_len=spec.max_model_len or default.max_model_len,
        )
        changed(own, spec.args)
        return [*program.argv, str(port), *as_words(own)]
