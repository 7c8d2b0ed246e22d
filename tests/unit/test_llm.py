"""`LLM` in this process: what it refuses, and that no call waits for an engine that is gone."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from octavo import LLM
from octavo.config import EngineConfig, ExecutionConfig, KVConfig, ModelConfig, SchedulerConfig, ServerConfig
from octavo.llm import _Loading
from octavo.llm_errors import LLMClosed, LLMFailed
from octavo.server.errors import ApiError
from octavo.server.params import ModelLimits, prompt_telling, sampling_params
from octavo.server.protocol import CompletionBody, parse_completion
from tests.support.server import wait_until
from tests.support.tiny import BASE_VOCAB, Tiny, write_hf

SECONDS = 20.0
CHAT = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(tmp_path_factory.mktemp("llm") / "tiny", Tiny(max_context=4096)).path


def label(item: Any) -> str:
    """A short name of an example."""
    try:
        return str(item)[:20]
    except ValueError:
        return "huge"


def load(model: Path, pool: int = 8192, **scheduler: int) -> LLM:
    config = EngineConfig(
        model=ModelConfig(path=str(model), max_model_len=4096),
        kv=KVConfig(size_tokens=pool),
        execution=ExecutionConfig(threads=1),
        scheduler=SchedulerConfig(**scheduler),
        validate_kv=True,
    )
    return LLM(config=config)


@pytest.fixture(scope="module")
def llm(model: Path) -> Iterator[LLM]:
    with load(model) as shared:
        yield shared


def idle(llm: LLM) -> bool:
    return not llm._open and not llm._core.has_work and llm._inbox.empty()


WRONG: list[tuple[str, Any, type[Exception]]] = [
    ("stop_token_ids", 5, TypeError),
    ("stop_token_ids", "x", TypeError),
    ("stop_token_ids", [BASE_VOCAB], ValueError),
    ("stop_token_ids", [-1], ValueError),
    ("stop_token_ids", [1.0], TypeError),
    ("stop_token_ids", [True], TypeError),
    ("stop_token_ids", [1] * 65, ValueError),
    ("temperature", 1e308, ValueError),
    ("temperature", float("nan"), ValueError),
    ("temperature", "1", TypeError),
    ("temperature", True, TypeError),
    ("temperature", 10**400, ValueError),
    ("max_tokens", float("nan"), TypeError),
    ("max_tokens", 3.0, TypeError),
    ("max_tokens", True, TypeError),
    ("max_tokens", 0, ValueError),
    ("min_tokens", -1, ValueError),
    ("min_tokens", 17, ValueError),
    ("top_k", -2, ValueError),
    ("top_p", 1.1, ValueError),
    ("min_p", float("inf"), ValueError),
    ("presence_penalty", 2.5, ValueError),
    ("frequency_penalty", [], TypeError),
    ("repetition_penalty", 0, ValueError),
    ("logprobs", 21, ValueError),
    ("logprobs", True, TypeError),
    ("logprobs", 10**5000, ValueError),
    ("min_tokens", 10**5000, ValueError),
    ("seed", -1, ValueError),
    ("seed", 2**64, ValueError),
    ("seed", "1", TypeError),
    ("logit_bias", [1], TypeError),
    ("logit_bias", {BASE_VOCAB: 1.0}, ValueError),
    ("logit_bias", {"x": 1.0}, TypeError),
    ("logit_bias", {1: float("nan")}, ValueError),
    ("stop", 5, TypeError),
    ("stop", [5], TypeError),
    ("stop", "", ValueError),
    ("stop", "\ud800", ValueError),
    ("ignore_eos", "no", TypeError),
    ("skip_special_tokens", 1, TypeError),
]


@pytest.mark.parametrize(("name", "value", "error"), WRONG, ids=label)
def test_a_wrong_keyword_is_refused_by_name_and_harms_nobody(
    llm: LLM, name: str, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=name):
        llm.generate([1, 2, 3], **{name: value})
    with pytest.raises(error, match=name):
        llm.stream([1, 2, 3], **{name: value})
    assert len(llm.generate([1, 2, 3], max_tokens=2, ignore_eos=True).tokens) == 2


def test_an_unknown_keyword_is_refused_with_the_known_ones(llm: LLM) -> None:
    with pytest.raises(TypeError, match=r"temprature.*temperature"):
        llm.generate([1], temprature=1)


@pytest.mark.parametrize(
    "sampling",
    [
        {"top_k": -1},
        {"top_p": 0},
        {"stop_token_ids": None, "temperature": None, "stop": None, "logit_bias": None},
        {"seed": 2**64 - 1},
        {"max_tokens": 10**30},
        {"max_tokens": None},
        {"stop_token_ids": np.array([1, 2])},
        {"logit_bias": {np.int64(3): np.float32(-100)}, "temperature": np.float32(0.5), "max_tokens": np.int32(4)},
        {"ignore_eos": np.True_, "stop": ("a", "b"), "logprobs": 20},
    ],
    ids=str,
)
def test_values_at_the_bounds_and_of_numpy_are_taken(llm: LLM, sampling: dict[str, Any]) -> None:
    assert llm.generate([1, 2, 3], **{"stop_token_ids": list(range(64)), **sampling}).tokens


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 2.0),
        ("temperature", 2.5),
        ("top_k", -1),
        ("top_k", -2),
        ("top_p", 0),
        ("top_p", 1.5),
        ("min_tokens", 16),
        ("min_tokens", 17),
        ("max_tokens", 0),
        ("max_tokens", 2.0),
        ("stop_token_ids", [BASE_VOCAB - 1]),
        ("stop_token_ids", [BASE_VOCAB]),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 10.0),
        ("presence_penalty", -2.1),
        ("logprobs", 20),
        ("seed", 0),
        ("seed", True),
        ("ignore_eos", 1),
    ],
)
def test_the_server_and_the_llm_agree(llm: LLM, name: str, value: Any) -> None:
    def server_takes() -> bool:
        try:
            body = parse_completion(msgspec.json.encode({"prompt": [1], name: value}))
            assert isinstance(body, CompletionBody)
            prompt_telling(body, body.logprobs, ServerConfig())
            sampling_params(body, 1, body.logprobs, ModelLimits(BASE_VOCAB, 4096), ServerConfig())
        except ApiError:
            return False
        return True

    def llm_takes() -> bool:
        try:
            llm.stream([1], **{name: value})
        except (TypeError, ValueError):
            return False
        return True

    assert llm_takes() is server_takes()


@pytest.mark.parametrize(
    ("prompt", "error"),
    [
        ("", ValueError),
        ("\ud800", ValueError),
        ([[]], ValueError),
        ([1, BASE_VOCAB], ValueError),
        ([1, -1], ValueError),
        ([1, "a"], TypeError),
        ([1.0], TypeError),
        ([True], TypeError),
        ([[1], 2], TypeError),
        (5, TypeError),
        (None, TypeError),
        (b"abc", TypeError),
        ({"a": 1}, TypeError),
        (np.array([0.5]), TypeError),
        ([1] * 4096, ValueError),
    ],
    ids=label,
)
def test_a_wrong_prompt_is_one_sentence(llm: LLM, prompt: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        llm.generate(prompt)
    assert len(str(raised.value)) < 200
    assert "nanobind" not in str(raised.value)
    assert not llm._open


def test_arrays_are_prompts(llm: LLM) -> None:
    sampling: dict[str, Any] = {"temperature": 0, "max_tokens": 4}
    expected = llm.generate([1, 2, 3], **sampling).tokens
    assert llm.generate(np.array([1, 2, 3]), **sampling).tokens == expected
    assert llm.generate([np.int64(1), 2, np.uint8(3)], **sampling).tokens == expected
    assert [one.tokens for one in llm.generate(np.array([[1, 2, 3], [1, 2, 3]]), **sampling)] == [expected] * 2
    assert llm.generate([np.array([1, 2, 3]), "ab"], **sampling)[0].tokens == expected
    assert llm.generate([]) == []


@pytest.mark.parametrize(
    ("messages", "error", "says"),
    [
        ([], ValueError, "messages is empty"),
        ("hi", TypeError, "messages"),
        ([5], TypeError, "messages"),
        ([{"role": "wizard", "content": "x"}], ValueError, "user, assistant"),
        ([{"content": "x"}], ValueError, "role"),
        ([{"role": "user"}], ValueError, "content"),
        ([{1: 2}], TypeError, "the key 1"),
        ([{**CHAT[0], "tool_calls": [{"a": float("nan")}]}], ValueError, "finite"),
        ([{"role": "user", "content": 5}], ValueError, "content"),
        ([{"role": "user", "content": "\ud800"}], ValueError, "surrogate"),
        ([{"role": "user", "content": "a" * 9000}], ValueError, "tokens"),
    ],
    ids=label,
)
def test_a_wrong_conversation_is_one_sentence(llm: LLM, messages: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        llm.chat(messages)
    with pytest.raises(error, match=says):
        llm.stream_chat(messages)


def test_more_prompts_than_may_wait_are_all_answered(model: Path) -> None:
    with load(model, max_queue_requests=2, max_num_seqs=1) as own:
        assert len(own.generate([[token] for token in range(20)], max_tokens=2)) == 20


def test_a_stream_that_is_never_started_takes_nothing(llm: LLM) -> None:
    streams = [llm.stream_chat(CHAT), llm.stream("ab")]
    assert not llm._open
    assert isinstance("".join(streams[1]), str)


def test_a_stream_that_is_closed_leaves_nothing(llm: LLM) -> None:
    stream = llm.stream([1, 2], max_tokens=4000, ignore_eos=True)
    next(stream)
    stream.close()
    wait_until(lambda: idle(llm), "the request left the engine", SECONDS)


def test_a_bad_prompt_among_good_ones_leaves_nothing_running(llm: LLM) -> None:
    with pytest.raises(ValueError, match="prompt"):
        llm.generate([[1, 2], [1, 2], [BASE_VOCAB]], max_tokens=4000, ignore_eos=True)
    assert not llm._open


def test_a_failure_among_several_ends_the_others(model: Path) -> None:
    with load(model) as own:
        close_one = own._close_one
        calls: list[Any] = []

        def failing(answer: Any) -> Any:
            calls.append(answer)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return close_one(answer)

        own._close_one = failing  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            own.generate([[1], [2], [3]], max_tokens=500, ignore_eos=True)
        wait_until(lambda: idle(own), "the others left the engine", SECONDS)


def in_thread(call: Any) -> tuple[threading.Thread, list[BaseException]]:
    """Starts a call; what it raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, raised


def test_closing_ends_the_calls_of_other_threads(model: Path) -> None:
    own = load(model)
    sampling: dict[str, Any] = {"max_tokens": 4000, "ignore_eos": True}
    calls = [
        in_thread(lambda: own.generate([[1, 2], [3]], **sampling)),
        in_thread(lambda: own.chat(CHAT, **sampling)),
        in_thread(lambda: list(own.stream([4], **sampling))),
    ]
    stream, unstarted = own.stream([1, 2], **sampling), own.stream([1, 2])
    next(stream)
    wait_until(lambda: len(own._open) == 5, "all calls are open", SECONDS)
    own.close()
    own.close()
    for thread, raised in calls:
        thread.join(SECONDS)
        assert not thread.is_alive()
        assert [(type(error), str(error)) for error in raised] == [(LLMClosed, "this LLM is closed")]
    for iterator in (stream, unstarted):
        with pytest.raises(RuntimeError, match="this LLM is closed"):
            next(iterator)
    for call in (own.generate, own.stream):
        with pytest.raises(RuntimeError, match="this LLM is closed"):
            call([1])
    with pytest.raises(RuntimeError, match="this LLM is closed"):
        own.chat(CHAT)


def test_an_engine_that_fails_fails_every_call(model: Path) -> None:
    with load(model) as own:
        stream = own.stream([1, 2], max_tokens=4000, ignore_eos=True)
        next(stream)

        def broken(plan: Any) -> Any:
            raise MemoryError("no pages left")

        own._executor.submit = broken  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="no pages left"):
            list(stream)
        for _ in range(2):
            thread, raised = in_thread(lambda: own.generate([1, 2]))
            thread.join(SECONDS)
            assert [type(error) for error in raised] == [LLMFailed]
            assert isinstance(raised[0].__cause__, MemoryError)
            assert "make a new LLM" in str(raised[0])


@pytest.mark.parametrize(("model", "config"), [(5, None), (None, "x")])
def test_a_wrong_constructor_argument_is_one_sentence(model: Any, config: Any) -> None:
    with pytest.raises(TypeError, match="would work"):
        LLM(model, config=config)


def test_loading_shows_on_a_terminal_alone() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        loading = _Loading(stream)
        loading("packing the weights", 0.5)
        loading.clear()
    assert "packing the weights 50%" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert not file.getvalue()


def test_salts_keep_prompts_apart(llm: LLM) -> None:
    prompt = [(19 * i) % 250 + 3 for i in range(70)]

    def cached(**salt: str) -> int:
        found: int = llm.generate(prompt, max_tokens=1, **salt).cached_tokens
        return found

    assert [cached(), cached(), cached(cache_salt="a"), cached(cache_salt="a"), cached(cache_salt="b")] == [
        *(0, 64),
        *(0, 64),
        0,
    ]
    assert cached(cache_salt="") == 64, "an empty salt is none"


@pytest.mark.parametrize(("salt", "error"), [(5, TypeError), ("s" * 257, ValueError), ("\ud800", ValueError)])
def test_a_salt_that_is_no_short_text_is_refused(llm: LLM, salt: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="cache_salt"):
        llm.generate([5, 6], max_tokens=1, cache_salt=salt)
