"""HTTPS: a certificate by flag, read again at SIGHUP; what cannot be a certificate is refused before the start."""

from __future__ import annotations

import shutil
import signal
import socket
import ssl
from pathlib import Path

import httpx
import pytest

from octavo.config import ConfigError, ServerConfig
from octavo.server.tls import make_context
from tests.support.serve import Serve
from tests.support.server import echo_config, events, serving, wait_until

CERTIFICATES = Path(__file__).parents[1] / "support" / "certificates"


def put(name: str, folder: Path) -> ServerConfig:
    """Copies a certificate to where the server looks for it."""
    for suffix in ("pem", "key"):
        target = folder / f"server.{suffix}"
        shutil.copy(CERTIFICATES / f"{name}.{suffix}", target)
        target.chmod(0o600)
    return ServerConfig(port=0, tls_cert=str(folder / "server.pem"), tls_key=str(folder / "server.key"))


def trusting(name: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(CERTIFICATES / f"{name}.pem"))


def test_https_is_spoken_and_the_certificate_can_be_changed_while_it_serves(tiny_path: Path, tmp_path: Path) -> None:
    what = echo_config(tiny_path)
    config = put("first", tmp_path)
    with serving(Serve(what.engine, config, what.module)) as server:
        assert server.url.startswith("https://")
        body = {"prompt": "abc", "max_tokens": 3, "stream": True}
        with httpx.Client(base_url=server.url, verify=trusting("first")) as client:
            with client.stream("POST", "/v1/completions", json=body) as response:
                assert "".join(event["choices"][0]["text"] for event in events(response.iter_lines())) == "abc"
            put("second", tmp_path)
            server.process.send_signal(signal.SIGHUP)
            wait_until(lambda: any("Read again: the certificate" in line for line in server.lines), "it is read")
            assert client.get("/health").status_code == 200  # its connection goes on
        assert httpx.get(f"{server.url}/health", verify=trusting("second")).status_code == 200
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/health", verify=trusting("first"))
        (tmp_path / "server.pem").write_text("nothing")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: any("the certificate stay as they were" in line for line in server.lines), "it is refused")
        assert httpx.get(f"{server.url}/health", verify=trusting("second")).status_code == 200
        port = int(server.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
            assert not plain.recv(100).startswith(b"HTTP/1.1 200")


def test_files_that_are_no_certificate_are_refused_with_their_flags(tmp_path: Path) -> None:
    config = put("first", tmp_path)
    context = make_context(config)
    assert context is not None and context.minimum_version == ssl.TLSVersion.TLSv1_2
    Path(config.tls_key or "").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        make_context(config)
    put("first", tmp_path)
    Path(config.tls_key or "").write_bytes((CERTIFICATES / "second.key").read_bytes())
    with pytest.raises(ConfigError, match=r"--tls-cert .* cannot be used"):
        make_context(config)
