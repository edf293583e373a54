"""A workload is stored flat, with the settings of all data sets. A data set has its own alone, wherever it is asked."""

from typing import Any

import pytest

from dyno.facts.rules import WORKLOAD, GivenSettings, mistakes
from dyno.facts.setting import name_of
from dyno.option import fields
from dyno.store.rows import _workload
from dyno.workload.common import CommonSpec
from dyno.workload.datasets import DATASETS
from dyno.workload.spec import OWN_FIELDS, WorkloadSpec


def _foreign(name: str) -> list[str]:
    return [field for field, names in OWN_FIELDS.items() if name not in names]


@pytest.mark.parametrize("name", DATASETS)
def test_a_generator_gets_no_setting_of_another_data_set(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, seen = DATASETS[name], []

    def make(spec: Any, _: Any) -> Any:
        seen.append(spec)
        return iter(())

    monkeypatch.setattr(type(dataset), "generate", property(lambda _: make))
    list(dataset.requests(WorkloadSpec(name), None))
    [spec] = seen
    own = {*CommonSpec.__struct_fields__, *dataset.own}
    assert {*spec.__struct_fields__} <= own and type(spec) is dataset.spec


@pytest.mark.parametrize("place", ["flags", "keys"])
@pytest.mark.parametrize("name", DATASETS)
def test_a_setting_of_another_data_set_is_refused(name: str, place: Any) -> None:
    for setting in _foreign(name):
        given = GivenSettings({setting: 1, "path": "x"}, DATASETS[name])
        wrong = {mistake.rule.setting for mistake in mistakes(WORKLOAD, given, place)}
        assert setting in wrong


@pytest.mark.parametrize("name", DATASETS)
def test_a_result_shows_no_setting_of_another_data_set(name: str) -> None:
    shown = {k for k, v in _workload(WorkloadSpec(name)).items() if v is not None}
    hidden = {k for k, v in _workload(WorkloadSpec(name)).items() if v is None}
    foreign = {name_of(fields(WorkloadSpec)[setting]) for setting in _foreign(name)}
    foreign -= {"--class"}
    assert not shown & foreign and foreign <= hidden
