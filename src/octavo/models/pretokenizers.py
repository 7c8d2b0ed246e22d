"""The splitting rules of byte-level BPE, by the names that GGUF files call them.

`tokenizer.ggml.pre` names the family whose tokenizer.json the file was made from. Each rule here is that file's chain
of splits, its normaliser, and two habits of the family: whether a whole word that is a token is taken before merges
are looked at, and whether plain text begins with a BOS where the file does not say. An unknown name is refused by the
reader: a wrong rule gives ids that the model never saw. Owns constants alone; off switch: none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

DIGITS = "<each digit alone>"
"""A stage of a rule, as is any regular expression whose matches are words."""
GPT2 = "<GPT-2's words>"


@dataclass(frozen=True)
class Rule:
    """How a family splits text into words."""

    stages: tuple[str, ...]
    nfc: bool = False
    """Text is normalised to Unicode's form C first."""
    whole_words: bool = False
    add_bos: bool = False

    def apply(self, backend: Backend) -> None:
        """Gives a BPE its normaliser and splits; bytes become the byte alphabet last."""
        last = self.stages[-1] == GPT2
        splits: list[Any] = [_stage(stage) for stage in self.stages]
        if not last:
            splits.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        backend.pre_tokenizer = splits[0] if len(splits) == 1 else pre_tokenizers.Sequence(splits)
        if self.nfc:
            backend.normalizer = normalizers.NFC()


def _stage(stage: str) -> Any:
    if stage == DIGITS:
        return pre_tokenizers.Digits(individual_digits=True)
    if stage == GPT2:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    return pre_tokenizers.Split(Regex(stage), behavior="isolated")


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(letters: str, digits: str, not_symbols: str = r"\s\p{L}\p{N}", after_symbols: str = r"[\r\n]*") -> str:
    """Llama 3's pattern and its variants: contractions, words, numbers, symbols, spaces."""
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}| ?[^{not_symbols}]+{after_symbols}|{_SPACES}"


def _cased(suffix: str, digits: str) -> str:
    """GPT-4o's pattern: a word is upper case, then lower case."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{before}{upper}*{lower}+{suffix}|{before}{upper}+{lower}*{suffix}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


_THREE, _ONE = r"\p{N}{1,3}", r"\p{N}"
_LLAMA3 = Rule((_words(r"\p{L}", _THREE),), whole_words=True, add_bos=True)
_CL100K = Rule((_words(r"\p{L}", _THREE),))
_QWEN2 = Rule((_words(r"\p{L}", _ONE),))
_QWEN35 = Rule((_words(r"[\p{L}\p{M}]", _ONE, not_symbols=r"\s\p{L}\p{M}\p{N}"),), nfc=True)
_GPT2 = Rule((GPT2,))
_DIGITS = Rule((DIGITS, GPT2))
_GPT4O = Rule((_cased(f"{_CONTRACTIONS}?", _THREE),))
_TEKKEN = Rule((_cased("", _ONE),), whole_words=True, add_bos=True)
_CJK = "[一-龥぀-ゟ゠-ヿ]+"
_DEEPSEEK3 = Rule(
    (
        _THREE,
        _CJK,
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
    )
)
_DEEPSEEK_CODER = Rule((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", DIGITS))
_SEED_CODER = Rule((_words(r"\p{L}", _ONE, not_symbols=r"\s\p{L}\p{N}\r\n", after_symbols=""),))
_SUPERBPE = Rule((r"\p{N}+", r"(?=(\d{3})+(?!\d))"))
_MINICPM5 = Rule((_THREE, _words(r"\p{L}", r"\p{N}+")), whole_words=True)

_FAMILIES: tuple[tuple[Rule, str], ...] = (
    (_GPT2, "gpt-2 default phi-2 mpt jais trillion mellum exaone4 granite-docling a.x-4.0 gigachat"),
    (replace(_GPT2, nfc=True), "olmo"),
    (_DIGITS, "smollm starcoder refact codeshell exaone minerva-7b mellum2"),
    (replace(_DIGITS, nfc=True), "command-r"),
    (_LLAMA3, "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2"),
    (_CL100K, "dbrx smaug-bpe glm4 chatglm-bpe"),
    (replace(_QWEN2, nfc=True), "qwen2"),
    (_QWEN2, "deepseek-r1-qwen stablelm2 hunyuan megrez kormo solar-open grok-2"),
    (_QWEN35, "qwen35"),
    (_GPT4O, "gpt-4o llama4 kanana2 minimax-m2"),
    (_TEKKEN, "tekken"),
    (_DEEPSEEK3, "deepseek-v3 hunyuan-dense joyai-llm"),
    (_DEEPSEEK_CODER, "deepseek-coder"),
    (_SEED_CODER, "seed-coder"),
    (_SUPERBPE, "superbpe"),
    (_MINICPM5, "minicpm5"),
)

RULES: dict[str, Rule] = {name: rule for rule, names in _FAMILIES for name in names.split()}
"""Name -> its rule."""
