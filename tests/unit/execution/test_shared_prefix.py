"""Which sequences share partitions: found from block tables alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from octavo.execution.shared_prefix import SharedPrefixes, make_sharing, shared_runs
from octavo.types import SeqWork


@given(st.lists(st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=5), max_size=9))
def test_a_sequence_shares_as_far_as_another_begins_alike(lists: list[list[bytes]]) -> None:
    sequences = [tuple(own) for own in lists]
    covered = [0] * len(sequences)
    for members, first, end in shared_runs(sequences):
        assert len(members) > 1 and first < end
        for member in members:
            assert covered[member] == first
            assert sequences[member][:end] == sequences[members[0]][:end]
            covered[member] = end
    for index, own in enumerate(sequences):
        expected = 0
        for other, theirs in enumerate(sequences):
            if other != index:
                same = 0
                while same < min(len(own), len(theirs)) and own[same] == theirs[same]:
                    same += 1
                expected = max(expected, same)
        assert covered[index] == expected


def _step(tables: list[list[int]], starts: list[int], counts: list[int]) -> tuple[Any, list[tuple[SeqWork, Any]]]:
    width = max(map(len, tables))
    array = np.array([t + [0] * (width - len(t)) for t in tables], np.int32)
    slots = SimpleNamespace(tables=[array])
    works = [
        (SeqWork(i, start, count, ((),), True), SimpleNamespace(partitions=[()]))
        for i, (start, count) in enumerate(zip(starts, counts, strict=True))
    ]
    return slots, works


def test_whole_partitions_behind_the_rows_are_shared_and_chunks_share_nothing() -> None:
    head = list(range(100, 132))
    slots, works = _step([[*head, 1], [*head, 2], [*head, 3], [*head[:16], 4]], [1024, 1030, 1024, 530], [1, 4, 200, 1])
    sharing = SharedPrefixes([None], 32)
    found = sharing.find(slots, works)
    assert found is not None
    runs, members = found[0]
    assert [(list(members[f : f + n]), a, b) for f, n, a, b in runs.tolist()] == [([0, 1, 3], 0, 1), ([0, 1], 1, 2)]
    assert sharing.find(slots, works) is found, "nothing changed: nothing is found anew"


def test_a_sequence_that_was_cut_back_is_read_anew() -> None:
    slots, works = _step([[*range(32), 40], [*range(32), 41]], [1030, 1030], [1, 1])
    sharing = SharedPrefixes([None], 32)
    assert sharing.find(slots, works) is not None
    slots.tables[0][1, 16:] = range(60, 77)
    cut = [works[0], (SeqWork(1, 600, 300, ((),), False), works[1][1])]
    assert sharing.find(slots, cut) is None
    found = sharing.find(slots, works)
    assert found is not None and found[0][0].tolist() == [[0, 2, 0, 1]]


def test_blocks_that_straddle_partitions_must_be_the_same() -> None:
    slots, works = _step([[1, 2, 3], [1, 2, 4]], [1200, 1200], [1, 1])
    found = SharedPrefixes([None], 480).find(slots, works)
    assert found is not None and found[0][0].tolist() == [[0, 2, 0, 1]]
    assert SharedPrefixes([None], 1024).find(*_step([[1, 2], [1, 3]], [1500, 1500], [1, 1])) is not None


def test_windows_and_the_off_switch_share_nothing() -> None:
    step = _step([[*range(32), 40], [*range(32), 41]], [1030, 1030], [1, 1])
    assert make_sharing(False, [None], 32).find(*step) is None
    assert make_sharing(True, [64], 32).find(*step) is None
    assert make_sharing(True, [None], 32).find(*step) is not None
