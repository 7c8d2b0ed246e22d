"""What is known of a request before its body: whose it is, and when it came.

Where there are API keys the tenant is the key's name. Else it is named by the header that `--tenant-header` chooses; a
request without it belongs to the nameless tenant.
Fairness counts by it and cached prefixes are its own, so a proxy that sets the header must not let clients choose it.

Off: `server.tenant_header = None`: everybody is the nameless tenant.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from octavo.config import ServerConfig
from octavo.server.body import Scope
from octavo.server.errors import ApiError

_NAME = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass(frozen=True)
class Terms:
    """See the module."""

    tenant: str
    arrived: float
    """Unix time."""


def read_terms(scope: Scope, config: ServerConfig, owner: str = "") -> Terms:
    """From the request's headers; `owner` is its key's name."""
    return Terms(owner or tenant_of(scope, config), time.time())


def tenant_of(scope: Scope, config: ServerConfig) -> str:
    """The tenant's name; empty where there is none."""
    header = config.tenant_header
    if header is None:
        return ""
    wanted = header.lower().encode("ascii")
    values = [value for name, value in scope["headers"] if name == wanted]
    if not values:
        return ""
    name: str = values[0].decode("latin-1").strip()
    if len(values) > 1 or not _NAME.fullmatch(name):
        raise ApiError(f"The header {header} must hold one name of 1 to 128 printable characters without spaces.")
    return name
