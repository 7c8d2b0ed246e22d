"""Damaged model files: nothing but one-sentence refusals, in bounded memory and time, and no crash.

A child process writes small models of every kind (GGUF of several types, split GGUF, safetensors, shards, each
quantisation), damages one file of one of them, and opens it in every way there is: checkpoint, all tensors and their
values, tokeniser, inspection. A case is its number: `python -m benchmarks.fuzz NUMBER` does one again. The child may
take 256 MB more than it has after writing the models, and 10 s a case.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from octavo.models.checkpoint import open_checkpoint
from octavo.models.inspection import inspect
from octavo.models.spec import ModelError
from octavo.models.tokenizer import load_tokenizer
from octavo.ops.numeric import expand
from tests.support.quantised import awq, compressed_config, fp8, gptq, packed_ints, plain_ints, write_quantised
from tests.support.tiny import Tiny, write_gguf, write_hf

EXTRA_BYTES = 256 << 20
CASE_SECONDS = 10
_SMALL = Tiny(hidden=64, heads=2, kv_heads=1, layers=1, intermediate=64)
_NUMBERS = (0, 1, 2**7, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1)
_ODD: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 3, 2**31, 2**64, 1e300, -0.0, "", "x", [], [1], [[]], {}, {"a": 1}, ["a"], [-5, 0],
)  # fmt: skip


def write_models(folder: Path) -> list[Path]:
    """One directory a model."""
    gguf = ["F32", "BF16", "Q8_0", "Q4_0", "Q5_1"]
    for kind in gguf:
        (folder / kind).mkdir()
        write_gguf(folder / kind / "m.gguf", _SMALL, kind)
    (folder / "split").mkdir()
    write_gguf(folder / "split" / "m.gguf", _SMALL, "Q4_1", tensors_a_part=5)
    write_hf(folder / "hf", _SMALL, "BF16")
    write_hf(folder / "shards", _SMALL, "F16", shards=3)
    grouped = {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False}
    forms = {
        "gptq": (gptq(act_order=True), {"quant_method": "gptq", "bits": 4, "group_size": 32}),
        "gptq8": (gptq(bits=8, group=-1, symmetric=True), {"quant_method": "gptq", "bits": 8, "group_size": -1}),
        "awq": (awq(), {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}),
        "packed": (packed_ints(symmetric=False), compressed_config("pack-quantized", **grouped)),
        "int8": (plain_ints(), compressed_config("int-quantized", num_bits=8, strategy="channel")),
        "fp8": (fp8((32, 64)), {"quant_method": "fp8", "weight_block_size": [32, 64]}),
    }
    for name, (packer, config) in forms.items():
        write_quantised(folder / name, packer, config, _SMALL)
    return sorted(path for path in folder.iterdir() if path.is_dir())


def damage(folder: Path, rng: random.Random) -> str:
    """Changes one file; what was done, for a person."""
    path = rng.choice(sorted(folder.iterdir()))
    if rng.random() < 0.03:
        path.unlink()
        return f"{path.name} removed"
    if path.suffix == ".json" and rng.random() < 0.7:
        content = json.loads(path.read_text())
        where = _odd_value(content, rng)
        path.write_text(json.dumps(content))
        return f"{path.name}: {where}"
    content = bytearray(path.read_bytes())
    head = _header_bytes(path, bytes(content[:8]), len(content))
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(head if rng.random() < 0.85 else len(content))
        if rng.random() < 0.6:
            content[at] ^= 1 << rng.randrange(8)
        else:
            width = rng.choice((1, 4, 8))
            content[at : at + width] = (rng.choice(_NUMBERS) % (1 << 8 * width)).to_bytes(width, "little")
    if rng.random() < 0.15:
        del content[rng.randrange(len(content)) :]
    if rng.random() < 0.05:
        at, size = rng.randrange(len(content) + 1), rng.randrange(64)
        content[at:at] = content[:size]
    path.write_bytes(content)
    return f"{path.name} changed"


def _header_bytes(path: Path, start: bytes, size: int) -> int:
    if path.suffix == ".safetensors":
        return min(size, 8 + struct.unpack("<Q", start)[0])
    return min(size, 12_000) if path.suffix == ".gguf" else size


def _odd_value(content: Any, rng: random.Random) -> str:
    """Replaces one value somewhere in a JSON document."""
    where = []
    while True:
        if not isinstance(content, (dict, list)) or not content:
            return "/".join(where)
        key: Any = rng.choice(list(content)) if isinstance(content, dict) else rng.randrange(len(content))
        where.append(str(key)[:40])
        inner = content[key]
        if isinstance(inner, (dict, list)) and inner and rng.random() < 0.7:
            content = inner
            continue
        if isinstance(content, dict) and rng.random() < 0.2:
            del content[key]
        else:
            content[key] = rng.choice(_ODD)
        return "/".join(where)


def _read(path: Path) -> None:
    checkpoint = open_checkpoint(path)
    try:
        total = 0
        for tensor in checkpoint.tensors():
            total += len(tensor.data)
            expand(tensor.source, tensor.shape, tensor.data)
    finally:
        checkpoint.close()


def case(number: int, models: list[Path], scratch: Path, seconds: float = 0) -> tuple[int, str | None]:
    """How many of the three ways refused, and what went wrong. `seconds`: SIGALRM after so many (0: never)."""
    rng = random.Random(number)
    source = rng.choice(models)
    folder = scratch / "m"
    shutil.copytree(source, folder)
    what = f"{source.name}: {damage(folder, rng)}"
    files = sorted(folder.glob("*.gguf"))
    path = files[0] if files and rng.random() < 0.5 else folder
    refused = 0
    ways: tuple[Callable[[Path], Any], ...] = (_read, load_tokenizer, inspect)
    if seconds:
        signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        for way in ways:
            try:
                way(path)
            except ModelError as error:
                refused += 1
                if not str(error).isprintable():
                    return refused, f"case {number}, {what}: not one printable sentence"
    except BaseException as error:  # whatever it is, it is the finding
        return refused, f"case {number}, {what}: {type(error).__name__}: {str(error)[:200]}"
    finally:
        if seconds:
            signal.setitimer(signal.ITIMER_REAL, 0)
        shutil.rmtree(folder)
    return refused, None


def _too_slow(*_: Any) -> None:
    raise TimeoutError(f"took over {CASE_SECONDS} s")


def child(seconds: float, first: int) -> None:
    """Prints one line of JSON at the end; on the way, each case's number, for the parent of a crash."""
    signal.signal(signal.SIGALRM, _too_slow)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "models").mkdir()
        models = write_models(Path(folder) / "models")
        for path in models:
            _read(path)
            load_tokenizer(path)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + EXTRA_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        failures: list[str] = []
        refusals, number, end = 0, first, time.monotonic() + seconds
        while time.monotonic() < end and len(failures) < 20:
            print(number, flush=True)
            refused, failure = case(number, models, Path(folder), CASE_SECONDS)
            refusals += refused > 0
            failures += [failure] if failure else []
            number += 1
    print(json.dumps({"cases": number - first, "refused": refusals, "failures": failures}), flush=True)


def fuzz(short: bool) -> dict[str, Any]:
    """Ten minutes of damage (short: five seconds)."""
    first = random.SystemRandom().randrange(1 << 40)
    seconds = 5 if short else 600
    command = [sys.executable, "-m", "benchmarks.fuzz", str(first), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 120)
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines or not lines[-1].startswith("{"):
        last = lines[-1] if lines else "none"
        found = {
            "cases": 0,
            "refused": 0,
            "failures": [f"exit code {done.returncode} in case {last}: {done.stderr[-500:]}"],
        }
    else:
        found = json.loads(lines[-1])
    return {
        "bar": f"{seconds} s of damaged files: refusals alone, no crash, at most {EXTRA_BYTES >> 20} MB more",
        "figure": f"{found['cases']} cases, {found['refused']} refused, {len(found['failures'])} failures",
        "met": not found["failures"] and found["cases"] > 0,
        "details": {"first": first, **found},
    }


def main() -> None:
    first = int(sys.argv[1])
    child(float(sys.argv[2]) if len(sys.argv) > 2 else 0.001, first)


if __name__ == "__main__":
    main()
