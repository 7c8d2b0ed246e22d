"""The channel between client and engine: length-framed MessagePack messages over a socket pair.

Owns the framing and the child's end. A frame is a little-endian uint32 length and that many bytes. The child
writes without blocking: what the socket does not take at once is kept and sent later, in order, and nothing is
ever dropped; only a parent that reads nothing for `STALL_SECONDS` while `MAX_BACKLOG` bytes wait counts as gone.
The death of either side is an immediate end of file on the other.
"""

from __future__ import annotations

import select
import socket
import struct
import time

import msgspec

from octavo.config import EngineConfig
from octavo.types import ClientMessage, EngineMessage

MAX_FRAME = 64 * 1024 * 1024
MAX_BACKLOG = 64 * 1024 * 1024
STALL_SECONDS = 60.0
_READ_BYTES = 256 * 1024

_HEADER = struct.Struct("<I")
_ENCODER = msgspec.msgpack.Encoder()


class ChannelError(Exception):
    """The other side sent something that is not a message."""


class PeerGone(Exception):
    """The other side has closed its end."""


def encode_frame(message: ClientMessage | EngineMessage | EngineConfig) -> bytes:
    """One message as it travels."""
    payload = _ENCODER.encode(message)
    if len(payload) > MAX_FRAME:
        raise ChannelError(f"a message of {len(payload)} bytes is over the frame limit of {MAX_FRAME}")
    return _HEADER.pack(len(payload)) + payload


class FrameReader:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Adds received bytes; returns every frame that is now whole."""
        buffer = self._buffer
        buffer += data
        frames: list[bytes] = []
        start = 0
        while len(buffer) - start >= _HEADER.size:
            (length,) = _HEADER.unpack_from(buffer, start)
            if length > MAX_FRAME:
                raise ChannelError(f"a frame of {length} bytes is over the limit of {MAX_FRAME}")
            end = start + _HEADER.size + length
            if len(buffer) < end:
                break
            frames.append(bytes(buffer[start + _HEADER.size : end]))
            start = end
        del buffer[:start]
        return frames


class ChildChannel:
    """The engine's end, used by its one thread."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._reader = FrameReader()
        self._frames: list[bytes] = []
        self._backlog = bytearray()
        self._decoder: msgspec.msgpack.Decoder[ClientMessage] = msgspec.msgpack.Decoder(ClientMessage)

    def receive_config(self) -> EngineConfig:
        """Waits for the first message of a connection, which is the configuration."""
        while not self._frames:
            self._wait(None)
            self._read()
        return msgspec.msgpack.decode(self._frames.pop(0), type=EngineConfig)

    def poll(self, seconds: float | None) -> list[ClientMessage]:
        """Messages that have arrived; waits for one `seconds` at most (None: as long as it takes)."""
        self._read()
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._frames:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            self._wait(left)
            self._read()
        self._write()
        frames, self._frames = self._frames, []
        return [self._decoder.decode(frame) for frame in frames]

    def send(self, message: EngineMessage) -> None:
        """Queues a message and writes what the socket takes."""
        self._backlog += encode_frame(message)
        self._write()
        while len(self._backlog) > MAX_BACKLOG:
            if not self._wait(STALL_SECONDS, write_only=True):
                raise PeerGone("the client has stopped reading")
            self._write()

    def flush(self, seconds: float) -> None:
        """Waits until everything queued is written, `seconds` for each part at most."""
        while self._backlog:
            if not self._wait(seconds, write_only=True):
                raise PeerGone("the client has stopped reading")
            self._write()

    def _wait(self, seconds: float | None, write_only: bool = False) -> bool:
        poller = select.poll()
        events = 0 if write_only else select.POLLIN
        if self._backlog:
            events |= select.POLLOUT
        poller.register(self._socket, events)
        ready = bool(poller.poll(None if seconds is None else seconds * 1000))
        if ready:
            self._write()
        return ready

    def _read(self) -> None:
        while True:
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except ConnectionError as error:
                raise PeerGone(str(error)) from error
            if not data:
                raise PeerGone("the client has closed the channel")
            self._frames.extend(self._reader.feed(data))

    def _write(self) -> None:
        if not self._backlog:
            return
        try:
            sent = self._socket.send(self._backlog)
        except BlockingIOError:
            return
        except ConnectionError as error:
            raise PeerGone(str(error)) from error
        del self._backlog[:sent]
