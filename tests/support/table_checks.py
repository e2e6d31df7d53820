"""Checks that every log dir and every table of a topic, as its readers see it, match the log.

The files of the replicas, the Delta tables, and the records that a stream of such a table has read, are compared with
the metadata; Delta and Iceberg tables with the records in files; the table of the current state with a fold over the
records.
"""

import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa
import xxhash
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import in_each_store
from spark_log.cluster.log_dir import LogDir, segment_path
from spark_log.cluster.topics import Topic, find_topics
from spark_log.ids import LogDirId
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import PARTITION, REPLICA, SEGMENT
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.tables.lag_measurement import delta_lags
from spark_log.tables.publication import delta_tables, publish
from spark_log.tables.publication_state import CURRENT, table_folder
from tests.support.records import read_all, rows_of, table
from tests.support.stores import topics_view


def assert_delta_is_the_log(cluster: Cluster, twice: Collection[int] = ()) -> None:
    """Invariant 11: each online log dir's table of each topic lists the sealed segments of its replicas up to min(high
    watermark, the replica's LEO), each once, and no rows but theirs can be read from it. A stream of the table has read
    each record once, those at the offsets `twice` perhaps twice. For the topics of all stores.
    """
    in_each_store(cluster, lambda view: _assert_delta_of_store(view, twice))


def _assert_delta_of_store(cluster: Cluster, twice: Collection[int]) -> None:
    topics = _topics(cluster)
    for log_dir_id, log_dir in _online_log_dirs(cluster).items():
        for topic in topics:
            limit = sa.case(
                (PARTITION.high_watermark < REPLICA.log_end_offset, PARTITION.high_watermark),
                else_=REPLICA.log_end_offset,
            )
            query = _segments_of(topic.topic_id, log_dir_id).where(SEGMENT.end_offset <= limit)
            rows = cluster.store.read(lambda connection, query=query: connection.execute(query).all())  # type: ignore[misc]
            wanted = sorted(f"_segments/{row.partition}/{row.name}" for row in rows)
            where = f"topic {topic.name}, {log_dir}"
            try:
                table = DeltaTable(log_dir.location(topic.folder), storage_options=log_dir.storage_options)
            except TableNotFoundError:
                assert not wanted, f"{where}: no Delta table for {wanted}"
                continue
            active = sorted(pa.table(table.get_add_actions()).column("path").to_pylist())
            assert active == wanted, f"{where}: {len(active)} active files, {len(wanted)} wanted"
            found = table.to_pyarrow_table(columns=["partition"]).num_rows
            assert found == sum(row.record_count for row in rows), f"{where}: {found} rows"
            lag = cluster.store.read(delta_lags).get((topic.topic_id, log_dir_id))
            assert lag is None or lag.sealed_ms is None, f"{where}: nothing is left to publish, but the lag is {lag}"
            assert_stream_sees_each_record_once(cluster, log_dir, topic, twice)


def _topics(cluster: Cluster) -> list[Topic]:
    """The topics of the cluster's store."""
    return [topic for topic in cluster.store.read(find_topics).values() if topic.store_id == cluster.store_id]


def _online_log_dirs(cluster: Cluster) -> dict[LogDirId, LogDir]:
    query = sa.select(t.log_dir.c.log_dir_id).where(t.log_dir.c.online)
    online = cluster.store.read(lambda connection: set(connection.execute(query).scalars()))
    return {number: LogDir(info.uri) for number, info in cluster.log_dirs().items() if number in online}


def assert_stream_sees_each_record_once(
    cluster: Cluster, log_dir: LogDir, topic: Topic, allowed: Collection[int] = ()
) -> None:
    """Replay the table's log: a commit's files with dataChange=true are new to a stream. Each record in the table was
    new exactly once.

    Checks segments only, not files of other writers; no partition whose offsets were assigned again after an unclean
    election; and nothing once the beginning of the Delta log has been cleaned up.
    """
    truncated = sa.select(t.truncation.c.partition).where(t.truncation.c.topic_id == topic.topic_id)
    excused = cluster.store.read(lambda connection: set(connection.execute(truncated).scalars()))
    new: dict[int, Counter[int]] = defaultdict(Counter)
    active: dict[str, tuple[int, list[int]]] = {}
    for expected, (version, actions) in enumerate(commits(log_dir, topic)):
        if version != expected:
            return
        for action in actions:
            if "remove" in action:
                active.pop(action["remove"]["path"], None)
            add = action.get("add", {})
            if add.get("path", "").startswith("_segments/"):
                partition = int(add["partitionValues"]["partition"])
                offsets = _offsets_of(log_dir, topic, add)
                active[add["path"]] = (partition, offsets)
                if add["dataChange"]:
                    new[partition].update(offsets)
    where = f"topic {topic.name}, {log_dir}"
    for partition, seen in new.items():
        twice = sorted(offset for offset, times in seen.items() if times > 1 + (offset in allowed))
        assert not twice or partition in excused, (
            f"{where}, partition {partition}: a stream sees {twice} more than once"
        )
    for partition, offsets in active.values():
        missed = sorted(set(offsets) - new[partition].keys())
        assert not missed, f"{where}, partition {partition}: a stream never sees {missed}"


def commits(log_dir: LogDir, topic: Topic) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Version and actions of each commit whose file is in the Delta log, in order."""
    for path in sorted(log_dir.list_files(f"{topic.folder}/_delta_log")):
        name = path.rpartition("/")[2]
        if name.endswith(".json") and name[:-5].isdigit():
            text = log_dir.read(path).decode()
            yield int(name[:-5]), [json.loads(line) for line in text.splitlines()]


def _offsets_of(log_dir: LogDir, topic: Topic, add: dict[str, Any]) -> list[int]:
    """Offsets of the records of a file; for a deleted file, all offsets of its range."""
    base = int(add["partitionValues"]["base_offset"])
    path = f"{topic.folder}/{add['path']}"
    if log_dir.sizes([path]) == [None]:
        return list(range(base, base + int(json.loads(add["stats"])["numRecords"])))
    with pq.ParquetFile(log_dir.open(path)) as file:
        return [base + delta for delta in file.read(["offset_delta"]).column(0).to_pylist()]


def assert_replicas_are_whole(cluster: Cluster) -> None:
    """Invariant 10: every segment below a replica's LEO is complete in its log dir, if that is online."""
    in_each_store(cluster, _assert_replicas_of_store)


def _assert_replicas_of_store(cluster: Cluster) -> None:
    log_dirs = _online_log_dirs(cluster)
    for topic in _topics(cluster):
        for log_dir_id, log_dir in log_dirs.items():
            query = _segments_of(topic.topic_id, log_dir_id).where(SEGMENT.end_offset <= REPLICA.log_end_offset)
            for row in cluster.store.read(lambda connection, query=query: connection.execute(query).all()):  # type: ignore[misc]
                path = segment_path(topic.folder, row.partition, row.name)
                digest = xxhash.xxh3_128()
                for block in log_dir.read_blocks(path):
                    digest.update(block)
                assert digest.hexdigest() == row.checksum, f"{log_dir.location(path)} is not what was written"


def _segments_of(topic_id: int, log_dir_id: int) -> sa.Select[tuple[int, str, int, str]]:
    """Partition, name, records, checksum of the files of the partitions that have a replica in the log dir."""
    source = t.replica.join(
        t.partition, (PARTITION.topic_id == REPLICA.topic_id) & (PARTITION.partition == REPLICA.partition)
    ).join(t.segment, (SEGMENT.topic_id == REPLICA.topic_id) & (SEGMENT.partition == REPLICA.partition))
    return (
        sa.select(SEGMENT.partition, SEGMENT.name, SEGMENT.record_count, SEGMENT.checksum)
        .select_from(source)
        .where(REPLICA.topic_id == topic_id, REPLICA.log_dir_id == log_dir_id, ~SEGMENT.inline)
    )


Row = tuple[int, int, bytes | None, bytes | None]
"""Partition, offset, key and value."""


def location_of(cluster: Cluster, topic: Topic, log_dir_id: int = 1) -> str:
    """The folder of the table in a log dir."""
    infos = {int(number): info for number, info in cluster.log_dirs().items()}
    return LogDir(infos[log_dir_id].uri).location(table_folder(topic, CURRENT))


def ends_of(cluster: Cluster, topic: Topic) -> dict[int, int]:
    """The offset below which the table in the first log dir shows each partition, as recorded."""
    cursor = t.publication_cursor.c
    query = sa.select(cursor.partition, cursor.seen_offset).where(
        cursor.topic_id == topic.topic_id, cursor.target == CURRENT, cursor.log_dir_id == 1
    )
    return cluster.store.read(lambda connection: {number: end for number, end in connection.execute(query)})  # noqa: C416


@cache
def duckdb_connection() -> duckdb.DuckDBPyConnection:
    """A connection with the extensions of Delta and Iceberg."""
    connection = duckdb.connect()
    for name in ("avro", "delta", "iceberg"):
        folder = files(f"duckdb_extension_{name}") / "extensions" / f"v{duckdb.__version__}"
        connection.execute(f"INSTALL '{folder / f'{name}.duckdb_extension'}'")
        connection.execute(f"LOAD {name}")
    return connection


def by_duckdb(location: str, scan: str = "delta_scan") -> list[Row]:
    return _rows(duckdb_connection().execute(f"SELECT * FROM {scan}('{location}')").to_arrow_table())


def by_deltalake(location: str, storage_options: dict[str, str] | None = None) -> list[Row]:
    table = DeltaTable(location, storage_options=storage_options)
    query = QueryBuilder().register("t", table).execute("SELECT * FROM t")
    return _rows(pa.RecordBatchReader.from_stream(query).read_all())


def _rows(table: pa.Table) -> list[Row]:
    rows = (
        (row["partition"], row["base_offset"] + row["offset_delta"], row["key"], row["value"])
        for row in table.select(["partition", "base_offset", "offset_delta", "key", "value"]).to_pylist()
    )
    return sorted(rows, key=lambda row: row[:2])


def in_log(cluster: Cluster, topic: Topic, ends: dict[int, int]) -> list[Row]:
    """The current record of each key of each partition among those below `ends`, without deletions."""
    by_sequence = topic.config.table_current_order == "sequence"
    current: dict[tuple[int, bytes], tuple[Row, bool, int | None]] = {}
    for row in _read(cluster, topic):
        partition, offset, key, value = row
        if offset >= ends.get(partition, 0) or key is None:
            continue
        op, sequence = _event(value) if topic.config.value_envelope == "debezium" else ("", None)
        before = current[partition, key][2] if (partition, key) in current else None
        older = before is not None and sequence is not None and sequence < before
        if not by_sequence or (op and not older):
            current[partition, key] = row, value is None or op == "d", sequence
    return sorted((row for row, deletes, _ in current.values() if not deletes), key=lambda row: row[:2])


def _read(cluster: Cluster, topic: Topic) -> list[Row]:
    """All readable records of the log, in order."""
    with contextlib.closing(ClientLog(cluster)) as log:
        return sorted(rows_of(log, topic), key=lambda row: row[:2])


def _event(value: bytes | None) -> tuple[str, int | None]:
    """The op and the sequence of an event of Debezium."""
    try:
        event = json.loads(value or b"")
        return (event["op"] if event["op"] in ("c", "r", "u", "d") else ""), event["source"]["lsn"]
    except (ValueError, TypeError, KeyError):
        return "", None


def in_files(cluster: Cluster, topic: Topic) -> list[Row]:
    """The records of the log that are in files."""
    query = sa.select(t.segment.c.partition, t.segment.c.base_offset, t.segment.c.end_offset).where(
        t.segment.c.topic_id == topic.topic_id, ~t.segment.c.inline
    )
    files = cluster.store.read(lambda connection: connection.execute(query).all())
    in_file = {(number, offset) for number, base, end in files for offset in range(base, end)}
    return [row for row in _read(cluster, topic) if row[:2] in in_file]


def assert_files(cluster: Cluster, topic: Topic) -> None:
    """The Delta table and the Iceberg table show the records that are in files, if the log starts with a file. There is
    no Iceberg table before the first file.
    """
    [info] = cluster.log_dirs().values()
    location, expected = LogDir(info.uri).location(topic.folder), in_files(cluster, topic)
    for scan in ("delta_scan", "iceberg_scan"):
        if scan == "iceberg_scan" and not expected and not Path(location, "metadata").exists():
            continue
        rows = by_duckdb(location, scan)
        assert rows == expected, f"{scan}: {set(rows) ^ set(expected)}"


def assert_current(cluster: Cluster, topic: Topic) -> list[Row]:
    """All readers see the current records below the recorded offsets. Returns them."""
    expected = in_log(cluster, topic, ends_of(cluster, topic))
    location = location_of(cluster, topic)
    for read in (by_duckdb, by_deltalake):
        rows = read(location)
        assert rows == expected, f"{read.__name__}: {set(rows) ^ set(expected)}"
    return expected


class FileTopic:
    """A topic on SQLite whose appends are all files, with its log and its Delta table; made unless it is there."""

    def __init__(self, folder: Path, partitions: int = 2, configs: Mapping[str, str] | None = None) -> None:
        self.cluster = Cluster.init(str(folder), if_not_exists=True)
        found = self.cluster.store.read(find_topics)
        self.topic = found.get("t") or create_topic(
            self.cluster, "t", partitions, configs={"inline.max.bytes": "0"} if configs is None else configs
        )
        self.log = ClientLog(self.cluster)
        (self.location,) = delta_tables(self.cluster, self.topic).values()

    def close(self) -> None:
        self.log.close()
        self.cluster.close()

    def append(self, *values: str, partition: int = 0) -> Any:
        return self.log.append(self.topic, [Records(partition, table(*values, key=b"k", headers=[("h", b"v")]))])

    def publish(self) -> None:
        publish(self.cluster, self.topic)

    @property
    def delta(self) -> DeltaTable:
        return DeltaTable(self.location)

    def active(self) -> list[str]:
        paths: Any = self.delta.get_add_actions().column("path")
        return sorted(path.as_py() for path in paths)

    def sealed(self) -> list[str]:
        query = sa.select(SEGMENT.partition, SEGMENT.name).where(~SEGMENT.inline)
        rows = self.cluster.store.read(lambda connection: connection.execute(query).all())
        return sorted(f"_segments/{partition}/{name}" for partition, name in rows)

    def records(self) -> list[tuple[int, int, str]]:
        return read_all(self.log, self.topic)

    def delta_records(self) -> list[tuple[int, int, str]]:
        rows = self.delta.to_pyarrow_table().to_pylist()
        return sorted((r["partition"], r["base_offset"] + r["offset_delta"], r["value"].decode()) for r in rows)

    def is_whole(self) -> None:
        assert self.active() == self.sealed()
        assert self.delta_records() == self.records()
        assert_delta_is_the_log(self.cluster)

    def commits(self, since: int = 0) -> list[list[dict[str, Any]]]:
        """The actions of each Delta commit from version `since` on."""
        folder = Path(self.location, "_delta_log")
        return [
            [json.loads(line) for line in (folder / f"{version:020d}.json").read_text().splitlines()]
            for version in range(since, self.delta.version() + 1)
        ]


def shape(cluster: Cluster, topic: Topic, partition: int = 0) -> list[tuple[object, ...]]:
    """(base offset, end offset) of every segment, blobs as (base, end, "blob")."""
    query = sa.select(SEGMENT.base_offset, SEGMENT.end_offset, SEGMENT.inline).where(
        SEGMENT.topic_id == topic.topic_id, SEGMENT.partition == partition
    )
    found = topics_view(cluster).store.read(
        lambda connection: connection.execute(query.order_by(SEGMENT.base_offset)).all()
    )
    return [(base, end, "blob") if inline else (base, end) for base, end, inline in found]


def everything_fits(cluster: Cluster) -> None:
    """Checks the rows after retention, and the files and tables that depend on the segment rows."""
    segments_, partitions = _rows_of(cluster, t.segment), _rows_of(cluster, t.partition)
    for row in partitions:
        mine = [s for s in segments_ if (s.topic_id, s.partition) == (row.topic_id, row.partition)]
        assert row.log_start_offset <= row.high_watermark <= row.log_end_offset
        assert all(s.end_offset > row.log_start_offset for s in mine), "no row lies below the log start"
        assert row.tail_bytes == sum(s.bytes for s in mine if s.inline)
    assert {row.name for row in _rows_of(cluster, t.blob)} == {s.name for s in segments_ if s.inline}
    assert_delta_is_the_log(cluster)
    assert_replicas_are_whole(cluster)


def _rows_of(cluster: Cluster, table: sa.Table) -> Sequence[sa.Row[Any]]:
    return topics_view(cluster).store.read(lambda connection: connection.execute(sa.select(table)).all())
