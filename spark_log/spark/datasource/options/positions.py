"""Resolves the positions in the options, where a read starts and ends, to offsets.

A `Position` is a sum type, and `resolve` handles all its cases. The caller looks up the timestamps that
`timestamps_to_look_up` returns, and passes their offsets to `resolve` as `first_offsets`. Message texts are those of
Spark's connector (kafka-error-conditions.json, KafkaOffsetReaderAdmin) without the word Kafka.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, assert_never

from spark_log.errors import InvalidOptionError
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.spark.datasource.options.offset_json import EARLIEST, LATEST

TimestampStrategy = Literal["error", "latest"]
"""Start of a partition that has no record at or after the start timestamp: an error, or the latest offset."""

_SHOWN_PARTITIONS_MAX = 20


@dataclass(frozen=True)
class EarliestOffsets:
    """The log start offset of every partition."""


@dataclass(frozen=True)
class LatestOffsets:
    """The high watermark of every partition."""


@dataclass(frozen=True)
class SpecificOffsets:
    """An offset for every partition; -1 means latest, -2 means earliest."""

    offsets: dict[TopicPartition, int]


@dataclass(frozen=True)
class CommittedOffsets:
    """The committed offsets of the group of option group.id. A partition without one starts at its log start offset.

    This is an extension: Spark's Kafka connector has checkpoints only. A batch can read the records that a group has
    not read.
    """


@dataclass(frozen=True)
class GlobalTimestamp:
    """The offset of the first record with timestamp >= timestamp_ms, in every partition."""

    timestamp_ms: int


@dataclass(frozen=True)
class SpecificTimestamps:
    """The offset of the first record with timestamp >= the partition's timestamp (ms)."""

    timestamps_ms: dict[TopicPartition, int]


Position = EarliestOffsets | LatestOffsets | SpecificOffsets | CommittedOffsets | GlobalTimestamp | SpecificTimestamps


def check_unresolved(start: Position, end: Position) -> None:
    """Check, before the log is read, that two JSONs name the same partitions, and that no start is above its end.

    Raises InvalidOptionError.
    """
    if isinstance(start, SpecificOffsets) and isinstance(end, SpecificOffsets):
        _check_pair("offset", start.offsets, end.offsets)
    elif isinstance(start, SpecificTimestamps) and isinstance(end, SpecificTimestamps):
        _check_pair("timestamp", start.timestamps_ms, end.timestamps_ms)


def timestamps_to_look_up(position: Position, assigned: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the timestamps (ms) whose offsets `resolve` needs, or an empty dict for a position by offsets."""
    match position:
        case GlobalTimestamp(timestamp_ms):
            return dict.fromkeys(assigned, timestamp_ms)
        case SpecificTimestamps(timestamps_ms):
            return dict(timestamps_ms)
        case EarliestOffsets() | LatestOffsets() | SpecificOffsets() | CommittedOffsets():
            return {}
        case _:
            assert_never(position)


def resolve(
    position: Position,
    available: Mapping[TopicPartition, OffsetRange],
    *,
    starting: bool,
    strategy: TimestampStrategy = "error",
    first_offsets: Mapping[TopicPartition, int | None] | None = None,
    committed: Mapping[TopicPartition, int] | None = None,
) -> dict[TopicPartition, int]:
    """Return the offset of every assigned partition. The result has the keys of `available`.

    `available` is [log start offset, high watermark) of all assigned partitions, `committed` the group's offsets. For a
    position by timestamp, `first_offsets` has the offset of each partition's first record at or after its timestamp, or
    None without such a record. None resolves to the latest offset, or is an error for a start under strategy "error".
    Offsets outside `available` are kept: `data_loss.resolve_ranges` decides whether that is a loss. Raises
    InvalidOptionError if the position names other partitions than the assigned ones.
    """
    match position:
        case EarliestOffsets():
            return {tp: offsets.start for tp, offsets in available.items()}
        case LatestOffsets():
            return {tp: offsets.end for tp, offsets in available.items()}
        case SpecificOffsets(wanted):
            _check_assigned("start offsets" if starting else "end offsets", wanted, available)
            return {tp: _known(wanted[tp], offsets) for tp, offsets in available.items()}
        case CommittedOffsets():
            return {tp: (committed or {}).get(tp, offsets.start) for tp, offsets in available.items()}
        case GlobalTimestamp() | SpecificTimestamps():
            timestamps_ms = timestamps_to_look_up(position, available)
            name = "start" if starting else "end"
            _check_assigned(f"timestamp based {name} offsets", timestamps_ms, available)
            hits = {tp: (first_offsets or {}).get(tp) for tp in available}
            if starting and strategy == "error":
                for tp in sorted(tp for tp, offset in hits.items() if offset is None):
                    raise InvalidOptionError(
                        f"No offset matched from request of topic-partition {tp} and timestamp {timestamps_ms[tp]}."
                    )
            return {tp: available[tp].end if offset is None else offset for tp, offset in hits.items()}
        case _:
            assert_never(position)


def show_all(partitions: Collection[TopicPartition]) -> str:
    """Return `Set(t-0, t-1)`, sorted, and truncated because there may be thousands."""
    shown = [str(tp) for tp in sorted(partitions)[:_SHOWN_PARTITIONS_MAX]]
    more = len(partitions) - len(shown)
    return f"Set({', '.join(shown)}" + (f", … and {more} more)" if more else ")")


def _known(offset: int, available: OffsetRange) -> int:
    return {LATEST: available.end, EARLIEST: available.start}.get(offset, offset)


def _check_assigned(what: str, specified: Mapping[TopicPartition, int], assigned: Collection[TopicPartition]) -> None:
    if specified.keys() != set(assigned):
        raise InvalidOptionError(
            f"Partitions specified for {what} don't match what are assigned. Maybe topic partitions are created or "
            "deleted while the query is running, or not all partitions are specified. Use -1 for latest, -2 for "
            f"earliest. Specified: {show_all(specified)} Assigned: {show_all(assigned)}"
        )


def _check_pair(what: str, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> None:
    if start.keys() != end.keys():
        raise InvalidOptionError(
            "The specified start offset and end offset should have the same topic-partitions. "
            f"Topic-partitions for start offset: {show_all(start)}, topic-partitions for end offset: {show_all(end)}."
        )
    for tp in sorted(start):
        if 0 <= end[tp] < start[tp]:
            raise InvalidOptionError(
                f"The specified start {what} {start[tp]} is greater than the end {what} {end[tp]} "
                f"for topic {tp.topic} partition {tp.partition}."
            )
