"""Lists and objects of a body are counted and measured before they are built."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config import ServerConfig
from octavo.server.body import check_structure
from octavo.server.errors import ApiError

LIMITS = ServerConfig(max_json_depth=4, max_json_containers=16, max_json_values=24)


def nested(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(nested, value.values()), default=0)
    return 1 + max(map(nested, value), default=0) if isinstance(value, list) else 0


def containers(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(containers, value.values()))
    return 1 + sum(map(containers, value)) if isinstance(value, list) else 0


def keys(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(keys, value.values()))
    return sum(map(keys, value)) if isinstance(value, list) else 0


def commas(value: Any) -> int:
    """Values that are not the first of their list or object."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return max(0, len(inner) - 1) + sum(map(commas, inner))


texts = st.text(st.sampled_from('[]{}"\\\\,: a\né'), max_size=8)
values = st.recursive(
    st.one_of(texts, st.integers(-5, 5), st.none()),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(texts, inner, max_size=8),
    max_leaves=60,
)


@given(values, st.booleans())
def test_a_body_is_refused_if_and_only_if_it_is_too_deep_or_too_wide(value: Any, ascii_only: bool) -> None:
    whole = {"x": value}
    body = json.dumps(whole, ensure_ascii=ascii_only).encode()
    bad = (
        nested(whole) > LIMITS.max_json_depth
        or containers(whole) > LIMITS.max_json_containers
        or keys(whole) > LIMITS.max_json_containers
        or commas(whole) >= LIMITS.max_json_values
    )
    try:
        check_structure(body, LIMITS)
    except ApiError:
        assert bad
    else:
        assert not bad


@given(st.binary(max_size=60))
def test_what_is_no_json_is_left_to_the_parser_or_refused(body: bytes) -> None:
    try:
        check_structure(body, LIMITS)
    except ApiError as error:
        assert error.status == 400


@pytest.mark.parametrize(
    "body",
    [
        b"[" * (4 << 20),
        b"[" * (2 << 20) + b"]" * (2 << 20),
        b'{"x":' * 700_000,
        b"[]," * 1_300_000,
        b'"' + b"\\\\" * (2 << 20),
        b'"[' * (2 << 20),
        b"[[]]" * 1_000_000,
        b'{"prompt":[' + b"1," * 2_000_000 + b"1]}",
        b'{"x":{' + b'"":1,' * 800_000 + b'"":1}}',
    ],
    ids=lambda body: repr(body[:6]),
)
def test_the_worst_of_four_megabytes_is_judged_in_a_fraction_of_a_second(body: bytes) -> None:
    began = time.process_time()
    try:
        check_structure(body)
    except ApiError as error:
        assert error.status == 400
    assert time.process_time() - began < 0.5
