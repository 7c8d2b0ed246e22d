"""Drafts on the ledger: whatever is guessed, answers stay, nobody waits for a guess, and pages come back."""

from __future__ import annotations

import random

import pytest

from octavo.types import FinishReason
from tests.support.engine import Drafts, Rig
from tests.support.ledger import make_request
from tests.support.traffic import drive, fresh_random, random_requests


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("windows", [(), (40,)])
def test_random_traffic_gets_the_answers_of_no_speculation(windows: tuple[int, ...], adaptive: bool) -> None:
    rng = fresh_random()
    for _ in range(12):
        rig = Rig(
            pool_tokens=rng.choice([192, 320, 4096]),
            max_model_len=160,
            windows=windows,
            depth=rng.choice([1, 2]),
            drafts=Drafts(rng.choice([0.0, 0.5, 0.9, 1.0]), rng, rng.randint(1, 12), adaptive),
            max_num_batched_tokens=rng.choice([8, 48, 200]),
            max_num_seqs=rng.choice([1, 6]),
        )
        drive(rig, rng, random_requests(rng, 12), aborts=0.1)
        rig.check_answers()


def _steps(drafts: Drafts | None, **fields: object) -> tuple[int, Rig]:
    rig = Rig(pool_tokens=512, drafts=drafts, max_num_batched_tokens=64, **fields)  # type: ignore[arg-type]
    rig.send(make_request(0, [5] * 40, 100, ignore_eos=True))
    rig.run()
    rig.check_answers()
    return rig.steps, rig


def test_right_guesses_save_steps_and_are_counted() -> None:
    plain, _ = _steps(None)
    steps, rig = _steps(Drafts(1.0, random.Random(1), most=4))
    assert steps < plain * 0.6
    stats = rig.core.stats()
    assert stats.drafts_checked == stats.drafts_accepted and stats.generated_tokens == 100
    assert stats.recomputed_tokens == 0


def test_wrong_guesses_are_counted_and_nothing_is_computed_twice() -> None:
    plain, _ = _steps(None)
    steps, rig = _steps(Drafts(0.0, random.Random(1), most=4))
    stats = rig.core.stats()
    assert steps >= plain - 2 and sum(stats.drafts_checked) > 100 and sum(stats.drafts_accepted) < 5
    assert stats.recomputed_tokens == 0 and stats.prompt_tokens == 40


@pytest.mark.parametrize("length", range(50, 64))
def test_a_draft_at_the_contexts_edge_fills_it_exactly(length: int) -> None:
    rig = Rig(pool_tokens=64, max_model_len=64, drafts=Drafts(1.0, random.Random(length), most=5))
    rig.send(make_request(0, [7] * length, 5000, ignore_eos=True))
    rig.run()
    rig.check_answers()
    assert len(rig.tokens[0]) == 64 - length and rig.finals[0].finish is FinishReason.LENGTH


def test_a_stop_inside_an_accepted_run_ends_the_answer_there() -> None:
    rng = fresh_random()
    for number in range(40):
        rig = Rig(pool_tokens=512, drafts=Drafts(1.0, rng, most=12), max_num_batched_tokens=64)
        rig.send(make_request(number, [number + 3] * 20, 200, logprobs=0))
        rig.run()
        rig.check_answers()


def test_nobody_is_preempted_for_a_guess() -> None:
    """Two requests that fit exactly: guesses may take what is free, never what the other needs."""

    def preemptions(drafts: Drafts | None) -> int:
        rig = Rig(pool_tokens=128, max_model_len=128, drafts=drafts, max_num_batched_tokens=64, watermark=0.0)
        for number in range(2):
            rig.send(make_request(number, [3 + number] * 30, 34, ignore_eos=True))
        rig.run()
        rig.check_answers()
        return rig.core.stats().preemptions

    for right in (0.0, 0.5, 1.0):
        assert preemptions(Drafts(right, random.Random(3), most=12)) == preemptions(None) == 0


def test_guesses_take_what_prompts_leave_of_a_step() -> None:
    rig = Rig(pool_tokens=2048, drafts=Drafts(1.0, random.Random(4), most=8), max_num_batched_tokens=32)
    rig.send(make_request(0, [5] * 10, 200, ignore_eos=True))
    for _ in range(3):
        rig.step()
    rig.send(make_request(1, [6] * 300, 2, ignore_eos=True))
    rig.ledger.plans.clear()
    while 1 not in rig.first_token_step:
        rig.step()
    prompts = [sum(work.count for work in plan.work if work.slot != 0) for plan in rig.ledger.plans]
    assert len(prompts) <= 12 and sum(prompts) >= 300
    rig.run()
    rig.check_answers()


def test_usage_of_drafts_adds_up() -> None:
    rng = fresh_random()
    rig = Rig(pool_tokens=512, drafts=Drafts(0.8, rng, most=6), max_num_batched_tokens=64)
    for number in range(4):
        rig.send(make_request(number, [number + 3] * 20, 60))
    drafted = accepted = 0
    while rig.core.has_work:
        for delta in rig.step():
            drafted += delta.drafted
            accepted += delta.accepted
            assert delta.accepted <= min(delta.drafted, len(delta.tokens))
    stats = rig.core.stats()
    assert (drafted, accepted) == (sum(stats.drafts_checked), sum(stats.drafts_accepted))
    assert rig.guesses is not None and sorted(rig.guesses.forgotten) == [0, 1, 2, 3]


def _adapted(right: float, row_seconds: float, streams: int = 1) -> tuple[float, int]:
    """Tokens a request and step, and draft tokens, of answers of 200 tokens."""
    drafts = Drafts(right, random.Random(6), most=8, adaptive=True)
    rig = Rig(pool_tokens=512 * streams, drafts=drafts, max_num_batched_tokens=256, max_num_seqs=streams)
    rig.ledger.row_seconds = row_seconds
    for number in range(streams):
        rig.send(make_request(number, [number + 3] * 20, 200, ignore_eos=True))
    rig.run()
    rig.check_answers()
    return 200 / rig.steps, sum(rig.core.stats().drafts_checked)


def test_drafts_come_down_to_none_where_they_are_wrong() -> None:
    tokens, checked = _adapted(right=0.0, row_seconds=0.0003)
    assert tokens <= 1.05 and checked < 60


def test_drafts_stay_long_where_they_are_right() -> None:
    tokens, checked = _adapted(right=1.0, row_seconds=0.00002)
    assert tokens > 2.5 and checked > 120


def test_drafts_that_cost_more_than_they_bring_are_not_made() -> None:
    """Eight streams, and rows so dear that a token guessed right half the time is not worth one."""
    _, checked = _adapted(right=0.5, row_seconds=0.002, streams=8)
    assert checked < 8 * 40
