"""Settings of all tests: examples are drawn anew each run, a failing one prints how to draw it again, and a slow or
busy machine is no failure."""

from __future__ import annotations

import signal
import threading

from hypothesis import HealthCheck, settings

settings.register_profile(
    "octavo", deadline=None, print_blob=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("octavo")


def pytest_configure() -> None:
    """A shell that starts the tests in the background ignores SIGINT, and whatever they start would too."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
