"""The model's text side: its tokeniser and its chat template, as the server and `LLM` use them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from octavo.config import ConfigError
from octavo.models.jsonfile import read_template
from octavo.models.tokenizer import Tokenizer
from octavo.server.errors import ApiError
from octavo.server.templates import ChatTemplate, ChatTemplateError

logger = logging.getLogger(__name__)


class ModelText:
    """Texts to ids; `tokens` gives bytes back."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None, no_template: str = "") -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._no_template = no_template
        self.tokens = tokenizer

    @cached_property
    def longest_token(self) -> int:
        """Bytes of the longest token: a bound on how few tokens a text can have."""
        token_bytes = self._tokenizer.token_bytes
        return max((len(token_bytes(token)) for token in range(self._tokenizer.num_tokens)), default=1)

    def check(self) -> None:
        """Waits until chats can be rendered; a template that cannot work is told in the log and to callers."""
        if self._template is None:
            return
        try:
            self._template.check()
        except ChatTemplateError as error:
            logger.warning("chats will be refused: %s", error)
            return
        try:
            self._template.try_out()
        except ChatTemplateError as error:
            logger.warning("chats may be refused, a trial of one message was: %s", error)

    def prompt(self, text: str) -> list[int]:
        """A completion's prompt: the text of control tokens counts as those tokens, for the caller writes it whole."""
        return self._tokenizer.encode(text, parse_special=True, add_bos=self._tokenizer.add_bos)

    def chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """A chat's prompt: the text of control tokens inside messages stays text."""
        if self._template is None:
            raise ApiError(_sentence(self._no_template), param="messages", code="no_chat_template")
        try:
            return self._tokenizer.encode_chat(self._template.render(messages))
        except ChatTemplateError as error:
            raise ApiError(_sentence(str(error)), param="messages", code="chat_template_error") from error

    def close(self) -> None:
        """Ends the template's worker."""
        if self._template is not None:
            self._template.close()


def load_text(tokenizer: Tokenizer, template: str | None = None) -> ModelText:
    """The text side of a model; without a chat template, chats are refused and say how to supply one.

    `template` is a template's file, or the name of one of the model's; ConfigError where it is neither.
    """
    try:
        return ModelText(tokenizer, ChatTemplate.of(tokenizer, _source(tokenizer, template)))
    except ChatTemplateError as error:
        return ModelText(tokenizer, None, str(error))


def _source(tokenizer: Tokenizer, chosen: str | None) -> str | None:
    if chosen is None or chosen in tokenizer.chat_templates:
        return tokenizer.chat_templates.get(chosen or "default")
    path = Path(chosen).expanduser()
    if path.is_file():
        return read_template(path)
    names = ", ".join(tokenizer.chat_templates) or "it has none"
    raise ConfigError(
        f"--chat-template {chosen!r} is neither a file nor the name of a template of the model ({names}); the path "
        "of a .jinja file would work"
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
