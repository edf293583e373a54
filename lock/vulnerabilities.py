"""Compare the locked packages with a local copy of the OSV database (osv.dev: PyPI/all.zip), and nothing else.

make vulnerabilities OSV=all.zip      exit code 1 where a locked version is affected
"""

import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

sys.path.insert(0, str(Path(__file__).parent))
from sbom import locked


def records(database: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a zip, or of a folder of JSON files."""
    if database.is_dir():
        for path in sorted(database.rglob("*.json")):
            yield json.loads(path.read_text())
        return
    with zipfile.ZipFile(database) as archive:
        for name in archive.namelist():
            if name.endswith(".json"):
                yield json.loads(archive.read(name))


def is_affected(version: str, affected: dict[str, Any]) -> bool:
    """Return whether a version is listed, or lies in a range: from `introduced` until before `fixed`."""
    if version in affected.get("versions", []):
        return True
    number = Version(version)
    for span in affected.get("ranges", []):
        inside = False
        for event in span.get("events", []) if span.get("type") == "ECOSYSTEM" else []:
            try:
                if "introduced" in event and number >= Version(event["introduced"]):
                    inside = True
                if "fixed" in event and number >= Version(event["fixed"]):
                    inside = False
                if "last_affected" in event and number > Version(event["last_affected"]):
                    inside = False
            except InvalidVersion:
                continue
        if inside:
            return True
    return False


def known_problems(database: Path, packages: dict[str, str]) -> list[str]:
    problems = []
    for record in records(database):
        if record.get("withdrawn"):
            continue
        for affected in record.get("affected", []):
            package = affected.get("package", {})
            name = package.get("name", "").lower().replace("_", "-").replace(".", "-")
            if (
                package.get("ecosystem") == "PyPI"
                and name in packages
                and is_affected(packages[name], affected)
            ):
                problems.append(
                    f"{name} {packages[name]}: {record['id']} {record.get('summary', '')}"
                )
    return sorted(set(problems))


def main() -> None:
    if len(sys.argv) < 2 or not Path(sys.argv[1]).exists():
        print(
            "No database: give a local copy of OSV's for PyPI with OSV=all.zip. Nothing was checked."
        )
        return
    packages = {
        name: facts[0]
        for name, facts in locked(Path(__file__).with_name("dev.txt")).items()
    }
    problems = known_problems(Path(sys.argv[1]), packages)
    print("\n".join(problems) or f"{len(packages)} packages, no known vulnerability.")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
