"""Behind nginx, with the configuration of docs/deployment.md: streams pass at once, TLS on both sides, keys and
certificate are changed under load, clients that leave end their requests.

Skipped where nginx or openssl is not installed.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.serving import ServerProcess
from benchmarks.skip import Skipped
from benchmarks.soak import CHAT, fixed_requests
from octavo.bench.serve.answer import Answer
from octavo.bench.serve.client import fetch, stream_once
from octavo.bench.serve.target import Target

DOCUMENT = Path(__file__).parents[1] / "docs" / "deployment.md"
PUBLIC = "the.public.name"
FIRST, SECOND = "first-key-of-some-length", "second-key-of-some-length"


def nginx(short: bool) -> dict[str, Any]:
    """Streams through nginx to Octavo over TLS, equal to direct ones; keys and certificate change meanwhile."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin")
    if program is None or shutil.which("openssl") is None:
        raise Skipped("nginx and openssl are needed: apt-get install nginx-light openssl would bring them")
    chats = [body for body in fixed_requests(100) if "stop" not in body][: 4 if short else 16]
    bodies = [{**body, "max_tokens": 32 if short else 160, "ignore_eos": True} for body in chats]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o700)
        make_authority(folder)
        for owner in ("octavo", "public"):
            make_certificate(folder, owner)
        write_keys(folder, FIRST)
        flags = ["--api-keys", str(folder / "keys"), "--allowed-host", PUBLIC]
        flags += ["--tls-cert", str(folder / "octavo.pem"), "--tls-key", str(folder / "octavo.key")]
        trust = ssl.create_default_context(cafile=str(folder / "octavo-ca.pem"))
        with ServerProcess(flags, tls=trust, api_key=FIRST) as server, running(program, folder, server.port) as port:
            public = ssl.create_default_context(cafile=str(folder / "octavo-ca.pem"))
            proxy = Target("localhost", port, tls=public, api_key=FIRST)
            found = asyncio.run(_compare(server, proxy, bodies, folder))
    faults = found.pop("faults")
    return {
        "bar": "streams pass at once and equal direct ones; keys and certificate change under load; aborts arrive",
        "figure": f"{found['streams']} streams through nginx, {found['different']} different, events of a stream in "
        f"{found['spread']:.0%} of their time; {'; '.join(faults) or 'no fault'}",
        "met": not faults and not found["different"],
        "details": {**found, "faults": faults},
    }


async def _compare(server: ServerProcess, proxy: Target, bodies: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    faults: list[str] = []
    direct = [await stream_once(server.target, CHAT, body) for body in bodies]
    load = asyncio.gather(*(stream_once(proxy, CHAT, body) for body in bodies))
    await _until(server, lambda values: values["octavo_requests_running"] >= len(bodies) / 2)
    write_keys(folder, SECOND)
    make_certificate(folder, "octavo")
    os.kill(server.process.pid, signal.SIGHUP)
    await _logged(server, "Read again: the certificate", faults)
    if (status := await _status(proxy)) != 401:
        faults.append(f"the key that is gone got {status}")
    if (status := await _status(replace(proxy, api_key=SECOND))) != 200:
        faults.append(f"the new key got {status}")
    answers = await load
    different = [
        f"{answer.text[:60]!r} {answer.failure} {answer.detail}"
        for answer, alone in zip(answers, direct, strict=True)
        if (answer.text, answer.finish, answer.done) != (alone.text, alone.finish, True)
    ]
    gone = await stream_once(replace(proxy, api_key=SECOND), CHAT, {**bodies[0], "max_tokens": 4000}, cut_after=3)
    if not gone.cut:
        faults.append(f"a stream to cut off failed: {gone.failure} {gone.detail}")
    if not await _until(server, lambda values: values["octavo_requests_running"] == 0):
        faults.append("a request goes on whose client has left")
    spread = min(map(_spread, answers))
    if spread < 0.5:
        faults.append("nginx holds events back")
    return {"streams": len(answers), "different": len(different), "spread": spread, "faults": faults + different[:3]}


def _spread(answer: Answer) -> float:
    """Which part of the arrivals lie apart from each other: 1 where each event came alone."""
    apart = sum(b - a > 1e-4 for a, b in zip(answer.times, answer.times[1:], strict=False))
    return apart / max(1, len(answer.times) - 1)


async def _status(target: Target) -> int:
    return (await fetch(target, "GET", "/v1/models"))[0]


async def _until(server: ServerProcess, condition: Any, seconds: float = 20.0) -> bool:
    from benchmarks.serving import parse_metrics

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        _, body = await fetch(server.target, "GET", "/metrics")
        if condition(parse_metrics(body.decode())):
            return True
        await asyncio.sleep(0.05)
    return False


async def _logged(server: ServerProcess, words: str, faults: list[str]) -> None:
    end = time.monotonic() + 20.0
    while not any(words in line for line in server.lines):
        if time.monotonic() > end:
            faults.append(f"the log does not say {words!r}")
            return
        await asyncio.sleep(0.02)


# --- files ----------------------------------------------------------------------------------------------


def make_authority(folder: Path) -> None:
    """Who signs the certificates."""
    _openssl(folder, "octavo-ca", ["-subj", "/CN=octavo bars"])


def make_certificate(folder: Path, name: str) -> None:
    """A new certificate of localhost and the public name."""
    names = f"subjectAltName=DNS:localhost,IP:127.0.0.1,DNS:{PUBLIC}"
    signed = [
        "-CA",
        f"{folder}/octavo-ca.pem",
        "-CAkey",
        f"{folder}/octavo-ca.key",
        "-addext",
        "basicConstraints=CA:FALSE",
    ]
    _openssl(folder, name, ["-subj", "/CN=octavo", "-addext", names, *signed])


def _openssl(folder: Path, name: str, more: list[str]) -> None:
    """A key and its certificate, in place of those that are there: the key first, as the server reads them together."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", f"{folder}/{name}.key.part", "-out", f"{folder}/{name}.pem.part", "-days", "2", *more]
    subprocess.run(command, check=True, capture_output=True)
    for suffix in ("key", "pem"):
        os.replace(f"{folder}/{name}.{suffix}.part", f"{folder}/{name}.{suffix}")


def write_keys(folder: Path, key: str) -> None:
    part = folder / "keys.part"
    part.write_text(f'[user]\nkey = "{key}"\n')
    part.chmod(0o600)
    part.replace(folder / "keys")


def configuration(folder: Path, listen: int, upstream: int) -> str:
    """That of the document, with these ports and files."""
    found = re.search(r"```nginx\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert found is not None, f"{DOCUMENT} shows no configuration"
    text = found.group(1).replace("127.0.0.1:8000", f"127.0.0.1:{upstream}")
    text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{listen} ssl").replace("/etc/nginx/", f"{folder}/")
    text = text.replace("Host $host", f"Host {PUBLIC}")
    assert "octavo-ca.pem" in text and PUBLIC in text
    temporary = "\n".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;\n" if os.geteuid() == 0 else ""
    return (
        f"{user}pid {folder}/pid;\nerror_log {folder}/error.log warn;\nworker_processes 1;\n"
        f"events {{ worker_connections 256; }}\nhttp {{\naccess_log off;\n{temporary}\n{text}\n}}\n"
    )


@contextmanager
def running(program: str, folder: Path, upstream: int) -> Iterator[int]:
    """nginx in front of a port; the port it listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    path = folder / "nginx.conf"
    path.write_text(configuration(folder, port, upstream))
    process = subprocess.Popen([program, "-c", str(path), "-p", str(folder), "-g", "daemon off;"])
    try:
        end = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                log = folder / "error.log"
                said = log.read_text() if log.exists() else ""
                assert process.poll() is None and time.monotonic() < end, f"nginx did not start: {said}"
                time.sleep(0.02)
        yield port
    finally:
        process.terminate()
        process.wait(20)
