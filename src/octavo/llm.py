"""`LLM`: the engine in the caller's own process, for scripts and notebooks.

Owns an executor, an `EngineCore` and one thread that steps it. Life: the constructor loads the model and starts the
thread; calls put requests in and read their deltas from a queue each; `close()` (or leaving the `with` block) aborts
what is open, ends the thread and frees the memory. Nothing is forked and nothing listens.
"""

from __future__ import annotations

import itertools
import queue
import secrets
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.server.choice import Choice, TokenEntry
from octavo.server.errors import ApiError
from octavo.server.params import TextOptions
from octavo.types import Abort, ClientMessage, FinishReason, NewRequest, SamplingParams, TokenDelta

REFUSALS = (ValueError, ApiError, RuntimeError)
"""What a call raises where it cannot be answered; the message is one sentence."""

Message = dict[str, Any]
Prompt = str | Sequence[int]


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
    """A model to call.

    `model` is a .gguf file or a directory with safetensors; None is the default model, fetched on first use.
    `config` sets everything else; see octavo.config. Raises ModelError or ConfigError with one sentence.
    """

    def __init__(self, model: str | None = None, *, config: EngineConfig | None = None) -> None:
        from octavo.execution.factory import build_executor
        from octavo.models.tokenizer import load_tokenizer
        from octavo.server.text import load_text

        config = _with_path(model, config or EngineConfig())
        self._text = load_text(load_tokenizer(config.model.path))
        try:
            self._executor = build_executor(config, lambda what, fraction: None)
        except BaseException:
            self._text.close()
            raise
        self._core = EngineCore(self._executor.config, self._executor)
        self.info = self._executor.info
        self.report: tuple[str, ...] = self._executor.report
        self.max_model_len = self._executor.config.model.max_model_len or self.info.max_context
        self._ids = itertools.count(1)
        self._inbox: queue.SimpleQueue[ClientMessage | None] = queue.SimpleQueue()
        self._open: dict[int, queue.SimpleQueue[TokenDelta]] = {}
        self._failure: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="octavo-engine", daemon=True)
        self._thread.start()

    # --- calls ---------------------------------------------------------------------------------

    def generate(self, prompts: Prompt | Sequence[Prompt], **sampling: Any) -> Any:
        """Continues one prompt (text or token ids) or several at once: a Completion, or a list of them.

        Keywords: max_tokens (16), temperature (1), top_k, top_p, min_p, seed, stop (text), stop_token_ids,
        min_tokens, ignore_eos, logprobs, logit_bias, and the three penalties, as in `SamplingParams`.
        """
        many = not isinstance(prompts, str) and (len(prompts) == 0 or not isinstance(prompts[0], int))
        batch: Sequence[Any] = prompts if many else [prompts]
        ids = [self._text.prompt(prompt) if isinstance(prompt, str) else list(prompt) for prompt in batch]
        running = [self._submit(tokens, {"max_tokens": 16, **sampling}) for tokens in ids]
        done = [self._collect(answer) for answer in running]
        return done if many else done[0]

    def chat(self, messages: Sequence[Message], **sampling: Any) -> Completion:
        """Answers a conversation; max_tokens is the rest of the context unless given."""
        return self._collect(self._submit(self._text.chat(messages), sampling))

    def stream_chat(self, messages: Sequence[Message], **sampling: Any) -> Iterator[str]:
        """The answer's text in pieces; closing the iterator stops the generation."""
        return self._pieces(self._submit(self._text.chat(messages), sampling))

    def stream(self, prompt: Prompt, **sampling: Any) -> Iterator[str]:
        """The continuation's text in pieces."""
        tokens = self._text.prompt(prompt) if isinstance(prompt, str) else list(prompt)
        return self._pieces(self._submit(tokens, {"max_tokens": 16, **sampling}))

    def close(self) -> None:
        """Aborts what is open and frees everything; harmless when called twice."""
        if self._closed:
            return
        self._closed = True
        self._inbox.put(None)
        self._thread.join()
        self._executor.close()
        self._text.close()

    def __enter__(self) -> LLM:  # noqa: PYI034
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- one answer ----------------------------------------------------------------------------

    def _submit(self, tokens: list[int], sampling: dict[str, Any]) -> _Answer:
        if self._closed:
            raise RuntimeError("this LLM is closed")
        self._check(tokens)
        params, options, seed = _split(sampling, room=self.max_model_len - len(tokens))
        request = NewRequest(request_id=next(self._ids), prompt=tokens, params=params, seed=seed)
        answer = _Answer(request, Choice(0, self._text.tokens, options), queue.SimpleQueue())
        self._open[request.request_id] = answer.deltas
        self._inbox.put(request)
        return answer

    def _check(self, tokens: list[int]) -> None:
        if not tokens:
            raise ValueError("the prompt is empty; give at least one token, such as 'Hello'")
        if any(not 0 <= token < self.info.num_tokens for token in tokens):
            raise ValueError(f"prompt ids must be 0 to {self.info.num_tokens - 1}")
        if len(tokens) >= self.max_model_len:
            raise ValueError(
                f"the prompt has {len(tokens)} tokens and prompt and answer together may have {self.max_model_len}; "
                f"{self.max_model_len - 1} or fewer would work"
            )

    def _pieces(self, answer: _Answer) -> Iterator[str]:
        try:
            while not answer.choice.done:
                if text := self._next(answer):
                    yield text
        finally:
            self._end(answer)

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
        delta = answer.deltas.get()
        if self._failure is not None:
            raise RuntimeError("the engine's thread failed") from self._failure
        answer.tokens.extend(delta.tokens)
        piece = answer.choice.feed(delta)
        answer.entries.extend(piece.entries)
        if piece.error is not None:
            raise RuntimeError(piece.error)
        if piece.finish_reason is not None:
            answer.finish_reason = piece.finish_reason
        return piece.text

    def _end(self, answer: _Answer) -> None:
        if self._open.pop(answer.request.request_id, None) is not None:
            self._inbox.put(Abort([answer.request.request_id]))

    # --- the engine's thread -------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._drain_inbox():
                output = self._core.step()
                for delta in output.deltas if output else ():
                    if (deltas := self._open.get(delta.request_id)) is not None:
                        deltas.put(delta)
        except BaseException as error:
            self._failure = error
            for request_id, deltas in list(self._open.items()):
                deltas.put(TokenDelta(request_id, [], finish=FinishReason.ERROR, error=repr(error)))
            raise

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
    deltas: queue.SimpleQueue[TokenDelta]

    def __post_init__(self) -> None:
        self.tokens: list[int] = []
        self.entries: list[TokenEntry] = []
        self.finish_reason = ""


def _split(sampling: dict[str, Any], room: int) -> tuple[SamplingParams, TextOptions, int]:
    """Keywords to what the engine, the text side and the noise need."""
    values = dict(sampling)
    seed = values.pop("seed", None)
    stop = values.pop("stop", None) or ()
    options = TextOptions(
        stops=(stop,) if isinstance(stop, str) else tuple(stop),
        include_stop=bool(values.pop("include_stop_str_in_output", False)),
        skip_special=bool(values.pop("skip_special_tokens", True)),
        min_tokens=int(values.get("min_tokens", 0)),
        logprobs=values.get("logprobs"),
    )
    if not all(options.stops):
        raise ValueError("stop may not hold an empty string, which is found everywhere")
    known = set(SamplingParams.__struct_fields__)
    if unknown := sorted(set(values) - known):
        raise TypeError(f"unknown sampling parameter {unknown[0]!r}; known are {', '.join(sorted(known))}, seed, stop")
    asked = values.pop("max_tokens", None)
    if asked is not None and asked < 1:
        raise ValueError(f"max_tokens is {asked}; 1 or more would work")
    if isinstance(bias := values.get("logit_bias"), dict):
        values["logit_bias"] = tuple((int(token), float(value)) for token, value in bias.items())
    if isinstance(ids := values.get("stop_token_ids"), list):
        values["stop_token_ids"] = tuple(ids)
    params = SamplingParams(max_tokens=min(asked or room, room), **values)
    return params, options, secrets.randbits(64) if seed is None else seed


def _with_path(model: str | None, config: EngineConfig) -> EngineConfig:
    from octavo.models.store import or_default

    return replace(config, model=or_default(replace(config.model, path=model or config.model.path)))
