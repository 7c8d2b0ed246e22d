"""Files' number formats and bfloat16, against the packages that define them."""

from __future__ import annotations

import gguf
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.ops.numeric import expand, round_bf16


@given(st.lists(st.floats(width=32, allow_nan=True), min_size=1))
def test_rounding_to_bf16_is_nearest_even(values: list[float]) -> None:
    x = np.array(values, np.float32)
    with np.errstate(over="ignore"):
        expected = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(round_bf16(x), expected)


def test_nan_becomes_the_quiet_nan() -> None:
    odd = np.array([0x7F800001, 0xFFC12345], np.uint32).view(np.float32)
    assert (round_bf16(odd).view(np.uint32) == 0x7FC00000).all()


@pytest.mark.parametrize("source", ["F32", "F16", "BF16", "Q8_0", "Q4_1"])
@given(seed=st.integers(0, 2**32 - 1))
def test_expanding_equals_gguf(source: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    kind = gguf.GGMLQuantizationType[source]
    values = (rng.standard_normal((3, 64)) * 10.0 ** rng.integers(-3, 3)).astype(np.float32)
    raw = gguf.quants.quantize(values, kind)
    got = expand(source, (3, 64), memoryview(np.ascontiguousarray(raw)).cast("B"))
    np.testing.assert_allclose(got, gguf.quants.dequantize(raw, kind), rtol=1e-6, atol=1e-7)


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(ValueError, match="Q5_K"):
        expand("Q5_K", (1, 1), memoryview(b""))
