"""What `octavo doctor --kv-disk` says: how fast the directory is, and from how many tokens on reading it pays."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.kvcache.tiers.policy import Rates, save_rates, survey
from octavo.kvcache.tiers.store import PROBE
from tests.support.tiny import Tiny, write_gguf


def octavo(*arguments: str) -> str:
    """What it prints, where the model would start."""
    command = [sys.executable, "-m", "octavo.cli.main", "doctor", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_tiers_directory_is_measured_and_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    model = str(write_gguf(tmp_path / "m.gguf", Tiny(max_context=64)).path)
    disk = tmp_path / "kv"
    said = octavo(model, "--kv-tokens", "256", "--kv-disk", str(disk))
    assert f"kv disk    {disk}: the directory is made at the first start" in said and not disk.exists()
    disk.mkdir(mode=0o700)
    save_rates(disk, Rates(1e9, 1.0, 1000.0))
    told = json.loads(octavo(model, "--kv-tokens", "256", "--kv-disk", str(disk), "--json"))["kv_disk"]
    assert re.fullmatch(
        r"read at \d+ MB/s = \d+ tokens/s, computed at 1 tokens/s: reading pays from 1 tokens on", told
    ), told
    assert json.loads(octavo(model, "--kv-tokens", "256", "--json"))["kv_disk"] is None
    assert [path.name for path in disk.iterdir()] == ["rates.json"]


def test_what_the_directory_can_be(tmp_path: Path) -> None:
    disk = tmp_path / "kv"
    assert "made at the first start" in survey(disk)
    disk.mkdir()
    assert "no engine has measured yet" in survey(disk)
    (disk / "rates.json").write_text("damaged")
    assert "no engine has measured yet" in survey(disk)
    # Computing such tokens is faster than any disk.
    save_rates(disk, Rates(1e9, 1e15, 1e6))
    assert survey(disk).endswith("reading never pays")
    assert stat.S_IMODE((disk / "rates.json").stat().st_mode) == 0o600
    (disk / PROBE).mkdir()
    assert survey(disk).startswith("it cannot be written: ")
