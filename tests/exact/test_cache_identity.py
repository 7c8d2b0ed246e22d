"""What is in the keys of cached blocks, from real engines: whatever may change bits changes the identity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.executors import Build
from tests.support.tiny import Tiny, write_hf


def test_weights_precision_and_attention_are_identities_of_their_own(build: Build, tmp_path: Path) -> None:
    path = write_hf(tmp_path / "one", Tiny()).path
    other = write_hf(tmp_path / "two", Tiny(seed=2)).path

    def identity(where: Path, **changes: Any) -> tuple[str, str]:
        info = build(where, **changes).info
        return info.weights_id, info.numerics_id

    plain = identity(path)
    assert identity(path, threads=1, max_num_seqs=3) == plain, "what changes no bit is no part of it"
    others = [
        identity(path, attention="naive"),
        identity(path, precision="float32"),
        identity(path, precision="float32", attention="naive"),
        identity(other),
    ]
    assert len({plain, *others}) == 5
    assert others[-1][1] == plain[1] and others[-1][0] != plain[0]
