"""The gate before every route: the name the server was called by, web pages of other origins, keys.

Life of a request here: `Host` is checked (a page that rebinds its own name to this machine must not reach it) -> a web
page's `Origin` is checked, and a preflight answered -> the key is found -> its `Client` goes on in the scope. Owns the
key rings and the clients; `reload` reads the files again, and keeps what it has where one of them is wrong.

Off switches: `--allowed-host '*'`, `--cors-origin '*'`, no `--api-keys`, no `--admin-key-file`.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Awaitable, Callable

from octavo.config import ServerConfig, is_loopback
from octavo.server.body import Message, Receive, Scope, Send
from octavo.server.errors import ApiError
from octavo.server.keys import LIMITS, KeyRing, read_admin_keys, read_api_keys
from octavo.server.quota import Client
from octavo.server.respond import Headers, request_id, send_error

logger = logging.getLogger(__name__)

Application = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS = ("/health", "/ready", "/openapi.json", "/docs")
"""Asked by balancers and tools, and telling nothing of anybody's work."""
ADMIN_PATHS = ("/admin", "/metrics")
_CLIENT = "octavo.client"
_ALLOWED = (
    (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
    (b"access-control-allow-headers", b"authorization, content-type, x-request-id"),
    (b"access-control-max-age", b"600"),
)
_EXPOSED = (b"access-control-expose-headers", b"x-request-id, retry-after")


def client_of(scope: Scope) -> Client:
    """Whose request this is."""
    found: Client = scope[_CLIENT]
    return found


class Access:
    """Keys and accounts."""

    def __init__(self, config: ServerConfig) -> None:
        """Raises ConfigError where a file is wrong."""
        self._config = config
        self._defaults = {limit: int(getattr(config, limit)) for limit in LIMITS}
        self._everybody = Client("", self._defaults)
        self._clients: dict[str, Client] = {}
        self._keys: KeyRing | None = None
        self._admin: KeyRing | None = None
        self.reload()

    def reload(self) -> None:
        """Reads the files; ConfigError leaves all as it was. Open answers of a key that is gone go on."""
        config = self._config
        keys = None if config.api_keys is None else read_api_keys(config.api_keys)
        admin = None if config.admin_key_file is None else read_admin_keys(config.admin_key_file)
        self._keys, self._admin = keys, admin
        clients = {}
        for key in keys.keys if keys is not None else ():
            client = self._clients.get(key.name) or Client(key.name, self._defaults)
            client.set_limits({**self._defaults, **key.limits})
            clients[key.name] = client
        self._clients = clients

    def count(self) -> int:
        """API keys."""
        return len(self._clients)

    def admit(self, path: str, presented: bytes | None) -> Client:
        """Whose request it is; ApiError 401 or 403 where it is nobody's who may ask for this path."""
        if any(path == admin or path.startswith(f"{admin}/") for admin in ADMIN_PATHS):
            self._check_admin(path, presented)
            return self._everybody
        if self._keys is None or path in OPEN_PATHS:
            return self._everybody
        found = None if presented is None else self._keys.find(presented)
        if found is None:
            raise _no_key("an API key", presented)
        return self._clients[found.name]

    def _check_admin(self, path: str, presented: bytes | None) -> None:
        if self._admin is None:
            if path == "/metrics":
                return
            raise ApiError("Paths below /admin are off; --admin-key-file turns them on.", status=403, code="admin_off")
        if presented is None or self._admin.find(presented) is None:
            raise _no_key("the admin key", presented)


def _no_key(what: str, presented: bytes | None) -> ApiError:
    problem = f"This needs {what}" if presented is None else f"This is not {what}"
    return ApiError(f"{problem}; send it in the header Authorization: Bearer KEY.", status=401, code="invalid_api_key")


class Gate:
    """The application behind its checks, as an application."""

    def __init__(
        self,
        application: Application,
        config: ServerConfig,
        access: Access,
        refused: Callable[[str, int], None],
    ) -> None:
        """refused: told "gate" and the status of what does not get through."""
        self._application = application
        self._refused = refused
        self._access = access
        self._origins = frozenset(origin.rstrip("/").lower() for origin in config.cors_origin)
        self._hosts = None if _any_host(config) else frozenset(map(str.lower, (*config.allowed_host, config.host)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        extra = [(b"x-request-id", request_id(scope))]
        try:
            headers = _single_headers(scope)
            self._check_host(headers.get(b"host"))
            shared = self._check_origin(headers)
            extra += shared
            if shared and scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
                await send({"type": "http.response.start", "status": 204, "headers": [*_ALLOWED, *extra]})
                await send({"type": "http.response.body", "body": b""})
                return
            scope[_CLIENT] = self._access.admit(scope["path"], _bearer(headers.get(b"authorization")))
        except ApiError as error:
            self._refused("gate", error.status)
            if error.status == 401:
                extra.append((b"www-authenticate", b"Bearer"))
            await send_error(send, error, extra)
            return
        await self._application(scope, receive, _with_headers(send, shared) if shared else send)

    def _check_host(self, host: bytes | None) -> None:
        if self._hosts is None or host is None:
            return
        name = _host_name(host)
        if name is None or not (_is_local_name(name) or name in self._hosts):
            raise ApiError(
                "This server is not called by that name; --allowed-host NAME adds one.", status=403, code="host"
            )

    def _check_origin(self, headers: dict[bytes, bytes]) -> Headers:
        """Headers that let the page read the answer; none where there is no page, or it is this server's own."""
        origin = headers.get(b"origin")
        if origin is None:
            return []
        named = origin.decode("latin-1").lower()
        if "*" in self._origins or named in self._origins:
            return [(b"access-control-allow-origin", origin), (b"vary", b"origin"), _EXPOSED]
        if named.partition("://")[2] == headers.get(b"host", b"").decode("latin-1").lower():
            return []
        raise ApiError(
            "Web pages of this origin may not call this server; --cors-origin ORIGIN lets them.",
            status=403,
            code="origin",
        )


def _any_host(config: ServerConfig) -> bool:
    """Names are checked where the server is for this machine alone, or where names are given."""
    return "*" in config.allowed_host or not (config.allowed_host or is_loopback(config.host))


def _host_name(host: bytes) -> str | None:
    """The name of NAME, NAME:PORT, [V6] or [V6]:PORT."""
    text = host.decode("latin-1").strip().lower()
    if text.startswith("["):
        name, bracket, rest = text[1:].partition("]")
        return name if bracket and (not rest or rest[0] == ":") else None
    name, _, _ = text.partition(":")
    return name.rstrip(".") or None


def _is_local_name(name: str) -> bool:
    """A name that no stranger's DNS can point here: an address, or one without a dot."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return "." not in name or name.endswith(".localhost")
    return True


_LOOKED_AT = (b"host", b"origin", b"authorization", b"access-control-request-method")


def _single_headers(scope: Scope) -> dict[bytes, bytes]:
    """The headers that are looked at here. Two of one name could be read differently by a proxy: ApiError."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in _LOOKED_AT and found.setdefault(name, value) != value:
            raise ApiError(f"The header {name.decode()} is there twice; send it once.", code="duplicate_header")
    return found


def _bearer(value: bytes | None) -> bytes | None:
    if value is None or value[:7].lower() != b"bearer ":
        return None
    return value[7:].strip() or None


def _with_headers(send: Send, extra: Headers) -> Send:
    async def sender(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await send(message)

    return sender
