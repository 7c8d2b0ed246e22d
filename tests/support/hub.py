"""A small Hugging Face Hub: a real HTTP server that speaks what huggingface_hub asks of one.

`FakeHub` serves repositories from memory under /api/models and /ID/resolve, large files by a redirect to a second
server of another origin, as the real one does. It remembers what was asked, and can cut connections, refuse, or lie.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import octavo

INSTALLED = Path(octavo.__file__).parents[1]
"""Where the package under test lies: the source tree, or the environment it was installed into."""
FETCH = """
import sys
from octavo.models.locate import fetch_model
from octavo.models.spec import ModelError
for name in sys.argv[1:]:
    try:
        print(fetch_model(name, lambda what, fraction: None).path)
    except ModelError as error:
        print("refused:", error)
"""
OCTAVO = [sys.executable, "-m", "octavo.cli.main"]
PULL = [*OCTAVO, "pull"]
LARGE = 4096
"""Files from this size lie on the second server."""


@dataclass
class Repo:
    """One revision's content; `revisions` are its names."""

    files: dict[str, bytes]
    revisions: tuple[str, ...] = ("main",)
    token: str | None = None
    """Needed to read it."""
    gated: bool = False
    status: int | None = None
    """Answer everything about it with this."""
    wrong: dict[str, bytes] = field(default_factory=dict)
    """What is sent in place of a file's announced content."""

    @property
    def commit(self) -> str:
        parts = [f"{name}:{hashlib.sha1(content).hexdigest()}" for name, content in sorted(self.files.items())]
        return hashlib.sha1("".join(parts).encode()).hexdigest()


@dataclass(frozen=True)
class Asked:
    """One request."""

    server: str
    """"hub" or "files"."""
    method: str
    path: str
    token: str | None
    range: str | None


class FakeHub:
    """See the module."""

    def __init__(self) -> None:
        self.repos: dict[str, list[Repo]] = {}
        self.asked: list[Asked] = []
        self.cut_after: int | None = None
        """Break off the next answer with a large file's content after so many bytes."""
        self.ranges = True
        """Off: the whole file is sent whatever part was asked for."""
        self.stall = threading.Event()
        """While set, a large file's content stops half-way."""
        self.half_way = threading.Event()
        """Set once it has."""
        self.endpoint = ""
        self.files_endpoint = ""

    def add(self, name: str, files: dict[str, bytes], **options: object) -> Repo:
        repo = Repo(files, **options)  # type: ignore[arg-type]
        self.repos.setdefault(name, []).insert(0, repo)
        return repo

    def add_folder(self, name: str, folder: Path, **options: object) -> Repo:
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        return self.add(name, files, **options)

    def find(self, name: str, revision: str) -> Repo | None:
        for repo in self.repos.get(name, []):
            if revision == repo.commit or revision in repo.revisions:
                return repo
        return None

    def fetched(self) -> list[str]:
        """Names of files whose content was asked for, in order, without repetition."""
        paths = [asked.path.rsplit("/resolve/", 1)[-1] for asked in self.asked if asked.method == "GET"]
        names = [path.split("/", 1)[1] for path in paths if not path.startswith("/api/") and "/" in path]
        return list(dict.fromkeys(name for name in names if not name.startswith("blob/")))


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """Both servers, on free ports of the loopback."""
    hub = FakeHub()
    servers = []
    for kind in ("hub", "files"):
        handler = type("Handler", (_Handler,), {"hub": hub, "kind": kind})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        servers.append(server)
    hub.endpoint, hub.files_endpoint = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    try:
        yield hub
    finally:
        hub.stall.clear()
        for server in servers:
            server.shutdown()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    kind: str
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        token = (self.headers.get("authorization") or "").removeprefix("Bearer ") or None
        self.hub.asked.append(Asked(self.kind, self.command, path, token, self.headers.get("range")))
        if self.kind == "files":
            return self._send_blob(path)
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            return self._send_listing(match[1], match[2] or "main", token)
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/(refs/pr/\d+|[^/]+)/(.+)", path):
            return self._send_file(match[1], match[2], match[3], token)
        return self._send(404, b"")

    def _readable(self, name: str, revision: str, token: str | None) -> Repo | None:
        """The revision, or None after a refusal was sent."""
        if token == "bad":
            self._send(401, b"", {"X-Error-Message": "Invalid credentials in Authorization header"})
            return None
        repos = self.hub.repos.get(name)
        if repos is None or (repos[0].token not in (None, token) and not repos[0].gated):
            self._send(404 if token else 401, b"", {"X-Error-Code": "RepoNotFound"})
            return None
        if repos[0].status is not None:
            self._send(repos[0].status, b"")
            return None
        if repos[0].token not in (None, token):
            self._send(403 if token else 401, b"", {"X-Error-Code": "GatedRepo"})
            return None
        repo = self.hub.find(name, revision)
        if repo is None:
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        return repo

    def _send_listing(self, name: str, revision: str, token: str | None) -> None:
        repo = self._readable(name, revision, token)
        if repo is None:
            return
        siblings = []
        for path, content in repo.files.items():
            sibling = {"rfilename": path, "size": len(content), "blobId": hashlib.sha1(content).hexdigest()}
            if len(content) >= LARGE:
                digest = hashlib.sha256(content).hexdigest()
                sibling["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
            siblings.append(sibling)
        body = json.dumps({"id": name, "modelId": name, "sha": repo.commit, "siblings": siblings, "tags": []})
        self._send(200, body.encode(), {"Content-Type": "application/json"})

    def _send_file(self, name: str, revision: str, path: str, token: str | None) -> None:
        repo = self._readable(name, revision, token)
        if repo is None:
            return
        headers = {"X-Repo-Commit": repo.commit}
        if path not in repo.files:
            return self._send(404, b"", {**headers, "X-Error-Code": "EntryNotFound"})
        content = repo.files[path]
        if len(content) < LARGE:
            headers["ETag"] = f'"{hashlib.sha1(content).hexdigest()}"'
            return self._send(200, repo.wrong.get(path, content), headers)
        digest = hashlib.sha256(content).hexdigest()
        headers |= {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content)), "ETag": f'"{digest}"'}
        headers["Location"] = f"{self.hub.files_endpoint}/blob/{name}/{repo.commit}/{path}"
        return self._send(302, b"", headers)

    def _send_blob(self, path: str) -> None:
        match = re.fullmatch(r"/blob/([^/]+/[^/]+)/([0-9a-f]{40})/(.+)", path)
        repo = self.hub.find(match[1], match[2]) if match else None
        if repo is None:
            return self._send(404, b"")
        content = repo.wrong.get(match[3], repo.files[match[3]])
        begin = re.fullmatch(r"bytes=(\d+)-", self.headers.get("range") or "")
        if begin is None or not self.hub.ranges:
            return self._send(200, content, {"Accept-Ranges": "bytes" if self.hub.ranges else "none"})
        at = int(begin[1])
        if at >= len(content):
            return self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
        return self._send(206, content[at:], {"Content-Range": f"bytes {at}-{len(content) - 1}/{len(content)}"})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        try:
            self._send_body(body)
        except OSError:
            self.close_connection = True  # the client is gone

    def _send_body(self, body: bytes) -> None:
        if self.kind != "files":
            self.wfile.write(body)
            return
        if (cut := self.hub.cut_after) is not None:
            self.hub.cut_after = None
            self.wfile.write(body[:cut])
            self.close_connection = True
            return
        half = len(body) // 2
        self.wfile.write(body[:half])
        self.wfile.flush()
        if self.hub.stall.is_set():
            self.hub.half_way.set()
            while self.hub.stall.is_set():
                self.connection.settimeout(0.1)
                try:
                    if not self.connection.recv(1):
                        return
                except TimeoutError:
                    continue
        self.wfile.write(body[half:])


@dataclass(frozen=True)
class Machine:
    """One user's machine, and the Hub it reaches."""

    hub: FakeHub
    folder: Path

    def environment(self, **changes: str) -> dict[str, str]:
        own = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "XDG_", "TRANSFORMERS_"))}
        own |= {"HF_ENDPOINT": self.hub.endpoint, "HF_HOME": str(self.folder / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1"}
        return {**own, "OCTAVO_CACHE": str(self.folder / "cache"), "PYTHONPATH": str(INSTALLED), **changes}

    def octavo(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """The command."""
        environment = self.environment(**changes)
        return subprocess.run([*OCTAVO, *arguments], capture_output=True, text=True, timeout=60, env=environment)

    def pull(self, name: str, **changes: str) -> subprocess.CompletedProcess[str]:
        return self.octavo("pull", name, **changes)

    def fetch(self, *names: str, **changes: str) -> list[str]:
        """What the command does with each name, in one process: a path, or a refusal."""
        command = [sys.executable, "-c", FETCH, *names]
        environment = self.environment(**changes)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
        lines = done.stdout.splitlines()
        assert done.returncode == 0 and len(lines) == len(names), done.stderr
        return lines

    def refusal(self, name: str, **changes: str) -> str:
        (line,) = self.fetch(name, **changes)
        assert line.startswith("refused: "), line
        return line

    def snapshot(self, repo: str) -> Path:
        (folder,) = (self.folder / "hf" / "hub" / f"models--{repo.replace('/', '--')}" / "snapshots").iterdir()
        return folder

    def partials(self) -> list[Path]:
        return list(self.folder.rglob("*.incomplete"))
