"""What maintenance tasks leave: readable records, rows of segments, and the files of log dirs."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import in_each_store
from spark_log.cluster.topics import Topic
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.append.rules import Appended
from spark_log.log.log import Records
from spark_log.log.records.schema import RECORD_SCHEMA
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.report import Report
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import SEGMENT
from tests.support.records import NOON_MS
from tests.support.replicas import folder_of
from tests.support.stores import topics_view
from tests.support.table_checks import assert_delta_is_the_log, assert_replicas_are_whole


def clean(cluster: Cluster, **filters: Any) -> dict[str | None, Report]:
    """The reports by topic. Those of all stores about no topic are one."""
    found: dict[str | None, Report] = {}
    for report in run_tasks(cluster, ["files"], **filters):
        before = found.get(report.topic)
        if before is not None:
            report = replace(report, before=before.before + report.before, notes=before.notes + report.notes)
        found[report.topic] = report
    return found


def folders_of(root: Path) -> list[str]:
    """Names of the entries of a log dir, without its marker files, of which there is at least one."""
    assert list(root.glob("spark_log_dir*.json"))
    return sorted(path.name for path in root.iterdir() if not path.match("spark_log_dir*.json"))


def retired(cluster: Cluster) -> list[str]:
    """Paths of the retired files."""
    query = sa.select(t.retired_file.c.path)
    return _values_in_all_stores(cluster, query)


def named(cluster: Cluster) -> list[str]:
    """Names of the files that the metadata name."""
    query = sa.select(t.segment.c.name).where(~t.segment.c.inline)
    return _values_in_all_stores(cluster, query)


def _values_in_all_stores(cluster: Cluster, query: sa.Select[Any]) -> list[str]:
    found = in_each_store(cluster, lambda view: view.store.read(lambda c: c.execute(query).scalars().all()))
    return sorted(value for values in found.values() for value in values)


def files(folder: Path, topic: Topic) -> list[str]:
    """Names of all files in the segment folders of the topic."""
    return sorted(path.name for path in Path(folder, topic.folder, "_segments").rglob("*") if path.is_file())


def plant(cluster: Cluster, path: str, content: bytes = b"x", broker_id: int = 1, age_ms: int = 0) -> Path:
    """A file in a log dir, by its path there."""
    place = folder_of(cluster, broker_id) / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    when_s = (clock.wall_ms() - age_ms) / 1000
    os.utime(place, (when_s, when_s))
    return place


def keyed(text: str, timestamp_ms: int = NOON_MS) -> pa.Table:
    """`a1`: key a, value a1. `-a`: a tombstone. `~x`: no key."""
    words = text.split()
    return pa.table(
        [
            pa.array([None if word[0] == "~" else word.lstrip("-")[:1].encode() for word in words], pa.binary()),
            pa.array([None if word[0] == "-" else word.encode() for word in words], pa.binary()),
            pa.nulls(len(words), RECORD_SCHEMA.field("headers").type),
            pa.array([timestamp_ms * 1000] * len(words)).cast(RECORD_SCHEMA.field("timestamp").type),
        ],
        schema=RECORD_SCHEMA,
    )


def append_keyed(log: ClientLog, topic: Topic, *batches: str, partition: int = 0, **columns: Any) -> None:
    """Append batches of `keyed` records."""
    for batch in batches:
        [outcome] = log.append(topic, [Records(partition, keyed(batch, **columns))])
        assert isinstance(outcome, Appended), outcome


def readable(log: ClientLog, topic: Topic, partition: int = 0) -> str:
    """`offset:value` of all readable records."""
    where = TopicPartition(topic.name, partition)
    found = OffsetRange(*log.positions(topic)[where])
    rows = [row for batch in log.read({where: found}) for row in batch.to_pylist()]
    return " ".join(f"{row['offset']}:{(row['value'] or b'-' + row['key']).decode()}" for row in rows)


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
