"""The quick form of a comparison leaves out forms far behind in every work, and servers of forms that do not lead."""

from __future__ import annotations

from octavo.bench.peers.contender import Contender, Sample, Work
from octavo.bench.peers.lean import followers, hopeless, rates_of

WORKS = (Work("one", 1, 8, 8, "decode"), Work("many", 8, 8, 8, "decode"), Work("served", 8, 8, 8, "output", "http"))


def contender(peer: str, form: str, way: str = "offline") -> Contender:
    return Contender(peer, form, (), {}, way=way)


def sample(name: str, work: str, rate: float) -> Sample:
    return Sample(name, work, 0, 0, 0, 1.0, 0.0, rate, 0.0, {})


def test_a_form_is_left_out_only_where_it_is_far_behind_in_every_work() -> None:
    forms = [contender("vllm", form) for form in ("bf16", "fp32", "slow")] + [contender("octavo", "bf16")]
    found = rates_of(
        [
            sample("vllm bf16", "one", 30),
            sample("vllm fp32", "one", 10),
            sample("vllm slow", "one", 10),
            sample("vllm bf16", "many", 50),
            sample("vllm fp32", "many", 60),
            sample("vllm slow", "many", 20),
            sample("octavo bf16", "one", 1),
        ],
        WORKS,
    )
    left = hopeless(forms, found, WORKS)
    assert list(left) == ["vllm slow"] and "3.0 times" in left["vllm slow"]


def test_servers_are_started_with_the_form_that_led_offline_and_octavos_all() -> None:
    every = [contender(peer, form, way) for peer in ("vllm", "octavo") for form in "ab" for way in ("offline", "http")]
    rates = {("vllm a", "one"): 3.0, ("vllm b", "one"): 2.0, ("octavo a", "one"): 1.0}
    assert list(followers(every, rates, WORKS)) == ["vllm b http"]


def test_nothing_is_left_out_before_anything_ran() -> None:
    every = [contender("vllm", form, way) for form in "ab" for way in ("offline", "http")]
    assert not followers(every, {}, WORKS) and not hopeless(every, {}, WORKS)
