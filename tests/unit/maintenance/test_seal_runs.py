"""The division of a tail into files."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.maintenance.rewrite.rewrite_plan import Segment
from spark_log.maintenance.rewrite.tail_seal import runs


def tail(*pieces):
    """A tail of pieces (base, end, bytes, timestamp type)."""
    return [
        Segment(base, end, end - base, size, 0, 0, kind, 0, f"b{base}", "", True, 0) for base, end, size, kind in pieces
    ]


def cut(pieces, bytes_max=100):
    return [[(piece.base_offset, piece.end_offset) for piece in run] for run in runs(tail(*pieces), bytes_max)]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([], []),
        ([(5, 6, 1, 0)], [[(5, 6)]]),
        ([(0, 2, 10, 0), (2, 3, 10, 0)], [[(0, 2), (2, 3)]]),
        # a file lies between them
        ([(0, 2, 10, 0), (5, 6, 10, 0)], [[(0, 2)], [(5, 6)]]),
        # one timestamp type in a file
        ([(0, 2, 10, 0), (2, 3, 10, 1), (3, 4, 10, 1)], [[(0, 2)], [(2, 3), (3, 4)]]),
        # exactly full, then over
        ([(0, 1, 60, 0), (1, 2, 40, 0), (2, 3, 1, 0)], [[(0, 1), (1, 2)], [(2, 3)]]),
        # a single piece may be too large
        ([(0, 1, 500, 0), (1, 2, 500, 0)], [[(0, 1)], [(1, 2)]]),
    ],
)
def test_runs_are_divided_at_gaps_types_and_sizes(pieces, expected):
    assert cut(pieces) == expected


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(1, 120), st.integers(0, 1)), max_size=30),
    st.integers(1, 200),
)
def test_runs_cover_the_tail_in_order_and_are_compatible(steps, bytes_max):
    pieces, offset = [], 0
    for gap, count, size, kind in steps:
        pieces.append((offset + gap, offset + gap + count, size, kind))
        offset += gap + count
    whole = tail(*pieces)
    found = runs(whole, bytes_max)
    assert [piece for run in found for piece in run] == whole
    for run in found:
        assert len({piece.timestamp_type for piece in run}) == 1
        assert all(left.end_offset == right.base_offset for left, right in itertools.pairwise(run))
        assert len(run) == 1 or sum(piece.bytes for piece in run) <= bytes_max
