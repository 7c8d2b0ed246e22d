"""What the server says on standard error: one line an event, with the time where that is no terminal.

Owns the handler of the loggers `octavo`, `uvicorn.error` (warnings and errors alone) and, with `--access-log`,
`uvicorn.access`. Also watches for the end of the file descriptors, of which the event loop tells nobody.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import sys

logger = logging.getLogger(__name__)


def configure(access_log: bool) -> None:
    """Called once, before the server starts."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s" if on_terminal() else "%(asctime)s %(levelname)s %(message)s"))
    levels = {"octavo": logging.INFO, "uvicorn.error": logging.WARNING}
    if access_log:
        levels["uvicorn.access"] = logging.INFO
    for name, level in levels.items():
        owner = logging.getLogger(name)
        owner.setLevel(level)
        owner.handlers = [handler]
        owner.propagate = False


def on_terminal() -> bool:
    """Somebody reads along."""
    return sys.stderr.isatty()


class DescriptorWatch:
    """Says once that no file descriptors are left, and again only after some were."""

    def __init__(self) -> None:
        self._exhausted = False

    def check(self) -> None:
        """Cheap enough for once a second."""
        try:
            os.close(os.dup(0))
        except OSError as error:
            exhausted = error.errno in (errno.EMFILE, errno.ENFILE)
        else:
            exhausted = False
        if exhausted and not self._exhausted:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            logger.error(
                "no file descriptors are left (the limit is %d): new connections are closed unanswered; "
                "raise it with ulimit -n before the start",
                limit,
            )
        self._exhausted = exhausted
