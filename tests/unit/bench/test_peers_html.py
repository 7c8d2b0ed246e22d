"""The page about a comparison, from a stored result: everything is named and escaped, and nothing is fetched."""

from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from octavo.bench.peers.html_report import report_html
from octavo.bench.peers.result import parse, read
from octavo.cli.main import cli
from octavo.config import ConfigError

STORED = json.loads((Path(__file__).parent / "peers_result.json").read_text())
VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """Tags must close in order; text, identifiers and references are kept."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.ids: list[str] = []
        self.references: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value or "" for name, value in attrs if name == "id"]
        for name, value in attrs:
            if name == "href":
                self.references.add((value or "").removeprefix("#"))
            self.references |= set(re.findall(r"url\(#([^)]*)\)", value or ""))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, (tag, self.open)

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(report_html(STORED))


def test_every_contender_work_and_ratio_is_in_the_page(page: Page) -> None:
    for contender in STORED["contenders"]:
        assert contender["name"] in page.text
    for ratio in STORED["ratios"]:
        interval = f"{ratio['value']:.3f} {ratio['low']:.3f} to {ratio['high']:.3f} {ratio['pairs']} {ratio['verdict']}"
        assert interval in page.text, ratio
    for work in STORED["works"]:
        assert work["name"] in page.text
    for line in STORED["lines"]:
        assert " ".join(line.split()) in page.text


def test_the_page_fetches_nothing_and_runs_nothing() -> None:
    text = report_html(STORED)
    found = re.search(r"https?:/|//[a-z]|@import|<script|<link|<img|<iframe|javascript:", text, re.IGNORECASE)
    assert found is None, text[max(0, found.start() - 80) : found.end() + 80]
    assert "charset" in text and "width=device-width" in text and "prefers-color-scheme: dark" in text


def test_drawings_share_a_page_without_sharing_names(page: Page) -> None:
    assert page.tags.count("svg") >= 6
    assert len(page.ids) == len(set(page.ids))
    assert page.references <= set(page.ids)
    # Ink is the page's own, so that a dark page has light plots.
    styles = " ".join(value or "" for name, value in page.attributes if name == "style")
    assert "currentColor" in styles and "#010203" not in styles and "#000000" not in styles


def test_what_a_result_holds_is_text_and_never_markup() -> None:
    hostile = '</td><script>alert("x")</script> $\\frac{1}{2}$ & {{ result }}'
    values = copy.deepcopy(STORED)
    names = {one["name"]: one["name"] + hostile for one in values["contenders"]}

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: renamed(one) for key, one in value.items()}
        if isinstance(value, list):
            return [renamed(one) for one in value]
        return names.get(value, value) if isinstance(value, str) else value

    values = renamed(values)
    values["contenders"][0]["problem"] = values["contenders"][0]["facts"]["kv"] = values["lines"][0] = hostile
    values["model"]["file"] = hostile
    text = report_html(values)
    assert "<script" not in text
    page = Page(text)
    assert hostile in page.text and "script" not in page.tags


def test_a_machine_that_was_not_quiet_and_noisy_rows_are_told() -> None:
    values = copy.deepcopy(STORED)
    assert "not quiet" not in report_html(values)
    values["others"] = 0.4
    values["rows"][0]["steady"] = False
    text = Page(report_html(values)).text
    assert "The machine was not quiet" in text and "too noisy to be a result" in text


def test_a_run_of_one_work_without_peers_has_a_page_too() -> None:
    values = copy.deepcopy(STORED)
    only = values["works"][0]["name"]
    values["works"] = values["works"][:1]
    values["contenders"] = [one for one in values["contenders"] if one["peer"] == "octavo" and one["way"] == "offline"]
    values["rows"] = [row for row in values["rows"] if row["work"] == only and row["peer"] == "octavo"]
    values["ratios"], values["samples"] = [], []
    for one in values["contenders"]:
        one["start_seconds"] = one["memory_bytes"] = None
    text = Page(report_html(values)).text
    assert only in text and "Ratios against" not in text and "Start and memory" not in text


def test_a_stored_result_is_checked_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(STORED))
    assert read(str(path)) == STORED
    broken = {**STORED, "rows": [{**STORED["rows"][0], "median": "fast"}]}
    with pytest.raises(ConfigError, match=r"rows\[0\]\.median"):
        parse(broken)
    path.write_text("{")
    with pytest.raises(ConfigError, match="octavo bench peers --json wrote works"):
        read(str(path))


def test_ratios_of_too_few_rounds_are_no_results_in_the_page() -> None:
    values = copy.deepcopy(STORED)
    for ratio in values["ratios"]:
        ratio.update(value=None, low=None, high=None, pairs=None, verdict="no result")
    text = Page(report_html(values)).text
    assert text.count("too few rounds no result") == len(values["ratios"])


def test_what_could_not_take_part_is_told(page: Page) -> None:
    assert STORED["problems"] and all(line in page.text for line in STORED["problems"])


def test_a_stored_run_is_shown_again_by_the_command(tmp_path: Path) -> None:
    stored, out = tmp_path / "result.json", tmp_path / "report.html"
    stored.write_text(json.dumps(STORED))
    done = CliRunner().invoke(cli, ["bench", "peers", "--from", str(stored), "--html", str(out)])
    assert done.exit_code == 0, done.output
    assert "octavo q4_1" in out.read_text() and str(out) in done.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--from", "a.json"], "--html report.html"),
        (["--from", "/nowhere/a.json", "--html", "report.html"], "/nowhere/a.json"),
        (["--html", "/nowhere/report.html"], "--html result.html would work"),
        (["--way", "carrier"], "offline or http would work"),
    ],
)
def test_flags_of_the_page_that_cannot_be_met_are_refused(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(cli, ["bench", "peers", *arguments])
    assert done.exit_code != 0 and says in done.output + str(done.exception)
