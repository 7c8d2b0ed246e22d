"""The HTTP side's configuration: every limit, who may use the server, and how each is set, in one table.

A field's metadata say its group, its bounds and its one-line meaning: the flags of `octavo serve` and what `octavo
doctor` prints are both made from them (cli/server_options.py). Frozen; nothing changes it after the start.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

TAKEN_HEADER = re.compile(
    r"(proxy-)?authorization|cookie|host|origin|connection|content-.*|transfer-.*|accept.*|expect|x-request-id|te", re.I
)
"""No tenant's: they hold a secret, or say something else."""
KIB = 1024
MIB = 1024 * 1024


@dataclass(frozen=True)
class Setting:
    """What a flag needs to know of its field."""

    group: str
    """"server", "connection", "request", "key" or "security"."""
    help: str
    low: float = 0
    high: float = 0
    """Both included, for numbers."""
    kind: str = "number"
    """"number", "bytes", "switch", "text", "file", "names" or "choice"."""
    choices: tuple[str, ...] = ()
    """Of a choice."""


GROUPS = {
    "server": "server",
    "connection": "limits of connections",
    "request": "limits of one request",
    "key": "limits of one API key (0: none; a key's own in its file count more)",
    "security": "security",
}
"""In the order of telling."""


def _setting(default: Any, group: str, text: str, low: float = 0, high: float = 0, kind: str = "number") -> Any:
    return field(default=default, metadata={"setting": Setting(group, text, low, high, kind)})


def _choice(default: str, text: str, *choices: str) -> Any:
    return field(default=default, metadata={"setting": Setting("server", text, kind="choice", choices=choices)})


def _connection(default: Any, text: str, low: float, high: float, kind: str = "number") -> Any:
    return _setting(default, "connection", text, low, high, kind)


def _request(default: Any, text: str, low: float, high: float, kind: str = "number") -> Any:
    return _setting(default, "request", text, low, high, kind)


@dataclass(frozen=True)
class ServerConfig:
    """The HTTP side."""

    host: str = _setting("127.0.0.1", "server", "Address to listen on.", kind="text")
    port: int = _setting(8000, "server", "0: any free one.", 0, 65535)
    drain_seconds: float = _setting(30.0, "server", "After SIGTERM, open requests get this long.", 0, 3600)
    access_log: bool = _setting(
        False, "server", "One line a request on standard error, without its body.", 0, 1, "switch"
    )
    tenant_header: str | None = _setting(
        None, "server", "Header that names a request's tenant, such as X-Tenant; set by a proxy you trust.", kind="text"
    )
    embedding_pooling: str = _choice(
        "mean", "How embeddings pool hidden states; a request's pooling field may say otherwise.", "mean", "last"
    )
    tool_parser: str = _choice(
        "auto",
        "How the model writes tool calls; auto: as its chat template shows; none: tools are refused.",
        "auto",
        "hermes",
        "llama3",
        "mistral",
        "json",
        "none",
    )
    reasoning_parser: str = _choice(
        "none", "think: what stands between <think> and </think> becomes reasoning_content.", "none", "think"
    )

    max_connections: int = _connection(1024, "Open connections; more are answered 503 and closed.", 1, 1_000_000)
    header_seconds: float = _connection(10.0, "A request line and its headers have this long.", 0.01, 3600)
    max_header_bytes: int = _connection(32 * KIB, "Request line and headers together.", 256, MIB, "bytes")
    body_seconds: float = _connection(60.0, "A body has this long.", 0.01, 3600)
    max_buffered_bytes: int = _connection(
        256 * MIB, "All bodies that are being read at once; more are answered 503.", 64, 1 << 40, "bytes"
    )
    send_seconds: float = _connection(
        30.0, "A client that takes nothing for this long while an answer waits is cut off.", 0.01, 3600
    )
    max_queued_tokens: int = _connection(
        4096, "Tokens of a stream that wait for its client; then it is cut off.", 1, 1 << 30
    )
    keep_alive_seconds: int = _connection(30, "A connection stays open this long after an answer.", 0, 3600)
    max_pipelined: int = _connection(16, "Requests sent ahead on one connection.", 1, 1024)

    max_body_bytes: int = _request(4 * MIB, "The body.", 64, 1024 * MIB, "bytes")
    max_json_depth: int = _request(64, "Nesting of a body.", 2, 512)
    max_json_containers: int = _request(65_536, "Lists and objects in a body, and keys in its objects.", 16, 1 << 24)
    max_json_values: int = _request(750_000, "Values in a body, such as token ids.", 16, 1 << 28)
    max_n: int = _request(16, "Choices a prompt (n).", 1, 4096)
    max_prompts: int = _request(64, "Prompts in one completions body.", 1, 65_536)
    max_embedding_inputs: int = _request(2048, "Texts in one embeddings body.", 1, 65_536)
    max_choices: int = _request(128, "n times the prompts.", 1, 65_536)
    max_messages: int = _request(4096, "Messages of a chat.", 1, 1 << 20)
    max_tools: int = _request(128, "Definitions in tools.", 1, 65_536)
    max_content_parts: int = _request(4096, "Parts of one message's content.", 1, 1 << 20)
    max_request_tokens: int = _request(1 << 20, "Prompt and max_tokens together, over all choices.", 1, 1 << 40)
    max_logprobs: int = _request(20, "logprobs and top_logprobs.", 0, 1000)
    max_logprob_entries: int = _request(
        1 << 20, "max_tokens over all choices, times 1 + logprobs: what an answer may have to keep.", 1, 1 << 40
    )
    max_stop_strings: int = _request(16, "Strings in stop.", 0, 1024)
    max_stop_characters: int = _request(1024, "Characters of one stop string.", 1, 65_536)
    max_stop_token_ids: int = _request(64, "Ids in stop_token_ids.", 0, 65_536)
    max_logit_bias: int = _request(1024, "Entries of logit_bias.", 0, 1 << 20)
    max_bad_words: int = _request(128, "Strings in bad_words.", 0, 4096)
    max_allowed_token_ids: int = _request(65_536, "Ids in allowed_token_ids.", 0, 1 << 20)

    requests_per_minute: int = _setting(0, "key", "Requests a minute.", 0, 1 << 30)
    tokens_per_minute: int = _setting(0, "key", "Prompt and generated tokens a minute.", 0, 1 << 40)
    max_concurrent: int = _setting(0, "key", "Answers (choices) open at once.", 0, 1 << 20)

    api_keys: str | None = _setting(None, "security", "TOML file of the keys that the API asks for.", kind="file")
    admin_key_file: str | None = _setting(
        None, "security", "File with the key of /admin and /metrics; without it /admin is off.", kind="file"
    )
    tls_cert: str | None = _setting(
        None, "security", "Certificate chain (PEM); with --tls-key, HTTPS alone.", kind="file"
    )
    tls_key: str | None = _setting(None, "security", "The certificate's private key (PEM).", kind="file")
    cors_origin: tuple[str, ...] = _setting(
        (),
        "security",
        "Web page origin that may call the API, such as https://app.example; may be repeated.",
        kind="names",
    )
    allowed_host: tuple[str, ...] = _setting(
        (), "security", "Name that requests may call this server by; may be repeated; * is any.", kind="names"
    )
    request_templates: bool = _setting(
        False, "security", "Chats may bring a chat_template of their own, run in the sandbox.", 0, 1, "switch"
    )
