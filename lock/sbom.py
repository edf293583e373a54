"""Write a bill of materials (CycloneDX 1.6, JSON): dyno, and each locked package with its checksums and its license.

make sbom          build/sbom.json
"""

import importlib.metadata
import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
LOCKED = re.compile(r"^([a-z0-9-]+)==([^\s\\;]+)(.*)$")


def locked(file: Path) -> dict[str, tuple[str, list[str]]]:
    """Return name → version and checksums of a lock file."""
    packages: dict[str, tuple[str, list[str]]] = {}
    name = ""
    for line in file.read_text().splitlines():
        if match := LOCKED.match(line):
            name = match[1]
            packages[name] = match[2], []
        elif name and (digest := re.search(r"--hash=sha256:([0-9a-f]{64})", line)):
            packages[name][1].append(digest[1])
    return packages


def license_of(name: str, version: str) -> list[dict[str, dict[str, str]]]:
    """Return the license as the installed package has it; none where this version isn't installed."""
    try:
        metadata = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return []
    text = metadata.get("License-Expression") or metadata.get("License") or ""
    known = metadata["Version"] == version and text and len(text) < 80
    return [{"license": {"name": text}}] if known else []


def component(
    name: str, version: str, checksums: list[str], scope: str
) -> dict[str, object]:
    purl = f"pkg:pypi/{name}@{version}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "scope": scope,
        "purl": purl,
        "licenses": license_of(name, version),
        # One for each wheel: a bill has one file for each machine.
        "properties": [{"name": "dyno:wheel:sha256", "value": one} for one in checksums],
    }


def bill() -> dict[str, object]:
    run, dev = locked(HERE / "run.txt"), locked(HERE / "dev.txt")
    dyno = importlib.metadata.version("llm-dyno")
    components = [
        component(name, *facts, scope="required" if name in run else "excluded")
        for name, facts in sorted(dev.items())
    ]
    about = {
        "type": "application",
        "bom-ref": "llm-dyno",
        "name": "llm-dyno",
        "version": dyno,
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": about},
        "components": components,
        "dependencies": [
            {"ref": "llm-dyno", "dependsOn": [str(c["bom-ref"]) for c in components]}
        ],
    }


def main() -> None:
    path = Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    document = bill()
    path.write_text(json.dumps(document, indent=2) + "\n")
    print(f"{path}: {len(document['components'])} packages")  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
