"""Detects appended records that are already older than retention.ms, to warn their writer before they are deleted.

Retention deletes whole segments from the start of a log, by their largest timestamp; the warning uses the same rule.
"""

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import bindparam

from spark_log.cluster.topics import Topic, find_topics
from spark_log.config.values import DAY_MS
from spark_log.errors import SparkLogError
from spark_log.ids import OffsetRange
from spark_log.log.append.companions import Append
from spark_log.log.append.rules import Appended
from spark_log.log.partitions.partition_rows import read_partition
from spark_log.maintenance.removal.retention import next_to_delete
from spark_log.maintenance.removal.retention_rules import is_expired, time_of
from spark_log.maintenance.rewrite.rewrite_plan import Segment
from spark_log.metadata.prepared import Prepared
from spark_log.metadata.sql_columns import SEGMENT
from spark_log.metadata.store import Store
from spark_log.text import count_of, exact_duration_of
from spark_log.text import time_of as shown

_TIMEOUT_MS = 1_000
"""Limit of the time by which a warning may delay an append."""


@dataclass(frozen=True)
class Expired:
    """Records of a topic that are older than its retention.ms."""

    topic: str
    retention_ms: int
    records: int
    oldest_ms: int
    newest_ms: int
    at_next_run: bool
    """Whether the next run of retention deletes all of them. False while a younger segment precedes one of them."""
    begun_before: bool
    """Whether the segment before them has expired too, in at least one of their partitions."""

    def __str__(self) -> str:
        oldest, newest = shown(self.oldest_ms), shown(self.newest_ms)
        if self.retention_ms >= DAY_MS:
            oldest, newest = oldest[:10], newest[:10]
        times = f"of {oldest}" if oldest == newest else f"from {oldest} to {newest}"
        when = "at its next run" if self.at_next_run else "as soon as the younger records before them have expired"
        limit = f"retention.ms={self.retention_ms} ({exact_duration_of(self.retention_ms)})"
        return (
            f"topic {self.topic!r}: {count_of(self.records, 'record')} {times}, older than {limit}: retention deletes"
            f" such records {when}. To keep them: `spark-log topic alter {self.topic} --config retention.ms=-1`, or"
            " write without timestamps"
        )


def find_expired(store: Store, topic: Topic, written: Mapping[int, OffsetRange]) -> Expired | None:
    """Return the expired records in the segments whose base offsets are in the range of their partition in `written`;
    None if there are none.
    """

    def read(connection: sa.Connection) -> Expired | None:
        known = find_topics(connection, [topic.name]).get(topic.name)  # with its current config
        if known is None or known.topic_id != topic.topic_id:
            return None
        return _find(connection, known, written, store.clock(connection).wall_ms)

    return store.read(read, timeout_ms=_TIMEOUT_MS)


def _find(connection: sa.Connection, topic: Topic, written: Mapping[int, OffsetRange], now_ms: int) -> Expired | None:
    config = topic.config
    expired: list[Segment] = []
    at_next_run, begun_before = True, False
    for number, (start, end) in written.items():
        here = {"topic_id": topic.topic_id, "partition": number, "start": start, "end": end}
        segments = [Segment(*row) for row in _BETWEEN.rows(connection, here)]
        old = [segment for segment in segments if is_expired(time_of(segment), config, now_ms)]
        if not old:
            continue
        expired += old
        at_next_run = at_next_run and _leaves(connection, topic, number, old[-1].end_offset, now_ms)
        before = [Segment(*row) for row in _BEFORE.rows(connection, here)]
        begun_before = begun_before or any(is_expired(time_of(segment), config, now_ms) for segment in before)
    if not expired:
        return None
    oldest_ms = min(time_of(each) if each.min_timestamp_ms < 0 else each.min_timestamp_ms for each in expired)
    newest_ms, records = max(map(time_of, expired)), sum(each.record_count for each in expired)
    return Expired(topic.name, config.retention_ms, records, oldest_ms, newest_ms, at_next_run, begun_before)


def _leaves(connection: sa.Connection, topic: Topic, number: int, end_offset: int, now_ms: int) -> bool:
    """Whether retention would drop the log up to this offset once it is below the high watermark."""
    state = read_partition(connection, (topic.topic_id, number))
    if state is None:
        return True
    leaving = next_to_delete(connection, topic, number, state.log_start_offset, state.log_end_offset, now_ms, page=100)
    return any(segment.end_offset >= end_offset for segment, _ in leaving)


_COLUMNS = tuple(SEGMENT[name] for name in Segment.__dataclass_fields__)
_HERE = (SEGMENT.topic_id == bindparam("topic_id"), SEGMENT.partition == bindparam("partition"))
_BETWEEN = Prepared(
    sa.select(*_COLUMNS)
    .where(*_HERE, SEGMENT.base_offset >= bindparam("start"), SEGMENT.base_offset < bindparam("end"))
    .order_by(SEGMENT.base_offset)
)
_BEFORE = Prepared(
    sa.select(*_COLUMNS).where(*_HERE, SEGMENT.base_offset < bindparam("start")).order_by(SEGMENT.base_offset.desc())
    .limit(sa.literal_column("1")).offset(sa.literal_column("0"))
)  # fmt: skip


class ExpiredWatch:
    """Detects the first expired records that are appended to each topic. Thread-safe.

    Records of a mirror are exempt: it copies all records that its source still has.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._noticed: set[int] = set()
        self._untold: list[Expired] = []

    def appended(self, append: Append) -> None:
        """Detect expired records of an append, unless the store fails now."""
        with suppress(SparkLogError):
            for topic_id, written in expired_batches(append, self._store.now().wall_ms).items():
                if topic_id in self._noticed:
                    continue
                expired = find_expired(self._store, append.topics[topic_id], written)
                if expired is not None:
                    with self._lock:
                        self._noticed.add(topic_id)
                        self._untold.append(expired)

    def take(self) -> list[Expired]:
        """Return the findings since the last call, at most one per topic."""
        with self._lock:
            untold, self._untold = self._untold, []
        return untold


def expired_batches(append: Append, now_ms: int) -> dict[int, dict[int, OffsetRange]]:
    """Return the offset ranges of the expired batches of an append, by topic id and partition. Pure."""
    ranges: dict[int, dict[int, OffsetRange]] = {}
    for batch, outcome in zip(append.batches, append.outcomes, strict=True):
        if not isinstance(outcome, Appended) or outcome.duplicate or batch.offsets is not None:
            continue
        if batch.max_timestamp_ms >= 0 and is_expired(
            batch.max_timestamp_ms, append.topics[batch.topic_id].config, now_ms
        ):
            here = ranges.setdefault(batch.topic_id, {})
            start, _ = here.get(batch.partition, (outcome.base_offset, 0))
            here[batch.partition] = OffsetRange(start, outcome.end_offset)
    return ranges
