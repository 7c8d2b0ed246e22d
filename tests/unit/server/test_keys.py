"""Key files: what is taken, what is refused and how, and what a refusal never says."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from octavo.config import ConfigError
from octavo.server.keys import read_admin_keys, read_api_keys

SECRET = "a-secret-of-some-length"
DIGEST = hashlib.sha256(SECRET.encode()).hexdigest()


def write(path: Path, text: str | bytes, mode: int = 0o600) -> str:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)
    return str(path)


def test_plain_and_hashed_keys_are_found_by_what_is_presented(tmp_path: Path) -> None:
    other = hashlib.sha256(b"another-long-one").hexdigest()
    text = f'[alice]\nkey = "{SECRET}"\nmax_concurrent = 3\n[bob]\nsha256 = "{other}"\n'
    ring = read_api_keys(write(tmp_path / "keys", text))
    alice, bob = ring.find(SECRET.encode()), ring.find(b"another-long-one")
    assert alice is not None and alice.name == "alice" and alice.limits == {"max_concurrent": 3}
    assert bob is not None and bob.name == "bob" and bob.limits == {}
    for wrong in (b"", SECRET[:-1].encode(), SECRET.upper().encode(), DIGEST.encode(), b"\xff" * 1000):
        assert ring.find(wrong) is None


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("", 0o600, "names no key"),
        ("[a", 0o600, "no TOML"),
        (f'[a]\nkey = "{SECRET}"', 0o640, "chmod 600"),
        (f'[a]\nkey = "{SECRET}"', 0o604, "chmod 600"),
        (f'[a]\nsha256 = "{DIGEST}"', 0o622, "written by others"),
        ('[a]\nkey = "short"', 0o600, "16 printable"),
        ('[a]\nkey = "with spaces in between"', 0o600, "16 printable"),
        ('[a]\nsha256 = "abc"', 0o600, "64 hex"),
        ("[a]\nmax_concurrent = 3", 0o600, "one of key and sha256"),
        (f'[a]\nkey = "{SECRET}"\nsha256 = "{DIGEST}"', 0o600, "one of key and sha256"),
        (f'[a]\nkey = "{SECRET}"\nmax_concurent = 3', 0o600, "'max_concurent' is not known"),
        (f'[a]\nkey = "{SECRET}"\nmax_concurrent = -1', 0o600, "max_concurrent must be"),
        (f'[a]\nkey = "{SECRET}"\ntokens_per_minute = true', 0o600, "tokens_per_minute must be"),
        (f'["a b"]\nkey = "{SECRET}"', 0o600, "a key's name"),
        (f'a = "{SECRET}"', 0o600, "is no table"),
        (f'[a]\nkey = "{SECRET}"\n[b]\nsha256 = "{DIGEST}"', 0o600, "a and b are the same key"),
        (b"[a]\nkey = '\xff'", 0o600, "not UTF-8"),
        ("#" * (1 << 20) + "#", 0o600, "over 1048576 bytes"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_files_that_cannot_be_are_refused_without_a_word_of_their_keys(
    tmp_path: Path, text: str | bytes, mode: int, said: str
) -> None:
    path = write(tmp_path / "keys", text, mode)
    with pytest.raises(ConfigError) as caught:
        read_api_keys(path)
    assert said in str(caught.value) and "--api-keys" in str(caught.value)
    assert SECRET not in str(caught.value) and DIGEST not in str(caught.value)


def test_hashed_keys_may_be_read_by_others(tmp_path: Path) -> None:
    path = write(tmp_path / "keys", f'[a]\nsha256 = "{DIGEST}"', 0o644)
    assert read_api_keys(path).find(SECRET.encode()) is not None


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_api_keys(str(tmp_path / "none"))


def test_admin_keys_are_lines(tmp_path: Path) -> None:
    ring = read_admin_keys(write(tmp_path / "admin", f"# old and new\n\nsha256:{DIGEST}\nanother-long-one\n"))
    assert ring.find(SECRET.encode()) is not None and ring.find(b"another-long-one") is not None
    assert ring.find(b"# old and new") is None
    with pytest.raises(ConfigError, match="holds 0 keys"):
        read_admin_keys(write(tmp_path / "admin", "# nothing\n"))


def test_what_would_work_in_an_open_file_is_said_in_that_files_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sha256:HEX on its line"):
        read_admin_keys(write(tmp_path / "admin", SECRET, 0o644))
    with pytest.raises(ConfigError, match=r'sha256 = "\.\.\." in its place'):
        read_api_keys(write(tmp_path / "keys", f'[a]\nkey = "{SECRET}"', 0o644))
