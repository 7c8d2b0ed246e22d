"""Drawing tokens: every filter to the token, noise to the bit, penalties against a short reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.native import F32, ISAS, batch, bits, program
from tests.support.sampling import Row, draw, logprobs, penalised, philox

FAST = ISAS[0]
Result = tuple[int, float, list[int], list[float]]


class Sampler:
    """A program that draws from rows of logits written into it."""

    def __init__(self, vocab: int, isa: str = FAST, threads: int = 1, rows: int = 64) -> None:
        self.program = program(isa, threads, rows=rows, logit_rows=rows)
        self.src = self.program.input(vocab, False)
        self.program.sample(self.program.gather_rows(self.src), vocab)

    def __call__(self, logits: F32, rows: list[Row]) -> list[Result]:
        n = len(rows)
        self.program.write(self.src, np.ascontiguousarray(logits, np.float32).reshape(n, -1))
        self.program.run(batch([0] * n, logit_rows=range(n), samples=[r.native() for r in rows]))
        return self.program.results()

    def tokens(self, logits: F32, rows: list[Row]) -> list[int]:
        return [r[0] for r in self(logits, rows)]


def some_logits(rng: np.random.Generator, vocab: int) -> F32:
    kind = rng.integers(4)
    x = rng.standard_normal(vocab) * rng.choice([0.3, 1.0, 4.0])
    if kind == 1:  # many ties, the greatest among them
        x = np.round(x)
    if kind == 2:  # a few likely tokens
        x[rng.integers(0, vocab, 5)] += 8
    if kind == 3:
        x[rng.random(vocab) < 0.5] = -np.inf
        x[rng.integers(vocab)] = 1
    return x.astype(np.float32)


def some_row(rng: np.random.Generator, vocab: int) -> Row:
    def counts() -> np.ndarray | None:
        return None if rng.random() < 0.6 else rng.integers(0, 3, vocab).astype(np.int32)

    def pick(*values: float) -> float:
        return float(rng.choice(values))

    return Row(
        temperature=pick(0, 1e-9, 1e-6, 0.3, 0.7, 1, 1, 1, 2),
        top_k=int(pick(0, 0, 1, 2, 5, 40, vocab - 1, vocab, 10**9)),
        top_p=pick(1, 1, 0.95, 0.5, 0.1, 1e-8),
        min_p=pick(0, 0, 0.02, 0.3, 1),
        repetition=pick(1, 1.3, 0.8),
        presence=pick(0, 1.5, -0.5),
        frequency=pick(0, 0.7, -0.2),
        seed=int(rng.integers(0, 2**64, dtype=np.uint64)),
        position=int(rng.integers(0, 100_000)),
        choice=int(rng.integers(0, 4)),
        num_logprobs=int(pick(-1, -1, 0, 5, 20)),
        prompt=counts(),
        output=counts(),
        bias={int(t): float(v) for t, v in zip(rng.integers(0, vocab, 3), rng.normal(0, 5, 3), strict=True)}
        if rng.random() < 0.3
        else {},
        banned=tuple(int(t) for t in rng.integers(0, vocab, 2)) if rng.random() < 0.3 else (),
        allowed=rng.random(vocab) < 0.7 if rng.random() < 0.3 else None,
    )


@pytest.mark.parametrize("vocab", [5, 64, 257, 1000])
def test_tokens_equal_the_reference(vocab: int, rng: np.random.Generator) -> None:
    samplers = [Sampler(vocab, isa, threads) for isa, threads in [(FAST, 1), (FAST, 3), (ISAS[-1], 1)]]
    for _ in range(8):
        logits = np.stack([some_logits(rng, vocab) for _ in range(64)])
        rows = [some_row(rng, vocab) for _ in range(64)]
        with np.errstate(all="ignore"):
            want = [draw(x, r) for x, r in zip(logits, rows, strict=True)]
        results = [s(logits, rows) for s in samplers]
        for r, row in enumerate(rows):
            assert results[0][r][0] == want[r], row
        assert results[1] == results[0]
        assert results[2] == results[0]
    for s in samplers:
        s.program.close()


def test_a_large_vocabulary_equals_the_reference(rng: np.random.Generator) -> None:
    vocab, sampler = 49152, Sampler(49152, rows=4)
    for filters in ({"top_p": 0.9}, {"top_k": 50}, {"top_k": 30000, "top_p": 0.99}, {}, {"min_p": 0.001}):
        logits = np.stack([rng.standard_normal(vocab) * s for s in (0.5, 2, 4, 8)]).astype(np.float32)
        rows = [Row(seed=int(rng.integers(2**63)), position=i, **filters) for i in range(4)]
        assert sampler.tokens(logits, rows) == [draw(x, r) for x, r in zip(logits, rows, strict=True)]
    sampler.program.close()


def test_philox_gives_the_published_vectors() -> None:
    # Random123's known answers for philox4x32-10; the native words are compared through the tokens they draw.
    ones = 0xFFFFFFFF
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), 0x299F31D0A4093822
    for counter, seed, words in (
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ones,) * 4, (ones << 32) | ones, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (*pi, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ):
        assert tuple(philox(np.array([counter], np.uint64), seed)[0]) == words


def test_probabilities_at_the_edges() -> None:
    s, x = Sampler(6), np.array([1, 3, 3, 2, 3, -1], np.float32)
    seeds = range(40)

    def reached(**kwargs: float) -> set[int]:
        rows = [Row(seed=seed, **kwargs) for seed in seeds]  # type: ignore[arg-type]
        return set(s.tokens(np.tile(x, (len(rows), 1)), rows))

    assert reached(temperature=0) == reached(temperature=1e-9) == reached(top_k=1) == {1}
    assert reached(top_p=1e-8) == reached(temperature=1.5, top_p=1e-30) == {1}
    assert reached(top_k=2) == {1, 2}  # ties at the threshold: the lowest ids
    assert reached(min_p=1) == {1, 2, 4}
    assert reached(temperature=1e-4) == {1, 2, 4}
    assert reached(temperature=1e6) == reached(temperature=1e6, top_k=6) == set(range(6))
    assert reached(top_p=0.3) == {1, 2}  # 0.28 each: one is not enough
    s.program.close()


def test_rows_that_cannot_be_drawn_give_no_token() -> None:
    s = Sampler(40, rows=4)
    x = np.zeros((4, 40), np.float32)
    x[0, 39] = np.nan
    x[1] = -np.inf
    rows = [Row(), Row(), Row(banned=tuple(range(40))), Row(allowed=np.arange(40) == 33, num_logprobs=2)]
    out = s(x, rows)
    assert [r[0] for r in out] == [-1, -1, -1, 33]
    assert out[3][2] == [0, 1]  # the raw distribution, ties by lowest id
    s.program.close()


def test_penalties_equal_the_short_reference(rng: np.random.Generator) -> None:
    vocab, s = 48, Sampler(48, rows=2)
    for _ in range(60):
        x = rng.standard_normal(vocab).astype(np.float32)
        row = replace(some_row(rng, vocab), temperature=0, bias={}, banned=(), allowed=None)
        plain = Row(temperature=0)
        want = [int(penalised(x, row).argmax()), int(x.argmax())]
        assert s.tokens(np.stack([x, x]), [row, plain]) == want
        assert s.tokens(np.stack([x, x]), [plain, row]) == want[::-1]
    s.program.close()


def test_logprobs_are_those_of_the_raw_distribution(rng: np.random.Generator) -> None:
    vocab, s = 301, Sampler(301, rows=8)
    logits = np.stack([some_logits(rng, vocab) for _ in range(8)])
    rows = [replace(some_row(rng, vocab), num_logprobs=n, allowed=None) for n in (0, 1, 2, 5, 20, 20, 32, 32)]
    for x, row, (token, logprob, ids, values) in zip(logits, rows, s(logits, rows), strict=True):
        with np.errstate(all="ignore"):
            want = logprobs(x)
        order = np.lexsort((np.arange(vocab), -x))[: row.num_logprobs]
        assert ids == order.tolist()
        np.testing.assert_array_equal(bits(np.array(values, np.float32)), bits(want[order]))
        if token >= 0:
            assert np.float32(logprob) == want[token]
    s.program.close()


def test_draws_follow_the_distribution(rng: np.random.Generator) -> None:
    """Chi-square, 15 degrees of freedom: fails a right sampler once in about 3 million runs."""
    s, base, n = Sampler(16), int(rng.integers(2**62)), 100
    x = np.log(np.arange(1, 17)).astype(np.float32)
    counts = np.zeros(16)
    for i in range(n):
        rows = [Row(seed=base + i, position=p, choice=i % 2) for p in range(64)]
        counts += np.bincount(s.tokens(np.tile(x, (64, 1)), rows), minlength=16)
    want = np.arange(1, 17) / 136 * n * 64
    assert ((counts - want) ** 2 / want).sum() < 60
    s.program.close()


def test_a_draw_depends_on_its_own_row_alone(rng: np.random.Generator) -> None:
    vocab, many = 500, Sampler(500, threads=3)
    logits = np.stack([some_logits(rng, vocab) for _ in range(64)])
    rows = [some_row(rng, vocab) for _ in range(64)]
    together = many(logits, rows)
    order = rng.permutation(64)
    assert many(logits[order], [rows[i] for i in order]) == [together[i] for i in order]
    for i in range(0, 64, 9):
        assert many(logits[i], [rows[i]]) == [together[i]]
    many.program.close()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("vocab", [5, 16, 49, 300])
def test_a_given_token_has_its_logprob_and_its_rank(isa: str, vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    sampler = Sampler(vocab, isa)
    x = np.stack([np.round(rng.standard_normal(vocab) * 2) for _ in range(20)]).astype(np.float32)
    tokens = [int(token) for token in rng.integers(0, vocab, 20)]
    samples = [Row(temperature=0.0, num_logprobs=2).native() for _ in tokens]
    for sample, token in zip(samples, tokens, strict=True):
        sample.given = token
    sampler.program.write(sampler.src, x)
    sampler.program.run(batch([0] * 20, logit_rows=range(20), samples=samples))
    found, ranks = sampler.program.results(), sampler.program.ranks()
    order = [np.lexsort((np.arange(vocab), -row)).tolist() for row in x]
    assert ranks == [1 + places.index(token) for places, token in zip(order, tokens, strict=True)]
    forced = [Row(temperature=0.0, num_logprobs=2, bias={token: 1000.0}) for token in tokens]
    assert found == sampler(x, forced) and sampler.program.ranks() == [0] * 20


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_of_no_numbers_has_no_logprob_for_a_given_token(bad: float) -> None:
    sampler = Sampler(20)
    sample = Row(num_logprobs=0).native()
    sample.given = 3
    sampler.program.write(sampler.src, np.full((1, 20), bad, np.float32))
    sampler.program.run(batch([0], logit_rows=[0], samples=[sample]))
    assert sampler.program.results()[0][0] == -1 and sampler.program.ranks() == [0]


def test_a_given_token_outside_the_vocabulary_is_refused() -> None:
    sampler = Sampler(20)
    sample = Row().native()
    sample.given = 20
    with pytest.raises(ValueError, match="given token"):
        sampler.program.run(batch([0], logit_rows=[0], samples=[sample]))


def test_other_rows_of_a_step_can_be_gathered_after_it() -> None:
    sampler = Sampler(40, rows=64)
    x = np.random.default_rng(3).standard_normal((50, 40)).astype(np.float32)
    everything = sampler(x, [Row(temperature=0.0, num_logprobs=3)] * 50)
    chosen = [49, 3, 3, 17]
    later = batch([0] * 50, logit_rows=chosen, samples=[Row(temperature=0.0, num_logprobs=3).native()] * 4)
    sampler.program.run_from(sampler.program.op_names.index("gather_rows"), later)
    assert sampler.program.results() == [everything[row] for row in chosen]
    with pytest.raises(ValueError, match="last run"):
        sampler.program.run_from(0, batch([0] * 49, logit_rows=[0], samples=[Row().native()]))
