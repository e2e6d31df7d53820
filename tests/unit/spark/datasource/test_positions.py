"""Resolving a requested position to an offset of every partition."""

import pytest

from spark_log.errors import InvalidOptionError
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.spark.datasource.options.positions import (
    CommittedOffsets,
    EarliestOffsets,
    GlobalTimestamp,
    LatestOffsets,
    Position,
    SpecificOffsets,
    SpecificTimestamps,
    resolve,
    show_all,
    timestamps_to_look_up,
)

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
AVAILABLE = {A: OffsetRange(3, 10), B: OffsetRange(0, 0)}


@pytest.mark.parametrize(
    ("position", "offsets"),
    [
        (EarliestOffsets(), {A: 3, B: 0}),
        (LatestOffsets(), {A: 10, B: 0}),
        (SpecificOffsets({A: -1, B: -2}), {A: 10, B: 0}),
        (SpecificOffsets({B: 7, A: 0}), {A: 0, B: 7}),
    ],
)
@pytest.mark.parametrize("starting", [True, False])
def test_offset_positions_resolve_without_timestamps(
    position: Position, offsets: dict[TopicPartition, int], starting: bool
) -> None:
    assert timestamps_to_look_up(position, AVAILABLE) == {}
    assert resolve(position, AVAILABLE, starting=starting) == offsets


@pytest.mark.parametrize("position", [GlobalTimestamp(99), SpecificTimestamps({A: 99, B: 99})])
def test_timestamp_positions_resolve_to_the_found_offsets(position: Position) -> None:
    assert timestamps_to_look_up(position, AVAILABLE) == {A: 99, B: 99}
    first_offsets = {A: 5, B: None}
    assert resolve(position, AVAILABLE, starting=False, first_offsets=first_offsets) == {A: 5, B: 0}
    assert resolve(position, AVAILABLE, starting=True, strategy="latest", first_offsets=first_offsets) == {A: 5, B: 0}
    with pytest.raises(InvalidOptionError) as raised:
        resolve(position, AVAILABLE, starting=True, first_offsets=first_offsets)
    assert str(raised.value) == "No offset matched from request of topic-partition t-1 and timestamp 99."


@pytest.mark.parametrize(
    ("position", "starting", "message"),
    [
        (SpecificOffsets({A: 0}), True, "Partitions specified for start offsets don't match what are assigned."),
        (SpecificOffsets({A: 0}), False, "Partitions specified for end offsets don't match what are assigned."),
        (SpecificTimestamps({A: 0}), True, "Partitions specified for timestamp based start offsets don't match"),
        (SpecificTimestamps({A: 0}), False, "Partitions specified for timestamp based end offsets don't match"),
    ],
)
def test_all_partitions_must_be_named(position: Position, starting: bool, message: str) -> None:
    with pytest.raises(InvalidOptionError) as raised:
        resolve(position, AVAILABLE, starting=starting)
    assert str(raised.value).startswith(message)
    assert str(raised.value).endswith("Specified: Set(t-0) Assigned: Set(t-0, t-1)")


def test_no_assigned_partition_resolves_to_no_offset() -> None:
    assert resolve(EarliestOffsets(), {}, starting=True) == {}
    assert resolve(GlobalTimestamp(5), {}, starting=True) == {}


def test_long_lists_are_truncated() -> None:
    text = show_all([TopicPartition("t", at) for at in range(10_000)])
    assert text.startswith("Set(t-0, t-1, t-2, ")
    assert text.endswith("… and 9980 more)")


def test_committed_position_falls_back_to_the_log_start() -> None:
    available = {TopicPartition("t", 0): OffsetRange(2, 9), TopicPartition("t", 1): OffsetRange(3, 5)}
    committed = {TopicPartition("t", 0): 7, TopicPartition("other", 0): 1}
    starts = resolve(CommittedOffsets(), available, starting=True, committed=committed)
    assert starts == {TopicPartition("t", 0): 7, TopicPartition("t", 1): 3}
