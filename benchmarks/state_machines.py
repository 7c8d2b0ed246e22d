"""Long runs of the state machines of pool, cache, manager and engine core: 100 000 steps, no invariant broken."""

from __future__ import annotations

import time
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test

from tests.unit.kvcache.test_block_pool import PoolMachine
from tests.unit.kvcache.test_cache_machine import CacheMachine
from tests.unit.kvcache.test_manager import ManagerMachine, MixedMachine, TwoGroupsMachine, WindowMachine
from tests.unit.kvcache.test_pinned_machine import PinnedMachine, PinnedWindowMachine
from tests.unit.scheduler.test_scheduler_machine import CoreMachine

STEPS, SHORT_STEPS = 100_000, 1_000
MACHINES: tuple[type[RuleBasedStateMachine], ...] = (
    PoolMachine,
    CacheMachine,
    ManagerMachine,
    TwoGroupsMachine,
    WindowMachine,
    MixedMachine,
    PinnedMachine,
    PinnedWindowMachine,
    CoreMachine,
)
_LENGTH = 60


def _steps(machine: type[RuleBasedStateMachine], wanted: int) -> int:
    """Runs a machine until it has made so many steps; every one is followed by all its invariants."""
    count = 0

    class Counted(machine):  # type: ignore[misc, valid-type]
        @invariant()
        def counted(self) -> None:
            nonlocal count
            count += 1

    Counted.__name__ = machine.__name__
    while count < wanted:
        plan = settings(
            max_examples=max(1, min(200, (wanted - count) // (_LENGTH // 2) + 1)),
            stateful_step_count=_LENGTH,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        run_state_machine_as_test(Counted, settings=plan)  # type: ignore[no-untyped-call]
    return count


def state_machines(short: bool) -> dict[str, Any]:
    """An equal part of the steps for each machine; a broken invariant raises, with the shortest run that shows it."""
    wanted = -(-(SHORT_STEPS if short else STEPS) // len(MACHINES))
    began = time.monotonic()
    counts: dict[str, int] = {}
    failures: list[str] = []
    for machine in MACHINES:
        try:
            counts[machine.__name__] = _steps(machine, wanted)
        except BaseException as error:  # whatever it is, it is the finding
            if isinstance(error, KeyboardInterrupt):
                raise
            notes = "\n".join(getattr(error, "__notes__", ()))
            failures.append(f"{machine.__name__}: {type(error).__name__}: {error}\n{notes}")
    total = sum(counts.values())
    return {
        "bar": f"{SHORT_STEPS if short else STEPS} steps, no invariant broken",
        "figure": f"{total} steps of {len(counts)} machines in {time.monotonic() - began:.0f} s, "
        f"{len(failures)} failures",
        "met": not failures and total >= (SHORT_STEPS if short else STEPS),
        "details": {"steps": counts, "failures": failures},
    }
