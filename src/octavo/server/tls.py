"""HTTPS: a certificate chain and its key from files, read at start and again at SIGHUP.

TLS 1.2 or newer with the library's own choice of ciphers. Connections that are open keep what they began with. Off
switch: no `--tls-cert`, and plain HTTP is spoken.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from octavo.config import ConfigError, ServerConfig


def make_context(config: ServerConfig) -> ssl.SSLContext | None:
    """The context of all connections; None where no certificate is named. ConfigError says which file is wrong."""
    if config.tls_cert is None and config.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load(context, config)
    return context


def load(context: ssl.SSLContext, config: ServerConfig) -> None:
    """Takes the files as they are now, for connections to come; a ConfigError leaves all as it was."""
    if config.tls_cert is None or config.tls_key is None:
        raise ConfigError("--tls-cert and --tls-key belong together; name both files")
    _check_private(config.tls_key)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(config.tls_cert, config.tls_key, password=_no_password)
        context.load_cert_chain(config.tls_cert, config.tls_key, password=_no_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"--tls-cert {config.tls_cert} and --tls-key {config.tls_key} cannot be used: {reason}; a PEM chain and "
            "its unencrypted PEM key would work"
        ) from error


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _check_private(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise ConfigError(f"--tls-key {path} cannot be read: {error.strerror or error}") from error
    if Path(path).is_file() and mode & 0o027:
        raise ConfigError(f"--tls-key {path} may be read by all or written by others; chmod 600 {path} would work")
