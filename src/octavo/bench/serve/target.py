"""Where a server is: what its URL says, read once. http and https, names, IPv4 and [IPv6], with or without /v1."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Target:
    """An address, and the headers that every request there carries."""

    host: str
    port: int
    base: str = ""
    """Path in front of /v1."""
    tls: ssl.SSLContext | None = None
    api_key: str | None = None

    @property
    def authority(self) -> str:
        """Host and port as a header has them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.base}"

    def head(self, method: str, path: str, reuse: bool) -> bytes:
        """Request line and headers, but for those of the body."""
        lines = [
            f"{method} {self.base}{path} HTTP/1.1",
            f"Host: {self.authority}",
            f"Connection: {'keep-alive' if reuse else 'close'}",
            "Accept: */*",
        ]
        if self.api_key is not None:
            lines.append(f"Authorization: Bearer {self.api_key}")
        return "\r\n".join(lines).encode("latin-1") + b"\r\n"


def parse_target(
    url: str, api_key: str | None = None, ca_file: str | None = None, check_certificate: bool = True
) -> Target:
    """Raises ValueError with one sentence where the URL cannot be used."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"URL {url!r} has the scheme {parts.scheme!r}; http:// and https:// work")
    try:
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"URL {url!r}: {error}; http://127.0.0.1:8000 would work") from error
    if not host or parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"URL {url!r} must be a scheme, a host and a port; http://127.0.0.1:8000 would work")
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise ValueError("--api-key holds characters that no header may carry; printable ASCII works")
    tls = None
    if parts.scheme == "https":
        tls = ssl.create_default_context(cafile=ca_file)
        if not check_certificate:
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
    elif ca_file is not None or not check_certificate:
        raise ValueError(f"--ca-file and --no-check-certificate need an https:// URL; {url!r} is not one")
    base = parts.path.rstrip("/").removesuffix("/v1")
    return Target(host, port or (443 if tls else 80), base, tls, api_key)
