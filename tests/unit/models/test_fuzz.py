"""Damaged and hostile model files: never anything but a ModelError, and never much more memory than the file."""

from __future__ import annotations

import json
import secrets
import struct
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks import fuzz
from octavo.models.checkpoint import open_checkpoint
from octavo.models.gguf import read_gguf
from octavo.models.safetensors import read_safetensors
from octavo.models.spec import ModelError
from octavo.models.tokenizer import load_tokenizer
from tests.support.tiny import Tiny, write_gguf, write_hf

MEMORY = 32 << 20
"""Bytes that opening a file of under a megabyte may take at its peak."""

FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SMALL = Tiny(hidden=32, heads=2, kv_heads=1, layers=1, intermediate=32)


@contextmanager
def bounded_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MEMORY, f"{peak} bytes"


def only_model_errors(work: Callable[[], Any]) -> None:
    with bounded_memory():
        try:
            work()
        except ModelError as error:
            assert str(error).isprintable() and len(str(error)) <= 1000


def read_all(path: Path) -> None:
    checkpoint = open_checkpoint(path)
    assert sum(len(tensor.data) for tensor in checkpoint.tensors()) == checkpoint.total_bytes
    checkpoint.close()


@st.composite
def damage(draw: st.DrawFn, size: int, head: int) -> Callable[[bytes], bytes]:
    """Bit flips and overwritten integers, mostly in the first `head` bytes, and sometimes a cut."""
    where = st.one_of(st.integers(0, head - 1), st.integers(0, head - 1), st.integers(0, size - 1))
    flips = draw(st.lists(st.tuples(where, st.integers(0, 7)), max_size=4))
    numbers = st.sampled_from([0, 1, 2**7, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1])
    writes = draw(st.lists(st.tuples(where, numbers, st.sampled_from([1, 4, 8])), max_size=2))
    cut = draw(st.one_of(st.none(), st.integers(0, size)))

    def apply(content: bytes) -> bytes:
        changed = bytearray(content)
        for at, bit in flips:
            changed[at] ^= 1 << bit
        for at, number, width in writes:
            changed[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
        return bytes(changed[:cut] if cut is not None else changed)

    return apply


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, int]:
    path = write_gguf(tmp_path_factory.mktemp("gguf") / "m.gguf", SMALL, "Q8_0").path
    return path.read_bytes(), min(tensor.offset for tensor in read_gguf(path).tensors.values())


@FUZZ
@given(st.data())
def test_damaged_gguf_files(gguf_bytes: tuple[bytes, int], data: st.DataObject) -> None:
    content, head = gguf_bytes
    changed = data.draw(damage(len(content), head))(content)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        path.write_bytes(changed)
        only_model_errors(lambda: read_all(path))
        only_model_errors(lambda: load_tokenizer(path))


@pytest.fixture(scope="module")
def hf_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(tmp_path_factory.mktemp("hf") / "m", SMALL, "BF16").path


@FUZZ
@given(st.data())
def test_damaged_safetensors_files(hf_folder: Path, data: st.DataObject) -> None:
    content = (hf_folder / "model.safetensors").read_bytes()
    head = 8 + int.from_bytes(content[:8], "little")
    changed = data.draw(damage(len(content), head))(content)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        path.write_bytes(changed)
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            (Path(folder) / name).write_bytes((hf_folder / name).read_bytes())
        only_model_errors(lambda: read_all(Path(folder)))


JSON_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
ODD = st.sampled_from([None, True, -1, 0, 1, 2**31, 2**64, 1e300, "", "x", [], [1], [[]], {}, {"a": 1}, ["a"], [-5]])


@FUZZ
@given(st.data())
def test_damaged_json_files(hf_folder: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(JSON_FILES))
    content = json.loads((hf_folder / name).read_text())
    if data.draw(st.booleans()):
        text = (hf_folder / name).read_bytes()
        changed = data.draw(damage(len(text), len(text)))(text)
    else:
        key = data.draw(st.sampled_from(sorted(content)))
        content[key] = data.draw(ODD)
        changed = json.dumps(content).encode()
    with tempfile.TemporaryDirectory() as folder:
        for other in (*JSON_FILES, "model.safetensors"):
            (Path(folder) / other).write_bytes(changed if other == name else (hf_folder / other).read_bytes())
        only_model_errors(lambda: read_all(Path(folder)))
        only_model_errors(lambda: load_tokenizer(Path(folder)))


@FUZZ
@given(st.binary(max_size=300))
def test_any_bytes_are_no_model(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, magic in (("m.gguf", b"GGUF\x03\x00\x00\x00"), ("n.gguf", b"")):
            path = Path(folder) / name
            path.write_bytes(magic + content)
            only_model_errors(lambda path=path: read_all(path))
        path = Path(folder) / "model.safetensors"
        path.write_bytes(len(content).to_bytes(8, "little") + content)
        only_model_errors(lambda: read_safetensors(path))


def test_damaged_models_of_every_kind_are_refused_or_read(tmp_path: Path) -> None:
    """The short form of the row "fuzz" of the bars, without its limit of memory."""
    first = secrets.randbits(40)
    print(f"first case {first}: python -m benchmarks.fuzz NUMBER does one again")
    (tmp_path / "models").mkdir()
    models = fuzz.write_models(tmp_path / "models")
    failures = [fuzz.case(first + i, models, tmp_path)[1] for i in range(150)]
    assert not any(failures), [failure for failure in failures if failure]


# --- single hostile headers -----------------------------------------------------------------------


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def gguf_header(tensors: int, entries: int, body: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries) + body


def row(name: bytes, dims: list[int], kind: int, offset: int) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


HOSTILE_GGUF = {
    "entries without end": (gguf_header(0, 2**60), "limit"),
    "tensors without end": (gguf_header(2**60, 0), "limit"),
    "more entries than bytes": (gguf_header(0, 65_000), "truncated"),
    "a key without end": (gguf_header(0, 1, struct.pack("<Q", 2**50) + bytes(64)), "limit"),
    "a value without end": (gguf_header(0, 1, string(b"a") + struct.pack("<IQ", 8, 2**40) + bytes(64)), "value of a"),
    "an array without end": (gguf_header(0, 1, string(b"a") + struct.pack("<IIQ", 9, 4, 2**61)), "truncated"),
    "strings without end": (gguf_header(0, 1, string(b"a") + struct.pack("<IIQ", 9, 8, 2**61)), "truncated"),
    "arrays in arrays": (gguf_header(0, 1, string(b"a") + struct.pack("<IIQ", 9, 9, 1) * 3), "array of arrays"),
    "an unknown value type": (gguf_header(0, 1, string(b"a") + struct.pack("<IQ", 99, 0)), "99"),
    "a key twice": (gguf_header(0, 2, (string(b"a") + struct.pack("<II", 4, 0)) * 2), "twice"),
    "version 1": (gguf_header(0, 0, version=1), "version 1"),
    "big-endian": (gguf_header(0, 0, version=3 << 24), "big-endian"),
    "nine dimensions": (gguf_header(1, 0, row(b"t", [1] * 9, 0, 0)), "9 dimensions"),
    "no dimension": (gguf_header(1, 0, row(b"t", [], 0, 0) + bytes(32)), "0 dimensions"),
    "a size of zero": (gguf_header(1, 0, row(b"t", [0, 4], 0, 0) + bytes(32)), "shape"),
    "an unknown tensor type": (gguf_header(1, 0, row(b"t", [32], 99, 0) + bytes(64)), "type number 99"),
    "half a block": (gguf_header(1, 0, row(b"t", [33], 8, 0) + bytes(64)), "shape"),
    "an absurd size": (gguf_header(1, 0, row(b"t", [2**62, 2**62], 0, 0) + bytes(64)), "truncated"),
    "an offset beyond the file": (gguf_header(1, 0, row(b"t", [8], 0, 2**40) + bytes(64)), "truncated"),
    "a crooked offset": (gguf_header(1, 0, row(b"t", [8], 0, 5) + bytes(64)), "multiple of 32"),
    "overlap": (gguf_header(2, 0, row(b"t", [16], 0, 0) + row(b"u", [16], 0, 32) + bytes(256)), "t and u overlap"),
    "a tensor twice": (gguf_header(2, 0, row(b"t", [8], 0, 0) * 2 + bytes(256)), "t appears twice"),
    "an odd alignment": (
        gguf_header(0, 1, string(b"general.alignment") + struct.pack("<II", 4, 33)),
        "general.alignment",
    ),
    "an alignment of text": (
        gguf_header(0, 1, string(b"general.alignment") + struct.pack("<I", 8) + string(b"32")),
        "general.alignment",
    ),
}


@pytest.mark.parametrize("case", HOSTILE_GGUF)
def test_a_hostile_gguf_header_is_refused(tmp_path: Path, case: str) -> None:
    content, word = HOSTILE_GGUF[case]
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with bounded_memory(), pytest.raises(ModelError, match=word) as caught:
        read_gguf(path)
    assert "m.gguf" in str(caught.value)


def safetensors_bytes(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


HOSTILE_SAFETENSORS = {
    "a header without end": (safetensors_bytes(b"{}", length=2**63), "no safetensors file"),
    "a header beyond the file": (safetensors_bytes(b"{}", length=1000), "truncated"),
    "nothing": (b"", "truncated"),
    "no JSON": (safetensors_bytes(b"\xff\xfe{}"), "damaged header"),
    "nested without end": (safetensors_bytes(b'{"a":' + b"[" * 200_000), "damaged header"),
    "nested entry": (safetensors_bytes(b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}"), "damaged header"),
    "a list": (safetensors_bytes(b"[]"), "damaged header"),
    "size and shape": (safetensors_bytes(json.dumps({"t": entry("F32", [3], 0, 8)}).encode(), bytes(8)), "8 bytes"),
    "an absurd shape": (
        safetensors_bytes(json.dumps({"t": entry("F32", [2**40, 2**40], 0, 8)}).encode(), bytes(8)),
        "8 bytes",
    ),
    "a negative shape": (
        safetensors_bytes(json.dumps({"t": entry("F32", [-1, -2], 0, 8)}).encode(), bytes(8)),
        "8 bytes",
    ),
    "overlap": (
        safetensors_bytes(json.dumps({"t": entry("U8", [8], 0, 8), "u": entry("U8", [8], 4, 12)}).encode(), bytes(12)),
        "before it ends at 8",
    ),
    "backwards": (safetensors_bytes(json.dumps({"t": entry("U8", [0], 8, 0)}).encode(), bytes(8)), "bytes 8 to 0"),
    "a short file": (safetensors_bytes(json.dumps({"t": entry("U8", [8], 0, 8)}).encode(), bytes(7)), "truncated"),
    "a long file": (safetensors_bytes(json.dumps({"t": entry("U8", [8], 0, 8)}).encode(), bytes(9)), "no tensor owns"),
}


@pytest.mark.parametrize("case", HOSTILE_SAFETENSORS)
def test_a_hostile_safetensors_header_is_refused(tmp_path: Path, case: str) -> None:
    content, word = HOSTILE_SAFETENSORS[case]
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with bounded_memory(), pytest.raises(ModelError, match=word) as caught:
        read_safetensors(path)
    assert "m.safetensors" in str(caught.value)
