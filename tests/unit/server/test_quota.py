"""What a key may take: no rate is exceeded over any time, and waiting as told is enough."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.server.errors import ApiError
from octavo.server.quota import Bucket, Client

NO_LIMITS = {"requests_per_minute": 0, "tokens_per_minute": 0, "max_concurrent": 0}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@given(st.integers(1, 600), st.lists(st.floats(0, 30), min_size=1, max_size=60))
def test_a_bucket_gives_out_a_minutes_worth_and_its_rate(rate: int, pauses: list[float]) -> None:
    clock = Clock()
    bucket = Bucket(rate, clock)
    taken = 0
    for pause in pauses:
        clock.now += pause
        if bucket.wait(1) == 0:
            bucket.take(1)
            taken += 1
    assert taken <= rate + (clock.now - 100.0) * rate / 60 + 1e-6


@given(st.integers(1, 10_000), st.integers(1, 100_000))
def test_waiting_as_told_is_enough(rate: int, spent: int) -> None:
    clock = Clock()
    bucket = Bucket(rate, clock)
    bucket.take(spent)
    clock.now += bucket.wait(1) + 1e-6
    assert bucket.wait(1) < 1e-3


def refusal(client: Client, choices: int, tokens: int) -> ApiError:
    with pytest.raises(ApiError) as caught:
        client.begin(choices, tokens)
    return caught.value


def test_answers_at_once_are_counted_in_choices_and_given_back() -> None:
    client = Client("alice", {**NO_LIMITS, "max_concurrent": 4}, Clock())
    client.begin(3, 10)
    assert refusal(client, 2, 10).status == 429
    assert refusal(client, 5, 10).status == 400  # no waiting helps
    client.begin(1, 10)
    client.end(3)
    client.begin(3, 10)
    assert client.open == 4


def test_tokens_go_below_nothing_for_open_answers_and_hold_up_new_ones() -> None:
    clock = Clock()
    client = Client("alice", {**NO_LIMITS, "tokens_per_minute": 60}, clock)
    client.begin(1, 50)
    client.spend(70)
    error = refusal(client, 1, 1)
    assert error.status == 429 and error.code == "rate_limit_exceeded" and error.retry_after == 61
    clock.now += error.retry_after
    client.begin(1, 1)


def test_requests_a_minute_are_counted_as_they_arrive() -> None:
    clock = Clock()
    client = Client("alice", {**NO_LIMITS, "requests_per_minute": 2}, clock)
    client.arrive()
    client.arrive()
    with pytest.raises(ApiError) as caught:
        client.arrive()
    assert caught.value.retry_after == 30
    clock.now += 30.001
    client.arrive()


def test_new_limits_leave_equal_ones_as_they_are() -> None:
    client = Client("alice", {**NO_LIMITS, "requests_per_minute": 1}, Clock())
    client.arrive()
    client.set_limits({**NO_LIMITS, "requests_per_minute": 1})
    with pytest.raises(ApiError):
        client.arrive()
    client.set_limits({**NO_LIMITS, "requests_per_minute": 2})
    client.arrive()
