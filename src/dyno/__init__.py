"""dyno: a dynamometer for LLM inference engines.

`dyno.serve`, `throughput`, `latency`, `micro`, `find`, `tune` and `study` measure; `load`, `compare`, `audit`, `report`
and `sql` read results; `aio` measures under asyncio. docs/python.md describes them. A name is loaded when it is used.
"""

import importlib
import sys
from types import ModuleType

__version__ = "0.1.0"

# Name → the module of dyno that has it. `__init__.pyi` has the same for type checkers.
_OFFERED = {
    "serve": "api.measuring",
    "throughput": "api.measuring",
    "latency": "api.measuring",
    "micro": "api.measuring",
    "find": "api.searching",
    "tune": "api.searching",
    "study": "api.studies",
    "load": "api.results",
    "compare": "api.results",
    "audit": "api.results",
    "report": "api.results",
    "sql": "api.results",
    "MeasuredRun": "api.runs",
    "MeasuredRuns": "api.runs",
    "ColumnTable": "api.columns",
    "FoundLoad": "api.searching",
    "TunedSettings": "api.searching",
    "PlannedStudy": "api.studies",
    "StudyResult": "api.studies",
    "ComparedRuns": "api.results",
    "AuditedResults": "api.results",
    "ReportPage": "api.results",
    "ProgressReport": "api.progress",
    "DynoError": "errors",
    "UsageError": "errors",
    "NotFound": "errors",
    "WorkloadError": "errors",
    "TargetError": "errors",
    "EngineError": "errors",
    "ModelError": "errors",
    "HubRefusal": "errors",
    "RigError": "errors",
    "Unreachable": "errors",
    "StoreError": "errors",
    "NotSummedUp": "errors",
    "DrawError": "errors",
    "ImportFailed": "errors",
    "StudyStopped": "errors",
    "Interrupted": "errors",
}


# Rooms of dyno with the name of a function: the module is that function, too.
_CALLED = {"audit", "compare", "load", "report", "study"}


def __getattr__(name: str) -> object:
    if name == "aio":
        return importlib.import_module("dyno.api.aio")
    if name not in _OFFERED:
        raise AttributeError(f"module 'dyno' has no attribute {name!r}")
    if name in _CALLED:
        return importlib.import_module(f"dyno.{name}")
    value = getattr(importlib.import_module(f"dyno.{_OFFERED[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_OFFERED, "aio"})


class _CalledRoom(ModuleType):
    """A room that is called as the function of its name: `dyno.load("runs")` beside `dyno.load.wire`."""

    def __call__(self, *args: object, **keywords: object) -> object:
        return self._function(*args, **keywords)

    @property
    def _function(self):  # type: ignore[no-untyped-def]
        name = self.__name__.rpartition(".")[2]
        return getattr(importlib.import_module(f"dyno.{_OFFERED[name]}"), name)

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        doc: str | None = self._function.__doc__
        return doc

    @property
    def __signature__(self) -> object:
        import inspect

        return inspect.signature(self._function)


class _Dyno(ModuleType):
    """dyno itself. Importing a room sets it here as an attribute."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in _CALLED and isinstance(value, ModuleType):
            value.__class__ = _CalledRoom
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Dyno
