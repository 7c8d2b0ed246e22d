"""The measuring client goes first where the system allows it: a stamp taken late because something else had the core
says nothing of the server.

Raised for the calling thread while the block runs, and said in the report; where it is not permitted (Linux grants it
to root and CAP_SYS_NICE) the client measures as it is. Off switch: run without that permission.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_NICE = -10


@contextmanager
def first_in_line() -> Iterator[str]:
    """Yields one line about it. Processes that are to run as usual are started before."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    if before <= _NICE:
        yield f"the client runs at nice {before}"
        return
    try:
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    except PermissionError:
        yield f"the client runs at nice {before}: it may wait for other processes, since it may not raise its priority"
        return
    try:
        yield f"the client runs at nice {_NICE}, before other processes"
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)
