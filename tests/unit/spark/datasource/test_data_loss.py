"""Rules of failOnDataLoss, and a property: the remaining ranges can always be read."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.errors import DataLossError
from spark_log.ids import OffsetRange, TopicId, TopicPartition
from spark_log.log.partitions.replication_rules import Truncation
from spark_log.spark.datasource.read.data_loss import admission_starts, in_the_log, resolve_ranges

T, U = TopicPartition("t", 0), TopicPartition("t", 1)
OLD, NEW = {"t": TopicId(1)}, {"t": TopicId(2)}
Offsets = dict[TopicPartition, int]
Available = dict[TopicPartition, OffsetRange]


def at(start: int, end: int) -> OffsetRange:
    return OffsetRange(start, end)


@pytest.mark.parametrize(
    ("start", "end", "available", "ranges"),
    [
        ({T: 2}, {T: 5}, {T: at(0, 9)}, {T: at(2, 5)}),
        ({T: 2}, {T: 5}, {T: at(2, 5)}, {T: at(2, 5)}),
        ({T: 2}, {T: 2}, {T: at(0, 9)}, {T: at(2, 2)}),
        ({T: 2}, {T: 2}, {T: at(5, 9)}, {T: at(5, 5)}),  # empty: aged out, but the range has no record of it
        ({T: 2}, {T: 2}, {}, {}),  # empty and deleted: the next batch reports it
        ({}, {U: 3}, {U: at(0, 4)}, {U: at(0, 3)}),  # an added partition
        ({T: 0}, {T: 1}, {T: at(0, 1), U: at(0, 4)}, {T: at(0, 1)}),  # U is for the next batch
        ({}, {}, {T: at(3, 9)}, {}),
    ],
)
@pytest.mark.parametrize("fail", [True, False])
def test_no_loss_is_reported(start: Offsets, end: Offsets, available: Available, ranges: Available, fail: bool) -> None:
    resolved = resolve_ranges(start, end, available, fail_on_data_loss=fail, start_topic_ids=OLD, end_topic_ids=OLD)
    assert (resolved.ranges, resolved.losses) == (ranges, ())


def unread(start: int, end: int) -> str:
    return f"Could not read records in offset [{start}, {end}) for topic partition t-0"


@pytest.mark.parametrize(
    ("start", "end", "available", "ranges", "loss"),
    [
        ({T: 2}, {T: 8}, {T: at(5, 9)}, {T: at(5, 8)}, unread(2, 5)),
        ({T: 2}, {T: 4}, {T: at(5, 9)}, {T: at(5, 5)}, unread(2, 4)),
        ({T: 2}, {T: 8}, {T: at(0, 6)}, {T: at(2, 6)}, unread(6, 8)),
        ({T: 7}, {T: 8}, {T: at(0, 6)}, {T: at(6, 6)}, unread(7, 8)),
        ({T: 7}, {T: 3}, {T: at(0, 3)}, {T: at(3, 3)}, "Partition t-0 offset was changed from 7 to 3."),
        ({T: 2}, {T: 8}, {}, {}, unread(2, 8)),
        ({T: 2, U: 1}, {T: 8}, {T: at(0, 9)}, {T: at(2, 8)}, "Partitions Set(t-1) have been deleted."),
        ({}, {U: 8}, {U: at(5, 9)}, {U: at(5, 8)}, "Added partition t-1 starts from 5 instead of 0."),
        ({}, {U: 8}, {}, {}, "Cannot find initial offsets for partitions Set(t-1). They may have been deleted."),
    ],
)
def test_losses_are_reported_and_ranges_reduced(
    start: Offsets, end: Offsets, available: Available, ranges: Available, loss: str
) -> None:
    resolved = resolve_ranges(start, end, available, fail_on_data_loss=False)
    assert resolved.ranges == ranges
    assert len(resolved.losses) == 1
    assert resolved.losses[0].startswith(loss)
    with pytest.raises(DataLossError, match=r"^Some data may have been lost because") as raised:
        resolve_ranges(start, end, available, fail_on_data_loss=True)
    assert f"Reason: {loss}" in str(raised.value)
    assert "set the source option failOnDataLoss to false" in str(raised.value)


@pytest.mark.parametrize("new_end", [1, 2, 50])
def test_recreated_topic_is_read_from_its_log_start(new_end: int) -> None:
    """This includes a new topic that has grown past the old offset: offsets alone cannot reveal it."""
    resolve = partial(resolve_ranges, start_topic_ids=OLD, end_topic_ids=NEW, current_topic_ids=NEW)
    for log_start in (0, 1):
        resolved = resolve({T: 2}, {T: new_end}, {T: at(log_start, 60)}, fail_on_data_loss=False)
        assert resolved.ranges == {T: at(log_start, new_end)}
    with pytest.raises(DataLossError, match=f"was changed from 2 to {new_end}"):
        resolve({T: 2}, {T: new_end}, {T: at(0, 60)}, fail_on_data_loss=True)


CUT = {T: [Truncation(3, 5)]}
"""The election that began epoch 3 truncated the log at 5."""


@pytest.mark.parametrize(
    ("start", "end", "ranges", "loss"),
    [
        ((5, 2), (9, 3), (5, 9), None),
        ((9, 3), (12, 3), (9, 12), None),
        ((9, None), (12, 3), (9, 12), None),  # from an older checkpoint
        (
            (8, 2),
            (12, 3),
            (5, 12),
            "Partition t-0 offset was changed from 8 to 5: the records in offset [5, 8) were lost",
        ),
        ((8, 2), (8, 3), (5, 8), "Partition t-0 offset was changed from 8 to 5"),  # as long as before
        ((8, 2), (6, 3), (5, 6), "Partition t-0 offset was changed from 8 to 5"),
        ((2, 2), (8, 2), (2, 5), unread(5, 8)),
        ((6, 2), (8, 2), (5, 5), "Partition t-0 offset was changed from 6 to 5"),
    ],
)
def test_truncation_below_an_offset_is_a_loss(
    start: tuple[int, int | None], end: tuple[int, int], ranges: tuple[int, int], loss: str | None
) -> None:
    epochs = {"start_epochs": {} if start[1] is None else {T: start[1]}, "end_epochs": {T: end[1]}}
    resolve = partial(resolve_ranges, {T: start[0]}, {T: end[0]}, {T: at(0, 60)}, truncations=CUT, **epochs)  # type: ignore[arg-type]
    resolved = resolve(fail_on_data_loss=False)
    assert resolved.ranges == {T: at(*ranges)}
    assert bool(resolved.losses) == (loss is not None)
    if loss is not None:
        assert resolved.losses[0].startswith(loss)
        with pytest.raises(DataLossError):
            resolve(fail_on_data_loss=True)


def test_only_positions_still_in_the_log_are_kept() -> None:
    def still(offset: int, epoch: int = 2, before: dict[str, TopicId] = OLD, now: dict[str, TopicId] = OLD) -> bool:
        found = in_the_log({T: offset}, topic_ids=before, current_topic_ids=now, epochs={T: epoch}, truncations=CUT)
        return found == [T]

    assert still(5)
    assert still(8, epoch=3)
    assert not still(8)
    assert not still(5, now=NEW)
    assert not still(5, now={})
    assert still(5, before={})


def test_topic_recreated_after_planning_is_not_read() -> None:
    resolve = partial(resolve_ranges, start_topic_ids=OLD, end_topic_ids=OLD, current_topic_ids=NEW, group_id="g")
    resolved = resolve({T: 2}, {T: 5}, {T: at(0, 60)}, fail_on_data_loss=False)
    assert resolved.ranges[T].size == 0
    assert resolved.losses == (
        "Could not read records in offset [2, 5) for topic partition t-0 with consumer group g.",
    )
    with pytest.raises(DataLossError):
        resolve({T: 2}, {T: 5}, {T: at(0, 60)}, fail_on_data_loss=True)


def test_error_names_losses_up_to_a_limit() -> None:
    start = {TopicPartition("t", number): 5 for number in range(100)}
    end = dict.fromkeys(start, 1)
    with pytest.raises(DataLossError, match=r"t-0 offset .* t-19 offset .* \(and 80 more\)$"):
        resolve_ranges(start, end, {tp: at(0, 1) for tp in start}, fail_on_data_loss=True)


def test_admission_starts_cover_new_recreated_and_truncated_partitions() -> None:
    available = {T: at(5, 9), U: at(3, 8)}
    assert admission_starts({T: 7}, available) == {T: 7, U: 3}
    assert admission_starts({T: 2, U: 4}, available) == {T: 5, U: 4}
    assert admission_starts({T: 7}, available, start_topic_ids=OLD, current_topic_ids=NEW) == {T: 5, U: 3}
    truncated = admission_starts({T: 8, U: 4}, {T: at(2, 9), U: at(3, 8)}, start_epochs={T: 2, U: 2}, truncations=CUT)
    assert truncated == {T: 5, U: 4}


PARTITIONS = st.builds(TopicPartition, st.sampled_from("tu"), st.integers(0, 2))
OFFSETS = st.dictionaries(PARTITIONS, st.integers(0, 20))
RANGES = st.builds(lambda start, size: OffsetRange(start, start + size), st.integers(0, 20), st.integers(0, 20))
IDS = st.dictionaries(st.sampled_from("tu"), st.integers(1, 2).map(TopicId))


@given(OFFSETS, OFFSETS, st.dictionaries(PARTITIONS, RANGES), IDS, IDS, IDS)
def test_ranges_are_always_readable(  # type: ignore[no-untyped-def]
    start: Offsets, end: Offsets, available: Available, started, ended, current
) -> None:
    """All planned offsets are available; and if no loss is reported, all of [start, end) is planned."""
    ids = {"start_topic_ids": started, "end_topic_ids": ended, "current_topic_ids": current}
    resolved = resolve_ranges(start, end, available, fail_on_data_loss=False, **ids)
    for tp, planned in resolved.ranges.items():
        assert available[tp].start <= planned.start <= planned.end <= available[tp].end
        recreated = started.get(tp.topic, ended.get(tp.topic)) != ended.get(tp.topic)
        assert planned.size == 0 or planned.end <= end[tp]
        assert planned.size == 0 or recreated or start.get(tp, 0) <= planned.start
    if resolved.losses:
        with pytest.raises(DataLossError):
            resolve_ranges(start, end, available, fail_on_data_loss=True, **ids)
    else:
        assert resolve_ranges(start, end, available, fail_on_data_loss=True, **ids) == resolved
        for tp, last in end.items():
            wanted = OffsetRange(start.get(tp, 0), last)
            assert wanted.size == 0 or resolved.ranges[tp] == wanted


def test_ten_thousand_losses_are_resolved_quickly() -> None:
    start = {TopicPartition(f"topic-{number % 100}", number): number for number in range(10_000)}
    end = {tp: offset + 10 for tp, offset in start.items()}
    available = {tp: at(offset + 5, offset + 20) for tp, offset in start.items()}
    resolved = resolve_ranges(start, end, available, fail_on_data_loss=False)
    assert len(resolved.losses) == 10_000
