"""A checked body becomes a job: the engine's requests, and the choices that turn their deltas into an answer."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from octavo.config import ServerConfig
from octavo.server import params, prompts
from octavo.server.choice import Choice
from octavo.server.errors import ApiError
from octavo.server.params import ModelLimits, TextOptions
from octavo.server.prompt_told import NOTHING_TOLD, Told
from octavo.server.protocol import ChatBody, CompletionBody
from octavo.server.templates import Rendering
from octavo.server.terms import Terms
from octavo.server.text import ChatPrompt, ModelText
from octavo.server.tools.definitions import ToolPlan
from octavo.server.tools.definitions import plan as plan_tools
from octavo.server.tools.talk import Talk
from octavo.types import NewRequest, SamplingParams

_USUAL_CHARACTERS = 4
"""Of a token, in text that is dense."""


@dataclass(frozen=True)
class Job:
    """One HTTP request's work. Choice i of prompt p has index p * n + i, as the API orders them."""

    requests: list[NewRequest]
    choices: dict[int, Choice]
    """By request id, in the order of their index."""
    prompt_tokens: list[int]
    """Length of each prompt."""
    n: int
    """Choices generated for each."""
    stream: bool
    include_usage: bool
    created: int
    kept: int
    """Of the choices generated for a prompt, so many are in the answer: the best."""
    logprobs: bool
    """The answer's tokens have theirs."""

    def counts(self) -> tuple[int, int, int]:
        """Tokens of the prompts, those of them that were cached, and tokens of all choices.

        Each prompt counts once, whatever n is, and so do its cached tokens (those of its first choice).
        """
        choices = list(self.choices.values())
        cached = sum(choice.cached_tokens for choice in choices[:: self.n])
        return sum(self.prompt_tokens), cached, sum(choice.completion_tokens for choice in choices)

    def places(self) -> list[int]:
        """The choices that are in the answer: of each prompt those of the greatest mean log-probability, best first."""
        if self.kept == self.n:
            return list(range(len(self.choices)))
        means = [choice.logprob_sum / max(1, choice.completion_tokens) for choice in self.choices.values()]
        places: list[int] = []
        for first in range(0, len(means), self.n):
            places += sorted(range(first, first + self.n), key=lambda place: (-means[place], place))[: self.kept]
        return places

    def usage(self) -> dict[str, object]:
        """The counts as the API has them."""
        prompt, cached, completion = self.counts()
        usage: dict[str, object] = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        if details := self._completion_details():
            usage["completion_tokens_details"] = details
        return usage

    def _completion_details(self) -> dict[str, int]:
        """Thoughts where they are looked for, predictions where there were any."""
        details: dict[str, int] = {}
        choices = self.choices.values()
        thoughts = [choice.reasoning_tokens for choice in choices]
        if any(count is not None for count in thoughts):
            details["reasoning_tokens"] = sum(filter(None, thoughts))
        drafted = sum(choice.drafted_tokens for choice in choices)
        if drafted:
            accepted = sum(choice.accepted_tokens for choice in choices)
            details["accepted_prediction_tokens"] = accepted
            details["rejected_prediction_tokens"] = drafted - accepted
        return details


class JobMaker:
    """Checks bodies against the model and the configuration."""

    def __init__(
        self,
        text: ModelText,
        limits: ModelLimits,
        model_name: str,
        config: ServerConfig,
        new_id: Callable[[], int],
        priorities: bool,
    ) -> None:
        """priorities: requests may have one."""
        self._text = text
        self._limits = limits
        self._model_name = model_name
        self._config = config
        self._new_id = new_id
        self._priorities = priorities

    async def chat(self, body: ChatBody, terms: Terms) -> Job:
        self.check_model(body.model)
        params.check_choices(body, self._config)
        logprobs = params.chat_logprobs(body, self._config)
        way = prompts.rendering(body, self._config)
        plan = plan_tools(body.tools, body.tool_choice, body.parallel_tool_calls, self._config)
        messages = prompts.chat_messages(body, self._config)
        characters = plan.characters() + sum(len(message["content"]) for message in messages)
        whole = body.truncate_prompt_tokens is None
        if whole:
            self._refuse_hopeless(characters, "messages")
        prompt = await asyncio.to_thread(self._chat_prompt, messages, way, plan, whole)
        return self._job(body, [prompts.truncated(prompt.ids, body)], logprobs, terms, prompt.talk)

    async def completion(self, body: CompletionBody, terms: Terms) -> Job:
        self.check_model(body.model)
        params.check_choices(body, self._config)
        logprobs = params.completion_logprobs(body, self._config)
        encode = self.encode if body.truncate_prompt_tokens is None else self._text.prompt
        ids = await prompts.completion_prompts(body, encode, self._limits, self._config)
        return self._job(body, ids, logprobs, terms)

    def _chat_prompt(self, messages: list[dict[str, Any]], way: Rendering, plan: ToolPlan, whole: bool) -> ChatPrompt:
        """whole: all of it is to fit."""
        if whole:
            told = [json.dumps(plan.described())] if plan else []
            self._refuse_long("".join([*told, *(message["content"] for message in messages)]), "messages")
        return self._text.chat_prompt(messages, way, plan)

    def encode(self, text: str, param: str = "prompt") -> list[int]:
        """A prompt's ids; 400 that names `param` where it cannot fit."""
        self._refuse_hopeless(len(text), param)
        self._refuse_long(text, param)
        return self._text.prompt(text)

    def check_model(self, model: str | None) -> None:
        """404 for another model than the one served."""
        if model is not None and model != self._model_name:
            raise ApiError(
                f"The model {model[:80]!r} is not served here; use {self._model_name!r}.",
                param="model",
                status=404,
                code="model_not_found",
            )

    def _refuse_hopeless(self, characters: int, param: str) -> None:
        """Text that cannot fit however it is tokenised is not tokenised at all."""
        if characters > self._limits.max_model_len:
            self._refuse_least(characters // self._text.longest_token, param)

    def _refuse_long(self, text: str, param: str) -> None:
        """Of text that is too long for the context in all likelihood, only so much is tokenised as shows it."""
        size = _USUAL_CHARACTERS * self._limits.max_model_len
        while size < len(text):
            self._refuse_least(self._text.least_tokens(text[:size]), param)
            size *= 2

    def _refuse_least(self, least: int, param: str) -> None:
        if least > self._limits.max_model_len:
            raise ApiError(
                f"The prompt has {least} tokens at least, and prompt and answer together may have "
                f"{self._limits.max_model_len}; shorten the prompt.",
                param=param,
                code="context_length_exceeded",
            )

    def _job(
        self,
        body: ChatBody | CompletionBody,
        ids: list[list[int]],
        logprobs: int | None,
        terms: Terms,
        talk: Talk | None = None,
    ) -> Job:
        if body.stream_options is not None and not body.stream:
            raise ApiError("stream_options needs stream true.", param="stream_options")
        if body.priority and not self._priorities:
            raise ApiError(
                "priority has no effect on this server, which was started without --scheduling-policy priority; "
                "leave it out.",
                param="priority",
            )
        options = params.text_options(body, logprobs, self._config)
        n = params.generated_choices(body)
        telling = params.prompt_telling(body, logprobs, self._config)
        requests: list[NewRequest] = []
        choices: dict[int, Choice] = {}
        seed = secrets.randbits(64) if body.seed is None else body.seed % 2**64
        drawn = 0 if logprobs is None and n > (body.n or 1) else logprobs
        words = params.bad_words(body, self._text.spellings, self._config)
        samplings = [
            _held(
                params.sampling_params(body, len(prompt), drawn, self._limits, self._config, words, telling.wanted),
                talk,
            )
            for prompt in ids
        ]
        echoes = prompts.echoes(body, ids, self._text.tokens)
        params.check_tokens(ids, samplings, n, self._config)
        for prompt, sampling, echo in zip(ids, samplings, echoes, strict=True):
            for choice in range(n):
                # A chat tells of its prompt once, a completion with every choice.
                tells = not choice or isinstance(body, CompletionBody)
                scored = tells or not sampling.max_tokens
                request = NewRequest(
                    request_id=self._new_id(),
                    prompt=prompt,
                    params=sampling if scored else structs.replace(sampling, prompt_logprobs=None),
                    seed=seed,
                    choice=choice,
                    cache_salt=body.cache_salt or "",
                    tenant=terms.tenant,
                    priority=body.priority or 0,
                    deadline=None if body.deadline_ms is None else terms.arrived + body.deadline_ms / 1000,
                )
                told = telling.told(prompt, echo) if tells else NOTHING_TOLD
                choices[request.request_id] = self._choice(len(requests), options, talk, told)
                requests.append(request)
        return Job(
            requests=requests,
            choices=choices,
            prompt_tokens=[len(prompt) for prompt in ids],
            n=n,
            kept=body.n or 1,
            logprobs=logprobs is not None,
            stream=bool(body.stream),
            include_usage=bool(body.stream and body.stream_options and body.stream_options.include_usage),
            created=int(time.time()),
        )

    def _choice(self, index: int, options: TextOptions, talk: Talk | None, told: Told) -> Choice:
        if talk is None:
            return Choice(index, self._text.tokens, options, prompt=told)
        return Choice(index, talk.tokens, options, talk.parts(), told)


def _held(sampling: SamplingParams, talk: Talk | None) -> SamplingParams:
    """With what calls hold the answer to."""
    if talk is None or talk.form is None:
        return sampling
    if sampling.structure is not None:
        raise ApiError(
            "response_format and tools exclude each other, for calls have a form of their own; "
            'tool_choice "none" would work.',
            param="response_format",
        )
    return sampling if talk.structure is None else structs.replace(sampling, structure=talk.structure)
