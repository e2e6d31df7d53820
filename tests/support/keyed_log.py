"""Logs whose records have individual keys, for compaction and erasing; and a search for bytes on disk."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from spark_log.cluster.topics import Topic
from spark_log.log.append.rules import (
    Acks,
    Appended,
)
from spark_log.log.log import Records
from spark_log.log.records.schema import RECORD_SCHEMA, read_schema
from spark_log.maintenance.client_log import ClientLog
from tests.support.records import NOON_MS, ranges_of

Rows = list[tuple[int, int, bytes | None, bytes | None]]
"""(partition, offset, key, value)."""


def keyed(rows: Sequence[tuple[bytes | None, bytes | None]], headers: Sequence[tuple[str, bytes]] = ()) -> pa.Table:
    """Records with these keys and values, all with the same headers."""
    columns = [
        pa.array([key for key, _ in rows], pa.binary()),
        pa.array([value for _, value in rows], pa.binary()),
        pa.array([list(headers) or None] * len(rows), RECORD_SCHEMA.field("headers").type),
        pa.array([NOON_MS * 1000] * len(rows), pa.int64()).cast(RECORD_SCHEMA.field("timestamp").type),
    ]
    return pa.table(columns, schema=RECORD_SCHEMA)


def append_keyed(
    log: ClientLog,
    topic: Topic,
    *rows: tuple[bytes | None, bytes | None],
    partition: int = 0,
    headers: Sequence[tuple[str, bytes]] = (),
    acks: Acks = "all",
) -> None:
    """Append one batch."""
    [outcome] = log.append(topic, [Records(partition, keyed(rows, headers))], acks=acks)
    assert isinstance(outcome, Appended), outcome


def rows_of(log: ClientLog, topic: Topic) -> Rows:
    """Every readable record of the topic, by partition and offset."""
    schema = read_schema(columns=["partition", "offset", "key", "value"])
    tables = [pa.Table.from_batches([batch]) for batch in log.read(ranges_of(log, topic), schema)]
    if not tables:
        return []
    columns = pa.concat_tables(tables).to_pydict()
    return list(zip(columns["partition"], columns["offset"], columns["key"], columns["value"], strict=True))


def files_with(folder: Path, *texts: bytes) -> list[str]:
    """Names of the files below `folder` whose bytes contain one of `texts`."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(path.name for path in files if any(text in path.read_bytes() for text in texts))
