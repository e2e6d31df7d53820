"""Encodes the record batches of partitions once for all readers.

A stream holds the slices and records that are planned and decoded beyond the offset that was last read, so that the
next fetch of a consumer continues it. Encoded batches stay in memory for other consumers of the same records.

Segments that are replaced may contain records that were erased. So streams and encoded batches belong to a version of
their partition, which a fetch reads with the offsets. A reader of a later version, or `forget_rewritten`, drops them.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.errors import NotLeaderForPartitionError, OffsetOutOfRangeError, SparkLogError, redact
from spark_log.gateway.topic_stores import CHANGE_S, TopicStores
from spark_log.ids import LogDirId, OffsetRange, StoreId, TopicPartition
from spark_log.log.records.arrow_numpy import to_numpy
from spark_log.log.records.inline import decoded_bytes
from spark_log.log.records.kafka_batch.encode import StoredRecords, encode
from spark_log.log.records.kafka_batch.varint import Longs
from spark_log.log.records.schema import MICROSECONDS_PER_MILLISECOND, TimestampType, read_schema
from spark_log.log.records.segment_write import ROW_GROUP_BYTES
from spark_log.log.segments import plan as planner
from spark_log.log.segments.fetcher import Fetcher
from spark_log.log.segments.slices import Slice
from spark_log.metadata.sql_columns import PARTITION

logger = logging.getLogger(__name__)

_SCHEMA = read_schema(include_headers=True, columns=["key", "value", "offset", "timestamp", "headers"])
_SEGMENTS_PLANNED = 32
_INLINE_BYTES_PLANNED = 8 * 1024 * 1024
BATCH_BYTES = 1024 * 1024
"""The approximate size limit of an encoded batch. A single record may be larger."""
_TOGETHER_BYTES = 64 * 1024
"""The limit of a batch of several appends: a fetch gets its first batch whole, however few bytes it asks for."""
_BATCH_RECORDS = 16_384
_CACHE_BYTES = 64 * 1024 * 1024
_STREAMS_MAX, _STREAMS_BYTES = 256, 1024 * 1024 * 1024
"""The limits of the number of kept streams, and of the bytes of these and the streams in use together. The latest
stream is kept even if it is larger. A stream holds up to a row group of decoded records; without it each batch decodes
them anew.
"""
_DECODING_BYTES = 2 * ROW_GROUP_BYTES
"""Memory for decoding a row group: twice the size of the row group, because Arrow copies buffers as they grow."""
_EMPTY = StoredRecords(np.empty(0, np.int64), np.empty(0, np.int64), pa.nulls(0), pa.nulls(0), None)

Version = tuple[int, int]
"""Leader epoch and number of rewrites of a partition. Both only grow."""
Place = tuple[int, int, Version, int]
"""Topic id, partition, version of the partition, and first offset."""


@dataclass(frozen=True)
class EncodedBatch:
    """A record batch that covers the offsets [start, end). It may have no records."""

    start: int
    end: int
    data: bytes


class RecordStreams:
    """Reads encoded batches, and keeps streams and batches for later reads. Safe to share between threads."""

    def __init__(self, stores: TopicStores) -> None:
        self._stores = stores
        self._lock = threading.Lock()
        self._streams: OrderedDict[Place, _Stream] = OrderedDict()
        self._streams_bytes = 0
        self._in_use: set[_Stream] = set()
        """Streams that a thread is reading. A stream never has two such threads."""
        self._encoded: OrderedDict[Place, EncodedBatch] = OrderedDict()
        self._encoded_bytes = 0
        self._encoded_of: dict[tuple[int, int], set[Place]] = {}
        """The places of the batches by partition, as a search of the whole cache for each rewritten one takes long."""
        self._versions: dict[tuple[int, int], Version] = {}
        """The latest version that a reader of each partition has seen."""
        self._store_ids: dict[int, StoreId] = {}
        """The store of each topic that was read, by the topic's id."""

    @property
    def cached_bytes(self) -> int:
        """The size in bytes of the encoded batches that are kept."""
        return self._encoded_bytes

    @property
    def stream_bytes(self) -> int:
        """The size in bytes of all streams: planned and decoded data beyond the last offsets, and data in decoding."""
        with self._lock:
            return self._all_streams_bytes()

    def read(self, topic: Topic, partition: int, version: Version, start: int, end: int, bytes_max: int) -> list[bytes]:
        """Read batches from offset `start` up to the high watermark `end`, exclusive. Return at least one if `start` is
        below `end`, and at most `bytes_max` bytes unless the first batch has more. Raises the errors of a read.
        """
        batches: list[bytes] = []
        size = 0
        while start < end:
            batch = self._next((topic.topic_id, partition, version, start), topic, end)
            if batches and size + len(batch.data) > bytes_max:
                break
            batches.append(batch.data)
            size += len(batch.data)
            start = batch.end
            if size >= bytes_max:
                break
        return batches

    def _next(self, place: Place, topic: Topic, end: int) -> EncodedBatch:
        with self._lock:
            self._note_version(place, topic)
            known = self._encoded.get(place)
            if known is not None:
                self._encoded.move_to_end(place)
                return known
            stream = self._take(place)
        batch = None if stream is None else self._advance(stream)
        if batch is None or stream is None:
            stream = self._stores.call(topic.store_id, lambda cluster: _open(cluster, topic, place, end), CHANGE_S)
            batch = self._advance(stream)
            assert batch is not None
        with self._lock:
            if self._versions.get(place[:2]) != place[2]:  # the partition was rewritten or deleted meanwhile
                return batch
            self._remember(place, batch)
            if batch.end < stream.end:
                self._keep((*place[:3], batch.end), stream)
        return batch

    def _advance(self, stream: "_Stream") -> EncodedBatch | None:
        """Return the stream's next batch, or None after the last one."""
        with self._lock:
            self._in_use.add(stream)
        try:
            for step in stream.steps:
                if isinstance(step, EncodedBatch):
                    return step
                with self._lock:
                    stream.bytes = step
                    self._make_room()
            return None
        finally:
            with self._lock:
                self._in_use.discard(stream)

    def _take(self, place: Place) -> "_Stream | None":
        """Remove and return the kept stream of a place, or return None."""
        stream = self._streams.pop(place, None)
        self._streams_bytes -= 0 if stream is None else stream.bytes
        return stream

    def _keep(self, place: Place, stream: "_Stream") -> None:
        self._take(place)
        self._make_room(stream.bytes)
        while len(self._streams) >= _STREAMS_MAX:
            self._take(next(iter(self._streams)))
        self._streams[place] = stream
        self._streams_bytes += stream.bytes

    def _make_room(self, size: int = 0) -> None:
        """Drop the oldest kept streams until there is room for those in use and for `size` bytes more."""
        while self._streams and self._all_streams_bytes() + size > _STREAMS_BYTES:
            self._take(next(iter(self._streams)))

    def _all_streams_bytes(self) -> int:
        return self._streams_bytes + sum(stream.bytes for stream in self._in_use)

    def forget_rewritten(self) -> None:
        """Drop the data of partitions that were rewritten or deleted after the read, unless the store does not answer.

        Fetches do this for the partitions that they read; this function does it for all others.
        """
        with self._lock:
            kept = list(self._versions)
            topics: dict[StoreId, set[int]] = {}
            self._store_ids = {topic_id: self._store_ids[topic_id] for topic_id, _ in kept}
            for topic_id, _ in kept:
                topics.setdefault(self._store_ids[topic_id], set()).add(topic_id)
        for store_id, present in self._stores.in_each(topics, _versions_in).items():
            if isinstance(present, SparkLogError):
                logger.info("records of store %s stay in memory: %s", store_id, redact(str(present)))
                continue
            with self._lock:
                for which in kept:
                    if which[0] in topics[store_id] and present.get(which) != self._versions.get(which):
                        self._forget(which)

    def _note_version(self, place: Place, topic: Topic) -> None:
        """Note the version and the store of the place, and drop the data of an earlier version."""
        which, version = place[:2], place[2]
        latest = self._versions.get(which)
        if latest is None or version > latest:
            self._forget(which)
            self._versions[which] = version
            self._store_ids[topic.topic_id] = topic.store_id

    def _forget(self, which: tuple[int, int]) -> None:
        if self._versions.pop(which, None) is None:
            return
        for place in [place for place in self._streams if place[:2] == which]:
            self._take(place)
        for place in self._encoded_of.pop(which, ()):
            self._encoded_bytes -= len(self._encoded.pop(place).data)

    def _remember(self, place: Place, batch: EncodedBatch) -> None:
        if place not in self._encoded:
            self._encoded[place] = batch
            self._encoded_of.setdefault(place[:2], set()).add(place)
            self._encoded_bytes += len(batch.data)
        while self._encoded_bytes > _CACHE_BYTES:
            oldest, old = self._encoded.popitem(last=False)
            self._encoded_of[oldest[:2]].discard(oldest)
            self._encoded_bytes -= len(old.data)


def _versions_in(view: Cluster, topic_ids: Set[int]) -> dict[tuple[int, int], Version]:
    """Return the present versions of all partitions of these topics."""
    query = sa.select(PARTITION.topic_id, PARTITION.partition, PARTITION.leader_epoch, PARTITION.rewrites)
    rows = view.store.read(lambda connection: connection.execute(query.where(PARTITION.topic_id.in_(topic_ids))).all())
    return {(topic_id, partition): (epoch, rewrites) for topic_id, partition, epoch, rewrites in rows}


def _open(view: Cluster, topic: Topic, place: Place, end: int) -> "_Stream":
    topic_id, partition, version, start = place
    tp = TopicPartition(topic.name, partition)

    def plan(connection: sa.Connection) -> tuple[list[Slice], bool]:
        # a plan without the segments of a moved or deleted partition would look as if compaction had removed records
        now = planner.find_positions(connection, [tp]).get(tp)
        if now is None or (now.topic_id, now.version) != (topic_id, version):
            raise NotLeaderForPartitionError(f"partition {tp} was moved, deleted, elected or rewritten: read it again")
        if start < now.positions.log_start_offset:
            raise OffsetOutOfRangeError(f"partition {tp}: offset {start} was removed by retention")
        ranges = {tp: OffsetRange(start, end)}
        slices = planner.plan(connection, {topic.name: topic}, ranges, segments_max=_SEGMENTS_PLANNED)
        kept = planner.bounded(slices, _INLINE_BYTES_PLANNED, _INLINE_BYTES_PLANNED)
        found = planner.with_inline_data(connection, kept)
        return found, len(slices) < _SEGMENTS_PLANNED and len(found) == len(kept)

    slices, whole = view.store.read(plan)
    covered = end if whole or not slices else slices[-1].end
    log_dirs = view.log_dirs() if any(piece.data is None for piece in slices) else {}
    remote = {log_dir_id for log_dir_id, info in log_dirs.items() if not info.uri.startswith("file:")}
    return _Stream(Fetcher(log_dirs, view.log_dirs), slices, start, covered, remote)


class _Stream:
    """Batches that cover [start, end) without a gap. Offsets without records belong to a batch, which may be empty."""

    def __init__(self, fetcher: Fetcher, slices: list[Slice], start: int, end: int, remote: Set[LogDirId]) -> None:
        """`remote` are the log dirs in object stores."""
        self.end = end
        self.bytes = 0
        """The last number of bytes that `steps` yielded."""
        self.steps = _steps(fetcher, slices, start, end, remote)
        """Yields batches and numbers. A number is the most bytes that the stream holds until the next number.

        The generator has no reference to this object, because only the garbage collector would free such a cycle.
        """


def _steps(
    fetcher: Fetcher, slices: list[Slice], start: int, end: int, remote: Set[LogDirId]
) -> Iterator[int | EncodedBatch]:
    at = start
    planned = sum(piece.size for piece in slices if piece.data is not None)
    for pieces in _together(slices):
        piece = pieces[-1]
        decoding_bytes = sum(_DECODING_BYTES if one.data is None else decoded_bytes(one.data) for one in pieces)
        row_groups = fetcher.read(pieces, _SCHEMA)
        if len(pieces) > 1:
            row_groups = iter(pa.Table.from_batches(row_groups, _SCHEMA).combine_chunks().to_batches())
        while True:
            yield planned + decoding_bytes
            records = next(row_groups, None)
            if records is None:
                break
            held = records.get_total_buffer_size()
            if not remote.isdisjoint(piece.log_dir_ids):
                held += min(held, piece.size)  # Arrow keeps what it has downloaded until the next row group
            yield planned + held
            for batch in encoded(records, at, piece.leader_epoch, TimestampType(piece.timestamp_type)):
                yield batch
                at = batch.end
            del records  # before the next ones are decoded
        yield planned
        if at < piece.end:
            yield _gap(at, piece.end, piece.leader_epoch)
            at = piece.end
    if at < end:
        yield _gap(at, end, slices[-1].leader_epoch if slices else 0)


def _together(slices: Iterable[Slice]) -> Iterator[list[Slice]]:
    """Yield the slices, in order, in lists. Small inline slices that follow each other are one list, whose records
    share a batch, because a batch for each append would cost more than its records. A batch has one leader epoch, and
    one time if the type of its timestamps is LogAppendTime.
    """
    pieces: list[Slice] = []
    size = 0
    for piece in slices:
        more = 0 if piece.data is None else decoded_bytes(piece.data)
        joins = (
            pieces
            and piece.data is not None
            and pieces[-1].data is not None
            and piece.leader_epoch == pieces[-1].leader_epoch
            and piece.timestamp_type == pieces[-1].timestamp_type == TimestampType.CREATE_TIME
            and size + more <= _TOGETHER_BYTES
        )
        if not joins and pieces:
            yield pieces
            pieces, size = [], 0
        pieces.append(piece)
        size += more
    if pieces:
        yield pieces


def encoded(
    records: pa.RecordBatch, start: int, leader_epoch: int, timestamp_type: TimestampType
) -> Iterator[EncodedBatch]:
    """Yield batches of the records, the first one from offset `start` on."""
    for part in _parts(records, timestamp_type):
        stored = _stored(part)
        last = int(stored.offsets[-1])
        data = encode(
            stored, base_offset=start, last_offset=last, leader_epoch=leader_epoch, timestamp_type=timestamp_type
        )
        yield EncodedBatch(start, last + 1, data)
        start = last + 1


def _gap(start: int, end: int, leader_epoch: int) -> EncodedBatch:
    """Return an empty batch for offsets whose records were all removed by compaction, so that consumers move on."""
    return EncodedBatch(start, end, encode(_EMPTY, base_offset=start, last_offset=end - 1, leader_epoch=leader_epoch))


def _parts(records: pa.RecordBatch, timestamp_type: TimestampType) -> Iterator[pa.RecordBatch]:
    """Yield the records of one batch at a time. A batch of type LogAppendTime has a single time, because clients give
    the largest timestamp of the batch to each of its records.
    """
    row_bytes: int = max(1, records.nbytes // max(1, records.num_rows))
    rows = max(1, min(_BATCH_RECORDS, BATCH_BYTES // row_bytes))
    ends = [records.num_rows]
    if timestamp_type is TimestampType.LOG_APPEND_TIME:
        ends = [*(np.flatnonzero(np.diff(_times_ms(records))) + 1).tolist(), records.num_rows]
    begin = 0
    for end in ends:
        while begin < end:
            part = records.slice(begin, min(rows, end - begin))
            yield part
            begin += part.num_rows


def _stored(records: pa.RecordBatch) -> StoredRecords:
    headers = records.column("headers")
    return StoredRecords(
        to_numpy(records.column("offset")).astype(np.int64, copy=False),
        _times_ms(records),
        records.column("key"),
        records.column("value"),
        None if headers.null_count == len(headers) else headers,
    )


def _times_ms(records: pa.RecordBatch) -> Longs:
    return to_numpy(records.column("timestamp")).astype(np.int64, copy=False) // MICROSECONDS_PER_MILLISECOND
