"""The lock files: each package once, with checksums; all that pyproject.toml asks for, and no host."""

import json
import re
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "lock"))

import sbom  # noqa: E402
import vulnerabilities  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
GROUPS = {
    "run": PROJECT["project"]["dependencies"],
    "dev": [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["dev"]],
    "docs": PROJECT["dependency-groups"]["docs"],
}


@pytest.mark.parametrize("group", GROUPS)
def test_a_lock_file_has_what_the_project_asks_for(group: str) -> None:
    from packaging.requirements import Requirement

    locked = sbom.locked(ROOT / "lock" / f"{group}.txt")
    for text in GROUPS[group]:
        wanted = Requirement(text)
        version, checksums = locked[re.sub(r"[-_.]+", "-", wanted.name).lower()]
        assert wanted.specifier.contains(version), f"{text}: run `make lock`"
        assert checksums


@pytest.mark.parametrize("group", GROUPS)
def test_each_locked_package_has_checksums_and_no_file_names_a_host(group: str) -> None:
    text = (ROOT / "lock" / f"{group}.txt").read_text()
    assert "://" not in text
    assert all(
        checksums for _, checksums in sbom.locked(ROOT / "lock" / f"{group}.txt").values()
    )


def test_development_has_the_versions_that_users_get() -> None:
    run, dev = (sbom.locked(ROOT / "lock" / f"{group}.txt") for group in ("run", "dev"))
    assert {name: dev[name] for name in run} == run


def test_a_bill_of_materials_lists_each_package_once() -> None:
    bill: dict[str, Any] = sbom.bill()
    assert bill["bomFormat"] == "CycloneDX"
    names = [component["name"] for component in bill["components"]]
    assert len(names) == len(set(names)) > 40
    scopes = {component["name"]: component["scope"] for component in bill["components"]}
    assert (scopes["msgspec"], scopes["pytest"]) == ("required", "excluded")
    assert "://" not in json.dumps(bill)


RECORD = {
    "id": "PYSEC-2026-1",
    "affected": [
        {
            "package": {"ecosystem": "PyPI", "name": "A.Package"},
            "ranges": [
                {"type": "ECOSYSTEM", "events": [{"introduced": "1.0"}, {"fixed": "1.5"}]}
            ],
            "versions": ["0.7"],
        }
    ],
}


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ("0.7", True),
        ("0.9", False),
        ("1.0", True),
        ("1.4.9", True),
        ("1.5", False),
        ("2", False),
    ],
)
def test_a_version_in_a_range_is_affected(
    version: str, affected: bool, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("PYSEC-2026-1.json", json.dumps(RECORD))
    problems = vulnerabilities.known_problems(tmp_path / "all.zip", {"a-package": version})
    assert bool(problems) == affected


def test_a_withdrawn_record_and_another_ecosystem_don_t_count(tmp_path: Path) -> None:
    other = {
        **RECORD,
        "affected": [
            {**RECORD["affected"][0], "package": {"ecosystem": "npm", "name": "a-package"}}
        ],
    }  # type: ignore[dict-item]
    for i, record in enumerate(({**RECORD, "withdrawn": "2026-01-01"}, other)):
        (tmp_path / f"{i}.json").write_text(json.dumps(record))
    assert vulnerabilities.known_problems(tmp_path, {"a-package": "1.2"}) == []
