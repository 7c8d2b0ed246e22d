"""`LLM`'s streams and its calls for event loops: equal to `generate`, and nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM
from octavo.llm_errors import LLMClosed, LLMError, LLMFailed, RequestFailed
from octavo.types import ErrorCode
from tests.support.server import wait_until
from tests.support.tiny import Tiny, write_hf
from tests.unit.test_llm import CHAT, SECONDS, idle, load

LETTERS: dict[str, Any] = {"ignore_eos": True, "allowed_token_ids": list(range(3, 97))}
"""Every token is text at once; a random model may well prefer what is none for hundreds of tokens."""
LONG: dict[str, Any] = {"max_tokens": 4000, **LETTERS}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(tmp_path_factory.mktemp("llm") / "tiny", Tiny(max_context=4096)).path


@pytest.fixture(scope="module")
def llm(model: Path) -> Iterator[LLM]:
    with load(model) as shared:
        yield shared


def left(llm: LLM) -> None:
    wait_until(lambda: idle(llm), "all requests left the engine", SECONDS)


def test_every_way_to_ask_gives_the_same_answer(llm: LLM) -> None:
    seed = random.SystemRandom().randrange(2**64)
    print("seed", seed)
    drawn = random.Random(seed)
    prompts = [[drawn.randrange(3, 250) for _ in range(drawn.randint(1, 60))] for _ in range(12)]
    sampling: dict[str, Any] = {"max_tokens": 24, "seed": seed, "logprobs": 2}
    expected = [llm.generate(prompt, **sampling) for prompt in prompts]

    async def ask() -> None:
        async def read(prompt: list[int]) -> Any:
            stream = llm.astream(prompt, **sampling)
            text = "".join([piece async for piece in stream])
            return text, stream.result

        many, *streamed = await asyncio.gather(llm.agenerate(prompts, **sampling), *map(read, prompts))
        for one, (text, result), again in zip(expected, streamed, many, strict=True):
            assert (one.text, one.tokens, one.logprobs) == (text, result.tokens, result.logprobs)
            assert (one.text, one.tokens, one.logprobs) == (again.text, again.tokens, again.logprobs)
        assert (await llm.agenerate(prompts[0], **sampling)).tokens == expected[0].tokens

    asyncio.run(ask())
    for prompt, one in zip(prompts, expected, strict=True):
        stream = llm.stream(prompt, **sampling)
        assert "".join(stream) == one.text
        assert (stream.result.tokens, stream.result.finish_reason) == (one.tokens, one.finish_reason)
    left(llm)


def test_chats_are_the_same_in_every_way(llm: LLM) -> None:
    sampling: dict[str, Any] = {"max_tokens": 8, "seed": 3}
    text = llm.chat(CHAT, **sampling).text

    async def ask() -> list[str]:
        pieces = [piece async for piece in llm.astream_chat(CHAT, **sampling)]
        return ["".join(pieces), (await llm.achat(CHAT, **sampling)).text]

    assert [*asyncio.run(ask()), "".join(llm.stream_chat(CHAT, **sampling))] == [text] * 3


def test_threads_and_loops_may_call_at_once(llm: LLM) -> None:
    prompts = [[token, token + 1, token + 2] for token in range(3, 35)]
    sampling: dict[str, Any] = {"max_tokens": 20, "seed": 5}
    expected = {prompt[0]: llm.generate(prompt, **sampling).tokens for prompt in prompts}
    found: dict[int, tuple[int, ...]] = {}

    def read(part: list[list[int]]) -> None:
        for prompt in part:
            with llm.stream(prompt, **sampling) as stream:
                list(stream)
                found[prompt[0]] = stream.result.tokens

    def loop(part: list[list[int]]) -> None:
        for prompt, one in zip(part, asyncio.run(llm.agenerate(part, **sampling)), strict=True):
            found[prompt[0]] = one.tokens

    ways = [read, loop, read, loop]
    threads = [threading.Thread(target=way, args=(prompts[i::4],)) for i, way in enumerate(ways)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert found == expected
    left(llm)


def test_a_cancelled_task_leaves_nothing(llm: LLM) -> None:
    async def cancel() -> None:
        started = asyncio.Event()

        async def read() -> None:
            async for _ in llm.astream([1, 2], **LONG):
                started.set()

        reader = asyncio.create_task(read())
        several = asyncio.create_task(llm.agenerate([[3], [4], [5]], **LONG))
        await started.wait()
        while len(llm._open) < 4:
            await asyncio.sleep(0)
        for task in (reader, several):
            task.cancel()
        assert [type(one) for one in await asyncio.gather(reader, several, return_exceptions=True)] == [
            asyncio.CancelledError
        ] * 2

    asyncio.run(cancel())
    left(llm)


@pytest.mark.parametrize("how", ["break", "aclose", "with", "loop", "drop"])
def test_a_stream_that_is_left_early_leaves_nothing(llm: LLM, how: str) -> None:
    kept = []

    async def leave() -> None:
        stream = llm.astream([1, 2], **LONG)
        if how == "with":
            async with stream:
                await anext(stream)
        else:
            async for _ in stream:
                break
        if how == "aclose":
            await stream.aclose()
            assert [piece async for piece in stream] == []
        if how == "loop":
            kept.append(stream)  # its loop is closed under it

    asyncio.run(leave())
    gc.collect()
    left(llm)
    if how != "drop":
        return
    plain = llm.stream([1, 2], **LONG)
    next(plain)
    del plain
    gc.collect()
    left(llm)


def test_what_waits_for_a_slow_reader_is_the_request_and_no_more(llm: LLM) -> None:
    async def read() -> None:
        stream = llm.astream([1, 2], max_tokens=300, **LETTERS)
        await anext(stream)
        mailbox: Any = stream._open.mailbox  # type: ignore[union-attr]
        wait_until(lambda: not llm._core.has_work and len(mailbox._deltas) > 100, "the engine went on", SECONDS)
        assert len(mailbox._deltas) <= 300
        assert len(mailbox._loop._ready) <= 2, "the loop is woken once, not for each token"
        async for _ in stream:
            pass
        assert len(stream.result.tokens) == 300

    asyncio.run(read())


def test_a_wrong_argument_is_told_at_the_first_step(llm: LLM) -> None:
    async def ask() -> None:
        with pytest.raises(ValueError, match="temperature"):
            await anext(llm.astream("a", temperature=7))
        with pytest.raises(ValueError, match="role"):
            await llm.achat([{"content": "x"}])
        with pytest.raises(TypeError, match="prompt"):
            await llm.agenerate(5)

    asyncio.run(ask())
    assert not llm._open


def test_a_result_is_there_at_the_end_alone(llm: LLM) -> None:
    stream = llm.stream([1, 2], max_tokens=60, **LETTERS)
    for ask in (lambda: stream.result, lambda: next(stream) and stream.result):
        with pytest.raises(ValueError, match="not been read"):
            ask()
    list(stream)
    assert len(stream.result.tokens) == 60
    assert next(stream, None) is None


def test_closing_ends_tasks_in_loops(model: Path) -> None:
    own = load(model)
    started = threading.Event()
    raised: list[BaseException] = []

    async def read() -> None:
        try:
            async for _ in own.astream([1, 2], **LONG):
                started.set()
        except LLMError as error:
            raised.append(error)
        with pytest.raises(LLMClosed):
            await own.agenerate([1])

    thread = threading.Thread(target=lambda: asyncio.run(read()))
    thread.start()
    assert started.wait(SECONDS)
    own.close()
    thread.join(SECONDS)
    assert [type(error) for error in raised] == [LLMClosed]


def test_a_failed_engine_fails_tasks_in_loops(model: Path) -> None:
    with load(model) as own:

        async def read() -> None:
            stream = own.astream([1, 2], **LONG)
            await anext(stream)

            def broken(plan: Any) -> Any:
                raise MemoryError("no pages left")

            own._executor.submit = broken  # type: ignore[method-assign]
            with pytest.raises(LLMFailed, match="no pages left"):
                async for _ in stream:
                    pass

        asyncio.run(read())


def test_a_request_that_the_queue_refuses_says_so_with_its_code(model: Path) -> None:
    with load(model, max_queue_requests=1, max_num_seqs=1) as own:
        first = own.stream([1], **LONG)
        next(first)
        second, third = own.stream([2], **LONG), own.stream([3], **LONG)
        thread = threading.Thread(target=lambda: next(second))
        thread.start()
        wait_until(lambda: own._core.stats().waiting == 1, "one request waits", SECONDS)
        with pytest.raises(RequestFailed) as raised:
            next(third)
        assert raised.value.code is ErrorCode.QUEUE_FULL
        first.close()
        thread.join(SECONDS)


def test_a_forked_process_is_told_that_it_has_no_engine(llm: LLM) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            llm.generate([1])
        except LLMError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        assert "belongs to process" in said.read()
    os.waitpid(child, 0)
