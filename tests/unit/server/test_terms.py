"""Whose a request is: the header that the server was told to read, and no other."""

from __future__ import annotations

import pytest

from octavo.config import ConfigError, ServerConfig, check_server
from octavo.server.errors import ApiError
from octavo.server.terms import tenant_of

NAMED = ServerConfig(tenant_header="X-Tenant")


def _of(config: ServerConfig, *headers: tuple[bytes, bytes]) -> str:
    return tenant_of({"headers": list(headers)}, config)


def test_the_header_names_the_tenant() -> None:
    assert _of(NAMED, (b"host", b"here"), (b"x-tenant", b" acme ")) == "acme"
    assert _of(NAMED, (b"host", b"here")) == ""


def test_without_the_flag_no_header_counts() -> None:
    assert _of(ServerConfig(), (b"x-tenant", b"acme")) == ""


@pytest.mark.parametrize("value", [b"", b"a b", b"\xff", b"x" * 129])
def test_names_that_cannot_be_told_apart_safely_are_refused(value: bytes) -> None:
    with pytest.raises(ApiError, match="X-Tenant"):
        _of(NAMED, (b"x-tenant", value))


def test_two_names_are_refused() -> None:
    with pytest.raises(ApiError, match="one name"):
        _of(NAMED, (b"x-tenant", b"a"), (b"x-tenant", b"b"))


def test_a_flag_that_is_no_header_is_refused() -> None:
    check_server(NAMED)
    with pytest.raises(ConfigError, match="--tenant-header"):
        check_server(ServerConfig(tenant_header="X Tenant:"))


@pytest.mark.parametrize("header", ["Authorization", "cookie", "HOST", "Content-Length"])
def test_headers_that_hold_secrets_or_say_something_else_name_no_tenant(header: str) -> None:
    with pytest.raises(ConfigError, match=r"--tenant-header .* X-Tenant would work"):
        check_server(ServerConfig(tenant_header=header))
