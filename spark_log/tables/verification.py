"""Compares the records that a topic's tables show with the log, and rebuilds tables."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic, find_topic
from spark_log.errors import CorruptRecordError, StorageUnavailableError
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.reader import LogReader, RangesToRead, ReadPlan
from spark_log.log.records.arrow_numpy import to_numpy
from spark_log.log.records.current_rule import CurrentRule
from spark_log.log.records.read_shape import ReadShape
from spark_log.log.records.schema import TimestampType, read_schema
from spark_log.log.records.segment_open import ExpectedSegment, open_segment
from spark_log.log.records.segment_read import read_slice
from spark_log.log.segments import plan as planner
from spark_log.log.segments.fetcher import Fetcher
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import PARTITION, REPLICA
from spark_log.tables import publication, publication_state
from spark_log.tables.current.hidden_rows import Rows, concatenated, hidden
from spark_log.tables.iceberg.catalog import drop_table
from spark_log.tables.publication_state import CURRENT, ListedFile
from spark_log.tables.table_changes import OpenTable, TopicTable, find_changes

_COMPARED = read_schema(include_headers=True, columns=["key", "value", "offset", "timestamp", "headers"])
_ATTEMPTS = 20


@dataclass(frozen=True)
class Verified:
    """The comparison of one table, as of a version, with the log: the number of equal records, and the first
    difference, None if there is none.
    """

    target: str
    location: str
    version: int
    records: int
    difference: str | None


def verify(cluster: Cluster, topic: Topic, target: str | None = None) -> Iterator[Verified]:
    """Publish the topic, and compare its tables in online log dirs (with `target`, those of one format) record by
    record with the log, below the offsets up to which a table shows the partitions.

    The files of a table are read from its log dir, and the log from any good replica. A partition without a leader is a
    difference if the table's replica lacks records below the high watermark: the log cannot be read there. Raises
    StorageUnavailableError if a table cannot be opened, or changes all the time.
    """
    cluster = cluster.of(topic)
    for table in publication.tables_of(cluster, topic):
        if table.listing and target in (None, table.target):
            yield _verify(cluster, table)


def _verify(cluster: Cluster, table: TopicTable) -> Verified:
    for _ in range(_ATTEMPTS):
        publication.publish(cluster, table.topic)
        there = publication.open_as_is(table)
        if there is None:
            raise StorageUnavailableError(f"{table.title} does not exist in {table.log_dir!r}")
        plan = _plan(cluster, table, there)
        if plan is not None:
            break
    else:
        raise StorageUnavailableError(f"{table.title}: it changed during each of {_ATTEMPTS} attempts")
    location, version = table.log_dir.location(table.folder), there.at[1]
    files: dict[int, list[ListedFile]] = defaultdict(list)
    for file in sorted(there.listed(), key=lambda file: file.base_offset):
        files[file.partition].append(file)
    records = 0
    for partition, (start, end) in sorted(plan[1].items()):
        expected = _rows_of_log(plan[0], partition, table.topic if table.target == CURRENT else None)
        equal, difference = _compare(expected, _rows_of_table(table, there, files[partition], start, end))
        records += equal
        if difference is not None:
            return Verified(table.target, location, version, records, f"partition {partition}, {difference}")
    return Verified(table.target, location, version, records, cluster.store.read(lambda c: _lost_records(c, table)))


def _lost_records(connection: sa.Connection, table: TopicTable) -> str | None:
    """Describe the first partition without a leader of which the table's log dir lacks records below the high
    watermark. Records below the log start offset, which were deleted, do not count.
    """
    query = (
        sa.select(PARTITION.partition, REPLICA.log_end_offset, PARTITION.log_start_offset, PARTITION.high_watermark)
        .join(t.replica, (REPLICA.topic_id == PARTITION.topic_id) & (REPLICA.partition == PARTITION.partition))
        .where(PARTITION.topic_id == table.topic.topic_id, REPLICA.log_dir_id == table.info.log_dir_id)
        .where(PARTITION.leader.is_(None), REPLICA.log_end_offset < PARTITION.high_watermark)
        .where(PARTITION.log_start_offset < PARTITION.high_watermark)
        .order_by(PARTITION.partition)
    )
    row = connection.execute(query).first()
    if row is None:
        return None
    partition, log_end_offset, log_start_offset, end = row
    start = max(log_end_offset, log_start_offset)
    return f"partition {partition}, offsets {start:,} to {end - 1:,}: it has no leader, and this log dir lacks them"


def _plan(cluster: Cluster, table: TopicTable, there: OpenTable) -> tuple[ReadPlan, dict[int, OffsetRange]] | None:
    """Return the plan of the records that the open table must show, and their offsets by partition; None if the log has
    changed since the table was published.
    """
    ranges: dict[int, OffsetRange] | None = None

    def find(connection: sa.Connection) -> RangesToRead:
        nonlocal ranges
        topic = find_topic(connection, table.topic.name)
        cursors = publication_state.cursors(connection, table.key)
        limits = planner.positions(connection, [topic])
        ranges = None
        if find_changes(connection, table, there.at) is None:
            # a table whose replica was moved, or has lost records, has shown more than it lists
            ends = {
                number: cursor.seen_offset if table.target == CURRENT else min(cursor.seen_offset, cursor.limit)
                for number, cursor in cursors.items()
            }
            starts = {number: limits[TopicPartition(topic.name, number)].log_start_offset for number in ends}
            ranges = {number: OffsetRange(starts[number], end) for number, end in ends.items() if starts[number] < end}
        return RangesToRead(
            {topic.name: topic}, {TopicPartition(topic.name, n): each for n, each in (ranges or {}).items()}
        )

    plan = LogReader(cluster).plan_in_snapshot(find)
    return None if ranges is None else (plan, ranges)


def _rows_of_log(plan: ReadPlan, partition: int, topic: Topic | None) -> Iterator[pa.RecordBatch]:
    """Yield the records of a partition; with a topic only those that its current-state table shows."""
    slices = [piece for piece in plan.slices if piece.partition == partition]
    if topic is None:
        yield from Fetcher(plan.log_dirs).read(slices, _COMPARED)
        return
    columns = next((piece.columns for piece in slices), None)
    rule = CurrentRule.of(topic.config, columns)
    schema = read_schema(columns=[*rule.column_names(), "offset"], typed=None if columns is None else columns.fields)
    rows = concatenated(
        [
            Rows.of(to_numpy(batch.column("offset")), rule.candidates(batch))
            for batch in Fetcher(plan.log_dirs).read(slices, schema)
        ]
    )
    shown = pa.array(rows.offsets[~hidden(rows)])
    for batch in Fetcher(plan.log_dirs).read(slices, _COMPARED):
        yield batch.filter(pc.is_in(batch.column("offset"), value_set=shown))


def _rows_of_table(
    table: TopicTable, there: OpenTable, files: Sequence[ListedFile], start: int, end: int
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a partition's files, by offset, that the table shows. Those from `end` on are left out,
    except for a current-state table, which must not show any.
    """
    for file in files:
        if file.base_offset >= end and table.target != CURRENT:
            continue
        hidden, row = there.hidden(file), 0
        for batch in _read(table, file):
            offsets = to_numpy(batch.column("offset"))
            shown: npt.NDArray[np.bool_] = (offsets >= start) & ((offsets < end) | (table.target == CURRENT))
            if hidden is not None:
                shown &= ~hidden[row : row + batch.num_rows]
            row += batch.num_rows
            yield batch.filter(pa.array(shown))


def _read(table: TopicTable, file: ListedFile) -> Iterator[pa.RecordBatch]:
    path = f"{table.topic.folder}/{file.path}"
    location = table.log_dir.location(path)
    expected = ExpectedSegment(location, file.bytes, file.record_count)
    with open_segment(table.log_dir.open(path), expected) as parquet:
        shape = ReadShape(table.topic.name, file.partition, file.base_offset, TimestampType.CREATE_TIME, _COMPARED)
        yield from read_slice(parquet, shape, path=location)


def _compare(expected: Iterator[pa.RecordBatch], shown: Iterator[pa.RecordBatch]) -> tuple[int, str | None]:
    """Return the number of equal records, and the first difference. A listed file that cannot be read is a difference;
    an error of the log is raised.
    """
    equal = 0
    of_log, of_table = _NONE, _NONE
    while True:
        of_log = of_log if of_log.num_rows else next((each for each in expected if each.num_rows), _NONE)
        try:
            of_table = of_table if of_table.num_rows else next((each for each in shown if each.num_rows), _NONE)
        except (CorruptRecordError, StorageUnavailableError) as error:
            return equal, str(error)
        rows = min(of_log.num_rows, of_table.num_rows)
        if rows == 0 or not of_log.slice(0, rows).equals(of_table.slice(0, rows)):
            return _first_difference(equal, of_log, of_table)
        equal, of_log, of_table = equal + rows, of_log.slice(rows), of_table.slice(rows)


_NONE = pa.RecordBatch.from_pylist([], schema=_COMPARED)


def _first_difference(equal: int, of_log: pa.RecordBatch, of_table: pa.RecordBatch) -> tuple[int, str | None]:
    for n in range(min(of_log.num_rows, of_table.num_rows)):
        in_log, in_table = of_log.column("offset")[n].as_py(), of_table.column("offset")[n].as_py()
        if in_log != in_table:
            break
        different = [name for name in _COMPARED.names if of_log.column(name)[n] != of_table.column(name)[n]]
        if different:
            return equal + n, f"offset {in_log}: the table has another {' and '.join(different)}"
    else:
        n = min(of_log.num_rows, of_table.num_rows)
        in_log = of_log.column("offset")[n].as_py() if n < of_log.num_rows else None
        in_table = of_table.column("offset")[n].as_py() if n < of_table.num_rows else None
    if in_log is None and in_table is None:
        return equal + n, None
    if in_table is None or (in_log is not None and in_log < in_table):
        return equal + n, f"offset {in_log}: the table lacks the record"
    return equal + n, f"offset {in_table}: the table shows a record that the log does not have there"


def rebuild(cluster: Cluster, topic: Topic, target: str) -> int:
    """Delete the metadata of the topic's tables of a format other than Delta, and make them anew from the log. Readers
    that have begun may fail. Returns the number of tables.
    """
    count = 0
    cluster = cluster.of(topic)
    for table in publication.tables_of(cluster, topic):
        if table.listing and table.target == target:
            table.log_dir.verify(table.info.uuid)
            if table.catalog is not None:
                drop_table(table.catalog, topic.name, table.log_dir, topic.folder, table.locations)
            cluster.store.transact(lambda c, key=table.key: publication_state.forget(c, key))  # type: ignore[misc]
            table.log_dir.delete_folder(table.metadata_folder)
            count += 1
    publication.publish(cluster, topic)
    return count
