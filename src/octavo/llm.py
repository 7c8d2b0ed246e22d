"""`LLM`: the engine in the caller's own process, for scripts and notebooks.

Owns an executor, an `EngineCore` and one thread that steps it. Life: the constructor loads the model and starts the
thread; calls are checked by their own thread (llm_inputs.py), put requests in and read their deltas from a queue each;
`close()` (or leaving the `with` block) ends what is open, ends the thread and frees the memory. Nothing is forked and
nothing listens. When the engine fails or is closed, every open call raises, and every later one too.
"""

from __future__ import annotations

import itertools
import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TextIO

from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.llm_inputs import Asked, Inputs
from octavo.server.choice import Choice, TokenEntry
from octavo.server.params import ModelLimits
from octavo.types import Abort, ClientMessage, NewRequest, TokenDelta

REFUSALS = (ValueError, RuntimeError)
"""What a call raises where it cannot be answered; the message is one sentence."""

Message = dict[str, Any]
Prompt = str | Sequence[int]
_CLOSED = "this LLM is closed"


@dataclass(frozen=True)
class Completion:
    """One finished answer."""

    text: str
    tokens: tuple[int, ...]
    """Generated ids, the stop token included."""
    finish_reason: str
    """"stop" or "length"."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens taken from the prefix cache."""
    logprobs: tuple[TokenEntry, ...] = ()


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
            self._core = EngineCore(self._executor.config, self._executor, tier=tier)
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
        self._open: dict[int, queue.SimpleQueue[TokenDelta | None]] = {}
        self._failure: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="octavo-engine", daemon=True)
        self._thread.start()

    # --- calls ---------------------------------------------------------------------------------

    def generate(self, prompts: Prompt | Sequence[Prompt], **sampling: Any) -> Any:
        """Continues one prompt (text or token ids) or several at once: a Completion, or a list of them.

        Keywords: max_tokens (16; None: the rest of the context), temperature (1), top_k, top_p, min_p, seed, stop
        (text), stop_token_ids, min_tokens, ignore_eos, logprobs, logit_bias (a dict), bad_words (texts),
        allowed_token_ids, include_stop_str_in_output, skip_special_tokens, cache_salt, and the three penalties. None
        is the default: what the model suggests (`info.sampling`), else as above.
        """
        self._check_usable()
        batch, many = self._inputs.prompts(prompts)
        asked = [self._inputs.ask(tokens, {"max_tokens": 16, **sampling}) for tokens in batch]
        done = self._collect_all(asked)
        return done if many else done[0]

    def chat(self, messages: Sequence[Message], **sampling: Any) -> Completion:
        """Answers a conversation; max_tokens is the rest of the context unless given."""
        return self._collect(self._submit(self._ask_chat(messages, sampling)))

    def stream_chat(self, messages: Sequence[Message], **sampling: Any) -> Iterator[str]:
        """The answer's text in pieces; closing the iterator stops the generation, the first `next` starts it."""
        return self._stream(self._ask_chat(messages, sampling))

    def stream(self, prompt: Prompt, **sampling: Any) -> Iterator[str]:
        """The continuation's text in pieces; see `stream_chat`."""
        self._check_usable()
        return self._stream(self._inputs.ask(self._inputs.prompt(prompt), {"max_tokens": 16, **sampling}))

    def close(self) -> None:
        """Ends what is open, in whatever thread, and frees everything; harmless when called twice."""
        with self._lock:
            if self._closed:
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

    # --- one answer ----------------------------------------------------------------------------

    def _ask_chat(self, messages: Sequence[Message], sampling: dict[str, Any]) -> Asked:
        self._check_usable()
        try:
            return self._inputs.ask(self._inputs.chat(messages), sampling)
        except ValueError:
            # A template's worker that was closed under this call is no fault of the messages.
            self._check_usable()
            raise

    def _check_usable(self) -> None:
        if self._closed:
            raise RuntimeError(_CLOSED)
        if self._failure is not None:
            raise RuntimeError(f"the engine failed ({self._failure!r}); make a new LLM") from self._failure

    def _submit(self, asked: Asked) -> _Answer:
        request = NewRequest(
            request_id=next(self._ids),
            prompt=asked.prompt,
            params=asked.params,
            seed=asked.seed,
            cache_salt=asked.cache_salt,
        )
        answer = _Answer(request, Choice(0, self._text.tokens, asked.options), queue.SimpleQueue())
        with self._lock:
            self._check_usable()
            self._open[request.request_id] = answer.deltas
            self._inbox.put(request)
        return answer

    def _stream(self, asked: Asked) -> Iterator[str]:
        yield from self._pieces(self._submit(asked))

    def _pieces(self, answer: _Answer) -> Iterator[str]:
        try:
            while not answer.choice.done:
                if text := self._next(answer):
                    yield text
        finally:
            self._end(answer)

    def _collect_all(self, asked: Sequence[Asked]) -> list[Completion]:
        """All answers, with no more requests open than may wait; one failure ends them all."""
        most = self._executor.config.scheduler.max_queue_requests
        waiting, running, done = deque(asked), deque[_Answer](), []
        try:
            while waiting or running:
                while waiting and len(running) < most:
                    running.append(self._submit(waiting.popleft()))
                done.append(self._collect(running[0]))
                running.popleft()
        finally:
            for answer in running:
                self._end(answer)
        return done

    def _collect(self, answer: _Answer) -> Completion:
        text = "".join(self._pieces(answer))
        count = answer.choice.completion_tokens
        return Completion(
            text=text,
            tokens=tuple(answer.tokens[:count]),
            finish_reason=answer.finish_reason,
            prompt_tokens=len(answer.request.prompt),
            cached_tokens=answer.choice.cached_tokens,
            logprobs=tuple(answer.entries),
        )

    def _next(self, answer: _Answer) -> str:
        """Waits for one delta; its text."""
        self._check_usable()
        delta = answer.deltas.get()
        if delta is None:
            self._check_usable()
            raise AssertionError("a request ended though the engine runs")
        answer.tokens.extend(delta.tokens)
        piece = answer.choice.feed(delta)
        answer.entries.extend(piece.entries)
        if piece.error is not None:
            raise RuntimeError(piece.error)
        if piece.finish_reason is not None:
            answer.finish_reason = piece.finish_reason
        return piece.text

    def _end(self, answer: _Answer) -> None:
        with self._lock:
            if self._open.pop(answer.request.request_id, None) is not None:
                self._inbox.put(Abort([answer.request.request_id]))

    def _end_all(self) -> None:
        """Wakes every call that waits. Holds the lock."""
        for deltas in self._open.values():
            deltas.put(None)
        self._open.clear()

    # --- the engine's thread -------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._drain_inbox():
                output = self._core.step()
                for delta in output.deltas if output else ():
                    if (deltas := self._open.get(delta.request_id)) is not None:
                        deltas.put(delta)
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


@dataclass
class _Answer:
    """An open request."""

    request: NewRequest
    choice: Choice
    deltas: queue.SimpleQueue[TokenDelta | None]
    """None: the engine failed or was closed."""

    def __post_init__(self) -> None:
        self.tokens: list[int] = []
        self.entries: list[TokenEntry] = []
        self.finish_reason = ""


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
