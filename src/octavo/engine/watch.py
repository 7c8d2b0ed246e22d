"""Whether an engine is stuck: the parent's judgement of the journal's heartbeat.

Owns the time that one beat has lasted. A step may take `FACTOR` times what steps of its size take, and at least the
configured seconds; while nothing is known of steps yet, `COLD` times those. Loading may take as long as it likes, but
no more than `LOADING` times the seconds without a word of progress. Everything else that an engine does is measured by
the seconds alone. Time in which the parent itself did not run (a suspended machine, a stopped process group) does not
count. Off switch: `--stuck-seconds 0`.
"""

from __future__ import annotations

from octavo.engine.journal import Phase, Reading

FACTOR = 20.0
COLD = 10.0
LOADING = 90.0
"""Half an hour by default: the longest silence is that in which a large model's packed weights go to a slow disk."""
TICK_SECONDS = 0.25
"""How often the parent looks."""
_LATE = 0.5
"""Part of its time after which an engine counts as not well."""


class Watch:
    """One life of an engine; `look` is called about every `TICK_SECONDS`."""

    def __init__(self, seconds: float) -> None:
        """seconds: the configured floor; 0 is off."""
        self._seconds = seconds
        self._beat = -1
        self._looked = 0.0
        self._waited = 0.0
        self._limit = 0.0

    def look(self, now: float, reading: Reading | None) -> None:
        """Takes one reading; None is one that was not whole."""
        passed, self._looked = min(now - self._looked, 2 * TICK_SECONDS), now
        if reading is not None and reading.beat != self._beat:
            self._beat, self._waited, self._limit = reading.beat, 0.0, self._limit_of(reading)
        else:
            self._waited += passed

    @property
    def stuck(self) -> bool:
        """Nothing moves any more."""
        return 0 < self._limit < self._waited

    @property
    def late(self) -> bool:
        """It takes longer than it should; it may yet go on."""
        return 0 < self._limit * _LATE < self._waited

    @property
    def waited(self) -> float:
        """Seconds since the last beat."""
        return self._waited

    def _limit_of(self, reading: Reading) -> float:
        if reading.phase is Phase.LOADING:
            return self._seconds * LOADING
        if reading.phase is not Phase.STEP:
            return self._seconds
        if not reading.expected:
            return self._seconds * COLD
        return max(self._seconds, reading.expected * FACTOR) if self._seconds else 0.0
