"""A small Hugging Face Hub on loopback, by the requests that huggingface_hub sends: lists, files, ranges, refusals.

It serves a folder: FOLDER/OWNER/NAME/… are models, FOLDER/datasets/OWNER/NAME/… are data sets. Each has one commit, a
hash of its files, which the branch main and the tag v1 point to. A file of LFS_BYTES or more is sent from another path,
by a redirect, as the Hub sends large files from its storage.

    python tests/hub_server.py FOLDER --port 8100
    HF_ENDPOINT=http://127.0.0.1:8100 dyno models pull OWNER/NAME
"""

import argparse
import functools
import hashlib
import json
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

LFS_BYTES = 10_000
TOKEN = "hf_of_the_test"  # the one token that may read what is gated


@dataclass
class Faults:
    """What goes wrong, by file name or for lists. Counts go down with each use."""

    gated: bool = False
    gated_owners: set[str] = field(default_factory=set)  # or only the models of these
    # OWNER/NAME whose list comes only when `go_on` is set
    silent: set[str] = field(default_factory=set)
    limited: int = 0  # lists that are answered with 429
    limited_files: int = 0  # files that are
    retry_after_s: int = 0
    # file → bytes after which a connection is reset, each once
    cut: dict[str, list[int]] = field(default_factory=dict)
    # file → times that it comes with a wrong byte
    corrupt: Counter[str] = field(default_factory=Counter)
    # files of which only the first half is sent, until `go_on` is set
    slow: set[str] = field(default_factory=set)
    go_on: threading.Event = field(default_factory=threading.Event)
    extra_names: list[str] = field(default_factory=list)  # in each list
    # file, or OWNER/NAME/file → size in the list, whatever it is
    sizes: dict[str, int] = field(default_factory=dict)


class HubServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.folder = folder
        self.faults = Faults()
        self.requests: list[str] = []  # "GET /api/models/…"
        self.tokens: set[str] = set()
        self.sent: Counter[str] = Counter()  # file → bytes of its body that were sent

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is not the server's mistake."""


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def _serve(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path}")
        if given := self.headers.get("authorization"):
            self.server.tokens.add(given.removeprefix("Bearer "))
        if found := re.fullmatch(
            r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision/(.+)|refs|tree/(.+)))?",
            path,
        ):
            kind, repo, rest, revision, tree = found.groups()
            self._api(
                self._root(kind, repo), rest or "revision", revision or tree or "main"
            )
        elif found := re.fullmatch(
            r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path
        ):
            self._resolve(self._root(found[1] or "", found[2]), found[3], found[4])
        elif found := re.fullmatch(r"/storage/(.+)", path):  # where a redirect leads to
            self._send_file(self.server.folder / found[1])
        else:
            self._refuse(404, "", "no such page")

    def _root(self, kind: str, repo: str) -> Path:
        return (
            self.server.folder / ("datasets" if kind.startswith("datasets") else "") / repo
        )

    def _is_gated(self, root: Path) -> bool:
        return (
            self.server.faults.gated or root.parent.name in self.server.faults.gated_owners
        )

    def _api(self, root: Path, what: str, revision: str) -> None:
        faults = self.server.faults
        if f"{root.parent.name}/{root.name}" in faults.silent:
            faults.go_on.wait(60)
        if faults.limited:
            faults.limited -= 1
            return self._refuse(
                429, "", "too many requests", {"Retry-After": str(faults.retry_after_s)}
            )
        if self.headers.get("authorization") == "Bearer hf_expired":
            return self._refuse(401, "", "Invalid credentials in Authorization header")
        if not root.is_dir():
            return self._refuse(404, "RepoNotFound", "Repository not found")
        commit = commit_of(root)
        if what == "refs":
            refs = {
                key: [{"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": commit}]
                for key, kind, name in (
                    ("branches", "heads", "main"),
                    ("tags", "tags", "v1"),
                )
            }
            return self._json({**refs, "converts": []})
        if revision not in ("main", "v1", commit):
            return self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        listed = [self._described(path, root) for path in _files(root)]
        if what.startswith("tree"):
            return self._json(
                [
                    {
                        "type": "file",
                        "path": f.pop("rfilename"),
                        "oid": f.pop("blobId"),
                        **f,
                    }
                    for f in listed
                ]
            )
        names = [
            {"rfilename": name, "size": 1, "blobId": "0" * 40}
            for name in faults.extra_names
        ]
        return self._json(
            {
                "id": f"{root.parent.name}/{root.name}",
                "sha": commit,
                "siblings": [*listed, *names],
                "gated": "manual" if self._is_gated(root) else False,
                "private": False,
                "tags": [],
            }
        )

    def _described(self, path: Path, root: Path) -> dict[str, Any]:
        length, sums = path.stat().st_size, checksums(path)
        name = path.relative_to(root).as_posix()
        sizes = self.server.faults.sizes
        size = sizes.get(f"{root.parent.name}/{root.name}/{name}", sizes.get(name, length))
        facts: dict[str, Any] = {"rfilename": name, "size": size, "blobId": sums.git_sha1}
        if length >= LFS_BYTES:
            facts["lfs"] = {"sha256": sums.sha256, "size": size, "pointerSize": 134}
        return facts

    def _resolve(self, root: Path, revision: str, name: str) -> None:
        faults = self.server.faults
        path = root / name
        if not root.is_dir():
            return self._refuse(404, "RepoNotFound", "Repository not found")
        given = self.headers.get("authorization", "")
        if self._is_gated(root) and given != f"Bearer {TOKEN}":
            return self._refuse(
                403 if given else 401, "GatedRepo", "Access to this model is restricted"
            )
        if faults.limited_files:
            faults.limited_files -= 1
            return self._refuse(
                429, "", "too many requests", {"Retry-After": str(faults.retry_after_s)}
            )
        if revision not in ("main", "v1", commit := commit_of(root)):
            return self._refuse(404, "RevisionNotFound", "Invalid rev id")
        if not path.is_file():
            return self._refuse(404, "EntryNotFound", "Entry not found")
        length, sums = path.stat().st_size, checksums(path)
        if length < LFS_BYTES:
            return self._send_file(
                path, {"ETag": f'"{sums.git_sha1}"', "X-Repo-Commit": commit}
            )
        self.send_response(302)
        self.send_header(
            "Location",
            f"http://localhost:{self.server.server_port}/storage/{path.relative_to(self.server.folder).as_posix()}",
        )
        self.send_header("X-Repo-Commit", commit)
        self.send_header("X-Linked-Etag", f'"{sums.sha256}"')
        self.send_header("X-Linked-Size", str(length))
        self.send_header("Content-Length", "0")
        self.end_headers()
        return None

    def _send_file(self, path: Path, headers: dict[str, str] | None = None) -> None:
        faults, name = self.server.faults, path.name
        data = path.read_bytes()
        size = len(data)
        span = re.fullmatch(r"bytes=(\d+)-", self.headers.get("range", ""))
        start = int(span[1]) if span else 0
        if start >= size > 0:
            return self._refuse(
                416, "", "range not satisfiable", {"Content-Range": f"bytes */{size}"}
            )
        if self.command == "GET" and faults.corrupt[name] > 0:
            faults.corrupt[name] -= 1
            data = data[:-1] + bytes([data[-1] ^ 1])
        self.send_response(206 if span else 200)
        self.send_header("Content-Length", str(size - start))
        self.send_header("Accept-Ranges", "bytes")
        if span:
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return None
        cuts = faults.cut.get(name)
        cut = cuts.pop(0) if cuts else None
        body = data[start : size if cut is None else start + cut]
        if name in faults.slow and not faults.go_on.is_set():
            self._send(name, body[: len(body) // 2])
            faults.go_on.wait(30)
            body = body[len(body) // 2 :]
        self._send(name, body)
        if cut is not None:  # a reset: what lies in buffers on the way is lost
            self.connection.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            self.connection.close()
            self.close_connection = True
        return None

    def _send(self, name: str, data: bytes) -> None:
        for at in range(0, len(data), 1 << 16):
            part = data[at : at + (1 << 16)]
            self.wfile.write(part)
            self.server.sent[name] += len(part)

    def _json(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(
        self, status: int, code: str, text: str, headers: dict[str, str] | None = None
    ) -> None:
        body = json.dumps({"error": text}).encode()
        self.send_response(status)
        for key, value in {
            "X-Error-Code": code,
            "X-Error-Message": text,
            **(headers or {}),
        }.items():
            if value:
                self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _files(root: Path) -> list[Path]:
    return [p for p in sorted(root.rglob("*")) if p.is_file()]


def commit_of(root: Path) -> str:
    named = "".join(
        f"{p.relative_to(root)} {p.stat().st_size} {checksums(p).git_sha1}\n"
        for p in _files(root)
    )
    return hashlib.sha1(named.encode()).hexdigest()


class FileChecksums(NamedTuple):
    git_sha1: str
    sha256: str


def checksums(path: Path) -> FileChecksums:
    stat = path.stat()
    return _checksums(path, stat.st_size, stat.st_mtime_ns, stat.st_ino)


@functools.lru_cache(maxsize=1000)
def _checksums(path: Path, *_: int) -> FileChecksums:
    """Read a file again only where it has changed: lists and files are asked for often."""
    data = path.read_bytes()
    return FileChecksums(git_sha1(data), hashlib.sha256(data).hexdigest())


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@contextmanager
def serving(folder: Path, port: int = 0) -> Iterator[HubServer]:
    server = HubServer(folder, port)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server
    finally:
        server.faults.go_on.set()
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Serve a folder of OWNER/NAME/files as the Hugging Face Hub does."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=8100)
    given = parser.parse_args()
    with serving(given.folder, given.port) as hub:
        print(f"HF_ENDPOINT={hub.url}", flush=True)
        threading.Event().wait()
