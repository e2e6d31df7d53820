"""Reads the values of segment files that decide which records are current, and caches them in memory."""

from collections import OrderedDict
from threading import Lock

from spark_log.cluster.log_dir import LogDir
from spark_log.log.columns.envelope import OP, SEQUENCE
from spark_log.log.columns.topic_columns import TopicColumns
from spark_log.log.records.arrow_numpy import to_numpy
from spark_log.log.records.current_rule import CurrentRule, decoded_events
from spark_log.log.records.read_shape import ReadShape
from spark_log.log.records.schema import TimestampType, read_schema
from spark_log.log.records.segment_open import ExpectedSegment, open_segment
from spark_log.log.records.segment_read import read_slice
from spark_log.tables.current.hidden_rows import Rows, concatenated


class _Cache:
    """A cache of the rows of files, which never change, by location and rule. Thread-safe."""

    def __init__(self) -> None:
        self._rows: OrderedDict[str, Rows] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def get(self, location: str) -> Rows | None:
        with self._lock:
            if location in self._rows:
                self._rows.move_to_end(location)
            return self._rows.get(location)

    def put(self, location: str, rows: Rows, bytes_max: int) -> None:
        """Add rows, and drop the least recently used ones until at most `bytes_max` bytes are left."""
        with self._lock:
            if location not in self._rows:
                self._rows[location] = rows
                self._bytes += _bytes(rows)
            while self._bytes > bytes_max:
                self._bytes -= _bytes(self._rows.popitem(last=False)[1])


def _bytes(rows: Rows) -> int:
    sequences = 0 if rows.sequences is None else rows.sequences.nbytes
    return int(rows.keys.nbytes + rows.offsets.nbytes + rows.deletions.nbytes + sequences)


_cache = _Cache()


def read_rows(
    log_dir: LogDir,
    path: str,
    base_offset: int,
    size: int,
    record_count: int,
    rule: CurrentRule,
    columns: TopicColumns | None,
    cache_bytes: int,
) -> Rows:
    """Return the rows of a file, whose `path` is relative to the log dir. `columns` are the topic's typed columns. The
    process caches at most `cache_bytes` bytes of rows. Raises CorruptRecordError or StorageUnavailableError.
    """
    expected = ExpectedSegment(log_dir.location(path), size, record_count)
    name = f"{expected.path} {rule}"
    rows = _cache.get(name)
    if rows is None:
        rows = _read(log_dir, path, expected, base_offset, rule, columns)
        _cache.put(name, rows, cache_bytes)
    return rows


def _read(
    log_dir: LogDir,
    path: str,
    expected: ExpectedSegment,
    base_offset: int,
    rule: CurrentRule,
    columns: TopicColumns | None,
) -> Rows:
    fields = [OP, *([SEQUENCE] if rule.by_sequence else [])]
    with open_segment(log_dir.open(path), expected) as file:
        schema = read_schema(columns=["key", "value", "offset"])
        shape = ReadShape("", 0, base_offset, TimestampType.CREATE_TIME, schema)
        parts: list[Rows] = []
        for batch in read_slice(file, shape, path=expected.path):
            # decoded again: the columns in the file may be earlier ones
            events = decoded_events(batch, columns, fields) if rule.by_op and columns is not None else None
            parts.append(Rows.of(to_numpy(batch.column("offset")), rule.candidates(batch, events)))
        return concatenated(parts)
