"""The runs of small segments that are merged."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.maintenance.rewrite.rewrite_plan import OFFSETS_MAX, Segment
from spark_log.maintenance.rewrite.segment_merge import BACKGROUND_GROWTH, FILES_MAX, runs


def file(base, end, size, kind=0, records=None):
    count = end - base if records is None else records
    return Segment(base, end, count, size, 0, 0, kind, 0, f"f{base}", "", False, 0)


def files(*sizes, records=10):
    """Consecutive files of these sizes in bytes."""
    return [file(number * records, (number + 1) * records, size) for number, size in enumerate(sizes)]


def merged_sizes(found):
    return [[each.bytes for each in run] for run in found]


@pytest.mark.parametrize(
    ("sizes", "merged"),
    [
        ([], []),
        ([5], []),
        ([5, 5], [[5, 5]]),
        # files are not merged if together they are smaller than the file before them
        ([5, 4], []),
        ([50, 49], []),
        ([8, 4, 2, 1], []),
        ([4, 3, 2, 1], [[4, 3, 2, 1]]),
        # the large file at the front stays, and does not delay the files after it
        ([100, 1, 1, 1], [[1, 1, 1]]),
        ([1, 1, 1, 90], [[1, 1, 1]]),
        # never above 100; the next file starts a new run
        ([40, 40, 40, 40], [[40, 40], [40, 40]]),
        ([50, 50, 50], [[50, 50]]),
        ([101, 101], []),
        ([60, 60], []),
    ],
)
def test_runs_follow_the_rule_of_sizes(sizes, merged):
    assert merged_sizes(runs(files(*sizes), 100)) == merged


@pytest.mark.parametrize(
    ("sizes", "merged"),
    [
        ([5] * 7, []),
        ([5] * 8, [[5] * 8]),
        ([40] + [5] * 7, []),
        ([40] + [5] * 8, [[5] * 8]),
        # a run that fills half of the largest file only has to double
        ([250, 250], [[250, 250]]),
        ([245, 245], []),
    ],
)
def test_background_merge_waits_for_more_files(sizes, merged):
    assert merged_sizes(runs(files(*sizes), 1000, growth=BACKGROUND_GROWTH)) == merged


def test_file_of_many_records_waits_for_as_many_others():
    """Even if the bytes are few: each time a record is written again, its segment has at least doubled."""
    assert runs([file(0, 100, 5), file(100, 110, 5)], 1000) == []
    assert len(runs([file(0, 100, 5), file(100, 200, 5)], 1000)) == 1


def test_incompatible_files_are_not_merged():
    two = [file(0, 10, 5), file(10, 20, 5)]
    assert runs(two, 100) == [two]
    assert runs([two[0], file(11, 20, 5)], 100) == [], "blobs lie between them"
    assert runs([two[0], file(10, 20, 5, kind=1)], 100) == [], "two timestamp types"
    assert runs(two, 100, [10]) == [], "a Delta table has shown the first and not the second"
    assert runs(two, 100, [0, 20, 30]) == [two]
    far = [file(0, 5, 5), file(5, OFFSETS_MAX, 5, records=5)]
    assert runs(far, 100) == [far]
    assert runs([far[0], file(5, OFFSETS_MAX + 1, 5, records=5)], 100) == [], "an offset_delta has 31 bits"


def test_gaps_of_a_compacted_topic_do_not_prevent_a_merge():
    sparse = [file(0, 1_000, 5, records=3), file(1_000, 5_000, 5, records=3)]
    assert runs(sparse, 100) == [sparse]
    emptied = [file(0, 10, 1, records=0), file(10, 20, 1, records=0)]
    assert runs(emptied, 100) == [emptied]


def test_files_of_one_merge_are_limited():
    found = runs(files(*[1] * (2 * FILES_MAX + 5)), 10**9)
    assert [len(run) for run in found] == [FILES_MAX, FILES_MAX, 5]


segments = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 0, 7]),  # offsets in blobs before it
        st.integers(1, 40),  # offsets
        st.integers(0, 3),  # number of them that were compacted away
        st.integers(1, 150),  # bytes
        st.sampled_from([0, 0, 0, 1]),  # timestamp type
    ),
    max_size=40,
)


def laid_out(steps):
    found, at = [], 0
    for gap, span, gone, size, kind in steps:
        found.append(file(at + gap, at + gap + span, size, kind, max(0, span - gone)))
        at += gap + span
    return found


@given(segments, st.integers(1, 400), st.frozensets(st.integers(0, 300), max_size=3))
def test_every_run_is_compatible_and_follows_the_rule_of_sizes(steps, bytes_max, seen):
    whole = laid_out(steps)
    found = runs(whole, bytes_max, seen)
    chosen = [each for run in found for each in run]
    assert chosen == [each for each in whole if each in chosen], "disjoint, in order"
    for run in found:
        assert len(run) >= 2
        assert all(left.end_offset == right.base_offset for left, right in itertools.pairwise(run))
        assert len({each.timestamp_type for each in run}) == 1
        assert 2 * max(each.bytes for each in run) <= sum(each.bytes for each in run) <= bytes_max
        assert 2 * max(each.record_count for each in run) <= sum(each.record_count for each in run)
        assert not seen & {each.base_offset for each in run[1:]}
        assert run[-1].end_offset - run[0].base_offset <= OFFSETS_MAX


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 60)), min_size=1, max_size=60),
    st.sampled_from([1.0, 0.6, 0.1]),
)
def test_number_of_rewrites_of_a_record_is_logarithmic(appends, shrinking):
    """Files are added one by one, and merging runs after each; a merged file may be smaller than the sum of its
    inputs.
    """
    log, first_size, rewritten = [], {}, {}
    at = 0
    for count, size in appends:
        log.append(file(at, at + count, size))
        first_size[at], rewritten[at] = count, 0
        at += count
        while found := runs(log, 2_000):
            for run in found:
                small = max(1, int(sum(each.bytes for each in run) * shrinking))
                place = log.index(run[0])
                log[place : place + len(run)] = [file(run[0].base_offset, run[-1].end_offset, small)]
                for base in rewritten:
                    if run[0].base_offset <= base < run[-1].end_offset:
                        rewritten[base] += 1
    assert all(left.end_offset == right.base_offset for left, right in itertools.pairwise(log))
    for each in log:
        for base, times in rewritten.items():
            if each.base_offset <= base < each.end_offset:
                assert times <= math.log2(each.record_count / first_size[base])


@given(st.integers(2, 300), st.integers(1, 5))
def test_equal_small_files_are_merged_into_one(count, size):
    (run,) = runs(files(*[size] * count), 10_000)
    assert len(run) == count
