"""Reads the log: plans the segments for a request, in one snapshot, and reads the records of the segments.

Spark drivers import this module to plan a read. So modules that few reads need are imported in functions.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Self

import pyarrow as pa
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic, find_topic, find_topics
from spark_log.errors import (
    DataLossError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from spark_log.ids import HOME, OffsetRange, StoreId, TopicPartition
from spark_log.log.append.companions import TailLimit
from spark_log.log.segments import plan as planner
from spark_log.log.segments.slices import LogDirs, Positions, Slice, TimestampBounds

_ALL_TIMES = TimestampBounds()
_PLANNED_AT_ONCE = 64
"""The number of partitions that a read plans at once, and whose inline tails it holds."""


@dataclass(frozen=True)
class ReadPlan:
    """Slices and the log dirs to read them from, as of one snapshot. It can be pickled and needs no metadata store."""

    slices: Sequence[Slice]
    log_dirs: LogDirs


@dataclass(frozen=True)
class RangesToRead:
    """The input of a plan, read in the same snapshot as the plan: ranges, and their topics by name."""

    topics: Mapping[str, Topic]
    ranges: Mapping[TopicPartition, OffsetRange]


class _ElsewhereError(Exception):
    """Ends a snapshot of the home store that cannot plan all topics, because some are in data stores."""

    def __init__(self, topics: Mapping[str, Topic]) -> None:
        self.topics = topics


class LogReader:
    """Reads from a cluster. Safe to share between threads.

    >>> reader = LogReader(Cluster.open("/data/log"))                         # doctest: +SKIP
    >>> reader.read(reader.positions(topic))                                  # doctest: +SKIP
    """

    def __init__(self, cluster: Cluster, tail_limit: TailLimit | None = None) -> None:
        """`tail_limit` applies to plans that are sent to other processes."""
        self.cluster = cluster
        self._tail_limit = tail_limit
        self._others: dict[StoreId, LogReader] = {}
        self._others_lock = threading.Lock()

    def close(self) -> None:
        """Do nothing: a reader has nothing to release."""

    def at(self, store_id: StoreId) -> Self:
        """Return the log for the topics of a store: this one, or one that is opened at the first call."""
        if store_id == self.cluster.store_id:
            return self
        cluster = self.cluster.at(store_id)
        with self._others_lock:
            if store_id not in self._others:
                self._others[store_id] = self._open_at(cluster)
                self.cluster.tell_of_removals(self)
            return self._others[store_id]  # type: ignore[return-value]

    def close_at(self, store_id: StoreId) -> None:
        """Close the log that `at` opened for a store. The store was removed from the cluster."""
        with self._others_lock:
            other = self._others.pop(store_id, None)
        if other is not None:
            other.close()

    def _open_at(self, cluster: Cluster) -> "LogReader":
        return LogReader(cluster)

    def find_topic(self, name: str) -> Topic:
        """Return the topic. Raises UnknownTopicOrPartitionError if it does not exist."""
        return self.cluster.store.read(lambda connection: find_topic(connection, name))

    def positions(self, topic: Topic) -> dict[TopicPartition, Positions]:
        """Return positions by partition. Raises UnknownTopicOrPartitionError if the topic was deleted or recreated."""
        store = self.cluster.of(topic).store
        found = store.read(lambda connection: planner.positions(connection, [topic]))
        if not found:  # every topic has a partition
            raise UnknownTopicOrPartitionError(f"topic {topic.name!r} was deleted, or created again")
        return found

    def plan(
        self,
        ranges: Mapping[TopicPartition, OffsetRange],
        times: TimestampBounds = _ALL_TIMES,
        topics: Mapping[str, Topic] | None = None,
        rack: str | None = None,
    ) -> ReadPlan:
        """Plan the slices of the ranges, in one snapshot of each store. Tails beyond the `tail_limit` are sealed first.

        Raises UnknownTopicOrPartitionError, OffsetOutOfRangeError for a range that is not between log start offset and
        high watermark, and DataLossError if one of `topics` was recreated (it has another topic id).
        Replicas in the reader's `rack` are read first.
        """

        def find(connection: sa.Connection) -> RangesToRead:
            is_home = self.cluster.store_id == HOME  # data stores are read only because home has named them
            topics_by_name = find_topics(connection, {name for name, _ in ranges}, only_live=is_home)
            _check_topics(topics_by_name, ranges, topics)
            if any(topic.store_id != self.cluster.store_id for topic in topics_by_name.values()):
                raise _ElsewhereError(topics_by_name)
            here = planner.find_positions(connection, ranges.keys())
            _check_ranges({topic_partition: at.positions for topic_partition, at in here.items()}, ranges)
            return RangesToRead(topics_by_name, ranges)

        try:
            return self.plan_in_snapshot(find, times, rack)
        except _ElsewhereError as elsewhere:
            stores = {name: topic.store_id for name, topic in elsewhere.topics.items()}
        try:
            plans = [
                self.at(store_id).plan(
                    {tp: ranges[tp] for tp in ranges if stores[tp.topic] == store_id}, times, topics, rack
                )
                for store_id in sorted(set(stores.values()))
            ]
        except UnknownTopicOrPartitionError:
            now = self.cluster.home.store.read(lambda connection: find_topics(connection, stores))
            if {name: topic.store_id for name, topic in now.items()} == stores:
                raise
            return self.plan(ranges, times, topics, rack)  # a topic has been moved meanwhile
        # the log dirs have the same ids in all stores
        log_dirs = {log_dir_id: info for plan in plans for log_dir_id, info in plan.log_dirs.items()}
        return ReadPlan([piece for plan in plans for piece in plan.slices], log_dirs)

    def plan_in_snapshot(
        self,
        find: Callable[[sa.Connection], RangesToRead],
        times: TimestampBounds = _ALL_TIMES,
        rack: str | None = None,
    ) -> ReadPlan:
        """Plan the ranges that `find` returns, in the same snapshot as `find`, which runs again after sealing."""
        limit = self._tail_limit
        while True:
            resolved, slices, too_long = self.cluster.store.read(
                lambda connection: _find_and_plan(connection, find, times, rack, limit)  # noqa: B023
            )
            if limit is None or not too_long:
                # the log dirs are read after the slices: all that the slices name are among them
                return ReadPlan(slices, self.cluster.log_dirs())
            sealed = [name for name, partition in too_long if limit.seal(resolved.topics[name], partition)]
            if not sealed:  # tails that another process has sealed, or that cannot be sealed, are planned as they are
                limit = None

    def read(
        self,
        ranges: Mapping[TopicPartition, OffsetRange],
        schema: pa.Schema | None = None,
        rack: str | None = None,
        topics: Mapping[str, Topic] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Read the records of the ranges, by partition and offset, by default with all columns and headers.

        Raises the errors of `plan`: UnknownTopicOrPartitionError, OffsetOutOfRangeError, and DataLossError with
        `topics`.
        """
        partitions = list(ranges)
        parts = [partitions[first : first + _PLANNED_AT_ONCE] for first in range(0, len(partitions), _PLANNED_AT_ONCE)]
        plans = (self.plan({each: ranges[each] for each in part}, topics=topics, rack=rack) for part in parts)
        first = next(plans, None)  # its errors are raised here, not by the first batch
        return self._read_plans(chain([] if first is None else [first], plans), schema)

    def _read_plans(self, plans: Iterable[ReadPlan], schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        from spark_log.log.records.schema import read_schema
        from spark_log.log.segments.fetcher import Fetcher

        for plan in plans:
            yield from Fetcher(plan.log_dirs).read(plan.slices, schema or read_schema(include_headers=True))

    def offsets_for_times(
        self, topic: Topic, timestamps_ms: Mapping[int, int], rack: str | None = None
    ) -> dict[int, int | None]:
        """Return each partition's first readable offset with timestamp >= the given one, or None (KIP-79).

        Raises UnknownTopicOrPartitionError if the topic has been deleted or recreated, or a partition does not exist.
        """
        from spark_log.log.segments.timed_offsets import offsets_for_times

        return offsets_for_times(self.cluster.of(topic), topic, timestamps_ms, rack)


def _find_and_plan(
    connection: sa.Connection,
    find: Callable[[sa.Connection], RangesToRead],
    times: TimestampBounds,
    rack: str | None,
    limit: TailLimit | None,
) -> tuple[RangesToRead, list[Slice], list[TopicPartition]]:
    """Return the requested ranges, the slices, and the tails that must be sealed first."""
    wanted = find(connection)
    slices = planner.plan(connection, wanted.topics, wanted.ranges, times, rack=rack)
    too_long = [] if limit is None else limit.too_long(planner.inline_bytes(slices))
    return wanted, slices if too_long else planner.with_inline_data(connection, slices), too_long


def _check_topics(
    found: Mapping[str, Topic], ranges: Mapping[TopicPartition, OffsetRange], pinned: Mapping[str, Topic] | None
) -> None:
    for name in {name for name, _ in ranges}:
        if name not in found:
            raise UnknownTopicOrPartitionError(f"topic {name!r}: unknown topic or partition")
        if pinned is not None and found[name].topic_id != pinned[name].topic_id:
            raise DataLossError(
                f"topic {name!r} was deleted and created again: the records that were to be read are lost"
            )


def _check_ranges(limits: Mapping[TopicPartition, Positions], ranges: Mapping[TopicPartition, OffsetRange]) -> None:
    for topic_partition, (start, end) in ranges.items():
        limit = limits.get(topic_partition)
        if limit is None:
            raise UnknownTopicOrPartitionError(f"partition {topic_partition}: unknown topic or partition")
        if start < end and not limit.log_start_offset <= start <= end <= limit.high_watermark:
            raise OffsetOutOfRangeError(
                f"{topic_partition}: offsets [{start}, {end}) are not between the log"
                f" start offset {limit.log_start_offset} and the high watermark {limit.high_watermark}"
            )
