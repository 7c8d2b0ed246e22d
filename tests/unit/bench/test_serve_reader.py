"""Responses and events are read alike however the network cuts them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.serve.reader import SSE, BrokenResponse, Response
from octavo.bench.serve.target import parse_target

DATA = st.binary(min_size=1, max_size=40).filter(lambda data: b"\n" not in data and b"\r" not in data)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(place % (len(data) + 1) for place in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(places) if b > a]


def read(parts: list[bytes]) -> tuple[Response, list[bytes]]:
    sse, events = SSE(), []
    response = Response(lambda part: events.extend(sse.feed(part)))
    for part in parts:
        response.feed(part)
    return response, events


def framed(events: list[bytes], form: str, end: bytes) -> bytes:
    wire = [b"data: " + event + end + end for event in events]
    if form == "chunked":
        body = b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in wire) + b"0\r\n\r\n"
        return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body
    body = b": ping" + end + end + b"".join(wire)
    head = b"Content-Length: %d\r\n" % len(body) if form == "length" else b""
    return b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n" + head + b"\r\n" + body


@given(
    st.lists(DATA, min_size=1, max_size=6),
    st.sampled_from(["chunked", "length", "close"]),
    st.sampled_from([b"\n", b"\r\n"]),
    st.lists(st.integers(0, 1 << 16), max_size=12),
)
def test_any_cut_of_a_response_gives_the_same_events(
    events: list[bytes], form: str, end: bytes, cuts: list[int]
) -> None:
    response, found = read(cut(framed(events, form, end), cuts))
    assert found == events
    assert response.end() and response.status == 200
    assert response.keeps_alive == (form != "close")


def test_a_body_that_stops_early_is_not_whole() -> None:
    whole = framed([b"one", b"two"], "chunked", b"\n")
    for size in range(1, len(whole)):
        assert not read([whole[:size]])[0].end()


@given(st.sampled_from([b"", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"]), st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(head: bytes, data: bytes) -> None:
    try:
        read([head + data])
    except BrokenResponse as refused:
        assert str(refused)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabcdefgh\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    ],
)
def test_what_is_not_http_is_said_to_be_broken(data: bytes) -> None:
    with pytest.raises(BrokenResponse):
        read([data])


@pytest.mark.parametrize(
    ("url", "authority", "base"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000", ""),
        ("127.0.0.1:8000/v1/", "127.0.0.1:8000", ""),
        ("http://[::1]:9/v1", "[::1]:9", ""),
        ("http://host/llm/v1", "host:80", "/llm"),
        ("https://host", "host:443", ""),
    ],
)
def test_urls_are_read(url: str, authority: str, base: str) -> None:
    target = parse_target(url)
    assert (target.authority, target.base) == (authority, base)


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host:99999", "http://u@host", "http://host?x=1"])
def test_urls_that_cannot_be_used_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        parse_target(url)
