"""Who killed the engine: which requests a new engine gets, in which order, and which one is failed.

Owns what deaths say against each open request; decides, and does nothing itself. The rules:

- A crash (SIGSEGV, SIGABRT and the like, an exception in a step, a stuck step) counts against every request that was
  in the step. Running out of memory (which looks like SIGKILL, or is said to be it) counts against those alone that
  were in the step of such a death before too, at the same positions, with no token in between. SIGKILL from outside
  (oom.py tells) counts against nobody, ever.
- A new engine gets everyone against whom nothing counts at once. Of those with the most against them, half go along,
  on trial; the other half waits until those on trial have gone on for a while, or have left. A death counts against
  those on trial, so each one halves the circle.
- The last one of a circle is tried alone: the engine gets nobody else for that while. A request is failed once two
  engines have died with it alone.
- Who goes on for `PROBATION` tokens past its death is cleared; each time, the next probation is twice as long. A trial
  ends after some seconds too, so that nobody waits for one that is slow.

Life: `died` -> `arrange` for the new engine -> `progressed`, `left` and `expired` say who is sent next. No off switch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from octavo.engine.journal import Span
from octavo.engine.supervisor import Cause

PROBATION = 16
"""Tokens."""
MAX_ALONE = 2
"""Engines that may die with a request alone in them."""
TRIAL_SECONDS = 5.0
"""A trial takes twice the time to the last death, and so long in addition, at most."""


@dataclass(slots=True)
class _Suspect:
    """What counts against one request."""

    weight: int = 0
    """Deaths since it was cleared."""
    alone: int = 0
    """Of those, engines that had nobody else."""
    probation: int = PROBATION
    died_with: int = 0
    """Tokens it had at the last of them."""


class Suspects:
    """See the module. Requests are known by their ids."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._suspects: dict[int, _Suspect] = {}
        self._last: dict[int, tuple[int, Span]] = {}
        """In the step of the last death that was not from outside: tokens it had, and what it computed."""
        self._sent: dict[int, None] = {}
        """Open, and given to the engine of now."""
        self._held: dict[int, None] = {}
        """Open, and not given to it yet."""
        self._trial: set[int] = set()
        self._alone = False
        """The one on trial has the engine for itself."""
        self._first: int | None = None
        """The first request that the engine of now was given."""
        self._shared = False
        """It was given another one too."""
        self._began = 0.0
        self._life = 0.0
        """Seconds that the last engine to die lived with requests."""

    @property
    def narrowing(self) -> bool:
        """Something counts against someone."""
        return any(each.weight for each in self._suspects.values())

    # --- a death ------------------------------------------------------------------------------------

    def died(self, step: Mapping[int, Span] | None, tokens: Mapping[int, int], cause: Cause) -> list[int]:
        """The engine died. Returns the requests that are failed for it.

        step: who was in the running step; None: it is not known, or there was none. tokens: how many each open
        request has now.
        """
        failed = [] if cause is Cause.OUTSIDE else self._accuse(step, tokens, cause)
        self._life = self._clock() - self._began if self._began else 0.0
        self._sent.clear()
        self._held.clear()
        self._trial.clear()
        return failed

    def _accuse(self, step: Mapping[int, Span] | None, tokens: Mapping[int, int], cause: Cause) -> list[int]:
        """Counts a death against those whose fault it may be. Returns those who are convicted."""
        present = {id: Span(0, 0) for id in self._sent} if step is None else dict(step)
        present = {id: span for id, span in present.items() if id in tokens}
        certain = cause is Cause.CRASH
        counts = [id for id, span in present.items() if certain or self._repeats(id, span, tokens)]
        self._last = {id: (tokens[id], span) for id, span in present.items()}
        alone = self._first is not None and not self._shared
        failed = []
        for id in counts:
            suspect = self._suspects.setdefault(id, _Suspect())
            suspect.weight += 1
            suspect.died_with = tokens[id]
            suspect.alone += alone
            if suspect.alone >= MAX_ALONE:
                failed.append(id)
        return failed

    def _repeats(self, id: int, span: Span, tokens: Mapping[int, int]) -> bool:
        last = self._last.get(id)
        return last is not None and last[0] == tokens[id] and last[1].overlaps(span)

    # --- a new engine -------------------------------------------------------------------------------

    def arrange(self, tokens: Mapping[int, int]) -> list[int]:
        """A new engine is ready. tokens: how many each open request has, in the order of arrival.

        Returns whom it is given now; the others wait.
        """
        self._sent.clear()
        self._trial.clear()
        self._first, self._shared = None, False
        self._held = dict.fromkeys(tokens)
        self._began = self._clock()
        circle = self._circle()
        self._alone = 0 < len(circle) <= 2
        if self._alone:
            self._trial = {circle[0]}
            return self._send([circle[0]])
        return self._next()

    def admit(self, id: int) -> bool:
        """A request has arrived; whether it is given to the engine now."""
        if self._trial and self._alone:
            self._held[id] = None
            return False
        self._give(id)
        return True

    # --- while it runs ------------------------------------------------------------------------------

    def progressed(self, id: int, tokens: Mapping[int, int]) -> list[int]:
        """A request has more tokens now. Returns who is to be sent after that."""
        suspect = self._suspects.get(id)
        if suspect is None or not suspect.weight or tokens[id] - suspect.died_with < suspect.probation:
            return []
        suspect.weight = suspect.alone = 0
        suspect.probation *= 2
        return self._tried(id)

    def left(self, ids: Iterable[int]) -> list[int]:
        """Requests have ended. Returns who is to be sent after that."""
        send: list[int] = []
        for id in ids:
            self._suspects.pop(id, None)
            self._held.pop(id, None)
            self._sent.pop(id, None)
            send += self._tried(id)
        return send

    def expired(self) -> list[int]:
        """Looked at now and then: who is to be sent because a trial has taken too long."""
        if not self._trial or self._clock() - self._began < TRIAL_SECONDS + 2 * self._life:
            return []
        self._trial.clear()
        return self._next()

    def _tried(self, id: int) -> list[int]:
        if id not in self._trial:
            return []
        self._trial.discard(id)
        return [] if self._trial else self._next()

    def _next(self) -> list[int]:
        """Half of the circle goes on trial among the others, and the other half waits."""
        self._alone = False
        self._began = self._clock()
        circle = self._circle()
        waits = set(circle[(len(circle) + 1) // 2 :])
        self._trial = set(circle) - waits
        return self._send([id for id in self._held if id not in waits])

    def _circle(self) -> list[int]:
        """Of those who wait, the ones with the most against them."""
        weights = {id: self._suspects[id].weight for id in self._held if id in self._suspects}
        most = max(weights.values(), default=0)
        return [id for id, weight in weights.items() if weight == most] if most else []

    def _send(self, ids: Sequence[int]) -> list[int]:
        for id in ids:
            self._held.pop(id, None)
            self._give(id)
        return list(ids)

    def _give(self, id: int) -> None:
        self._sent[id] = None
        self._first = id if self._first is None else self._first
        self._shared = self._shared or self._first != id
