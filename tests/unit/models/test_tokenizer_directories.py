"""Tokenisers of directories: SentencePiece's own files, BOS rules, spaces in front, ways of decoding."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.random_texts import random_texts
from octavo.models.checkpoint import open_checkpoint
from octavo.models.sentencepiece_file import read_sentencepiece
from octavo.models.spec import ModelError
from octavo.models.tokenizer import load_tokenizer
from tests.support.tiny import Tiny, tokenizer_json, write_hf
from tests.support.vocabularies import USER_DEFINED, Trained, train_sentencepiece


@pytest.fixture(scope="module")
def seed() -> int:
    return random.randrange(1 << 31)


@pytest.fixture(scope="module")
def trained(seed: int) -> Trained:
    return train_sentencepiece(seed)


def with_model(folder: Path, proto: bytes, **changes: Any) -> Path:
    """A directory with tokenizer.model alone; `changes` to tokenizer_config.json, None removes."""
    path = write_hf(folder, Tiny(vocab=700)).path
    (path / "tokenizer.json").unlink()
    (path / "tokenizer.model").write_bytes(proto)
    config = {"added_tokens_decoder": {"600": {"content": "<x>", "special": True, "rstrip": True}}} | changes
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    "trainer",
    [{}, {"add_dummy_prefix": False}, {"remove_extra_whitespaces": True}],
)
def test_a_directory_with_tokenizer_model_alone_has_its_ids(tmp_path: Path, seed: int, trainer: dict[str, Any]) -> None:
    trained = train_sentencepiece(seed, **trainer)
    path = with_model(tmp_path / "m", trained.proto)
    tokenizer = load_tokenizer(path)
    assert (tokenizer.num_tokens, tokenizer.bos_id, tokenizer.add_bos, tokenizer.eos_ids) == (601, 1, True, (2,))
    wrong = []
    for text in random_texts(seed, 600):
        if not any(user in text for user in USER_DEFINED) and tokenizer.encode(text) != trained.processor.encode(text):
            wrong.append(text)
    assert not wrong, f"seed {seed}: {wrong[:3]!r}"
    checkpoint = open_checkpoint(path)
    assert (checkpoint.num_tokens, checkpoint.eos_token_ids) == (601, (2,))
    checkpoint.close()


def test_added_tokens_stand_behind_the_model_and_eat_their_spaces(tmp_path: Path, trained: Trained) -> None:
    tokenizer = load_tokenizer(with_model(tmp_path / "m", trained.proto))
    the = trained.processor.encode("The")
    assert tokenizer.encode("<x>  The", parse_special=True) == [600, *the]
    assert 600 not in tokenizer.encode("<x>The")
    gap = {"added_tokens_decoder": {"605": {"content": "<y>", "special": True}}}
    with pytest.raises(ModelError, match=r"<y>.*605.*600"):
        load_tokenizer(with_model(tmp_path / "gap", trained.proto, **gap))


@pytest.mark.parametrize(("legacy", "behind"), [(True, "The"), (None, "The"), (False, "\u2581The")])
def test_text_behind_a_control_token_gets_a_space_in_the_older_way_alone(
    tmp_path: Path, trained: Trained, legacy: bool | None, behind: str
) -> None:
    changes = {} if legacy is None else {"legacy": legacy}
    tokenizer = load_tokenizer(with_model(tmp_path / "m", trained.proto, **changes))
    first = trained.processor.encode("The")
    second = first if legacy is not False else trained.processor.encode("<tool>The")[2:]
    assert tokenizer.encode("The<x>The", parse_special=True) == [*first, 600, *second]
    assert tokenizer.encode_chat([("The<x>", True), ("The", False), ("", True)]) == [*first, 600, *second]
    hidden = tokenizer.encode_chat([("The<x>", True), ("The</s>", False)])
    assert hidden[: len(first) + 2] == [*first, 600, second[0]] and 2 not in hidden
    assert tokenizer.decode(tokenizer.encode(" The")) == " The"


def test_a_metaspace_rule_that_serves_the_first_text_alone_is_kept_beside_guarded_text(tmp_path: Path) -> None:
    path = write_hf(tmp_path / "m").path
    content = tokenizer_json()
    pieces = ["<unk>", "<s>", "</s>", "\u2581", "\u2581a", "a", "b", "<", "s", "/", ">"]
    content["model"] |= {"vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": [["\u2581", "a"]]}
    content["model"] |= {"unk_token": "<unk>", "fuse_unk": True}
    content["added_tokens"] = [token | {"content": pieces[i]} for i, token in enumerate(content["added_tokens"])]
    content["pre_tokenizer"] = {
        "type": "Metaspace",
        "replacement": "\u2581",
        "prepend_scheme": "first",
        "split": False,
    }
    content["decoder"] = content["pre_tokenizer"]
    (path / "tokenizer.json").write_text(json.dumps(content))
    (path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    (path / "config.json").unlink()
    (path / "generation_config.json").unlink()
    tokenizer = load_tokenizer(path)
    from transformers import PreTrainedTokenizerFast

    hf = PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"), bos_token="<s>", eos_token="</s>")
    for text in ("a<s>a", "<s>a b", "ab</s>", "<s> a<s>a", " a", "a  a"):
        expected = hf.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text, parse_special=True) == expected, text
        assert tokenizer.encode_chat([(text, True)]) == expected, text
    assert tokenizer.encode_chat([("<s>a", True), ("</s>", False)])[:2] == [1, 5]
    assert tokenizer.decode([4, 5]) == "aa" and tokenizer.token_bytes(4) == b" a"


@pytest.mark.parametrize(
    ("decoder", "named"),
    [
        (None, "none"),
        ({"type": "WordPiece", "prefix": "##", "cleanup": True}, "WordPiece"),
        ({"type": "BPEDecoder", "suffix": "</w>"}, "BPEDecoder"),
    ],
)
def test_a_way_of_decoding_that_cannot_be_streamed_is_refused(tmp_path: Path, decoder: Any, named: str) -> None:
    path = write_hf(tmp_path / "m").path
    (path / "tokenizer.json").write_text(json.dumps(tokenizer_json() | {"decoder": decoder}))
    with pytest.raises(ModelError, match=rf"decoder of the kind {named} .*ByteLevel"):
        load_tokenizer(path)


def test_the_configuration_decides_over_a_bos_where_no_post_processor_does(tmp_path: Path, trained: Trained) -> None:
    for number, (own, expected) in enumerate([({"add_bos_token": False}, False), ({"add_bos_token": True}, True)]):
        assert load_tokenizer(with_model(tmp_path / str(number), trained.proto, **own)).add_bos is expected
    path = write_hf(tmp_path / "json").path
    file = path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"add_bos_token": True}))
    assert not load_tokenizer(path).add_bos, "transformers reads it beside tokenizer.model alone"


def test_special_tokens_of_the_older_file_are_read_and_the_newer_one_wins(tmp_path: Path) -> None:
    path = write_hf(tmp_path / "m").path
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": None, "bos_token": "<|im_start|>"}))
    older = {"eos_token": {"content": "<|im_end|>"}, "bos_token": "<|endoftext|>"}
    (path / "special_tokens_map.json").write_text(json.dumps(older))
    tokenizer = load_tokenizer(path)
    assert tokenizer.special_strings == {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (1, (2,))


def test_templates_are_found_by_name_in_every_place(tmp_path: Path) -> None:
    path = write_hf(tmp_path / "m").path
    (path / "additional_chat_templates").mkdir()
    (path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert load_tokenizer(path).chat_templates.keys() == {"default", "tool_use"}
    (path / "chat_template.jinja").write_text("own")
    assert load_tokenizer(path).chat_templates == {"default": "own", "tool_use": "tools"}


def test_other_kinds_and_missing_files_are_refused_with_a_way_out(tmp_path: Path, seed: int) -> None:
    unigram = train_sentencepiece(seed, model_type="unigram", hard_vocab_limit=False)
    with pytest.raises(ModelError, match=r"unigram.*save_pretrained"):
        load_tokenizer(with_model(tmp_path / "u", unigram.proto))
    rewriting = train_sentencepiece(seed, normalization_rule_name="nmt_nfkc")
    with pytest.raises(ModelError, match=r"replaces characters.*save_pretrained"):
        load_tokenizer(with_model(tmp_path / "r", rewriting.proto))
    path = with_model(tmp_path / "m", b"")
    with pytest.raises(ModelError, match=r"tokenizer\.model"):
        load_tokenizer(path)
    (path / "tokenizer.model").unlink()
    with pytest.raises(ModelError, match=r"no tokenizer\.json and no tokenizer\.model.*save_pretrained"):
        load_tokenizer(path)


@settings(max_examples=200)
@given(data=st.data())
def test_damaged_files_end_in_one_sentence(trained: Trained, tmp_path_factory: Any, data: st.DataObject) -> None:
    content = bytearray(trained.proto)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    folder = tmp_path_factory.mktemp("damaged")
    path = folder / "tokenizer.model"
    path.write_bytes(content[: data.draw(st.integers(1, len(content)))])
    try:
        read_sentencepiece(path)
    except ModelError as error:
        assert "tokenizer.model" in str(error)
    finally:
        shutil.rmtree(folder)


def test_dropout_of_merges_that_a_file_asks_for_is_set_off(tmp_path: Path) -> None:
    content = tokenizer_json()
    text = "the rivers and the mountains of the north " * 8
    path = write_hf(tmp_path / "m", Tiny()).path
    expected = load_tokenizer(path).encode(text, parse_special=True)
    (path / "tokenizer.json").write_text(json.dumps(content | {"model": content["model"] | {"dropout": 0.5}}))
    tokenizer = load_tokenizer(path)
    assert [tokenizer.encode(text, parse_special=True) for _ in range(5)] == [expected] * 5
    assert [tokenizer.encode(text) for _ in range(5)] == [expected] * 5
