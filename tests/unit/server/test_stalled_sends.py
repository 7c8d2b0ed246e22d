"""A send that never ends is ended; the engine's request with it."""

from __future__ import annotations

import asyncio

from octavo.server.answer import StalledSends


def test_a_send_over_the_limit_is_cancelled_and_a_quick_one_is_not() -> None:
    async def scenario() -> tuple[bool, bool]:
        stalled = StalledSends(seconds=0.1)
        janitor = asyncio.create_task(stalled.run())

        async def send(seconds: float) -> bool:
            task = asyncio.current_task()
            assert task is not None
            stalled.begin(task)
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                return stalled.was_ended(task)
            stalled.end(task)
            await asyncio.sleep(0.3)
            return False

        results = await asyncio.gather(send(60.0), send(0.01))
        janitor.cancel()
        return results[0], results[1]

    assert asyncio.run(asyncio.wait_for(scenario(), 20)) == (True, False)
