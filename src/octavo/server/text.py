"""The model's text side: its tokeniser and its chat template, as the server and `LLM` use them."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from octavo.config import ConfigError
from octavo.models.jsonfile import read_template
from octavo.models.tokenizer import Tokenizer
from octavo.server.errors import ApiError
from octavo.server.templates import AS_USUAL, ChatTemplate, ChatTemplateError, Rendering
from octavo.server.tools.definitions import NO_TOOLS, ToolPlan
from octavo.server.tools.dialect import Dialect, dialect_of
from octavo.server.tools.forms import HERMES, Form
from octavo.server.tools.grammar import structure_of
from octavo.server.tools.render import as_said, concerns_tools
from octavo.server.tools.talk import MarkedTokens, Talk, control_id, marks, opens_thoughts

logger = logging.getLogger(__name__)

BROUGHT_TEMPLATES = 4
"""Of requests, kept at once; each is a process."""


@dataclass(frozen=True)
class ChatPrompt:
    """A chat as the model reads it."""

    ids: list[int]
    talk: Talk | None = None
    """How its answers are read; None: as content alone."""


class ModelText:
    """Texts to ids; `tokens` gives bytes back."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        no_template: str = "",
        tool_parser: str = "auto",
        reasoning_parser: str = "none",
    ) -> None:
        """The parsers are those of `ServerConfig`."""
        self._tool_parser = tool_parser
        self._thoughts = reasoning_parser != "none"
        self._dialects: weakref.WeakKeyDictionary[ChatTemplate, Dialect] = weakref.WeakKeyDictionary()
        self._tokenizer = tokenizer
        self._template = template
        self._no_template = no_template
        self._brought: OrderedDict[str, ChatTemplate] = OrderedDict()
        """Templates that requests brought with them, the latest used last."""
        self._lock = threading.Lock()
        self._marked: dict[tuple[str, ...], MarkedTokens] = {}
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

    def prompt(self, text: str, bos: bool = True) -> list[int]:
        """A completion's prompt: the text of control tokens counts as those tokens, for the caller writes it whole."""
        return self._tokenizer.encode(text, parse_special=True, add_bos=bos and self._tokenizer.add_bos)

    def spellings(self, word: str) -> list[tuple[int, ...]]:
        """The tokens of a word within a text, without and with a space in front."""
        bare = word.lstrip() or word
        spelt = (tuple(self._tokenizer.encode_within(text)) for text in (bare, f" {bare}"))
        return list(dict.fromkeys(filter(None, spelt)))

    def least_tokens(self, text: str) -> int:
        """A bound from below on the tokens of any text that begins with this one: its end may be divided otherwise."""
        return len(self._tokenizer.encode(text)) * 9 // 10

    def chat(self, messages: Sequence[dict[str, Any]], way: Rendering = AS_USUAL) -> list[int]:
        """The ids of a chat's prompt."""
        return self.chat_prompt(messages, way).ids

    def chat_prompt(
        self, messages: Sequence[dict[str, Any]], way: Rendering = AS_USUAL, plan: ToolPlan = NO_TOOLS
    ) -> ChatPrompt:
        """A chat's prompt: the text of control tokens inside messages stays text."""
        template = self._template if way.source is None else self._bring(way.source)
        if template is None:
            raise ApiError(_sentence(self._no_template), param="messages", code="no_chat_template")
        form: Form | None = None
        tools: Sequence[dict[str, Any]] | None = None
        try:
            if plan or concerns_tools(messages):
                dialect = self._dialect(template)
                form = _form(dialect) if plan else None
                messages, tools = as_said(messages, plan.described(), dialect, dialect.form or HERMES)
            segments = template.render(
                messages,
                tools=tools,
                add_generation_prompt=way.opens_answer,
                continues=way.continues,
                variables=way.variables,
            )
        except ChatTemplateError as error:
            raise ApiError(_sentence(str(error)), param="messages", code="chat_template_error") from error
        ids = self._tokenizer.encode_chat(segments)
        if form is None and not self._thoughts:
            return ChatPrompt(ids)
        return ChatPrompt(ids, self._talk(plan, form, "".join(text for text, _ in segments[-1:])))

    def _talk(self, plan: ToolPlan, form: Form | None, ending: str) -> Talk:
        texts = marks(form, self._thoughts)
        tokens = self._marked.get(texts)
        if tokens is None:
            tokens = self._marked[texts] = MarkedTokens(self._tokenizer, texts)
        opened = self._thoughts and opens_thoughts(ending)
        structure = None
        if form is not None:
            structure = structure_of(plan, form, self._thoughts, opened, partial(control_id, self._tokenizer))
        return Talk(tokens, plan, form, self._thoughts, opened, structure)

    def _dialect(self, template: ChatTemplate) -> Dialect:
        """What a template can say of tools; found out once."""
        with self._lock:
            dialect = self._dialects.get(template)
        if dialect is None:
            dialect = dialect_of(template, self._tool_parser)
            with self._lock:
                self._dialects[template] = dialect
        return dialect

    def _bring(self, source: str) -> ChatTemplate:
        """A request's template in a process of its own; that of the one used longest ago ends for it."""
        with self._lock:
            template = self._brought.get(source)
            if template is None:
                while len(self._brought) >= BROUGHT_TEMPLATES:
                    self._brought.popitem(last=False)[1].close()
                template = self._brought[source] = ChatTemplate.of(self._tokenizer, source)
            self._brought.move_to_end(source)
            return template

    def close(self) -> None:
        """Ends the templates' workers."""
        with self._lock:
            for template in (self._template, *self._brought.values()):
                if template is not None:
                    template.close()


def _form(dialect: Dialect) -> Form:
    """How the model writes calls; refused where that is not read here."""
    if dialect.form is None:
        raise ApiError(
            "Tools are refused: the chat template shows a form of calls that is not read here; "
            "--tool-parser json would read plain JSON.",
            param="tools",
            code="unsupported_parameter",
        )
    return dialect.form


def load_text(
    tokenizer: Tokenizer, template: str | None = None, tool_parser: str = "auto", reasoning_parser: str = "none"
) -> ModelText:
    """The text side of a model; without a chat template, chats are refused and say how to supply one.

    `template` is a template's file, or the name of one of the model's; ConfigError where it is neither.
    """
    try:
        found = ChatTemplate.of(tokenizer, _source(tokenizer, template))
        return ModelText(tokenizer, found, "", tool_parser, reasoning_parser)
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
