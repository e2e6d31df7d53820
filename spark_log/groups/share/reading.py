"""Reads partitions ahead of what a share group has acquired, for all members in a process.

A poll acquires only records that its process has read (`acquisition_rules.acquire`). So gaps never reach a member,
limits of bytes are exact, and no retention or merge can take an acquired record away.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic, find_topics
from spark_log.errors import StorageUnavailableError, UnknownTopicOrPartitionError
from spark_log.groups.share.acquisition_rules import Numbers, Stretch
from spark_log.groups.share.service import Readable
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.partitions.partition_rows import Key
from spark_log.log.records.record_limits import TIMESTAMP_MS_MAX
from spark_log.log.records.schema import DELIVER_AT, read_schema
from spark_log.log.segments import plan as planner
from spark_log.log.segments.fetcher import Fetcher
from spark_log.log.segments.slices import Slice

_AHEAD_BYTES = 8 * 1024 * 1024
"""Decoded bytes of a partition that one call reads."""
_CACHE_BYTES = 64 * 1024 * 1024
_PARTITION_BYTES = 2 * _AHEAD_BYTES
_BUSY_S_MAX = 5.0
"""How long a poll waits for a thread that reads the same partition."""
_SEGMENTS_MAX = 64
_NEAR = 1_024
"""Maximum number of offsets between two ranges that are read as one."""
_SCHEMA = read_schema(include_headers=True)


@dataclass(frozen=True)
class _Read:
    """A stretch with its records."""

    stretch: Stretch
    records: pa.RecordBatch
    bytes: int


@dataclass
class _Partition:
    """The stretches of a partition that this process has read. They are sorted and do not overlap."""

    version: tuple[int, int]
    read: list[_Read] = field(default_factory=list)
    following: "_Following | None" = None
    fetcher: Fetcher = field(default_factory=lambda: Fetcher({}))
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while the partition is read, which may take long."""

    def missing(self, first: int, end: int) -> tuple[int, int] | None:
        """Return the first part of first <= offset < end that was not read."""
        position = first
        for each in self.read:
            if each.stretch.first <= position < each.stretch.end:
                position = each.stretch.end
        if position >= end:
            return None
        later = [each.stretch.first for each in self.read if each.stretch.first > position]
        return position, min([end, *later])

    def add(self, read: _Read) -> None:
        self.read = sorted([*self.read, read], key=lambda each: each.stretch.first)

    def forget_below(self, needs: Sequence[tuple[int, int]], keep_from: int) -> None:
        """Forget what ends below `keep_from` and all `needs`, and, above _PARTITION_BYTES, what no need overlaps."""
        low = min([keep_from, *(first for first, _ in needs)])
        self.read = [cached for cached in self.read if cached.stretch.end > low]
        # One unfinished record may keep the start where it is: what is not needed now is read again when it is.
        size = sum(cached.bytes for cached in self.read)
        for cached in list(self.read):
            if size <= _PARTITION_BYTES:
                return
            if not any(first < cached.stretch.end and cached.stretch.first < end for first, end in needs):
                self.read.remove(cached)
                size -= cached.bytes

    @property
    def readable(self) -> Readable:
        return Readable(self.version, [each.stretch for each in self.read], [each.records for each in self.read])


@dataclass
class _Following:
    """An open read of one plan, which continues at offset `position`."""

    position: int
    parts: Iterator[_Read]


class ShareReads:
    """The records that a process has read for share groups. Safe to share between threads. One thread at a time reads a
    partition; threads that read others do not wait for it.
    """

    def __init__(self, cluster: Cluster, rack: str | None = None) -> None:
        self._cluster, self._rack = cluster, rack
        self._partitions: OrderedDict[Key, _Partition] = OrderedDict()
        self._lock = threading.Lock()
        """Held while `_partitions` changes."""

    def readable(
        self, key: Key, name: str, version: tuple[int, int], needs: Sequence[tuple[int, int]], keep_from: int
    ) -> Readable:
        """Read the offsets of `needs`, half-open ranges below the high watermark, unless they are read already. Of
        the last range, only about _AHEAD_BYTES are read. Offsets below `keep_from` that are not needed are forgotten.

        Raises the errors of reading, UnknownTopicOrPartitionError if the topic does not exist any more, and
        StorageUnavailableError while another thread reads the partition for long.
        """
        here = self._partition(key, version)
        if not here.lock.acquire(timeout=_BUSY_S_MAX):
            raise StorageUnavailableError(f"{name}-{key[1]}: another thread has been reading it for {_BUSY_S_MAX:g} s")
        try:
            here.forget_below(needs, keep_from)
            for first, end in needs[:-1]:
                while (missing := here.missing(first, end)) is not None and self._read(key, name, here, missing):
                    pass
            if needs and (missing := here.missing(*needs[-1])) is not None and missing[0] == needs[-1][0]:
                self._read(key, name, here, missing)
            readable = here.readable
        finally:
            here.lock.release()
        self._evict(key)
        return readable

    def readable_at_once(
        self, key: Key, version: tuple[int, int], needs: Sequence[tuple[int, int]], keep_from: int
    ) -> Readable | None:
        """Return as `readable`, but None if records must be read first, or another thread reads the partition."""
        here = self._partition(key, version)
        if not here.lock.acquire(blocking=False):
            return None
        try:
            here.forget_below(needs, keep_from)
            if any(here.missing(first, end) is not None for first, end in needs[:-1]):
                return None
            if needs and (missing := here.missing(*needs[-1])) is not None and missing[0] == needs[-1][0]:
                return None
            return here.readable
        finally:
            here.lock.release()

    def _partition(self, key: Key, version: tuple[int, int]) -> _Partition:
        with self._lock:
            here = self._partitions.get(key)
            if here is None or here.version != version:
                here = self._partitions[key] = _Partition(version)
            self._partitions.move_to_end(key)
            return here

    def is_being_read(self, key: Key) -> bool:
        """Return whether a thread reads the partition now."""
        here = self._partitions.get(key)
        return here is not None and here.lock.locked()

    def forget(self, key: Key) -> None:
        with self._lock:
            self._partitions.pop(key, None)

    def _read(self, key: Key, name: str, here: _Partition, missing: tuple[int, int]) -> bool:
        """Read records of the offsets [missing[0], missing[1]). Return False if the log has none there, because an
        election has truncated it: new records will get these offsets, and must be read then.
        """
        following = here.following
        here.following = None
        if following is None or following.position != missing[0]:
            following = _Following(missing[0], self._open(key, name, here, missing))
        part = next(following.parts, None)
        if part is None:
            following = _Following(missing[0], self._open(key, name, here, missing))
            part = next(following.parts, None)
            if part is None:
                return False
        if part.stretch.end <= missing[1]:
            here.following = _Following(part.stretch.end, following.parts)
        else:
            part = _cut(part, missing[1])
        here.add(part)
        return True

    def _open(self, key: Key, name: str, here: _Partition, missing: tuple[int, int]) -> Iterator[_Read]:
        """Plan a read of the range, and yield its records in parts. The version becomes that of the snapshot."""
        place = TopicPartition(name, key[1])
        start, end = missing

        def plan(connection: sa.Connection) -> tuple[planner.PartitionSnapshot, list[Slice]]:
            topic: Topic | None = find_topics(connection, [name]).get(name)
            snapshot = planner.find_positions(connection, [place]).get(place)
            if topic is None or snapshot is None or snapshot.topic_id != key[0]:
                raise UnknownTopicOrPartitionError(f"{place}: the topic was deleted, or created again")
            limits = snapshot.positions
            ranges = {place: OffsetRange(max(start, limits.log_start_offset), min(end, limits.high_watermark))}
            slices = planner.plan(connection, {name: topic}, ranges, segments_max=_SEGMENTS_MAX, rack=self._rack)
            slices = planner.bounded(slices, _AHEAD_BYTES, _AHEAD_BYTES)
            return snapshot, planner.with_inline_data(connection, slices)

        snapshot, slices = self._cluster.store.read(plan)
        if snapshot.version != here.version:
            here.read, here.version = [], snapshot.version
        if here.fetcher.renewal_due(slices):
            here.fetcher.renew(self._cluster.log_dirs)
        stop = slices[-1].end if slices else min(end, snapshot.positions.high_watermark)
        return _parts(here.fetcher, slices, start, stop)

    def _evict(self, but: Key) -> None:
        with self._lock:
            total = sum(each.bytes for here in self._partitions.values() for each in here.read)
            for key in list(self._partitions):
                if total <= _CACHE_BYTES:
                    return
                if key != but:
                    total -= sum(each.bytes for each in self._partitions.pop(key).read)


def near(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort the ranges, and join those that are close together."""
    joined: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if joined and first - joined[-1][1] <= _NEAR:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return joined


def _parts(fetcher: Fetcher, slices: Sequence[Slice], start: int, stop: int) -> Iterator[_Read]:
    """Yield the records of the slices in parts of about _AHEAD_BYTES, which cover start <= offset < stop."""
    position, batches, ends, size = start, list[pa.RecordBatch](), list[int](), 0
    for piece in slices:
        for batch in fetcher.read([piece], _SCHEMA):
            if batch.num_rows == 0:
                continue
            batches.append(batch)
            size += batch.nbytes
            if size >= _AHEAD_BYTES:
                end = int(batch.column("offset")[batch.num_rows - 1].as_py()) + 1
                yield _of(batches, position, end, ends)
                position, batches, ends, size = end, [], [], 0
        if piece.data is not None:
            ends.append(piece.end)
    if position < stop:
        yield _of(batches, position, stop, ends)


def _of(batches: Sequence[pa.RecordBatch], first: int, end: int, append_ends: Sequence[int]) -> _Read:
    records = pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], schema=_SCHEMA)
    offsets: Numbers = records.column("offset").to_numpy()
    sizes = np.cumsum(record_sizes(records))
    ends = np.array(append_ends, dtype=np.int64) if append_ends else None
    stretch = Stretch(first, end, offsets, sizes, deliver_at_ms(records), ends)
    return _Read(stretch, records, records.nbytes)


def _cut(part: _Read, end: int) -> _Read:
    """Return the part of a read that is below the offset `end`."""
    count = int(np.searchsorted(part.stretch.offsets, end))
    s = part.stretch
    times = None if s.deliver_at_ms is None else s.deliver_at_ms[:count]
    cut = Stretch(s.first, end, s.offsets[:count], s.sizes[:count], times, s.append_ends)
    return _Read(cut, part.records.slice(0, count), part.bytes)


def record_sizes(records: pa.RecordBatch) -> Numbers:
    """Return the bytes of each record's key, value and headers."""
    sizes = np.zeros(records.num_rows, dtype=np.int64)
    for name in ("key", "value"):
        column = records.column(name)
        if column.null_count < len(column):
            sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy()
    headers = records.column("headers")
    if headers.null_count < len(headers):
        owners = pc.list_parent_indices(headers).to_numpy()
        items = pc.list_flatten(headers)
        names, values = items.field("key"), items.field("value")
        lengths = pc.add(pc.fill_null(pc.binary_length(names), 0), pc.fill_null(pc.binary_length(values), 0))
        np.add.at(sizes, owners, lengths.to_numpy())
    return sizes


def deliver_at_ms(records: pa.RecordBatch) -> Numbers | None:
    """Return the delivery times of the records, 0 for records without one, or None if no record has one. The last
    header counts. A value that is not a decimal number, or is after the year 9999, counts as none.
    """
    headers = records.column("headers")
    if headers.null_count == len(headers):
        return None
    items = pc.list_flatten(headers)
    named = pc.equal(items.field("key"), DELIVER_AT)
    if not pc.any(named).as_py():
        return None
    owners = pc.list_parent_indices(headers).filter(named).to_numpy()
    texts = items.field("value").filter(named)
    times = np.zeros(records.num_rows, dtype=np.int64)
    for owner, text in zip(owners.tolist(), texts.to_pylist(), strict=True):
        digits = text is not None and len(text) <= 18 and text.isdigit()
        time_ms = int(text) if digits else 0
        times[owner] = time_ms if time_ms <= TIMESTAMP_MS_MAX else 0
    return times
