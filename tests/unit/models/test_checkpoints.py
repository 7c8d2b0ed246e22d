"""Opening models of both formats: right tensors, and one sentence for whatever is wrong with a file."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from octavo.models.checkpoint import open_checkpoint
from octavo.models.registry import rules_of
from octavo.models.spec import Checkpoint, ModelError
from octavo.models.tokenizer import load_tokenizer
from tests.support.tiny import (
    BASE_VOCAB,
    Tiny,
    TinyModel,
    file_names,
    write_gguf,
    write_hf,
    write_safetensors,
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))


def expand(source: str, shape: tuple[int, ...], data: memoryview) -> np.ndarray:
    kind = gguf.GGMLQuantizationType[source]
    raw = np.frombuffer(data, np.uint8).reshape(*shape[:-1], -1)
    return gguf.quants.dequantize(raw, kind).reshape(shape)


def check_tensors(checkpoint: Checkpoint, model: TinyModel) -> None:
    assert checkpoint.spec == model.spec
    seen = set()
    for tensor in checkpoint.tensors():
        assert (tensor.source, tensor.shape) == checkpoint.sources()[tensor.name]
        np.testing.assert_array_equal(expand(tensor.source, tensor.shape, tensor.data), model.weights[tensor.name])
        seen.add(tensor.name)
    assert seen == {rule.canonical for rule in rules_of(model.spec)}


SHAPES = [
    Tiny(),
    Tiny(tied=False, heads=2, kv_heads=1, head_dim=80),
    Tiny(hidden=96, heads=3, kv_heads=3, head_dim=40, layers=1, vocab=BASE_VOCAB + 20),
    Tiny(attn_bias=True, mlp_bias=True, seed=5),
]


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_gguf_tensors_are_what_was_written(tmp_path: Path, kind: str) -> None:
    for i, tiny in enumerate(SHAPES):
        if kind.startswith("Q") and (tiny.heads * tiny.spec().head_dim) % 32:
            continue
        model = write_gguf(tmp_path / f"{i}.gguf", tiny, kind)
        checkpoint = open_checkpoint(model.path)
        check_tensors(checkpoint, model)
        assert checkpoint.num_tokens == BASE_VOCAB
        assert checkpoint.eos_token_ids == (2,)
        assert checkpoint.name == str(i)
        checkpoint.close()
        checkpoint.close()


@pytest.mark.parametrize(("dtype", "shards"), [("F32", 1), ("BF16", 1), ("F16", 1), ("BF16", 3)])
def test_safetensors_tensors_are_what_was_written(tmp_path: Path, dtype: str, shards: int) -> None:
    for i, tiny in enumerate(SHAPES):
        model = write_hf(tmp_path / str(i), tiny, dtype, shards)
        checkpoint = open_checkpoint(model.path)
        check_tensors(checkpoint, model)
        assert checkpoint.total_bytes == sum(len(tensor.data) for tensor in checkpoint.tensors())
        assert checkpoint.num_tokens == BASE_VOCAB
        assert checkpoint.eos_token_ids == (2,)


def test_our_safetensors_fixture_is_read_by_the_reference_library(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    model = write_hf(tmp_path / "m")
    loaded = load_file(tmp_path / "m" / "model.safetensors")
    names = file_names(model.spec, "hf")
    for name, values in model.weights.items():
        np.testing.assert_array_equal(loaded[names[name]], values)


def test_weights_id_follows_the_content(tmp_path: Path) -> None:
    one, same, other = (
        write_gguf(tmp_path / f"{name}.gguf", Tiny(seed=seed)).path for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    ids = [open_checkpoint(path).weights_id() for path in (one, same, other)]
    assert ids[0] == ids[1] != ids[2]
    other.rename(one)
    assert open_checkpoint(one).weights_id() == ids[2]
    folder = write_hf(tmp_path / "hf").path
    first = open_checkpoint(folder).weights_id()
    assert open_checkpoint(folder).weights_id() == first
    edit(folder / "config.json", rope_theta=5e5)
    assert open_checkpoint(folder).weights_id() != first


def edit(path: Path, **changes: object) -> None:
    content = json.loads(path.read_text())
    for key, value in changes.items():
        if value is ...:
            content.pop(key, None)
        else:
            content[key] = value
    path.write_text(json.dumps(content))


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        open_checkpoint(path)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 600
    return message


# --- Hugging Face directories: cases L1, L3, B3 ---------------------------------------------------------


def as_stored(model: TinyModel) -> dict[str, np.ndarray]:
    names = file_names(model.spec, "hf")
    return {names[name]: values for name, values in model.weights.items()}


def store_head(folder: Path, model: TinyModel, head: np.ndarray) -> None:
    named = as_stored(model)
    write_safetensors(folder / "model.safetensors", {**named, "lm_head.weight": head})


def test_a_stored_head_equal_to_a_tied_embedding_is_fine(tmp_path: Path) -> None:
    model = write_hf(tmp_path / "m")
    store_head(model.path, model, model.weights["embed.weight"])
    check_tensors(open_checkpoint(model.path), model)


def test_a_stored_head_that_contradicts_the_tie_is_refused(tmp_path: Path) -> None:
    model = write_hf(tmp_path / "m")
    store_head(model.path, model, model.weights["embed.weight"] + 1)
    message = refusal(model.path)
    assert "lm_head.weight" in message and "tie_word_embeddings" in message


def test_an_added_token_without_a_row_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As of text models whose tokeniser knows a token for images."""
    model = write_hf(tmp_path / "m")
    path = model.path / "tokenizer.json"
    content = json.loads(path.read_text())
    flags = {key: False for key in ("single_word", "lstrip", "rstrip", "normalized")}
    content["added_tokens"].append({"id": BASE_VOCAB, "content": "<image>", "special": True, **flags})
    path.write_text(json.dumps(content))
    checkpoint = open_checkpoint(model.path)
    assert checkpoint.num_tokens == checkpoint.spec.vocab == BASE_VOCAB and "<image>" in caplog.text


def test_an_untied_head_is_used(tmp_path: Path) -> None:
    model = write_hf(tmp_path / "m", Tiny(tied=False))
    heads = {tensor.name: tensor for tensor in open_checkpoint(model.path).tensors()}
    assert "head.weight" in heads and bytes(heads["head.weight"].data) != bytes(heads["embed.weight"].data)


def test_a_missing_untied_head_is_named(tmp_path: Path) -> None:
    model = write_hf(tmp_path / "m")
    edit(model.path / "config.json", tie_word_embeddings=False)
    message = refusal(model.path)
    assert "lm_head.weight" in message and "tie_word_embeddings" in message


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    model = write_hf(tmp_path / "m", shards=3)
    (model.path / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors" in refusal(model.path)


def test_a_truncated_shard_is_named_with_both_sizes(tmp_path: Path) -> None:
    model = write_hf(tmp_path / "m", shards=2)
    shard = model.path / "model-00001-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    message = refusal(model.path)
    assert shard.name in message and "truncated" in message


def test_a_shard_outside_the_directory_is_refused(tmp_path: Path) -> None:
    model = write_hf(tmp_path / "m", shards=2)
    index = model.path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.norm.weight"] = "../other.safetensors"
    index.write_text(json.dumps(content))
    assert "../other.safetensors" in refusal(model.path)


def test_a_missing_tensor_and_a_wrong_shape_are_named(tmp_path: Path) -> None:
    model = write_hf(tmp_path / "m")
    named = as_stored(model)
    without = {name: values for name, values in named.items() if name != "model.layers.1.mlp.up_proj.weight"}
    write_safetensors(model.path / "model.safetensors", without)
    assert "model.layers.1.mlp.up_proj.weight" in refusal(model.path)
    write_safetensors(model.path / "model.safetensors", {**named, "model.norm.weight": np.ones(65)})
    message = refusal(model.path)
    assert "model.norm.weight" in message and "[65]" in message and "[64]" in message


def test_an_unknown_tensor_warns_and_a_rotary_table_does_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = write_hf(tmp_path / "m")
    named = as_stored(model)
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8), "model.surprise.weight": np.ones(3)}
    write_safetensors(model.path / "model.safetensors", {**named, **extra})
    check_tensors(open_checkpoint(model.path), model)
    assert "model.surprise.weight" in caplog.text
    assert "inv_freq" not in caplog.text


def test_many_unknown_tensors_are_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = write_hf(tmp_path / "m")
    extra = {f"model.layers.7.{i}.weight": np.ones(3) for i in range(9)}
    write_safetensors(model.path / "model.safetensors", {**as_stored(model), **extra})
    open_checkpoint(model.path).close()
    (line,) = caplog.messages
    assert "9 tensors: " in line and line.count("model.layers.7.") == 3 and "are not part of a llama model" in line


def test_an_untied_model_inside_a_multimodal_one_is_called_that(tmp_path: Path) -> None:
    model = write_hf(tmp_path / "m", Tiny(tied=False))
    named = {f"language_model.{name}": array for name, array in as_stored(model).items()}
    write_safetensors(model.path / "model.safetensors", named)
    assert "multimodal" in refusal(model.path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, ["GPT2LMHeadModel", "LlamaForCausalLM"]),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, ["rope_scaling.low_freq_factor"]),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, ["rope_parameters.factor"]),
        ({"rope_scaling": {"rope_type": "ntk", "factor": 8.0}}, ["rope_scaling.rope_type", "ntk", "llama3"]),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, ["rope_parameters.full_attention"]),
        ({"use_qk_norm": True}, ["use_qk_norm", "false"]),
        ({"sliding_window": 64}, ["sliding_window", "64"]),
        ({"hidden_act": "gelu"}, ["hidden_act", "gelu", "silu"]),
        ({"quantization_config": {"quant_method": "quark"}}, ["quantization_config", "quark"]),
        ({"num_attention_heads": 0}, ["num_attention_heads"]),
        ({"num_key_value_heads": 3}, ["KV heads"]),
        ({"hidden_size": "64"}, ["config.json", "hidden_size"]),
        ({"hidden_size": ...}, ["config.json", "hidden_size"]),
        ({"rope_theta": -1.0}, ["rope_theta"]),
        ({"vocab_size": 100}, ["100 rows"]),
        ({"head_dim": 32}, ["q_proj.weight"]),
        ({"eos_token_id": 5000}, []),
    ],
)
def test_a_configuration_that_cannot_be_served_is_refused_by_name(
    tmp_path: Path, changes: dict[str, object], words: list[str]
) -> None:
    model = write_hf(tmp_path / "m")
    edit(model.path / "config.json", **changes)
    if not words:  # overruled by generation_config.json
        assert open_checkpoint(model.path).eos_token_ids == (2,)
        return
    message = refusal(model.path)
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": None},
        {"rope_scaling": {"type": "default"}},
        {"rope_scaling": {"type": "linear", "factor": 1.0}},
        {"rope_theta": ..., "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        {"head_dim": ...},
        {"head_dim": None},
        {"num_key_value_heads": 2, "pretraining_tp": 1, "use_cache": True},
    ],
)
def test_a_configuration_that_says_the_same_in_other_words_is_read(tmp_path: Path, changes: dict[str, object]) -> None:
    model = write_hf(tmp_path / "m")
    edit(model.path / "config.json", **changes)
    assert open_checkpoint(model.path).spec == model.spec


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ([2, 7], 1, (2, 7)),
        (7, 1, (7, 2)),
        ([7, 9], 2, (7, 9, 2)),
        (None, [1, 5], (1, 5, 2)),
        (None, None, (2,)),
    ],
)
def test_every_end_of_sequence_id_counts(
    tmp_path: Path, generation: object, config: object, expected: tuple[int, ...]
) -> None:
    model = write_hf(tmp_path / "m")
    edit(model.path / "generation_config.json", eos_token_id=generation)
    edit(model.path / "config.json", eos_token_id=config)
    assert open_checkpoint(model.path).eos_token_ids == expected


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    model = write_hf(tmp_path / "m")
    (model.path / missing).unlink()
    assert missing in refusal(model.path)


def test_pickled_weights_are_never_loaded(tmp_path: Path) -> None:
    model = write_hf(tmp_path / "m")
    (model.path / "model.safetensors").rename(model.path / "pytorch_model.bin")
    assert "convert them to safetensors" in refusal(model.path)


def test_generation_config_is_optional(tmp_path: Path) -> None:
    model = write_hf(tmp_path / "m")
    (model.path / "generation_config.json").unlink()
    assert open_checkpoint(model.path).eos_token_ids == (2,)


# --- GGUF: case L4 ------------------------------------------------------------------------------------


def test_an_unsupported_type_is_named_with_what_is_supported(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", kind="F32").path
    content = path.read_bytes()
    row = b"blk.0.attn_q.weight" + struct.pack("<IQQI", 2, 64, 64, 0)
    assert content.count(row) == 1
    path.write_bytes(content.replace(row, row[:-4] + struct.pack("<I", 39)))
    message = refusal(path)
    assert "blk.0.attn_q.weight" in message and "MXFP4" in message and "Q4_K" in message and "Q8_0" in message


def test_a_truncated_file_says_how_many_bytes_there_are_and_should_be(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf").path
    content = path.read_bytes()
    path.write_bytes(content[:-1000])
    message = refusal(path)
    assert "m.gguf" in message and "truncated" in message and str(len(content) - 1000) in message
    needed = max(int(word) for word in message.replace(";", " ").split() if word.isdigit())
    assert len(content) - 32 < needed <= len(content)
    path.write_bytes(content[:500])
    assert "truncated" in refusal(path) and "500" in refusal(path)


def test_a_quantised_vector_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", Tiny(attn_bias=True)).path
    row = b"blk.0.attn_q.bias" + (1).to_bytes(4, "little") + (64).to_bytes(8, "little")
    content = path.read_bytes()
    assert content.count(row + bytes(4)) == 1
    path.write_bytes(content.replace(row + bytes(4), row + (8).to_bytes(4, "little")))
    message = refusal(path)
    assert "blk.0.attn_q.bias" in message and "Q8_0" in message


def test_a_header_of_an_odd_length_gives_aligned_tensors(tmp_path: Path) -> None:
    model = write_hf(tmp_path / "m")
    path = model.path / "model.safetensors"
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    path.write_bytes((length + 1).to_bytes(8, "little") + content[8 : 8 + length] + b" " + content[8 + length :])
    checkpoint = open_checkpoint(model.path)
    check_tensors(checkpoint, model)
    assert all(np.frombuffer(tensor.data, np.uint8).ctypes.data % 4 == 0 for tensor in checkpoint.tensors())


def test_rope_factors_divide_the_frequencies(tmp_path: Path) -> None:
    ones = np.ones(8, np.float32)
    model = write_gguf(tmp_path / "m.gguf", extra={"rope_freqs.weight": ones})
    check_tensors(open_checkpoint(model.path), model)
    (plain,) = model.spec.ropes
    path = write_gguf(tmp_path / "n.gguf", extra={"rope_freqs.weight": ones * 4}).path
    (scaled,) = open_checkpoint(path).spec.ropes
    assert scaled.inverse_frequencies == tuple(value / 4 for value in plain.inverse_frequencies)
    linear = {"llama.rope.scaling.factor": 2.0}
    path = write_gguf(tmp_path / "o.gguf", extra={"rope_freqs.weight": ones * 4}, metadata=linear).path
    (both,) = open_checkpoint(path).spec.ropes
    assert both.inverse_frequencies == tuple(value / 8 for value in plain.inverse_frequencies)
    for alone in ("rope_factors_long.weight", "rope_factors_short.weight"):
        assert "belong together" in refusal(write_gguf(tmp_path / "p.gguf", extra={alone: ones}).path)
    for wrong in (ones * 0, np.ones(7, np.float32), ones * np.float32(np.nan)):
        path = write_gguf(tmp_path / "w.gguf", extra={"rope_freqs.weight": wrong}).path
        assert "rope_freqs.weight" in refusal(path)


def test_an_unknown_gguf_tensor_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = write_gguf(tmp_path / "m.gguf", extra={"blk.0.surprise.weight": np.ones(4, np.float32)})
    check_tensors(open_checkpoint(model.path), model)
    assert "blk.0.surprise.weight" in caplog.text


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"general.architecture": "mamba"}, ["mamba", "llama"]),
        ({"llama.expert_count": 8}, ["llama.expert_used_count"]),
        ({"llama.rope.scaling.type": "ntk", "llama.rope.scaling.factor": 4.0}, ["ntk", "yarn"]),
        ({"llama.rope.dimension_count": 8}, ["rope.dimension_count", "16"]),
        ({"llama.attention.head_count_kv": 3}, ["KV heads"]),
        ({"llama.block_count": 3}, ["blk.2."]),
        ({"llama.feed_forward_length": 100}, ["ffn_gate.weight", "[100, 64]"]),
        ({"llama.embedding_length": "64"}, ["llama.embedding_length"]),
        ({"llama.vocab_size": 5}, ["llama.vocab_size"]),
        ({"split.count": 2}, ["split"]),
    ],
)
def test_a_gguf_that_cannot_be_served_is_refused_by_name(
    tmp_path: Path, metadata: dict[str, object], words: list[str]
) -> None:
    path = write_gguf(tmp_path / "m.gguf", metadata=metadata).path
    message = refusal(path)
    assert all(word in message for word in words), message


def test_a_vocabulary_without_a_token_in_use_is_refused(tmp_path: Path) -> None:
    import gguf

    path = write_gguf(tmp_path / "m.gguf").path
    reader = gguf.GGUFReader(path, "r+")
    field = reader.fields["tokenizer.ggml.token_type"]
    for part in field.data:
        field.parts[part][0] = 5
    reader.data.flush()
    assert "no token in use" in refusal(path)
    with pytest.raises(ModelError, match="no token in use"):
        load_tokenizer(path)
    folder = write_hf(tmp_path / "m").path
    edit(folder / "tokenizer.json", model={"type": "BPE", "vocab": {}, "merges": []}, added_tokens=[])
    assert "no token in use" in refusal(folder)


def test_paths_that_are_no_model_are_refused_with_a_hint(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "nothing.gguf")
    assert "config.json" in refusal(tmp_path)
    (tmp_path / "a.gguf").write_bytes(b"")
    assert "a.gguf" in refusal(tmp_path / "a.gguf")
    (tmp_path / "b.gguf").write_bytes(b"hello" * 100)
    assert "GGUF" in refusal(tmp_path / "b.gguf")
    write_safetensors(tmp_path / "c.safetensors", {"x": np.ones(2)})
    assert "directory" in refusal(tmp_path / "c.safetensors")


def test_names_of_both_formats_cover_the_same_tensors() -> None:
    rules = rules_of(Tiny(tied=False, attn_bias=True, mlp_bias=True).spec())
    assert len({rule.canonical for rule in rules}) == len(rules)
    assert len({rule.gguf for rule in rules}) == len({rule.hf for rule in rules}) == len(rules)
