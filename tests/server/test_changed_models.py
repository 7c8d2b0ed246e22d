"""The files of a model that is served: what happens when they change under a server whose engine then dies."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.config import EngineConfig, KVConfig, ModelConfig, ServerConfig
from tests.server.test_lifecycle import Stream, started
from tests.support.serve import Serve
from tests.support.server import Server, serving, wait_until
from tests.support.tiny import Tiny, write_gguf, write_hf

CONTEXT = 65536


def _serve(path: Path) -> Serve:
    engine = EngineConfig(
        model=ModelConfig(path=str(path), name="tiny", max_model_len=CONTEXT), kv=KVConfig(size_tokens=CONTEXT)
    )
    return Serve(engine, ServerConfig(port=0))


def _other_weights(path: Path) -> None:
    other = path.with_name("other.gguf")
    write_gguf(other, Tiny(max_context=CONTEXT, seed=9), kind="F32")
    os.replace(other, path)


def _other_weights_of_directory(folder: Path) -> None:
    write_hf(folder, Tiny(max_context=CONTEXT, seed=9))


def _other_tokeniser(folder: Path) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    vocab = content["model"]["vocab"]
    vocab["A"], vocab["B"] = vocab["B"], vocab["A"]
    path.write_text(json.dumps(content))


def _other_suggestion(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.25}))


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("model.gguf", _other_weights, "other weights"),
        ("model", _other_weights_of_directory, "other weights"),
        ("model", _other_tokeniser, "other tokeniser"),
        ("model", _other_suggestion, "other suggested sampling"),
    ],
)
def test_an_answer_is_not_gone_on_with_by_another_model(
    tmp_path: Path, name: str, change: Callable[[Path], None], says: str
) -> None:
    path = tmp_path / name
    if path.suffix:
        write_gguf(path, Tiny(max_context=CONTEXT), kind="F32")
    else:
        write_hf(path, Tiny(max_context=CONTEXT))
    with serving(_serve(path)) as server:
        stream = _long(server)
        change(path)
        os.kill(server.engine_pid(), signal.SIGKILL)
        error = stream.result()[-1]["error"]["message"]
        assert error.startswith("the model's files changed while it was served") and says in error
        assert "start the server again" in error and str(path) in error
        assert server.process.wait(20) == 1
        assert f"Error: {error}" in server.lines
        assert not any("Traceback" in line for line in server.lines)


def test_an_answer_goes_on_where_the_same_files_were_written_again(tmp_path: Path) -> None:
    path = tmp_path / "model"
    write_hf(path, Tiny(max_context=CONTEXT))
    with serving(_serve(path)) as server:
        stream = _long(server)
        write_hf(path, Tiny(max_context=CONTEXT))
        os.kill(server.engine_pid(), signal.SIGKILL)
        wait_until(lambda: server.metric("octavo_engine_restarts_total") == 1, "the engine was started again")
        started(server, 1)
        server.client.close()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(60)
        stream.join(10)


def test_an_engine_whose_file_was_cut_short_says_so(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, Tiny(max_context=CONTEXT), kind="F32")
    with serving(_serve(path)) as server:
        stream = _long(server)
        os.kill(server.engine_pid(), signal.SIGBUS)
        wait_until(lambda: server.metric("octavo_engine_restarts_total") == 1, "the engine was started again")
        [line] = [line for line in server.lines if "the engine died" in line]
        assert f"a file that it had mapped ({path}, " in line and "was cut short" in line and "disk failed" in line
        server.client.close()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(60)
        stream.join(10)


def _long(server: Server) -> Stream:
    stream = Stream(server, {"prompt": "abc", "max_tokens": CONTEXT - 100, "ignore_eos": True})
    started(server, 1)
    wait_until(lambda: server.metric("octavo_generated_tokens_total") > 0, "it answers")
    return stream
