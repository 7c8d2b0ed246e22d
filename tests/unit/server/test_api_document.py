"""docs/api.md names every field, path and metric, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from octavo.observability.metrics import Metrics
from octavo.server.openapi import document
from octavo.server.protocol import INERT_FIELDS, REFUSED_FIELDS, ChatBody, CompletionBody

TEXT = (Path(__file__).parents[3] / "docs" / "api.md").read_text()


def section(title: str) -> str:
    return TEXT.split(f"## {title}\n")[1].split("\n## ")[0]


def names(text: str) -> set[str]:
    return {name.split(".")[0] for name in re.findall(r"`([a-z_]+(?:\.[a-z_]+)?)`", text)}


def test_every_field_is_in_its_section() -> None:
    fields = {*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__}
    used = fields - set(INERT_FIELDS) - set(REFUSED_FIELDS)
    assert used <= names(section("Fields that are used"))
    assert set(INERT_FIELDS) <= names(section("Fields without effect"))
    assert set(REFUSED_FIELDS) <= names(section("Fields that are refused"))


def test_every_path_is_listed() -> None:
    for path in document()["paths"]:
        assert f"{path}`" in TEXT, path


def test_every_metric_is_listed_and_exists() -> None:
    told = set(re.findall(r"`(octavo_[a-z_]+)[`{]", section("Metrics")))
    shown = set(re.findall(r"^# TYPE (octavo_[a-z_]+)", Metrics().text().decode(), re.MULTILINE))
    assert told == shown
