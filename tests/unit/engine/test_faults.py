"""The grammar of faults on purpose."""

from __future__ import annotations

import pytest

from octavo.config import ConfigError
from octavo.engine import faults
from octavo.engine.faults import Fault, parse


def test_the_grammar() -> None:
    assert parse("segv@step=40,life=0; stuck@marker=77.78,after=3,op=12;slow@load=1,seconds=0.5;") == (
        Fault("segv", step=40, life=0),
        Fault("stuck", marker=(77, 78), after=3, op=12),
        Fault("slow", load=1, seconds=0.5),
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("boom@step=1", "'boom' is no fault"),
        ("kill@step=x", "'step=x' is no condition"),
        ("kill@colour=1", "'colour=1' is no condition"),
        ("kill@marker=1.b", "'marker=1.b' is no condition"),
    ],
)
def test_what_is_no_fault_is_named(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse(text)


def test_a_life_has_its_own_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_FAULTS", "kill@life=0;segv@life=1;error@step=2")
    assert [fault.kind for fault in faults.of_environment(1)] == ["segv", "error"]
    monkeypatch.delenv("OCTAVO_FAULTS")
    assert faults.of_environment(0) == ()
