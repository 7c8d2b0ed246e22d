"""The OpenAPI document describes the server: bodies made from it are served or refused as it says."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import not_a_server_error, response_schema_conformance, status_code_conformance

from octavo.server.openapi import document
from tests.support.server import Server

SCHEMA = schemathesis.openapi.from_dict(document())
EXAMPLES = 25


def check(server: Server, path: str, method: str) -> None:
    operation = SCHEMA[path][method]
    drawn = random.randrange(2**32)

    @seed(drawn)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def run(case: Any) -> None:
        response = case.call(base_url=server.url)
        case.validate_response(
            response, checks=[not_a_server_error, status_code_conformance, response_schema_conformance]
        )

    try:
        run()
    except BaseException:
        print(f"seed {drawn}")
        raise


def test_completions_made_from_the_document(echo: Server) -> None:
    check(echo, "/v1/completions", "POST")


def test_chats_made_from_the_document(echo: Server) -> None:
    check(echo, "/v1/chat/completions", "POST")


@pytest.mark.parametrize("path", ["/v1/embeddings", "/tokenize", "/detokenize"])
def test_small_bodies_made_from_the_document(tiny: Server, path: str) -> None:
    check(tiny, path, "POST")


def test_the_other_paths(echo: Server) -> None:
    for path in ("/health", "/ready", "/metrics", "/v1/models", "/v1/models/{id}", "/openapi.json", "/docs"):
        check(echo, path, "GET")
    assert echo.client.get("/openapi.json").json() == json.loads(json.dumps(document()))
