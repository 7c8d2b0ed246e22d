"""Long texts: refused after as little tokenising as shows it, and holding up nobody meanwhile."""

from __future__ import annotations

import random
import secrets
import threading
import time

from octavo.models.tokenizer import LONG_TEXT, Tokenizer
from tests.support.server import Server


def test_ids_of_long_texts_are_those_of_the_other_call(tokenizer: Tokenizer) -> None:
    seed = secrets.randbits(32)
    rng = random.Random(seed)
    for _ in range(20):
        length = LONG_TEXT + rng.randrange(3000)
        text = "".join(rng.choice("ab c\n\u00e9\u4e16\U0001f600<|im_end|>0") for _ in range(length))
        plain = tokenizer._parts.plain.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text) == plain, seed


def test_a_long_text_holds_up_no_other_thread(tokenizer: Tokenizer) -> None:
    """While it is encoded, this thread goes on: the longest wait is a small part of the whole."""
    text = "ab c" * 400_000
    thread = threading.Thread(target=tokenizer.encode, args=(text,))
    began = last = time.perf_counter()
    longest = 0.0
    thread.start()
    while thread.is_alive():
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
        time.sleep(0.0005)
    assert longest < (time.perf_counter() - began) / 2


def test_texts_that_cannot_fit_are_refused_in_all_their_forms(echo: Server) -> None:
    """The context is 1024; the longest token bounds some from below, the beginning of the text the others."""
    for text in ("ab " * 3000, "\u4e16" * 5000, "a" * 20_000, " " * 100_000, "ab c" * 300_000):
        for path, body in (
            ("/v1/completions", {"prompt": text}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}),
        ):
            response = echo.post(path, body)
            assert response.status_code == 400, (text[:10], response.text)
            assert response.json()["error"]["code"] == "context_length_exceeded"
    fits = "ab " * 300
    assert echo.complete(prompt=fits, max_tokens=3)["usage"]["prompt_tokens"] < 1024
