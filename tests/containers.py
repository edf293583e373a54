"""podman and docker in tests: a storage of their own, small images, a registry on loopback."""

import os
import resource
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dyno.engines import container
from dyno.errors import EngineError


@contextmanager
def usable(tool: str, folder: Path, registry: int | None = None) -> Iterator[str]:
    """A tool that runs containers here, and the name of an image made of busybox. `registry`: a port on loopback."""
    # A short path for podman's sockets: those of a worker's own folder are too long for one, and each run then waits
    # 20 s.
    with (
        tempfile.TemporaryDirectory(prefix="dyno", ignore_cleanup_errors=True) as short,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("HF_HOME", str(folder / "hf"))
        (folder / "hf").mkdir()
        if tool == "podman":
            _configure_podman(Path(short), patch, registry)
        try:
            assert container.tool(tool) == tool
        except (EngineError, AssertionError) as e:
            pytest.skip(f"{tool} isn't to be used here: {e}")
        busybox = shutil.which("busybox")
        if not busybox:
            pytest.skip("busybox isn't here: install busybox-static")
        name = f"dyno-test-{os.getpid()}:latest"
        _import(tool, busybox, folder, name)
        tried = subprocess.run(
            [
                tool,
                "run",
                "--rm",
                "--network=host",
                "--ipc=host",
                name,
                "/bin/busybox",
                "true",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if tried.returncode:
            pytest.skip(f"{tool} can't run a container here: {tried.stderr.strip()}")
        yield name
        subprocess.run(
            [tool, "rmi", "--force", name], stdout=subprocess.DEVNULL, check=False
        )


def _configure_podman(
    folder: Path, patch: pytest.MonkeyPatch, registry: int | None
) -> None:
    """A storage of its own, and limits that a machine without CAP_SYS_RESOURCE can give."""
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/storage"\nrunroot = "{folder}/run"\n'
    )
    files = min(1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    processes = min(1024, resource.getrlimit(resource.RLIMIT_NPROC)[1])
    limits = (
        f'default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]'
    )
    runtime = 'runtime = "runc"\n' if shutil.which("runc") else ""
    (folder / "containers.conf").write_text(
        f'[containers]\n{limits}\n[engine]\n{runtime}cgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
    )
    (folder / "registries.conf").write_text(
        f'[[registry]]\nlocation = "127.0.0.1:{registry}"\ninsecure = true\n'
    )
    patch.setenv("CONTAINERS_STORAGE_CONF", str(folder / "storage.conf"))
    patch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
    patch.setenv("CONTAINERS_REGISTRIES_CONF", str(folder / "registries.conf"))


def _import(tool: str, busybox: str, folder: Path, name: str) -> None:
    with tarfile.open(folder / "root.tar", "w") as tar:
        for path in [Path(busybox).resolve(), *libraries(busybox)]:
            tar.add(
                path.resolve(),
                "bin/busybox" if path.name.startswith("busybox") else str(path).lstrip("/"),
            )
    subprocess.run(
        [tool, "import", str(folder / "root.tar"), name], capture_output=True, check=True
    )


def libraries(program: str) -> list[Path]:
    """The shared libraries of a program; none where it is static."""
    words = subprocess.run(
        ["ldd", program], capture_output=True, text=True, check=False
    ).stdout.split()
    return [Path(word) for word in words if word.startswith("/") and Path(word).exists()]


@contextmanager
def registry(folder: Path, port: int) -> Iterator[str]:
    """A registry of images on loopback: Debian's docker-registry."""
    program = shutil.which("docker-registry")
    if not program:
        pytest.skip("docker-registry isn't here: install it")
    config = folder / "registry.yml"
    storage = f"storage: {{filesystem: {{rootdirectory: {folder}/registry}}}}"
    config.write_text(f"version: 0.1\n{storage}\nhttp: {{addr: 127.0.0.1:{port}}}\n")
    with subprocess.Popen(
        [program, "serve", str(config)], stderr=subprocess.DEVNULL
    ) as process:
        try:
            await_port(port)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


def await_port(port: int, within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while True:
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < deadline
        time.sleep(0.05)


def running(tool: str) -> list[str]:
    """The containers of dyno."""
    listed = subprocess.run(
        [tool, "ps", "-aq", "--filter", "label=dyno"],
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.split()
