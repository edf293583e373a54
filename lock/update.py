"""Write the lock files: each package in one version, with the checksums of its wheels for Linux and macOS.

    make lock

pip resolves pyproject.toml as it is today, and the index that pip uses names the wheels. No host is in the files.
"""

import html
import json
import re
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
PROJECT = tomllib.loads((HERE.parent / "pyproject.toml").read_text())
RUN = [
    *PROJECT["build-system"]["requires"],
    "editables",
    *PROJECT["project"]["dependencies"],
]
GROUPS = {
    "run": RUN,
    "dev": [*RUN, *PROJECT["dependency-groups"]["dev"]],
    "docs": PROJECT["dependency-groups"]["docs"],
}
# Wheels that a machine of these kinds takes; others would make the files ten times as long.
WHEEL = re.compile(
    r"-(?:py3|py2\.py3|cp3\d\d?)-(?:none|abi3|cp31[1-9])-"
    r"(?:any|[\w.]*manylinux[\w.]*_(?:x86_64|aarch64)|macosx[\w.]*_(?:arm64|universal2))\.whl$"
)


def resolved(requirements: list[str]) -> dict[str, str]:
    """Return name → version of all that pip would install."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--dry-run",
            "--ignore-installed",
            "--quiet",
        ]
        subprocess.run([*command, "--report", report.name, *requirements], check=True)
        packages = json.loads(Path(report.name).read_text())["install"]
    return {normal(p["metadata"]["name"]): p["metadata"]["version"] for p in packages}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def index() -> str:
    """Return the address of the index that pip uses, without its name in this project."""
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
        capture_output=True,
    )
    if asked.returncode == 0:
        return asked.stdout.decode().strip()
    from pip._internal.models.index import PyPI

    return str(PyPI.simple_url)


def checksums(name: str, version: str) -> list[str]:
    """Return the SHA-256 of a version's wheels; those that were withdrawn are left out."""
    with urllib.request.urlopen(f"{index().rstrip('/')}/{name}/", timeout=60) as answer:
        page = answer.read().decode()
    prefix = f"{name.replace('-', '_')}-{version}-".lower()
    sums = set()
    for link in re.findall(r"<a [^>]*>", page):
        address = re.search(r'href="([^"#]*)#sha256=([0-9a-f]{64})"', html.unescape(link))
        if address is None or "data-yanked" in link:
            continue
        file = address[1].rpartition("/")[2]
        if re.sub(r"[-_.]+", "_", file).lower().startswith(
            re.sub(r"[-_.]+", "_", prefix)
        ) and WHEEL.search(file):
            sums.add(address[2])
    if not sums:
        sys.exit(f"{name} {version} has no wheel for Linux or macOS.")
    return sorted(sums)


def markers() -> dict[str, str]:
    """Return the conditions of pyproject.toml: name → what comes after the semicolon."""
    split = (text.partition(";") for text in PROJECT["project"]["dependencies"])
    return {
        normal(re.split(r"[<>=!~\[ ]", name)[0]): marker.strip()
        for name, _, marker in split
        if marker
    }


def main() -> None:
    known: dict[tuple[str, str], list[str]] = {}
    versions = resolved(GROUPS["dev"])
    for group, requirements in GROUPS.items():
        wanted = resolved(requirements)
        lines = [
            f"# {group}: by `make lock`. pip install --require-hashes --no-deps --only-binary :all: -r FILE\n"
        ]
        for name, version in sorted(wanted.items()):
            version = versions.get(name, version)
            key = name, version
            known[key] = known.get(key) or checksums(*key)
            condition = f" ; {markers()[name]}" if name in markers() else ""
            sums = "".join(f" \\\n    --hash=sha256:{one}" for one in known[key])
            lines.append(f"{name}=={version}{condition}{sums}\n")
        (HERE / f"{group}.txt").write_text("".join(lines))
        print(f"lock/{group}.txt: {len(wanted)} packages")


if __name__ == "__main__":
    main()
