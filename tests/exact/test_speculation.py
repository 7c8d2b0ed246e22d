"""Drafts change nothing but time: on real kernels, whatever is guessed, under every rule and in every situation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.engine.core import EngineCore
from octavo.execution.executor import LocalExecutor
from octavo.speculative.ngram import NgramProposer
from octavo.speculative.proposer import Proposal, Proposer, Query
from octavo.types import FinishReason, NewRequest, SamplingParams, TokenLogprobs
from octavo.verify.cell import Fewer
from tests.support.executors import Build, configured
from tests.support.guesses import Guesses
from tests.support.tiny import Tiny, write_hf
from tests.support.traffic import fresh_random

VOCAB = 272
RULES: dict[str, dict[str, object]] = {
    "greedy": {"temperature": 0.0},
    "plain": {"temperature": 1.0},
    "top_p": {"temperature": 0.7, "top_p": 0.9},
    "top_k": {"temperature": 1.3, "top_k": 40, "min_p": 0.02},
    "penalties": {"temperature": 0.9, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4},
    "greedy penalties": {"temperature": 0.0, "frequency_penalty": 2.0, "repetition_penalty": 1.1},
    "bias": {"temperature": 0.0, "logit_bias": ((5, 4.0), (7, -100.0))},
    "min_tokens": {"temperature": 0.8, "min_tokens": 14, "stop_token_ids": tuple(range(3, 90))},
    "stops": {"temperature": 1.0, "stop_token_ids": tuple(range(3, 20))},
    "bad words": {"temperature": 0.5, "bad_words": ((9,), (11, 12), *(((a, a + 1)) for a in range(20, 200)))},
    "allowed": {"temperature": 1.0, "allowed_token_ids": tuple(range(3, 24))},
}


@dataclass
class Answer:
    """All that must be equal, bit for bit."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    end: tuple[FinishReason, int | None] | None = None


Answers = dict[int, Answer]


def requests(rng: random.Random, rules: Sequence[str], tokens: int = 40) -> list[NewRequest]:
    """Prompts that repeat themselves, so that n-grams match; two choices of each."""
    made = []
    for name in rules:
        phrase = [rng.randrange(3, VOCAB) for _ in range(rng.choice([3, 9]))]
        prompt = (phrase * 40)[: rng.choice([1, 30, 33, 64, 90])]
        params = SamplingParams(max_tokens=tokens, logprobs=2, **RULES[name])  # type: ignore[arg-type]
        seed = rng.getrandbits(64)
        for choice in range(2):
            made.append(NewRequest(request_id=len(made), prompt=prompt, params=params, seed=seed, choice=choice))
    return made


def answers(core: EngineCore, asked: Sequence[NewRequest]) -> Answers:
    found = {request.request_id: Answer() for request in asked}
    for request in asked:
        core.handle(request)
    while core.has_work:
        output = core.step()
        core.validate()
        for delta in output.deltas if output is not None else ():
            assert delta.error is None, delta.error
            answer = found[delta.request_id]
            answer.tokens += delta.tokens
            answer.logprobs += delta.logprobs or []
            if delta.finish is not None:
                answer.end = (delta.finish, delta.stop_token)
    for group in core.kv.groups:
        assert group.pool.used == 0 and group.claimed == 0, "the pool is full again"
    return found


def core_of(
    executor: LocalExecutor, proposer: Proposer | None, blocks: int | None = None, **scheduler: int
) -> EngineCore:
    """proposer: None is no speculation."""
    config = executor.config
    if proposer is None:
        config = replace(config, speculative=replace(config.speculative, proposer="off"))
    config = replace(config, scheduler=replace(config.scheduler, **scheduler), validate_kv=True)
    return EngineCore(config, executor if blocks is None else Fewer(executor, blocks), proposer=proposer)


def knowing(expected: Answers, asked: Sequence[NewRequest], rng: random.Random, right: float) -> Guesses:
    """Guesses that are right as often as is asked for, by what the answers are."""
    prompts = {request.request_id: len(request.prompt) for request in asked}

    def follow(key: int, tokens: Sequence[int]) -> int:
        at = len(tokens) - prompts[key]
        own = expected[key].tokens
        return own[at] if at < len(own) else 3

    return Guesses(rng, follow, VOCAB, right)


def tiny(build: Build, path: Path, model: Tiny | None = None, **fields: object) -> LocalExecutor:
    model = model or Tiny(vocab=VOCAB, max_context=256, tied=False)
    fields = {"proposer": "ngram", "draft_tokens": 7, "adaptive": False, "max_model_len": 256, **fields}
    return build(write_hf(path / "tiny", model).path, **fields)


def test_every_rule_in_every_situation(build: Build, tmp_path: Path) -> None:
    rng = fresh_random()
    executor = tiny(build, tmp_path)
    asked = requests(rng, list(RULES), 30)
    expected = answers(core_of(executor, None), asked)
    assert len({answer.end for answer in expected.values()}) > 2
    situations: dict[str, tuple[float, dict[str, int]]] = {
        "together": (1.0, {}),
        "chunks": (0.8, {"max_num_batched_tokens": 37}),
        "alone": (rng.choice([0.0, 0.5, 0.95]), {"max_num_seqs": 1}),
        "pressed": (0.6, {"blocks": 13}),
    }
    for name, (right, fields) in situations.items():
        core = core_of(executor, knowing(expected, asked, rng, right), **fields)
        assert answers(core, asked) == expected, name
        stats = core.stats()
        assert sum(stats.drafts_checked) > 50 or not right
        assert right < 1 or stats.drafts_accepted == stats.drafts_checked
        assert name != "pressed" or stats.preemptions
        if name == "chunks":
            assert answers(core, asked) == expected and core.stats().cached_prompt_tokens, "prefix hits"


@pytest.mark.parametrize("shared", [False, True])
def test_ngrams_of_requests_and_of_tenants(build: Build, tmp_path: Path, shared: bool) -> None:
    rng = fresh_random()
    executor = tiny(build, tmp_path, adaptive=True)
    asked = requests(rng, list(RULES), 60)
    expected = answers(core_of(executor, None), asked)
    core = core_of(executor, NgramProposer(shared))
    for _ in range(2):
        assert answers(core, asked) == expected
    assert sum(core.stats().drafts_accepted) > 0


def test_replay_goes_on_where_the_drafts_stopped(build: Build, tmp_path: Path) -> None:
    rng = fresh_random()
    executor = tiny(build, tmp_path)
    asked = requests(rng, list(RULES))
    expected = answers(core_of(executor, None), asked)
    rest, begun = [], {}
    for request in asked:
        own = expected[request.request_id]
        begun[request.request_id] = rng.randrange(len(own.tokens))
        rest.append(
            NewRequest(
                **{
                    **{name: getattr(request, name) for name in request.__struct_fields__},
                    "generated": own.tokens[: begun[request.request_id]],
                }
            )
        )
    got = answers(core_of(executor, knowing(expected, asked, rng, 0.8)), rest)
    for number, own in expected.items():
        first = begun[number]
        assert got[number] == Answer(own.tokens[first:], own.logprobs[first:], own.end)


@pytest.mark.parametrize(
    "fields",
    [
        {"precision": "float32"},
        {"attention": "naive"},
        {"program": False, "threads": 1},
        {"isa": "portable"},
        {"shared_prefix_attention": False},
        {"policy": "static"},
        {"paged": False},
    ],
    ids=str,
)
def test_every_way_to_run_a_step(build: Build, tmp_path: Path, fields: dict[str, object]) -> None:
    rng = fresh_random()
    executor = tiny(build, tmp_path, **fields)
    asked = requests(rng, ["greedy", "plain", "penalties", "bad words"], 20)
    expected = answers(core_of(executor, None), asked)
    assert answers(core_of(executor, knowing(expected, asked, rng, 0.8)), asked) == expected


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> LocalExecutor:
    from octavo.execution.factory import build_executor

    path = write_hf(tmp_path_factory.mktemp("small"), Tiny(vocab=VOCAB, max_context=256, tied=False)).path
    fields = {"proposer": "ngram", "draft_tokens": 5, "adaptive": False, "max_model_len": 128}
    return build_executor(configured(path, **fields), lambda what, fraction: None)


class Scripted:
    """Says what it was told, in turn, however absurd."""

    grades = 1

    def __init__(self, script: list[list[int]]) -> None:
        self._script = script
        self._at = 0

    def propose(self, queries: Sequence[Query]) -> list[Proposal]:
        said = []
        for query in queries:
            self._at += 1
            said.append(Proposal(tuple(self._script[self._at % len(self._script)][: query.most])))
        return said

    def forget(self, key: int, tokens: Sequence[int], scope: str) -> None:
        return None


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    script=st.lists(st.lists(st.integers(0, VOCAB - 1), max_size=5), min_size=1, max_size=12),
    rule=st.sampled_from(sorted(RULES)),
    seed=st.integers(0, 1 << 63),
    prompt=st.lists(st.integers(3, 12), min_size=1, max_size=70),
)
def test_any_drafts_at_all(
    small: LocalExecutor, script: list[list[int]], rule: str, seed: int, prompt: list[int]
) -> None:
    params = SamplingParams(max_tokens=24, logprobs=1, **RULES[rule])  # type: ignore[arg-type]
    asked = [NewRequest(request_id=0, prompt=prompt, params=params, seed=seed)]
    expected = answers(core_of(small, None), asked)
    assert answers(core_of(small, Scripted(script)), asked) == expected


def test_an_answer_that_is_forbidden_to_go_on_ends_as_it_would_have(build: Build, tmp_path: Path) -> None:
    """Behind an accepted token nothing may be drawn: the tokens before it come, then the error."""
    executor = tiny(build, tmp_path)
    words = tuple((5, token) for token in range(VOCAB))
    only = ((5, 90.0),)
    asked = NewRequest(
        request_id=0,
        prompt=[9, 9],
        params=SamplingParams(max_tokens=9, temperature=0.0, logit_bias=only, bad_words=words),
        seed=1,
    )

    def outcome(proposer: Proposer | None) -> tuple[list[int], str | None]:
        core, tokens, error = core_of(executor, proposer), [], None
        core.handle(asked)
        while core.has_work:
            output = core.step()
            for delta in output.deltas if output else ():
                tokens += delta.tokens
                error = delta.error or error
        return tokens, error

    expected = outcome(None)
    assert expected[0] == [5] and expected[1] is not None
    assert outcome(Scripted([[5, 5, 5]])) == expected
    assert outcome(Scripted([[7]])) == expected


def test_rejection_sampling_keeps_every_rule_and_greedy_answers(build: Build, tmp_path: Path) -> None:
    rng = fresh_random()
    executor = tiny(build, tmp_path, verification="rejection")
    asked = requests(rng, list(RULES), 30)
    expected = answers(core_of(executor, None), asked)
    core = core_of(executor, knowing(expected, asked, rng, 0.8))
    got = answers(core, asked)
    assert sum(core.stats().drafts_accepted) > 50
    for request in asked:
        own, params = got[request.request_id], request.params
        assert len(own.tokens) == len(own.logprobs) and all(entry.logprob <= 0 for entry in own.logprobs)
        if params.temperature == 0:
            assert own == expected[request.request_id]
        if params.allowed_token_ids is not None:
            assert set(own.tokens) <= set(params.allowed_token_ids)
        if params.min_tokens:
            assert not set(own.tokens[: params.min_tokens]) & set(params.stop_token_ids)
        pairs = set(zip(own.tokens, own.tokens[1:], strict=False))
        assert not pairs & {word for word in params.bad_words if len(word) == 2}
        assert not set(own.tokens) & {word[0] for word in params.bad_words if len(word) == 1}
