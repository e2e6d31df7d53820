"""Which replica of a segment a reader tries first."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from spark_log.ids import LogDirId
from spark_log.log.segments.replica_selector import Copies, Copy, distance, select_replicas

FACTS = st.tuples(st.booleans(), st.booleans(), st.booleans(), st.integers(0, 5))


def copies_of(*facts: tuple[bool, bool, bool, int]) -> Copies:
    """(online, same rack, in sync, log end offset) of the replicas in AR order; their log dirs are numbered from 1."""
    copies = tuple(
        Copy(LogDirId(number), distance(online=online, same_rack=same_rack, in_sync=in_sync))
        for number, (online, same_rack, in_sync, _) in enumerate(facts, start=1)
    )
    ends = tuple(end for *_, end in facts)
    return Copies(copies, ends, min(ends))


@given(st.lists(FACTS, min_size=1, max_size=6), st.integers(0, 5), st.text(max_size=8))
def test_everyone_with_the_whole_segment_and_the_near_ones_first(
    facts: list[tuple[bool, bool, bool, int]], end_offset: int, name: str
) -> None:
    order = select_replicas(copies_of(*facts), name, end_offset)
    whole = {number for number, (*_, end) in enumerate(facts, start=1) if end >= end_offset}
    assert sorted(order) == sorted(whole)
    # tuples of booleans compare as the rule says: declared failed last, then other racks, then those that lag
    ranks = [tuple(not fact for fact in facts[number - 1][:3]) for number in order]
    assert ranks == sorted(ranks)
    assert order == select_replicas(copies_of(*facts), name, end_offset), "the same for every reader"


def test_a_rack_beats_the_isr_and_nothing_beats_being_online() -> None:
    near_and_failed, near_and_lagging = (False, True, True, 9), (True, True, False, 9)
    far_in_sync, far_and_lagging = (True, False, True, 9), (True, False, False, 9)
    copies = copies_of(near_and_failed, far_and_lagging, far_in_sync, near_and_lagging)
    assert select_replicas(copies, "w-0.parquet", 9) == (4, 3, 2, 1)


def test_readers_spread_over_replicas_that_are_equally_near() -> None:
    names = [f"{'0' * 32}-{number}.parquet" for number in range(3_000)]
    equal = copies_of(*[(True, True, True, 9)] * 3)
    first = Counter(select_replicas(equal, name, 9)[0] for name in names)
    assert all(900 < first[LogDirId(number)] < 1_100 for number in (1, 2, 3)), first
    one_near = copies_of((True, False, True, 9), (True, True, True, 9), (True, True, True, 9))
    first = Counter(select_replicas(one_near, name, 9)[0] for name in names)
    assert set(first) == {2, 3} and min(first.values()) > 1_400
    assert {select_replicas(one_near, name, 9)[2] for name in names} == {1}


def test_no_replica_has_the_segment() -> None:
    assert select_replicas(copies_of((True, True, True, 5)), "w-0.parquet", 6) == ()
