"""The recorded program: one call equals many, slots, limits, threads."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import time

import numpy as np
import pytest

from octavo import _native
from tests.support.native import (
    ISAS,
    Llama,
    LlamaShape,
    LlamaWeights,
    batch,
    bits,
    greedy,
    llama,
    matrix,
    program,
    rows_only,
    vector,
)


def prompt_batch(rng: np.random.Generator, shape: LlamaShape) -> _native.Batch:
    tokens = rng.integers(0, shape.vocab, 24).tolist()
    return batch(tokens, [(0, 20, 0, 0), (20, 4, 0, 0)], [[[3], [5]]], [19, 23], [greedy(), greedy()])


@pytest.mark.parametrize("float32", [False, True])
def test_a_whole_step_is_equal_on_every_isa_thread_count_and_op_by_op(float32: bool, rng: np.random.Generator) -> None:
    shape = LlamaShape(float32=float32)
    weights = LlamaWeights.draw(rng, shape)
    b = prompt_batch(rng, shape)
    found = []
    for isa in ISAS:
        for threads in (1, 2, 3):
            m = llama(isa, threads, shape, weights)
            m.program.run(b)
            found.append((bits(m.program.read(m.logits, 2)), m.program.results()))
            m.pool.fill(float("nan"))
            for i in range(m.program.num_ops):
                m.program.run_op(i, b)
            found.append((bits(m.program.read(m.logits, 2)), m.program.results()))
            assert m.program.layers_written == shape.layers
            m.program.close()
    for logits, results in found[1:]:
        np.testing.assert_array_equal(logits, found[0][0])
        assert results == found[0][1]
    assert np.isfinite(found[0][0].view(np.float32)).all()
    assert [r[0] for r in found[0][1]] == np.argmax(found[0][0].view(np.float32), axis=1).tolist()


def test_one_program_serves_batches_of_any_size(rng: np.random.Generator) -> None:
    shape = LlamaShape()
    m = llama(ISAS[0], 2, shape, LlamaWeights.draw(rng, shape))
    tokens = rng.integers(0, shape.vocab, 30).tolist()
    m.program.run(batch(tokens, [(0, 30, 0, 0)], [[[2]]], [29]))
    whole = m.program.read(m.logits, 1)
    assert m.program.results() == []
    at = 0
    while at < 30:
        count = min(int(rng.integers(1, 6)), 30 - at)
        m.program.run(batch(tokens[at : at + count], [(0, count, at, 0)], [[[6]]], [count - 1], [greedy()]))
        at += count
    np.testing.assert_array_equal(bits(m.program.read(m.logits, 1)), bits(whole))
    m.program.run(batch([]))
    m.program.close()


def test_taps_keep_what_later_ops_overwrite(rng: np.random.Generator) -> None:
    x = rng.standard_normal((5, 64), dtype=np.float32)
    p = program(ISAS[0], 2, float32=True)
    src = p.input(64, False)
    kept = p.tap(src)
    h = p.rms_norm(src, vector(np.ones(64, np.float32)), 1e-5)
    out = p.linear(h, [matrix(rng, 64, 64, True)], residual=src)
    assert out == src
    p.write(src, x)
    p.run(rows_only(5))
    np.testing.assert_array_equal(p.read(kept, 5), x)
    assert (p.read(src, 5) != x).any()
    p.close()


def test_a_buffer_whose_memory_was_taken_over_cannot_be_read(rng: np.random.Generator) -> None:
    p = program(ISAS[0])
    src = p.input(64, False)
    one = vector(np.ones(64, np.float32))
    first = h = p.rms_norm(src, one, 1e-5)
    for _ in range(4):
        h = p.rms_norm(p.linear(h, [matrix(rng, 64, 64)]), one, 1e-5)
    p.write(src, rng.standard_normal((3, 64), dtype=np.float32))
    p.run(rows_only(3))
    assert p.read(h, 3).shape == (3, 64)
    with pytest.raises(ValueError, match="tap"):
        p.read(first, 3)
    assert p.workspace_bytes < 64 * 1024
    p.close()


def test_a_step_waits_for_its_flag(rng: np.random.Generator) -> None:
    for threads in (1, 2):
        p = program(ISAS[0], threads)
        src = p.input(32, False)
        p.layer_written(0)
        p.wait_flag(3)
        p.layer_written(1)
        p.tap(src)
        b = rows_only(4)
        p.run(b)  # flags start set
        assert p.layers_written == 2
        p.set_flag(3, False)
        t = threading.Thread(target=p.run, args=(b,))
        t.start()
        deadline = time.monotonic() + 20
        while p.layers_written != 1 and time.monotonic() < deadline:
            time.sleep(0)
        assert p.layers_written == 1 and t.is_alive()
        with pytest.raises(ValueError, match="already running"):
            p.run(b)
        p.set_flag(3, True)
        t.join(20)
        assert not t.is_alive() and p.layers_written == 2
        p.close()


def test_a_collective_sees_and_changes_the_rows(rng: np.random.Generator) -> None:
    seen: list[tuple[int, int, int]] = []
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_float), ctypes.c_int64, ctypes.c_int64)

    @signature
    def double(context: int, rows: ctypes._Pointer[ctypes.c_float], n: int, columns: int) -> None:
        seen.append((context, n, columns))
        np.ctypeslib.as_array(rows, (n, columns))[:] *= 2

    x = rng.standard_normal((7, 64), dtype=np.float32)
    for threads in (1, 2):
        p = program(ISAS[0], threads)
        src = p.input(64, False)
        p.collective(src, ctypes.cast(double, ctypes.c_void_p).value or 0, 42)
        out = p.tap(src)
        p.write(src, x)
        p.run(rows_only(7))
        np.testing.assert_array_equal(p.read(out, 7), 2 * x)
        p.close()
    assert seen == [(42, 7, 64)] * 2


def test_op_times_are_measured_when_asked_for(rng: np.random.Generator) -> None:
    shape = LlamaShape()
    m = llama(ISAS[0], 2, shape, LlamaWeights.draw(rng, shape))
    b = prompt_batch(rng, shape)
    m.program.run(b)
    assert m.program.op_seconds() == [0.0] * m.program.num_ops
    m.program.set_timing(True)
    m.program.run(b)
    times = m.program.op_seconds()
    assert len(times) == len(m.program.op_names) == m.program.num_ops
    assert all(t >= 0 for t in times) and sum(times) > 0
    m.program.close()


def thread_count() -> int:
    return len(os.listdir("/proc/self/task"))


def test_programs_end_their_threads(rng: np.random.Generator) -> None:
    gc.collect()
    before = thread_count()
    for i in range(60):
        p = program(ISAS[0], 1 + i % 4)
        out = p.tap(p.input(32, False))
        p.run(rows_only(i % 8))
        if i % 2:
            p.close()
            p.close()
            with pytest.raises(ValueError, match="closed"):
                p.run(rows_only(1))
        assert p.read(out, 1).shape == (1, 32)
        del p
    assert thread_count() <= before


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_many_short_steps_on_fewer_or_more_threads_than_cpus(threads: int, rng: np.random.Generator) -> None:
    x = rng.standard_normal((9, 32), dtype=np.float32)
    p = program(ISAS[0], threads, float32=True)
    src = p.input(32, False)
    h = src
    for _ in range(10):
        h = p.rms_norm(h, vector(np.ones(32, np.float32)), 1e-5)
    p.write(src, x)
    first = None
    for _ in range(100):
        p.run(rows_only(9))
        now = bits(p.read(h, 9))
        first = now if first is None else first
        np.testing.assert_array_equal(now, first)
    p.close()


def test_programs_of_several_threads_run_at_the_same_time(rng: np.random.Generator) -> None:
    shape = LlamaShape()
    weights = LlamaWeights.draw(rng, shape)
    b = prompt_batch(rng, shape)
    models = [llama(ISAS[0], 2, shape, weights) for _ in range(3)]
    found: list[np.ndarray] = []

    def steps(m: Llama) -> None:
        for _ in range(20):
            m.program.run(b)
        found.append(bits(m.program.read(m.logits, 2)))

    running = [threading.Thread(target=steps, args=(m,)) for m in models]
    for t in running:
        t.start()
    for t in running:
        t.join(60)
    assert len(found) == 3
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


def test_a_program_keeps_its_weights_and_pages_alive(rng: np.random.Generator) -> None:
    shape = LlamaShape()
    b = prompt_batch(rng, shape)
    m = llama(ISAS[0], 1, shape, LlamaWeights.draw(rng, shape))
    m.program.run(b)
    before = bits(m.program.read(m.logits, 2))
    kept, logits = m.program, m.logits
    del m
    gc.collect()
    waste = [np.full(1 << 16, np.nan, np.float32) for _ in range(32)]
    kept.run(b)
    np.testing.assert_array_equal(bits(kept.read(logits, 2)), before)
    del waste


def good() -> dict[str, object]:
    return {"tokens": [1, 2, 3], "seqs": [(0, 3, 0, 0)], "tables": [[[1, 2, 3]]], "logit_rows": [2]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokens": [1, 2, 67]}, "vocabulary"),
        ({"tokens": [1, -1, 3]}, "vocabulary"),
        ({"tokens": [1, 2], "logit_rows": []}, "cover"),
        ({"tokens": [1] * 33, "seqs": [(0, 33, 0, 0)]}, "max_rows"),
        ({"seqs": [(0, 2, 0, 0)]}, "cover"),
        ({"seqs": [(1, 2, 0, 0)]}, "cover"),
        ({"seqs": [(0, 3, -1, 0)]}, "at least 0"),
        ({"seqs": [(0, 3, 94, 0)]}, "max_positions"),
        ({"seqs": [(0, 3, 30, 0)], "tables": [[[1]]]}, "block table"),
        ({"tables": [[[8]]]}, "outside the pool"),
        ({"tables": [[[-1]]]}, "outside the pool"),
        ({"tables": []}, "block table"),
        ({"logit_rows": [3]}, "logit row"),
        ({"logit_rows": [-1]}, "logit row"),
        ({"logit_rows": [0] * 9}, "max_logit_rows"),
        ({"samples": [greedy(), greedy()]}, "one sample"),
    ],
)
def test_batches_outside_the_limits_are_refused(
    change: dict[str, object], words: str, rng: np.random.Generator
) -> None:
    shape = LlamaShape(layers=1)
    m = llama(ISAS[0], 1, shape, LlamaWeights.draw(rng, shape))
    with pytest.raises(ValueError, match=words):
        m.program.run(batch(**{**good(), **change}))  # type: ignore[arg-type]
    m.program.run(batch(**good()))  # type: ignore[arg-type]
    m.program.close()


def test_samples_are_checked_against_the_vocabulary(rng: np.random.Generator) -> None:
    shape = LlamaShape(layers=1)
    m = llama(ISAS[0], 1, shape, LlamaWeights.draw(rng, shape))

    def refused(sample: _native.Sample, words: str) -> None:
        with pytest.raises(ValueError, match=words):
            m.program.run(batch(**good(), samples=[sample]))  # type: ignore[arg-type]

    s = greedy()
    s.set_bias(np.array([67], np.int32), np.array([1.0], np.float32))
    refused(s, "biased")
    s = greedy()
    s.set_banned(np.array([-1], np.int32))
    refused(s, "banned")
    s = greedy()
    s.set_mask(np.zeros(2, np.uint32))
    refused(s, "mask")
    s = greedy()
    s.set_penalties(1.1, 0, 0, np.zeros(66, np.int32), None)
    refused(s, "prompt_counts")
    for bad in ((-1.0, 0, 1.0, 0.0), (1.0, -1, 1.0, 0.0), (1.0, 0, 0.0, 0.0), (1.0, 0, 1.5, 0.0), (1.0, 0, 1.0, 2.0)):
        refused(_native.Sample(*bad, 1, 0, -1), "must")
    refused(greedy(33), "num_logprobs")
    with pytest.raises(ValueError, match="one value"):
        s.set_bias(np.array([1], np.int32), np.zeros(2, np.float32))
    m.program.close()


def test_recording_refuses_what_cannot_run(rng: np.random.Generator) -> None:
    pool = _native.KVPool(2, 32, 1, 2, 16, False)
    p = program(ISAS[0], pools=[pool], rotary=16)
    x = p.input(64, False)
    half = p.input(64, True)
    with pytest.raises(ValueError, match="columns"):
        p.rms_norm(x, vector(np.ones(63, np.float32)), 1e-5)
    with pytest.raises(ValueError, match="float vector"):
        p.rms_norm(x, matrix(rng, 16, 64), 1e-5)
    with pytest.raises(ValueError, match="product reads"):
        p.linear(x, [matrix(rng, 16, 64)])
    with pytest.raises(ValueError, match="columns"):
        p.linear(half, [matrix(rng, 16, 32)])
    with pytest.raises(ValueError, match="bias"):
        p.linear(half, [matrix(rng, 16, 64)], bias=vector(np.ones(15, np.float32)))
    with pytest.raises(ValueError, match="residual"):
        p.linear(half, [matrix(rng, 16, 64)], residual=x)
    with pytest.raises(ValueError, match="does not exist"):
        p.rms_norm(99, vector(np.ones(64, np.float32)), 1e-5)
    with pytest.raises(ValueError, match="silu"):
        p.activate(x, "relu")
    with pytest.raises(ValueError, match="group 1"):
        p.rope_and_store(x, 1, 0, 2)
    with pytest.raises(ValueError, match="layer 1"):
        p.rope_and_store(x, 0, 1, 2)
    with pytest.raises(ValueError, match="multiple"):
        p.rope_and_store(x, 0, 0, 3)
    with pytest.raises(ValueError, match="attention reads"):
        p.attention(half, 0, 0, 4, 1.0)
    with pytest.raises(ValueError, match="gathered"):
        p.sample(x, 64)
    with pytest.raises(ValueError, match="only an input"):
        p.write(p.gather_rows(x), np.zeros((1, 64), np.float32))
    for rows, columns, words in ((1, 63, "columns"), (33, 64, "rows")):
        with pytest.raises(ValueError, match=words):
            p.write(x, np.zeros((rows, columns), np.float32))
    with pytest.raises(ValueError, match="rows"):
        p.read(x, 33)
    p.close()


def test_weights_are_checked_against_their_memory() -> None:
    data = np.zeros(1024 + 64, np.uint8)
    _native.Weight(data, 64, "bf16", 16, 32)
    with pytest.raises(ValueError, match="bytes"):
        _native.Weight(data, 128, "bf16", 16, 32)
    with pytest.raises(ValueError, match="multiple of 64"):
        _native.Weight(data, 32, "bf16", 16, 32)
    with pytest.raises(ValueError, match="kind"):
        _native.Weight(data, 0, "int3", 16, 32)
    with pytest.raises(ValueError, match="between"):
        _native.Weight(data, 0, "bf16", 0, 32)
    with pytest.raises(ValueError, match="contiguous"):
        _native.Weight(object(), 0, "bf16", 16, 32)


def test_an_instruction_set_the_machine_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="not available"):
        program("sse9")
