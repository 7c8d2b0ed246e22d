"""The channel: framing at any division of bytes, back pressure without loss, and the peer's death."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config import EngineConfig, KVConfig
from octavo.engine.channel import MAX_FRAME, ChannelError, ChildChannel, FrameReader, PeerGone, encode_frame
from octavo.types import Abort, Drain, NewRequest, Progress, SamplingParams


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, ChildChannel]]:
    parent, child = socket.socketpair()
    with parent, child:
        yield parent, ChildChannel(child)


@given(st.lists(st.integers(0, 300), max_size=8), st.integers(1, 64))
def test_frames_come_whole_at_any_division_of_the_bytes(sizes: list[int], step: int) -> None:
    messages = [Progress("x" * size, size / 300) for size in sizes]
    raw = b"".join(map(encode_frame, messages))
    reader = FrameReader()
    frames = [frame for at in range(0, len(raw), step) for frame in reader.feed(raw[at : at + step])]
    assert [msgspec.msgpack.decode(frame, type=Progress) for frame in frames] == messages


def test_a_frame_over_the_limit_is_refused_from_its_header() -> None:
    with pytest.raises(ChannelError, match="limit"):
        FrameReader().feed(struct.pack("<I", MAX_FRAME + 1))


def test_the_configuration_comes_first_and_messages_follow_in_order(
    pair: tuple[socket.socket, ChildChannel],
) -> None:
    parent, channel = pair
    config = EngineConfig(kv=KVConfig(size_tokens=512))
    request = NewRequest(request_id=1, prompt=[1, 2], params=SamplingParams(max_tokens=3), seed=2**64 - 1)
    messages = [request, Abort([1, 9]), Drain()]
    parent.sendall(encode_frame(config) + b"".join(map(encode_frame, messages)))
    assert channel.receive_config() == config
    assert channel.poll(None) == messages
    assert channel.poll(0.0) == []


def test_a_slow_reader_loses_nothing_and_does_not_stop_the_writer(pair: tuple[socket.socket, ChildChannel]) -> None:
    parent, channel = pair
    messages = [Progress(f"{i}" * 1000) for i in range(1000)]
    for message in messages:
        channel.send(message)
    received: list[bytes] = []

    def read() -> None:
        reader = FrameReader()
        while len(received) < len(messages):
            received.extend(reader.feed(parent.recv(65536)))

    thread = threading.Thread(target=read)
    thread.start()
    channel.flush(10.0)
    thread.join(10.0)
    assert [msgspec.msgpack.decode(frame, type=Progress) for frame in received] == messages


def test_a_peer_that_goes_away_is_noticed_at_the_next_poll(pair: tuple[socket.socket, ChildChannel]) -> None:
    parent, channel = pair
    parent.close()
    with pytest.raises(PeerGone):
        channel.poll(0.0)


def test_writing_to_a_peer_that_has_gone_says_so(pair: tuple[socket.socket, ChildChannel]) -> None:
    parent, channel = pair
    parent.close()
    with pytest.raises(PeerGone):
        for _ in range(3):
            channel.send(Progress("x"))
