"""Random texts that find faults in tokenisers: scripts, code, spaces, digits, control tokens, half-known characters.

`random_texts(seed, count, control)` is repeatable; `control` holds the texts of a model's control tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

WORDS = (
    *("the", " the", "The capital of France is", "described", " described", "London", " I'm", "don't", "I'LL", "'s"),
    *("HelloWorld", "camelCaseWord", "SCREAMING_CASE", "naïve", "Ångström", "straße", "ΑΒΓ", "привет мир", "Привет"),
    *("世界", "你好，世界。", "こんにちは", "カタカナ", "삼겹살", "שלום", "مرحبا", "नमस्ते", "ภาษาไทย", "বাংলা"),
    *("<div>", "</table>", "<b>x</b>", "a_b", "https://x.y/z?q=1&r=%20", "e.g.", "…", "—", "«»", "``", "''"),
)
CODE = (
    "def f(x):\n    return x\n",
    "for (int i = 0; i < n; ++i) {\n\t\tsum += a[i];\n\t}\n",
    "{}[]();",
    "\tif x:\r\n\t\tpass\r\n",
    "// комментарий\n",
    '{"a": [1, 2.5, null]}',
    "$x->y::z @attr #tag \\n",
    "SELECT * FROM t WHERE a != 'b';",
)
SPACES = (
    " ",
    "  ",
    "   ",
    " " * 17,
    "\n",
    "\n\n",
    "\n\n\n",
    "\t",
    "\t\t",
    "\r\n",
    " \n ",
    "\u00a0",
    "\u2028",
    "\u3000",
)
DIGITS = ("0", "7", "10", "10 000", "3.14", "1234567", "½", "²", "Ⅷ", "٣", "1_000", "0x1F", " 2024-02-29", "१२३")
ODD = (
    *("😀", "🙂", "👩\u200d💻", "🇨🇭", "\u200b", "\ufeff", "\x00", "\x7f", "e\u0301", "\U0010ffff", "\ue000", "ﬁ", "Å"),
    *("\u2581", "\u2581\u2581", "<0x41>", "<s>", "</s>", "<unk>", "[INST]", "\u1e9b\u0323", "ď"),
)


def random_texts(seed: int, count: int, control: Sequence[str] = ()) -> Iterator[str]:
    """So many texts of one to about a hundred pieces, most of them short."""
    rng = random.Random(seed)
    kinds: list[Sequence[str]] = [WORDS, WORDS, CODE, SPACES, SPACES, DIGITS, ODD]
    if control:
        kinds.append(control)
    for _ in range(count):
        size = rng.randrange(1, 12) if rng.random() < 0.9 else rng.randrange(12, 100)
        yield "".join(rng.choice(rng.choice(kinds)) if rng.random() < 0.8 else _characters(rng) for _ in range(size))


def _characters(rng: random.Random) -> str:
    """A run of any characters of one plane; surrogates become spaces."""
    top = rng.choice((0x80, 0x800, 0x10000, 0x110000))
    codes = (rng.randrange(top) for _ in range(rng.randrange(1, 6)))
    return "".join(" " if 0xD800 <= code < 0xE000 else chr(code) for code in codes)
