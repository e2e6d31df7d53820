"""A range is cut into adjacent pieces that cover it, of one timestamp type each, also with gaps between slices."""

from hypothesis import given
from hypothesis import strategies as st

from spark_log.ids import OffsetRange
from spark_log.log.append.transfer import PIECE_OFFSETS_MAX, Piece, cut_pieces
from spark_log.log.segments.slices import Slice


def piece(base, end, start=None, size=100, timestamp_type=0, records=1):
    start = base if start is None else start
    return Slice("t", "t-0", 0, base, start, end, records, size, timestamp_type, "s", "", 0, (), None)


gaps = st.integers(0, 3) | st.integers(0, 3 * PIECE_OFFSETS_MAX)
lengths = st.integers(1, 20) | st.just(PIECE_OFFSETS_MAX)
runs = st.lists(st.tuples(gaps, lengths, st.integers(1, 50), st.integers(0, 1)), max_size=8)


@given(runs, gaps, st.integers(1, 100))
def test_pieces_cover_the_range_and_contain_each_slice_once(rows, last_gap, bytes_max):
    start = 7
    slices = []
    for gap, length, size, timestamp_type in rows:
        first = (slices[-1].end if slices else start) + gap
        slices.append(piece(first, first + length, size=size, timestamp_type=timestamp_type))
    end = (slices[-1].end if slices else start) + (last_gap if last_gap < 4 else 0)
    pieces = cut_pieces(slices, OffsetRange(start, end), bytes_max)
    assert [each.start for each in pieces] == ([start] if start < end else []) + [each.end for each in pieces[:-1]]
    assert not pieces or pieces[-1].end == end
    assert [each for found in pieces for each in found.slices] == slices
    for found in pieces:
        assert found.start <= min((each.start for each in found.slices), default=found.start)
        assert found.end >= max((each.end for each in found.slices), default=found.end)
        assert found.end - found.start <= PIECE_OFFSETS_MAX + 3
        assert {each.timestamp_type for each in found.slices} <= {found.timestamp_type}
        assert len(found.slices) <= 1 or sum(each.size for each in found.slices) <= bytes_max


def test_cut_slice_counts_with_its_share_of_bytes():
    halves = [piece(0, 5, size=100), piece(0, 10, start=5, size=100), piece(10, 20, start=15, size=100)]
    assert len(cut_pieces(halves, OffsetRange(0, 20), 200)) == 1
    assert len(cut_pieces(halves, OffsetRange(0, 20), 199)) == 2


def test_range_without_slices_is_one_empty_piece():
    assert cut_pieces([], OffsetRange(3, 9), 1) == [Piece(3, 9, 0, ())]
    assert cut_pieces([], OffsetRange(3, 3), 1) == []
