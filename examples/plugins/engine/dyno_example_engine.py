"""An engine: dyno's fake one as a program of its own, which takes 20 ms for each token.

`dyno/engines/kinds/base.py` lists everything that can be said of an engine: flags, metrics, log lines, recipes.
"""

import sys

from dyno.engines.kinds.base import EngineFlag, EngineKind, Program
from dyno.facts.engine import EngineSpec


class SlowFake(EngineKind):
    name = "slowfake"
    title = "the slow fake engine"
    about = "answers slowly, without a model"
    computes = False
    in_documents = False
    options = dict.fromkeys(("served_name", "max_model_len"), EngineFlag(lambda _: ()))

    def default_name(self, spec: EngineSpec) -> str:
        return spec.model or "slow"

    def own_program(self) -> Program | None:
        argv = [sys.executable, "-P", "-m", "dyno.engines.fake"]
        return Program(argv, "slowfake", where="part of dyno", embedded=True)

    def argv(self, spec: EngineSpec, program: Program, port: int) -> list[str]:
        self.flags(spec, None)  # refuses settings that it can't have
        name = spec.served_name or self.default_name(spec)
        return [*program.argv, str(port), f"model={name}", "gap_ms=20", *spec.args]


KIND = SlowFake()
