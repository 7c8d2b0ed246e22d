"""resolve(): every None is filled, every refusal names the flag and a value that works."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config import (
    ConfigError,
    EngineConfig,
    ExecutionConfig,
    Facts,
    KVConfig,
    KVShape,
    ModelConfig,
    SchedulerConfig,
    explain,
    resolve,
)

FACTS = Facts(
    max_context=8192,
    kv=KVShape(23040),
    weights_bytes=100 << 20,
    row_bytes=40_000,
    vocab=49152,
    available_bytes=8 << 30,
    cpus=2,
    isas=("avx2", "portable"),
)


def test_defaults_are_filled_and_the_report_has_five_lines() -> None:
    config, budget = resolve(EngineConfig(), FACTS)
    assert config.model.max_model_len == 8192
    assert config.execution.isa == "avx2" and config.execution.threads == 2
    assert config.kv.size_tokens is not None and config.kv.size_tokens % config.kv.block_size == 0
    assert budget.weights + budget.kv + budget.workspace + budget.free == FACTS.available_bytes
    assert len(explain(config, budget)) == 5


def test_a_small_pool_shortens_the_context_that_was_not_asked_for() -> None:
    config, _ = resolve(EngineConfig(kv=KVConfig(size_tokens=100)), FACTS)
    assert config.kv.size_tokens == 96
    assert config.model.max_model_len == 96


def test_unpaged_memory_is_one_block_a_request() -> None:
    config, _ = resolve(
        EngineConfig(model=ModelConfig(max_model_len=100), kv=KVConfig(size_tokens=600, paged=False)), FACTS
    )
    assert config.kv.block_size == 128
    assert config.kv.size_tokens == 4 * 128


@pytest.mark.parametrize(
    ("config", "flag"),
    [
        (EngineConfig(kv=KVConfig(size_tokens=10)), "--kv-tokens"),
        (EngineConfig(kv=KVConfig(size_tokens=10**9)), "--kv-tokens"),
        (EngineConfig(kv=KVConfig(size_tokens=64, size_bytes=10**6)), "--kv-memory"),
        (EngineConfig(kv=KVConfig(block_size=48)), "--block-size"),
        (EngineConfig(model=ModelConfig(max_model_len=9000)), "--max-model-len"),
        (EngineConfig(model=ModelConfig(max_model_len=4096), kv=KVConfig(size_tokens=1024)), "--max-model-len"),
        (EngineConfig(model=ModelConfig(precision="int3")), "--precision"),
        (EngineConfig(execution=ExecutionConfig(isa="avx512")), "--isa"),
        (EngineConfig(execution=ExecutionConfig(threads=0)), "--threads"),
        (EngineConfig(scheduler=SchedulerConfig(chunked_prefill=False)), "--no-chunked-prefill"),
        (EngineConfig(scheduler=SchedulerConfig(max_num_seqs=0)), "--max-num-seqs"),
    ],
)
def test_a_refusal_names_the_flag_in_one_sentence(config: EngineConfig, flag: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve(config, FACTS)
    message = str(error.value)
    assert flag in message and "\n" not in message and len(message) < 300


@given(tokens=st.integers(1, 10**7), length=st.integers(1, 8192), block=st.sampled_from([32, 64, 256]))
def test_the_value_that_a_refusal_offers_works(tokens: int, length: int, block: int) -> None:
    config = EngineConfig(model=ModelConfig(max_model_len=length), kv=KVConfig(size_tokens=tokens, block_size=block))
    for _ in range(4):
        try:
            resolved, _budget = resolve(config, FACTS)
        except ConfigError as error:
            found = re.findall(r"(--kv-tokens|--max-model-len|--block-size) (\d+) (?:would|or)", str(error))
            assert found, str(error)
            flag, value = found[-1]
            if flag == "--kv-tokens":
                config = replace(config, kv=replace(config.kv, size_tokens=int(value)))
            elif flag == "--block-size":
                config = replace(config, kv=replace(config.kv, block_size=int(value)))
            else:
                config = replace(config, model=ModelConfig(max_model_len=int(value)))
        else:
            assert resolved.kv.size_tokens is not None and resolved.model.max_model_len is not None
            assert resolved.model.max_model_len <= resolved.kv.size_tokens
            return
    pytest.fail("four offers in a row were refused")
