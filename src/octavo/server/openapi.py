"""The OpenAPI document, made from the types that check the bodies."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

import octavo
from octavo.server.embeddings import EmbeddingBody
from octavo.server.protocol import REFUSED_FIELDS, ChatBody, CompletionBody
from octavo.server.tokenization import DetokenizeBody, TokenizeBody
from octavo.types import SamplingDefaults

_STATUS = {
    "400": "The request is wrong; the message names the field.",
    "401": "This needs a key.",
    "403": "This name or web page may not call the server.",
    "404": "There is no such model.",
    "408": "The request did not come in time.",
    "413": "The body is too large.",
    "415": "The body is compressed.",
    "429": "The queue is full, or the key has had its share; retry-after says when to come back.",
    "431": "The request line and headers are too large.",
    "500": "The engine failed on this request.",
    "503": "The server cannot take the request now, or it waited too long in the queue.",
    "504": "The request's own deadline passed.",
}


_STREAMS = "A body, or a stream of events where stream is true."
_NO_DEFAULTS = SamplingDefaults()
_NAME = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


@cache
def document(sampling: SamplingDefaults = _NO_DEFAULTS) -> dict[str, Any]:
    """OpenAPI 3.1. Fields that are always refused are left out; `sampling` are the defaults that the model suggests."""
    bodies = [ChatBody, CompletionBody, EmbeddingBody, TokenizeBody, DetokenizeBody]
    _, schemas = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    for body in ("ChatBody", "CompletionBody"):
        for name in REFUSED_FIELDS:
            schemas[body]["properties"].pop(name, None)
        for name, value in sampling.chosen().items():
            schemas[body]["properties"][name]["default"] = value
    schemas["Error"] = {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "null"]},
                },
            }
        },
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Octavo", "version": octavo.__version__},
        "paths": {
            "/v1/chat/completions": {"post": _generate("ChatBody", "A chat's next message.")},
            "/v1/completions": {"post": _generate("CompletionBody", "The continuation of one or more prompts.")},
            "/v1/embeddings": {"post": _generate("EmbeddingBody", "Vectors of one or more texts.", streams=False)},
            "/tokenize": {"post": _generate("TokenizeBody", "Token ids of a prompt or a chat.", streams=False)},
            "/detokenize": {"post": _generate("DetokenizeBody", "The text of token ids.", streams=False)},
            "/v1/models": {"get": _get("The models served.", refusals=("401", "403"))},
            "/v1/models/{id}": {"get": _get("One of them.", refusals=("401", "403", "404")), "parameters": [_NAME]},
            "/health": {"get": _get("Whether the engine lives.", "503")},
            "/ready": {"get": _get("Whether requests are taken.", "503")},
            "/metrics": {"get": _get("Prometheus metrics.", kind="text/plain", refusals=("401", "403"))},
            "/openapi.json": {"get": _get("This document.")},
            "/docs": {"get": _get("A page of it.", kind="text/html")},
        },
        "components": {"schemas": schemas},
    }


def _generate(body: str, summary: str, streams: bool = True) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    answer: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if streams:
        # Without a schema: this version of OpenAPI has none for the events of a stream.
        answer["text/event-stream"] = {}
    return {
        "summary": summary,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{body}"}}},
        },
        "responses": {
            "200": {"description": _STREAMS if streams else summary, "content": answer},
            **{status: {"description": text, "content": error} for status, text in _STATUS.items()},
        },
    }


def _get(summary: str, *more: str, kind: str = "application/json", refusals: tuple[str, ...] = ()) -> dict[str, Any]:
    content = {kind: {"schema": {"type": "object"} if kind == "application/json" else {"type": "string"}}}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        "summary": summary,
        "responses": {
            **{status: {"description": summary, "content": content} for status in ("200", *more)},
            **{status: {"description": _STATUS[status], "content": error} for status in refusals},
        },
    }
