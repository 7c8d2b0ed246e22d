"""Who gives up its pages when a running request needs a block and there is none.

The victim's pages are released and everything it knows (prompt and output so far) is computed again later, from the
front of the queue; published blocks stay in the prefix cache until somebody needs them. The victim is the request
of the lowest priority, the youngest among those, which may be the needy one itself. Spared are requests that have
generated nothing since they came back, and those preempted as often as is allowed (see admission.py for why someone
else can then go). Nothing here can be switched off; a pool that holds every request never preempts.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.scheduler.admission import MAX_PREEMPTIONS
from octavo.scheduler.state import RequestState


def choose_victim(needy: RequestState, running: Sequence[RequestState]) -> RequestState | None:
    """The request that goes, or None: `needy` waits until another has generated something."""
    candidates: list[RequestState] = []
    recovering = False
    for request in running:
        if request.preemptions >= MAX_PREEMPTIONS:
            continue
        if request.preemptions and not request.progressed:
            recovering = True
        else:
            candidates.append(request)
    if recovering and (not candidates or candidates == [needy]):
        return None
    assert candidates, "requests preempted twice were admitted only where all of them fit to their end"
    return max(candidates, key=lambda request: (request.priority, request.order))
