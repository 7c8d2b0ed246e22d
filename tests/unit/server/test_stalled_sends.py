"""A send that never ends is ended; the engine's request with it."""

from __future__ import annotations

import asyncio

from octavo.engine.streams import DeltaStream
from octavo.server.answer import StalledSends
from octavo.types import TokenDelta


def ended(limit: float, *cases: tuple[float, int]) -> list[bool]:
    """Which sends, of so many seconds and with so many tokens behind them, are ended."""

    async def scenario() -> list[bool]:
        stalled = StalledSends(seconds=limit, max_queued=8)
        janitor = asyncio.create_task(stalled.run())

        async def send(seconds: float, queued: int = 0) -> bool:
            task = asyncio.current_task()
            assert task is not None
            deltas = DeltaStream([1], lambda ids: None)
            for _ in range(queued):
                deltas.push(TokenDelta(1, [5]))
            stalled.begin(task, deltas)
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                return stalled.was_ended(task)
            stalled.end(task)
            await asyncio.sleep(0.3)
            return False

        results = await asyncio.gather(*(send(*case) for case in cases))
        janitor.cancel()
        return results

    return asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_send_over_the_limit_is_cancelled_and_a_quick_one_is_not() -> None:
    assert ended(0.1, (60.0, 0), (0.01, 0)) == [True, False]


def test_a_send_behind_which_too_many_tokens_wait_is_cancelled() -> None:
    assert ended(3.0, (60.0, 9), (1.5, 8)) == [True, False]
