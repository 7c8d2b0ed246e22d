"""`LLM`: the engine in the caller's own process, for scripts and notebooks.

Owns an executor, an `EngineCore` and one thread that steps it. Life: the constructor loads the model and starts the
thread; calls are checked by their own thread (llm_inputs.py), put requests in and read their deltas from a queue each;
`close()` (or leaving the `with` block) ends what is open, ends the thread and frees the memory. Nothing is forked and
nothing listens. When the engine fails or is closed, every open call raises, and every later one too (llm_errors.py).
Any thread and any event loop may call at any time, `close` included; a stream belongs to one of them at a time. A
process that was forked from this one has no engine, and is told so. A crash of native code ends the whole process:
`octavo serve` and `octavo run` have the engine in one of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TextIO

from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.llm_answers import (
    Answer,
    AsyncTextStream,
    Completion,
    LoopMailbox,
    Mailbox,
    TextStream,
    ThreadMailbox,
)
from octavo.llm_errors import LLMClosed, LLMError, LLMFailed
from octavo.llm_inputs import Asked, Inputs
from octavo.llm_structure import form_of
from octavo.server.choice import Choice
from octavo.server.params import ModelLimits
from octavo.types import Abort, ClientMessage, NewRequest, TokenDelta

REFUSALS = (ValueError, RuntimeError)
"""What a call raises where it cannot be answered; the message is one sentence."""

Message = dict[str, Any]
Prompt = str | Sequence[int]
_CLOSED = "this LLM is closed"


class LLM:
    """A model to call, from any number of threads.

    `model` is a .gguf file, a directory with safetensors, or a model of the Hugging Face Hub (`ORG/NAME[@REVISION]`,
    `hf:ORG/NAME:FILE.gguf`), fetched on first use; None is the default model.
    `config` sets everything else; see octavo.config. Raises ModelError or ConfigError with one sentence.
    """

    def __init__(self, model: str | os.PathLike[str] | None = None, *, config: EngineConfig | None = None) -> None:
        from octavo.execution.factory import build_executor
        from octavo.kvcache.tiers.disk import open_tier
        from octavo.models.tokenizer import load_tokenizer
        from octavo.server.text import load_text

        config = _with_path(model, config)
        self._text = load_text(load_tokenizer(config.model.path), config.model.chat_template)
        loading = _Loading(sys.stderr)
        try:
            self._executor = build_executor(config, loading)
            try:
                tier = open_tier(self._executor.config.kv, self._executor.info, self._executor.pages)
            except BaseException:
                self._executor.close()
                raise
            structures = self._executor.structures
            self._core = EngineCore(self._executor.config, self._executor, tier=tier, structures=structures)
        except BaseException:
            self._text.close()
            raise
        finally:
            loading.clear()
        self.info = self._executor.info
        self.report: tuple[str, ...] = self._executor.report
        self.max_model_len = self._core.ready().max_model_len
        self._inputs = Inputs(self._text, ModelLimits(self.info.num_tokens, self.max_model_len, self.info.sampling))
        self._ids = itertools.count(1)
        self._inbox: queue.SimpleQueue[ClientMessage | None] = queue.SimpleQueue()
        # Reentrant, for an iterator may be collected, and so ended, while its own thread holds the lock.
        self._lock = threading.RLock()
        self._open: dict[int, Mailbox] = {}
        self._failure: BaseException | None = None
        self._closed = False
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="octavo-engine", daemon=True)
        self._thread.start()

    # --- calls ---------------------------------------------------------------------------------

    def generate(
        self, prompts: Prompt | Sequence[Prompt], *, response_model: Any = None, schema: Any = None, **sampling: Any
    ) -> Any:
        """Continues one prompt (text or token ids) or several at once: a Completion, or a list of them.

        Keywords: max_tokens (16; None: the rest of the context; 0: only with prompt_logprobs), temperature (1), top_k,
        top_p, min_p, seed, stop (text), stop_token_ids, min_tokens, ignore_eos, logprobs, prompt_logprobs, logit_bias
        (a dict), bad_words (texts), allowed_token_ids, include_stop_str_in_output, skip_special_tokens, cache_salt,
        and the three penalties. None is the default: what the model suggests (`info.sampling`), else as above.

        response_model (a pydantic class) or schema (a JSON schema) says what the answer's text must be; `parsed` of
        the Completion then is what it says. docs/offline.md lists what may be raised.
        """
        batch, many = self._ask_prompts(prompts, (response_model, schema), sampling)
        done = self._collect_all(batch)
        return done if many else done[0]

    def chat(
        self, messages: Sequence[Message], *, response_model: Any = None, schema: Any = None, **sampling: Any
    ) -> Completion:
        """Answers a conversation; max_tokens is the rest of the context unless given. Keywords: as of `generate`."""
        return self._collect_all([self._ask_chat(messages, (response_model, schema), sampling)])[0]

    def stream(self, prompt: Prompt, *, response_model: Any = None, schema: Any = None, **sampling: Any) -> TextStream:
        """The continuation's text in pieces."""
        asked = self._ask_prompt(prompt, (response_model, schema), sampling)
        return TextStream(lambda: self._submit(asked))

    def stream_chat(
        self, messages: Sequence[Message], *, response_model: Any = None, schema: Any = None, **sampling: Any
    ) -> TextStream:
        """The answer's text in pieces; closing the stream stops the generation, the first `next` starts it."""
        asked = self._ask_chat(messages, (response_model, schema), sampling)
        return TextStream(lambda: self._submit(asked))

    async def agenerate(
        self, prompts: Prompt | Sequence[Prompt], *, response_model: Any = None, schema: Any = None, **sampling: Any
    ) -> Any:
        """`generate` for event loops: nothing blocks the loop, and cancelling ends all that is open."""
        batch, many = await asyncio.to_thread(self._ask_prompts, prompts, (response_model, schema), sampling)
        done = await self._collect_all_async(batch)
        return done if many else done[0]

    async def achat(
        self, messages: Sequence[Message], *, response_model: Any = None, schema: Any = None, **sampling: Any
    ) -> Completion:
        """`chat` for event loops."""
        asked = await asyncio.to_thread(self._ask_chat, messages, (response_model, schema), sampling)
        return (await self._collect_all_async([asked]))[0]

    def astream(
        self, prompt: Prompt, *, response_model: Any = None, schema: Any = None, **sampling: Any
    ) -> AsyncTextStream:
        """`stream` for event loops. The first step checks the arguments, and raises where they cannot work."""
        return self._stream_async(self._ask_prompt, prompt, (response_model, schema), sampling)

    def astream_chat(
        self, messages: Sequence[Message], *, response_model: Any = None, schema: Any = None, **sampling: Any
    ) -> AsyncTextStream:
        """`stream_chat` for event loops."""
        return self._stream_async(self._ask_chat, messages, (response_model, schema), sampling)

    def close(self) -> None:
        """Ends what is open, in whatever thread, and frees everything; harmless when called twice."""
        with self._lock:
            if self._closed or os.getpid() != self._pid:
                return
            self._closed = True
            self._end_all()
        self._inbox.put(None)
        self._thread.join()
        self._core.close(keep=self._failure is None)
        self._executor.close()
        self._text.close()

    def __enter__(self) -> LLM:  # noqa: PYI034
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- what is asked -------------------------------------------------------------------------

    def _ask_prompts(self, prompts: Any, forms: tuple[Any, Any], sampling: dict[str, Any]) -> tuple[list[Asked], bool]:
        self._check_usable()
        form = form_of(*forms)
        batch, many = self._inputs.prompts(prompts)
        return [self._inputs.ask(tokens, {"max_tokens": 16, **sampling}, form) for tokens in batch], many

    def _ask_prompt(self, prompt: Any, forms: tuple[Any, Any], sampling: dict[str, Any]) -> Asked:
        self._check_usable()
        return self._inputs.ask(self._inputs.prompt(prompt), {"max_tokens": 16, **sampling}, form_of(*forms))

    def _ask_chat(self, messages: Any, forms: tuple[Any, Any], sampling: dict[str, Any]) -> Asked:
        self._check_usable()
        form = form_of(*forms)
        try:
            return self._inputs.ask(self._inputs.chat(messages), sampling, form)
        except ValueError:
            # A template's worker that was closed under this call is no fault of the messages.
            self._check_usable()
            raise

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise LLMError(f"this LLM belongs to process {self._pid}, which made it; make one here, after the fork")
        if self._closed:
            raise LLMClosed(_CLOSED)
        if self._failure is not None:
            raise LLMFailed(f"the engine failed ({self._failure!r}); make a new LLM") from self._failure

    # --- answers -------------------------------------------------------------------------------

    def _answer(self, asked: Asked) -> Answer:
        request = NewRequest(
            request_id=next(self._ids),
            prompt=asked.prompt,
            params=asked.params,
            seed=asked.seed,
            cache_salt=asked.cache_salt,
        )
        told = asked.telling.told(asked.prompt, None)
        return Answer(request, Choice(0, self._text.tokens, asked.options, prompt=told), asked.form)

    def _submit(self, asked: Asked) -> _Waiting:
        waiting = _Waiting(self, self._answer(asked), ThreadMailbox())
        self._send(waiting.answer, waiting.mailbox)
        return waiting

    def _submit_async(self, asked: Asked) -> _WaitingAsync:
        answer = self._answer(asked)
        waiting = _WaitingAsync(self, answer, LoopMailbox(lambda: self._end(answer)))
        self._send(answer, waiting.mailbox)
        return waiting

    def _send(self, answer: Answer, mailbox: Mailbox) -> None:
        with self._lock:
            self._check_usable()
            self._open[answer.request.request_id] = mailbox
            self._inbox.put(answer.request)

    def _stream_async(self, ask: Callable[..., Asked], *arguments: Any) -> AsyncTextStream:
        async def start() -> _WaitingAsync:
            return self._submit_async(await asyncio.to_thread(ask, *arguments))

        return AsyncTextStream(start)

    def _collect_all(self, asked: Sequence[Asked]) -> list[Completion]:
        """All answers, with no more requests open than may wait; one failure ends them all."""
        most = self._executor.config.scheduler.max_queue_requests
        left, running, done = deque(asked), deque[_Waiting](), []
        try:
            while left or running:
                while left and len(running) < most:
                    running.append(self._submit(left.popleft()))
                while not running[0].answer.done:
                    running[0].wait()
                done.append(self._close_one(running[0]))
                running.popleft()
        finally:
            for waiting in running:
                waiting.end()
        return done

    async def _collect_all_async(self, asked: Sequence[Asked]) -> list[Completion]:
        most = self._executor.config.scheduler.max_queue_requests
        left, running, done = deque(asked), deque[_WaitingAsync](), []
        try:
            while left or running:
                while left and len(running) < most:
                    running.append(self._submit_async(left.popleft()))
                while not running[0].answer.done:
                    await running[0].wait()
                done.append(self._close_one(running[0]))
                running.popleft()
        finally:
            for waiting in running:
                waiting.end()
        return done

    def _close_one(self, waiting: _Waiting | _WaitingAsync) -> Completion:
        waiting.end()
        return waiting.answer.completion()

    def _took(self, answer: Answer, delta: TokenDelta | None) -> str:
        """A delta's text, or why there is none."""
        if delta is None:
            self._check_usable()
            raise AssertionError("a request ended though the engine runs")
        return answer.take(delta)

    def _end(self, answer: Answer) -> None:
        with self._lock:
            if self._open.pop(answer.request.request_id, None) is not None:
                self._inbox.put(Abort([answer.request.request_id]))

    def _end_all(self) -> None:
        """Wakes every call that waits. Holds the lock."""
        for mailbox in list(self._open.values()):
            mailbox.put(None)
        self._open.clear()

    # --- the engine's thread -------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._drain_inbox():
                output = self._core.step()
                for delta in output.deltas if output else ():
                    if (mailbox := self._open.get(delta.request_id)) is not None:
                        mailbox.put(delta)
        except BaseException as error:
            # Told to every caller, by _check_usable.
            with self._lock:
                self._failure = error
                self._end_all()

    def _drain_inbox(self) -> bool:
        """Takes every message that waits, sleeping while there is nothing to do; False when closed."""
        while True:
            try:
                message = self._inbox.get(block=not self._core.has_work)
            except queue.Empty:
                return True
            if message is None:
                return False
            self._core.handle(message)


@dataclass(frozen=True)
class _Waiting:
    """An answer that a thread waits for."""

    llm: LLM
    answer: Answer
    mailbox: ThreadMailbox

    def wait(self) -> str:
        """Waits for one delta; its text."""
        self.llm._check_usable()
        return self.llm._took(self.answer, self.mailbox.get())

    def end(self) -> None:
        self.llm._end(self.answer)


@dataclass(frozen=True)
class _WaitingAsync:
    """An answer that a coroutine waits for."""

    llm: LLM
    answer: Answer
    mailbox: LoopMailbox

    async def wait(self) -> str:
        """Waits for one delta; its text."""
        self.llm._check_usable()
        return self.llm._took(self.answer, await self.mailbox.get())

    def end(self) -> None:
        self.llm._end(self.answer)


class _Loading:
    """What loading does, on one line of a terminal; nothing where the stream is none."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream if stream is not None and stream.isatty() else None
        self._said = ""

    def __call__(self, what: str, fraction: float | None) -> None:
        line = what if fraction is None else f"{what} {int(fraction * 100)}%"
        if self._stream is not None and line != self._said:
            print(f"\r\x1b[K{line}", end="", file=self._stream, flush=True)
            self._said = line

    def clear(self) -> None:
        """Takes the line away."""
        if self._stream is not None and self._said:
            print("\r\x1b[K", end="", file=self._stream, flush=True)


def _with_path(model: str | os.PathLike[str] | None, config: EngineConfig | None) -> EngineConfig:
    from octavo.models.locate import locate_model

    if model is not None and not isinstance(model, (str, os.PathLike)):
        raise TypeError(
            f"model is a {type(model).__name__}; the path of a .gguf file or of a directory, or ORG/NAME, would work"
        )
    if config is not None and not isinstance(config, EngineConfig):
        raise TypeError(f"config is a {type(config).__name__}; EngineConfig(), of octavo.config, would work")
    config = config or EngineConfig()
    named = replace(config.model, path=os.fspath(model)) if model else config.model
    return replace(config, model=locate_model(named))
