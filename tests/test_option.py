"""A setting is declared once: its flag and its study key have the same range, and old files are read all the same."""

import argparse
import math
from typing import Any

import msgspec
import pytest

from dyno.cli import flags
from dyno.cli.main import main
from dyno.errors import UsageError
from dyno.facts.engine import ContainerSpec, EngineSpec
from dyno.facts.load import LoadSpec
from dyno.facts.offline import OfflineSpec
from dyno.facts.trial import TrialSpec
from dyno.option import Field, Option, fields
from dyno.study.cells import CELLS, converted
from dyno.study.document import TomlDocument
from dyno.transport import Transport
from dyno.workload.spec import WorkloadSpec

STRUCTS = (
    EngineSpec,
    ContainerSpec,
    LoadSpec,
    OfflineSpec,
    TrialSpec,
    WorkloadSpec,
    Transport,
)
OFFLINE = {f.name for f in fields(OfflineSpec).values()}


def _outside(option: Option) -> float | None:
    if option.least is not None:
        return option.least - 1
    if option.above is not None:
        return option.above
    return option.most * 10 if option.most < math.inf else None


RANGES = [
    f
    for struct in STRUCTS
    for f in fields(struct).values()
    if f.option.flags and _outside(f.option) is not None
]


@pytest.mark.parametrize("field", RANGES, ids=lambda f: f.name)
def test_a_flag_and_a_study_key_refuse_the_same_values(
    field: Field, capsys: pytest.CaptureFixture[str]
) -> None:
    value, flag = _outside(field.option), field.option.flags.split()[0]
    assert value is not None
    command = "latency" if field.name in OFFLINE else "serve"
    assert main(["bench", command, f"{flag}={value:g}"]) == UsageError.exit_code
    assert f"dyno: {flag} " in capsys.readouterr().err
    hint = next(keys[field.name] for keys in CELLS.values() if field.name in keys)
    document = TomlDocument("", "a study")
    whole = int(value) if value == int(value) else value
    converted(document, (field.name,), hint, whole)
    with pytest.raises(UsageError, match=f"{field.name}: .*, but is "):
        document.check()


def test_fields_come_back_from_their_flags() -> None:
    parser = argparse.ArgumentParser()
    flags.add(parser, EngineSpec)
    o = parser.parse_args(
        ["-tp", "2", "--engine-env", "A=b", "--no-enable-prefix-caching", "--devices"]
    )
    assert flags.values(o, EngineSpec) == {
        "tensor_parallel": 2, "pipeline_parallel": 1, "devices": [], "replicas": 1, "prefix_caching": False,
        "args": [], "env": {"A": "b"}, "before": [], "after": [], "prepare": [], "ready_stall_s": 600.0,
    }  # fmt: skip
    assert flags.given(o, EngineSpec) == [
        "--tensor-parallel-size", "--devices", "--enable-prefix-caching", "--engine-env",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("struct", "value"),
    [(LoadSpec, {"max_concurrency": 0}), (WorkloadSpec, {"dataset": "x", "seed": -1})],
)
def test_what_an_older_dyno_stored_is_read_without_bounds(
    struct: Any, value: dict[str, Any]
) -> None:
    assert msgspec.convert(value, struct)


def test_no_two_fields_have_the_same_flag() -> None:
    names = [
        name
        for struct in STRUCTS
        for f in fields(struct).values()
        for name in f.option.flags.split()
    ]
    assert len(names) == len(set(names))
