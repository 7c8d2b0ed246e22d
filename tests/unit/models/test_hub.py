"""Models of the Hugging Face Hub: the real command against a small Hub of our own."""

from __future__ import annotations

import hashlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import octavo
from octavo.models.hub_files import SMALL, choose_gguf, safetensors_files, small_files
from octavo.models.hub_names import HubName
from octavo.models.locate import parse
from octavo.models.spec import ModelError
from tests.support.hub import PULL, Machine, fake_hub
from tests.support.tiny import Tiny, write_gguf, write_hf


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in two shards, and beside it what a download has no use for."""
    folder = write_hf(tmp_path_factory.mktemp("hub") / "tiny", Tiny(max_context=64), shards=2).path
    (folder / "pytorch_model.bin").write_bytes(b"pickle" * 2000)
    (folder / "README.md").write_text("# tiny")
    (folder / "original").mkdir()
    (folder / "original" / "consolidated.safetensors").write_bytes(b"x" * 9000)
    (folder / "adapter.safetensors").write_bytes(b"x" * 9000)
    return folder


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("hub") / "tiny.gguf", Tiny(max_context=64), "Q8_0").path.read_bytes()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with fake_hub() as hub:
        yield Machine(hub, tmp_path)


NEEDED = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"} | {
    "model.safetensors.index.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
}


def test_only_the_files_that_are_needed_come_and_a_second_pull_fetches_nothing(
    machine: Machine, contents: Path
) -> None:
    machine.hub.add_folder("org/tiny", contents)
    done = machine.pull("org/tiny")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("org/tiny\n") and "llama" in done.stdout and "F32" in done.stdout
    assert set(machine.hub.fetched()) == NEEDED
    for name in NEEDED:
        assert (machine.snapshot("org/tiny") / name).read_bytes() == (contents / name).read_bytes()
    machine.hub.asked.clear()
    assert machine.fetch("org/tiny") == [str(machine.snapshot("org/tiny"))]
    assert machine.hub.fetched() == []


def test_the_token_goes_to_the_endpoint_alone(machine: Machine, contents: Path) -> None:
    machine.hub.add_folder("org/private", contents, token="hf_mine")
    assert "HF_TOKEN" in machine.refusal("org/private")
    assert machine.fetch("org/private", HF_TOKEN="hf_mine") == [str(machine.snapshot("org/private"))]
    asked = {(asked.server, asked.token) for asked in machine.hub.asked if asked.token}
    assert asked == {("hub", "hf_mine")}
    assert any(asked.server == "files" for asked in machine.hub.asked)


def test_a_revision_is_the_one_that_was_asked_for(machine: Machine, contents: Path, gguf: bytes) -> None:
    machine.hub.add("org/m", {"old.gguf": gguf}, revisions=("v1", "refs/pr/3"))
    machine.hub.add_folder("org/m", contents)
    answers = machine.fetch("hf:org/m@v1", "org/m@refs/pr/3", "org/m@v2")
    assert answers[0] == answers[1] and answers[0].endswith("old.gguf")
    assert "no revision 'v2'" in answers[2]
    assert set(machine.hub.fetched()) == {"old.gguf"}


CACHED = """
import sys
from octavo.models.locate import cached_model
for name in sys.argv[1:]:
    print(cached_model(name))
assert "httpx2" not in sys.modules and "huggingface_hub.file_download" not in sys.modules
"""


def test_what_is_cached_whole_is_found_without_asking_anybody(machine: Machine, contents: Path, gguf: bytes) -> None:
    repo = machine.hub.add_folder("org/m", contents)
    machine.hub.add("org/g", {"m-00001-of-00002.gguf": gguf, "m-00002-of-00002.gguf": gguf[:-1]})
    machine.fetch("org/m", "org/g")
    machine.hub.asked.clear()

    def cached() -> list[bool]:
        command = [sys.executable, "-c", CACHED, "org/m", f"org/m@{repo.commit}", "org/g", "org/m@v1", "org/other"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=machine.environment())
        assert done.returncode == 0, done.stderr
        return [line != "None" for line in done.stdout.splitlines()]

    assert cached() == [True, True, True, False, False]
    (machine.snapshot("org/m") / "model-00002-of-00002.safetensors").unlink()
    (machine.snapshot("org/g") / "m-00002-of-00002.gguf").unlink()
    assert cached() == [False] * 5
    assert machine.hub.asked == []


def test_a_download_that_was_killed_goes_on_where_it_stopped(machine: Machine, gguf: bytes) -> None:
    machine.hub.add("org/q", {"a.gguf": gguf})
    machine.hub.stall.set()
    # Chunks are written as they fill: the half of a small file comes to rest in the client.
    process = subprocess.Popen([*PULL, "org/q"], env=machine.environment(), stderr=subprocess.DEVNULL)
    assert machine.hub.half_way.wait(60)
    process.kill()
    process.wait()
    machine.hub.stall.clear()
    (partial,) = machine.partials()
    partial.write_bytes(gguf[:5000])
    machine.hub.asked.clear()
    assert machine.fetch("org/q") == [str(machine.snapshot("org/q") / "a.gguf")]
    assert [asked.range for asked in machine.hub.asked if asked.server == "files"] == ["bytes=5000-"]
    assert (machine.snapshot("org/q") / "a.gguf").read_bytes() == gguf and machine.partials() == []


def test_a_server_that_knows_no_ranges_is_asked_for_the_whole_file(machine: Machine, gguf: bytes) -> None:
    machine.hub.add("org/q", {"a.gguf": gguf, "b.gguf": gguf[::-1]})
    machine.hub.ranges = False
    blobs = machine.folder / "hf" / "hub" / "models--org--q" / "blobs"
    blobs.mkdir(parents=True)
    for content, wreck in ((gguf, gguf[:5000]), (gguf[::-1], gguf + b"more than there is")):
        (blobs / f"{hashlib.sha256(content).hexdigest()}.octavo.incomplete").write_bytes(wreck)
    first, second = machine.fetch("hf:org/q:a.gguf", "hf:org/q:b.gguf")
    assert Path(first).read_bytes() == gguf and Path(second).read_bytes() == gguf[::-1] and machine.partials() == []


def test_ctrl_c_keeps_what_has_come_and_says_so(machine: Machine, gguf: bytes) -> None:
    machine.hub.add("org/q", {"a.gguf": gguf})
    machine.hub.stall.set()
    process = subprocess.Popen([*PULL, "org/q"], env=machine.environment(), stderr=subprocess.PIPE, text=True)
    assert machine.hub.half_way.wait(60)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130 and said.splitlines()[-1].startswith("octavo: stopped") and "Traceback" not in said
    assert len(machine.partials()) == 1
    assert "unfinished download; octavo pull goes on" in machine.octavo("models").stdout
    assert machine.octavo("models", "rm", "org/q", "--yes").returncode == 0
    assert machine.partials() == []


def test_two_pulls_at_once_fetch_once(machine: Machine, contents: Path) -> None:
    machine.hub.add_folder("org/tiny", contents)
    machine.hub.stall.set()
    first = subprocess.Popen([*PULL, "org/tiny"], env=machine.environment(), stderr=subprocess.DEVNULL)
    assert machine.hub.half_way.wait(60)
    second = subprocess.Popen([*PULL, "org/tiny"], env=machine.environment(), stderr=subprocess.PIPE, text=True)
    assert second.stderr is not None
    assert second.stderr.readline().startswith("Waiting for another process")
    machine.hub.stall.clear()
    second.communicate(timeout=60)
    assert first.wait(60) == second.returncode == 0
    asked = [asked.path for asked in machine.hub.asked if asked.server == "files"]
    assert len(asked) == len(set(asked)) > 0


def test_a_connection_that_is_cut_is_taken_up_in_the_same_run(machine: Machine, gguf: bytes) -> None:
    machine.hub.add("org/q", {"a.gguf": gguf})
    machine.hub.cut_after = 6000
    assert machine.fetch("org/q") == [str(machine.snapshot("org/q") / "a.gguf")]
    assert (machine.snapshot("org/q") / "a.gguf").read_bytes() == gguf


def test_damaged_and_short_files_are_refused_and_fetched_anew(machine: Machine, gguf: bytes) -> None:
    repo = machine.hub.add("org/q", {"a.gguf": gguf, "config.json": b"{}"})
    repo.wrong["a.gguf"] = gguf[:-1] + bytes([gguf[-1] ^ 1])
    message = machine.refusal("org/q")
    assert "SHA-256" in message and hashlib.sha256(gguf).hexdigest() in message and machine.partials() == []
    repo.wrong["a.gguf"] = gguf[:-100]
    assert str(len(gguf)) in machine.refusal("org/q")
    repo.wrong.clear()
    machine.fetch("org/q")
    snapshot = machine.snapshot("org/q") / "a.gguf"
    snapshot.resolve().write_bytes(gguf[:100])
    assert machine.fetch("org/q") == [str(snapshot)]
    assert snapshot.read_bytes() == gguf


def test_a_damaged_shard_is_named_and_the_others_are_kept(machine: Machine, contents: Path) -> None:
    repo = machine.hub.add_folder("org/tiny", contents)
    bad = "model-00002-of-00002.safetensors"
    repo.wrong[bad] = bytes(len(repo.files[bad]))
    assert f"{bad} of org/tiny came with the SHA-256" in machine.refusal("org/tiny")
    repo.wrong.clear()
    machine.hub.asked.clear()
    machine.fetch("org/tiny")
    assert bad in machine.hub.fetched() and "config.json" not in machine.hub.fetched()
    assert (machine.snapshot("org/tiny") / bad).read_bytes() == repo.files[bad]


def test_refusals_are_one_sentence_that_says_what_to_do(machine: Machine, contents: Path) -> None:
    hub = machine.hub
    hub.add_folder("org/gated", contents, token="hf_mine", gated=True)
    hub.add("org/pickles", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    hub.add("org/data", {"README.md": b"x"})
    hub.add("org/evil", {"../../m.gguf": b"x"})
    hub.add("org/broken", {}, status=500)
    hub.add("org/page", {}, status=200)
    hub.add("org/forbidden", {}, status=403)
    says = {
        "org/gated": "accept its terms at .*set HF_TOKEN",
        "org/pickles": "may run code",
        "org/data": "no model that can be served: it holds neither",
        "org/evil": "leaves its directory",
        "org/broken": "answered 500 .* try again",
        "org/page": "check HF_ENDPOINT",
        "org/forbidden": "check HF_TOKEN",
        "org/nothing": "there is no model org/nothing .* check the spelling",
    }
    for answer, wanted in zip(machine.fetch(*says), says.values(), strict=True):
        assert answer.startswith("refused: ") and re.search(wanted, answer), answer
    assert "account that has it" in machine.refusal("org/gated", HF_TOKEN="hf_other")
    assert "does not accept the token" in machine.refusal("org/gated", HF_TOKEN="bad")
    assert "check the network" in machine.refusal("org/data", HF_ENDPOINT="http://127.0.0.1:9")
    assert "HF_HUB_OFFLINE is set" in machine.refusal("org/data", HF_HUB_OFFLINE="1")
    hub.add_folder("org/tiny", contents)
    assert "set HF_HUB_CACHE" in machine.refusal("org/tiny", HF_HUB_CACHE="/proc/nothing")


def test_one_gguf_file_is_taken_and_of_several_one_must_be_named(machine: Machine, gguf: bytes) -> None:
    machine.hub.add("org/g", {"m.Q8_0.gguf": gguf, "m.Q4_K_M.gguf": gguf[:-1], "mmproj-m.gguf": b"x"})
    several, none, one = machine.fetch("hf:org/g", "hf:org/g:Q5", "hf:org/g:q8_0")
    assert "such as hf:org/g:m.Q4_K_M.gguf; it has m.Q4_K_M.gguf, m.Q8_0.gguf" in several and "mmproj" not in several
    assert "no Q5" in none and one.endswith("m.Q8_0.gguf")
    assert machine.hub.fetched() == ["m.Q8_0.gguf"]


def test_all_parts_of_a_split_gguf_model_come_and_are_served(machine: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "split"
    folder.mkdir()
    write_gguf(folder / "m.gguf", Tiny(max_context=64), "Q8_0", tensors_a_part=8)
    machine.hub.add_folder("org/s", folder)
    done = machine.octavo("run", "hf:org/s:m-0000", "-p", "a", "--max-tokens", "2", "--kv-tokens", "64")
    assert done.returncode == 0, done.stderr
    assert sorted(machine.hub.fetched()) == sorted(path.name for path in folder.iterdir())
    assert f"GGUF, {len(list(folder.iterdir()))} files" in machine.pull("org/s").stdout


def test_a_full_disk_is_told_before_the_download(machine: Machine, contents: Path) -> None:
    cache = machine.folder / "small"
    cache.mkdir()
    mount = 'mount -t tmpfs -o size=64k tmpfs "$0" && exec "$@"'
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount, cache, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine grants no mount namespace")
    machine.hub.add_folder("org/tiny", contents)
    command = ["unshare", "-rm", "sh", "-c", mount, str(cache), *PULL, "org/tiny"]
    environment = machine.environment(HF_HOME=str(cache))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert "no space left" in done.stderr and "HF_HUB_CACHE" in done.stderr and "Traceback" not in done.stderr


# --- names -----------------------------------------------------------------------------------------------


def test_a_path_that_exists_wins_over_an_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse("org/name") == HubName("org/name")
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "name").write_text("")
    assert parse("org/name") == Path("org/name")
    assert parse("hf:org/name") == HubName("org/name")


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("", None),
        ("smollm2-135m-instruct", None),
        ("org/name@v1", HubName("org/name", "v1")),
        ("hf:org/name:f.Q4_K_M.gguf", HubName("org/name", None, "f.Q4_K_M.gguf")),
        ("org/name:Q4_K_M", HubName("org/name", None, "Q4_K_M")),
        ("hf:org/name@refs/pr/1:a/f.gguf", HubName("org/name", "refs/pr/1", "a/f.gguf")),
        ("Qwen/Qwen2.5-0.5B-Instruct", HubName("Qwen/Qwen2.5-0.5B-Instruct")),
    ],
)
def test_names_mean_what_they_say(text: str, means: HubName | None) -> None:
    assert parse(text) == means


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nothing", "does not exist"),
        ("./org/name", "does not exist"),
        ("models/model.gguf", "does not exist"),
        ("/a/b", "does not exist"),
        ("SmolLM2-135M-Instuct", "did you mean SmolLM2-135M-Instruct"),
        ("hf:name", "hf:ORG/NAME:FILE.gguf would work"),
        ("hf:org/../x", "would work"),
        ("hf:org/name@", "would work"),
        ("hf:org/name@/etc/passwd", "would work"),
        ("https://huggingface.co/org/name/tree/main", "org/name would work"),
        ("a\0b", "does not exist"),
        ("x" * 5000, "does not exist"),
    ],
)
def test_a_mistyped_name_gets_one_helpful_sentence(text: str, says: str) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


def test_shards_of_a_gguf_file_come_together() -> None:
    files = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "x/n-00002-of-00002.gguf", "o.gguf"]
    assert choose_gguf("org/m", "hf:org/m", files, "m-00002-of-00002.gguf").files == tuple(files[:2])
    assert choose_gguf("org/m", "hf:org/m", files, "o.gguf").files == ("o.gguf",)
    with pytest.raises(ModelError, match=r"lacks x/n-00001-of-00002\.gguf, one of the 2 parts"):
        choose_gguf("org/m", "hf:org/m", files, "x/n")


def test_weights_are_chosen_as_they_are_read() -> None:
    both = ["model.safetensors", "model.safetensors.index.json", "a.safetensors", "b.safetensors"]
    assert safetensors_files("w", both, {"t": "a.safetensors"}) == ["model.safetensors"]
    assert safetensors_files("w", both[1:], {"t": "a.safetensors"}) == ["a.safetensors"]
    with pytest.raises(ModelError, match=r"lacks c\.safetensors"):
        safetensors_files("w", both[1:], {"t": "c.safetensors"})
    wanted = ["additional_chat_templates/rag.jinja", "chat_template.jinja", "config.json"]
    assert small_files([*wanted, "a/config.json", "a/x.jinja", "x.bin", "logo.png", "vocab.json"]) == wanted


def test_what_is_fetched_is_what_the_readers_read() -> None:
    folder = Path(octavo.__file__).parent / "models"
    readers = [path for path in folder.rglob("*.py") if not re.search("hub|convert", str(path.relative_to(folder)))]
    named = {
        name
        for path in readers
        for name in re.findall(r'"((?:\w+|model\.safetensors\.index)\.(?:json|model))"', path.read_text())
    }
    assert named == SMALL, "what readers of models/ name, hub_files.SMALL lists"
