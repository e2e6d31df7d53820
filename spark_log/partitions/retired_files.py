"""Files that the metadata no longer names. They stay for file.delete.delay.ms, since readers may still use them."""

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from spark_log.cluster.log_dir import segment_path
from spark_log.cluster.topics import Topic
from spark_log.metadata import tables as t
from spark_log.metadata.store import StoreClock


def retire_files(
    connection: sa.Connection, topic: Topic, partition: int, names: Iterable[str], change: int, now: StoreClock
) -> None:
    """Note that these segment files have left the log. `change` is the partition's with which they did."""
    insert_retired(connection, retired_rows(topic, partition, names, change, now))


def retired_rows(
    topic: Topic, partition: int, names: Iterable[str], change: int, now: StoreClock
) -> list[dict[str, Any]]:
    """The rows of `retire_files`; those of many partitions are inserted at once."""
    facts = {"topic_id": topic.topic_id, "partition": partition, "change": change, "retired_ms": now.wall_ms}
    return [{"path": segment_path(topic.folder, partition, name), **facts} for name in names]


def insert_retired(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        connection.execute(t.retired_file.insert(), rows)
