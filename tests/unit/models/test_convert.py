"""Conversion both ways: float tensors keep their bits, settings and tokeniser come along, losses are told."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import transformers

from octavo.cli.convert import run_convert
from octavo.models.checkpoint import open_checkpoint
from octavo.models.convert.plan import check_type
from octavo.models.convert.run import Result, convert
from octavo.models.convert.settings import differences
from octavo.models.convert.words import unreadable
from octavo.models.registry import architecture_of
from octavo.models.spec import ModelError
from octavo.models.tokenizer import load_tokenizer
from octavo.ops.numeric import expand
from tests.support.families import FAMILIES
from tests.support.oracle import Case, build, fix_rope, logits, save
from tests.support.quantised import gptq, write_quantised
from tests.support.tiny import BASE_VOCAB, CHAT_TEMPLATE, Tiny, tokenizer_json, write_gguf, write_hf
from tests.support.vocabularies import sentencepiece_gguf, train_sentencepiece


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))


def quiet(what: str, fraction: float | None) -> None:
    assert fraction is None or 0 <= fraction <= 1


def made(source: Path, target: Path, kind: str | None = None) -> Result:
    return convert(source, target, None, kind, quiet)


def tensors(path: Path) -> dict[str, tuple[str, bytes]]:
    checkpoint = open_checkpoint(path)
    found = {tensor.name: (tensor.source, bytes(tensor.data)) for tensor in checkpoint.tensors()}
    checkpoint.close()
    return found


def values(path: Path) -> dict[str, np.ndarray]:
    checkpoint = open_checkpoint(path)
    return {t.name: expand(t.source, t.shape, t.data) for t in checkpoint.tensors()}


def same_model(one: Path, other: Path) -> None:
    """All but the weights."""
    first, second = open_checkpoint(one), open_checkpoint(other)
    names = [name for name in differences(first.spec, second.spec) if name != "architecture"]
    assert names == [] and architecture_of(first.spec).tensors(first.spec) == architecture_of(second.spec).tensors(
        second.spec
    )
    assert first.num_tokens == second.num_tokens and set(first.eos_token_ids) == set(second.eos_token_ids)
    tokenizers = load_tokenizer(one), load_tokenizer(other)
    assert tokenizers[0].chat_template == tokenizers[1].chat_template
    assert tokenizers[0].add_bos == tokenizers[1].add_bos
    assert tokenizers[0].special_strings == tokenizers[1].special_strings


CASES = [(family, "plain") for family in FAMILIES if family != "olmo3"] + [
    ("llama", "biases"), ("llama", "linear"), ("llama", "yarn"), ("phi3", "window 8"), ("phi3", "longrope, long"),
    ("granite", "tied, biases"), ("gemma3", "seven layers"), ("gemma3", "cap"), ("qwen2", "yarn"),
]  # fmt: skip


def save_case(case: Case, folder: Path) -> Any:
    """The model as transformers saves it, with a tokeniser that both formats have."""
    model = build(case.with_(vocab_size=BASE_VOCAB), 1)
    save(model, folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    settings = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return model


@pytest.mark.parametrize(("family", "name"), CASES)
def test_a_round_trip_keeps_every_bit_of_every_architecture(tmp_path: Path, family: str, name: str) -> None:
    source, case = tmp_path / "a", FAMILIES[family][name]
    model = save_case(case, source)
    assert made(source, tmp_path / "b.gguf").notes == ()
    assert made(tmp_path / "b.gguf", tmp_path / "c").notes == ()
    assert tensors(source) == tensors(tmp_path / "b.gguf") == tensors(tmp_path / "c")
    same_model(source, tmp_path / "b.gguf")
    same_model(source, tmp_path / "c")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "c", dtype="float32")
    if case.context is not None:
        fix_rope(again, case.context)
    tokens = list(range(40))
    np.testing.assert_allclose(logits(again, tokens), logits(model, tokens), atol=1e-5)


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_half_precision_keeps_its_bits(tmp_path: Path, dtype: str) -> None:
    source = write_hf(tmp_path / "a", Tiny(tied=False), dtype, shards=2).path
    made(source, tmp_path / "b.gguf")
    result = made(tmp_path / "b.gguf", tmp_path / "c", dtype)
    assert result.notes == () and tensors(source) == tensors(tmp_path / "c")
    kinds = {name: kind for name, (kind, _) in tensors(tmp_path / "b.gguf").items()}
    assert kinds["embed.weight"] == dtype and kinds["norm.weight"] == "F32"
    np.testing.assert_array_equal(values(source)["norm.weight"], values(tmp_path / "b.gguf")["norm.weight"])


def test_the_reference_library_reads_what_is_written(tmp_path: Path) -> None:
    model = write_hf(tmp_path / "a")
    made(model.path, tmp_path / "b.gguf", "Q8_0")
    reader = gguf.GGUFReader(tmp_path / "b.gguf")
    names = {tensor.name: tensor for tensor in reader.tensors}
    q = names["blk.0.ffn_up.weight"]
    expected = gguf.quants.quantize(model.weights["layers.0.mlp.up.weight"], gguf.GGMLQuantizationType.Q8_0)
    np.testing.assert_array_equal(q.data, expected)
    assert reader.fields["tokenizer.ggml.pre"].contents() == "smollm"
    assert reader.fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_Q8_0
    assert reader.fields["general.quantization_version"].contents() == gguf.GGML_QUANT_VERSION


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "Q5_0"])
def test_quantised_tensors_become_the_floats_they_stand_for(tmp_path: Path, kind: str) -> None:
    model = write_gguf(tmp_path / "a.gguf", kind=kind)
    assert made(model.path, tmp_path / "b").notes == ()
    for name, array in values(tmp_path / "b").items():
        np.testing.assert_array_equal(array, model.weights[name])
    assert made(model.path, tmp_path / "same.gguf").notes == ()
    assert tensors(model.path) == tensors(tmp_path / "same.gguf")
    same_model(model.path, tmp_path / "same.gguf")


def test_rounding_is_told(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "a.gguf")
    result = made(model.path, tmp_path / "b.gguf", "Q4_0")
    assert result.notes == ("15 tensors are rounded from F32 to Q4_0",)
    again = made(tmp_path / "b.gguf", tmp_path / "c", "BF16")
    assert any("Q4_0 to BF16" in note for note in again.notes)


def test_rows_that_are_no_whole_blocks_fall_back_and_are_told(tmp_path: Path) -> None:
    tiny = Tiny(hidden=48, heads=2, kv_heads=1, head_dim=24, intermediate=64, layers=1)
    result = made(write_hf(tmp_path / "a", tiny).path, tmp_path / "b.gguf", "Q8_0")
    assert "7 matrices are BF16: their rows are no whole blocks of Q8_0" in result.notes
    kinds = {name: kind for name, (kind, _) in tensors(tmp_path / "b.gguf").items()}
    assert kinds["layers.0.mlp.down.weight"] == "Q8_0" and kinds["layers.0.mlp.up.weight"] == "BF16"


def test_a_quantised_directory_becomes_a_float_one(tmp_path: Path) -> None:
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    model = write_quantised(tmp_path / "a", gptq(), config, Tiny(hidden=128, heads=4, intermediate=160, layers=1))
    for target in (tmp_path / "b", tmp_path / "c.gguf"):
        made(model.path, target)
        for name, array in values(target).items():
            np.testing.assert_array_equal(array, model.weights[name])
    assert "quantization_config" not in (tmp_path / "b" / "config.json").read_text()


def test_suggestions_for_drawing_come_along(tmp_path: Path) -> None:
    source = write_hf(tmp_path / "a").path
    wanted = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": [2], **wanted}))
    made(source, tmp_path / "b.gguf")
    made(tmp_path / "b.gguf", tmp_path / "c")
    for path in (tmp_path / "b.gguf", tmp_path / "c"):
        assert open_checkpoint(path).sampling().chosen() == wanted


def test_sharded_sources_are_read(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    write_gguf(tmp_path / "parts" / "m.gguf", kind="Q8_0", tensors_a_part=8)
    made(tmp_path / "parts", tmp_path / "b.gguf")
    assert tensors(tmp_path / "parts") == tensors(tmp_path / "b.gguf")


def test_factors_of_rotary_frequencies_come_along(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 8).astype(np.float32)
    model = write_gguf(tmp_path / "a.gguf", extra={"rope_freqs.weight": factors})
    made(model.path, tmp_path / "b.gguf", "F16")
    same_model(model.path, tmp_path / "b.gguf")
    with pytest.raises(ModelError, match=r"no words for the rotary embedding.*--to gguf"):
        made(model.path, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_llama3_frequencies_are_said_in_both_formats(tmp_path: Path) -> None:
    source = write_hf(tmp_path / "a").path
    described = json.loads((source / "config.json").read_text())
    described["rope_scaling"] = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    (source / "config.json").write_text(json.dumps(described))
    made(source, tmp_path / "b.gguf")
    made(tmp_path / "b.gguf", tmp_path / "c")
    same_model(source, tmp_path / "c")


def test_sentencepiece_vocabularies_go_both_ways(tmp_path: Path) -> None:
    trained = train_sentencepiece(7)
    source = write_gguf(tmp_path / "a.gguf", Tiny(vocab=600)).path
    words = sentencepiece_gguf(tmp_path / "v.gguf", trained)
    merge_tokenizer(source, words, tmp_path / "m.gguf")
    made(tmp_path / "m.gguf", tmp_path / "hf")
    made(tmp_path / "hf", tmp_path / "back.gguf")
    one, other = load_tokenizer(tmp_path / "m.gguf"), load_tokenizer(tmp_path / "back.gguf")
    for text in ("Hello  world", "def f(x):\n  return x", "naïve 世界 😀", "", " a", "\n\n"):
        assert one.encode(text) == other.encode(text)
        assert one.decode(one.encode(text)) == other.decode(other.encode(text))


def merge_tokenizer(model: Path, words: Path, target: Path) -> None:
    """The weights of one file with the tokeniser of another."""
    from octavo.models.convert.files import open_gguf_file
    from octavo.models.convert.plan import Target
    from octavo.models.gguf import read_gguf

    file, vocabulary = read_gguf(model), read_gguf(words)
    kept = {key: value for key, value in file.metadata.items() if not key.startswith("tokenizer.")}
    kept |= {key: value for key, value in vocabulary.metadata.items() if key.startswith("tokenizer.")}
    targets = [Target(tensor.name, tensor.type, tensor.shape) for tensor in file.in_order()]
    out = open_gguf_file(target, kept, targets)
    for tensor in file.in_order():
        out.write(tensor.name, 0, file.data(tensor.name))
    out.close()


# --- Refusals -----------------------------------------------------------------------------------------


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    source = write_hf(tmp_path / "a").path
    (tmp_path / "b.gguf").write_bytes(b"mine")
    (tmp_path / "c").mkdir()
    for name in ("b.gguf", "c"):
        with pytest.raises(ModelError, match="exists already"):
            made(source, tmp_path / name)
    assert (tmp_path / "b.gguf").read_bytes() == b"mine"
    with pytest.raises(ModelError, match="no directory"):
        made(source, tmp_path / "nowhere" / "b.gguf")


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    source = write_hf(tmp_path / "a").path
    described = json.loads((source / "tokenizer.json").read_text())
    described["pre_tokenizer"] = {"type": "Whitespace"}
    (source / "tokenizer.json").write_text(json.dumps(described))
    with pytest.raises(ModelError, match="pre-tokeniser"):
        made(source, tmp_path / "b.gguf")
    assert {path.name for path in tmp_path.iterdir()} <= {"a", "cache"}


@pytest.mark.parametrize(
    ("family", "name", "word"),
    [
        ("mistral", "window 8", "windows"),
        ("qwen2", "window 8", "windows"),
        ("mixtral", "window 8", "windows"),
        ("qwen2_moe", "some dense", "dense layers"),
        ("smollm3", "layers named", "layers without rotation"),
        ("llama", "dynamic", "dynamic scaling"),
        ("gemma2", "no caps", "attn_logit_softcapping"),
        ("olmo3", "layers named", "sliding_window|olmo3"),
    ],
)
def test_what_gguf_cannot_say_is_refused_in_the_sources_words(
    tmp_path: Path, family: str, name: str, word: str
) -> None:
    source = tmp_path / "a"
    save_case(FAMILIES[family][name], source)
    with pytest.raises(ModelError, match=f"GGUF files have no words for the .*({word}).* of {source}; .*safetensors"):
        made(source, tmp_path / "b.gguf")
    assert not (tmp_path / "b.gguf").exists()
    made(source, tmp_path / "c")
    assert tensors(source) == tensors(tmp_path / "c")


def test_a_window_on_all_layers_of_a_gguf_llama_makes_a_mistral(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "a.gguf", metadata={"llama.attention.sliding_window": 8}).path
    made(source, tmp_path / "b")
    same_model(source, tmp_path / "b")
    assert "MistralForCausalLM" in (tmp_path / "b" / "config.json").read_text()


def test_what_cannot_be_read_back_is_told_without_the_hidden_file(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "a.gguf").path
    error = unreadable("hf", source, tmp_path / "x" / "b", ModelError(f"{tmp_path / 'x' / 'b'}: mlp_bias is odd"))
    assert str(error) == (
        f"safetensors directories have no words for all of {source} (mlp_bias is odd); a GGUF file works: --to gguf"
    )


def test_room_is_told_in_units_that_show_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_hf(tmp_path / "a").path
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100_000))
    with pytest.raises(ModelError, match=r"would take 0\.\d MB, .* has 0\.1 MB left"):
        made(source, tmp_path / "b.gguf")


@pytest.mark.parametrize(
    ("target", "kind", "word"), [("b", "Q8_0", "BF16"), ("b.gguf", "Q4_K", "Q4_0"), ("b", "x", "F16")]
)
def test_a_type_that_cannot_be_written_is_refused_with_those_that_can(
    tmp_path: Path, target: str, kind: str, word: str
) -> None:
    source = write_hf(tmp_path / "a").path
    with pytest.raises(ModelError, match=f"--type {kind}.*{word}"):
        made(source, tmp_path / target, kind)


def test_a_gguf_file_needs_its_suffix(tmp_path: Path) -> None:
    source = write_hf(tmp_path / "a").path
    with pytest.raises(ModelError, match=r"b\.gguf would work"):
        convert(source, tmp_path / "b", "gguf", None, quiet)
    check_type(None, "gguf", ("F32",))


def test_the_command_says_what_it_made(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "a.gguf").path
    said: list[str] = []
    run_convert(str(source), tmp_path / "b", "safetensors", "bf16", said.append)
    assert "MB of tensors" in said[0] and "rounded from F32 to BF16" in said[1]


def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    tiny = Tiny(hidden=512, heads=4, kv_heads=2, intermediate=12_288, layers=1)
    source = write_gguf(tmp_path / "a.gguf", tiny).path
    tracemalloc.start()
    try:
        made(source, tmp_path / "b", "F16")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24 << 20, peak  # a matrix alone has 25 MB
