"""Typed topics for the tests, and the oracle of their columns: Python's json module."""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import LogDir, segment_path
from spark_log.cluster.topics import Topic
from spark_log.log.log import Log
from spark_log.metadata.columns import SEGMENT
from spark_log.records.schema import read_schema
from tests.support.records import ranges_of
from tests.support.topics import make

SCHEMA = "item STRING, price DOUBLE, n BIGINT"
WIDER = "note STRING, item STRING, price DOUBLE, n BIGINT"
SHORT = ("item", "price", "n")
TYPES: dict[str, Any] = {"item": str, "price": float, "n": int, "note": str}


def typed(cluster: Cluster, name: str = "orders", **configs: str) -> Topic:
    """A topic of JSON values with the fields of SCHEMA."""
    return make(cluster, name, 1, **{"value_format": "json", "value_schema": SCHEMA, "retention_ms": "-1", **configs})


def oracle(value: bytes | None, names: Sequence[str]) -> dict[str, Any] | None:
    """The record of a value: the fields of a JSON object, None for any other value."""
    if value is None:
        return None
    try:
        found = json.loads(value, parse_constant=lambda _: 1 / 0)
    except (ValueError, ZeroDivisionError):
        return None
    if not isinstance(found, dict):
        return None
    record: dict[str, Any] = {name: found.get(name) for name in names}
    for name, field in record.items():
        wanted = (float, int) if TYPES[name] is float else TYPES[name]
        if field is not None and (not isinstance(field, wanted) or isinstance(field, bool)):
            return None
        if TYPES[name] is int and field is not None and not -(2**63) <= field < 2**63:
            return None
    return {
        name: float(field) if TYPES[name] is float and field is not None else field for name, field in record.items()
    }


def files(cluster: Cluster, topic: Topic) -> list[tuple[int | None, pa.Table]]:
    """(columns version, Arrow table) of each segment file of the topic, from the first log dir."""
    info = next(iter(cluster.log_dirs().values()))
    query = sa.select(SEGMENT.partition, SEGMENT.name, SEGMENT.columns_version).where(
        SEGMENT.topic_id == topic.topic_id, ~SEGMENT.inline
    )
    rows = cluster.store.read(lambda connection: connection.execute(query.order_by(SEGMENT.base_offset)).all())
    log_dir = LogDir(info.uri)
    return [
        (row.columns_version, pq.read_table(log_dir.open(segment_path(topic.folder, row.partition, row.name))))
        for row in rows
    ]


def check_record(value: bytes | None, record: Any, error: str | None, names: Sequence[str]) -> None:
    expected = oracle(value, names)
    assert record == expected
    assert (error is not None) == (value is not None and expected is None)


def check_columns(cluster: Cluster, log: Log, name: str = "orders") -> dict[int, bytes | None]:
    """The columns in files, and those that a reader gets, are the decoded values. Returns the value of each offset."""
    topic = log.find_topic(name)
    assert topic.columns is not None
    schema = read_schema(columns=["value", "offset", "record_error", "record"], record=topic.columns.fields)
    read = [row for batch in log.read(ranges_of(log, topic), schema) for row in batch.to_pylist()]
    for row in read:
        check_record(row["value"], row["record"], row["record_error"], [field.name for field in topic.columns.fields])
    for version, rows in files(cluster, topic):
        assert ("record" in rows.schema.names) == (version is not None)
        if version is not None:
            names = [field.name for field in rows.schema.field("record").type]
            for row in rows.to_pylist():
                check_record(row["value"], row["record"], row["record_error"], names)
    return {row["offset"]: row["value"] for row in read}


def document(number: int, **more: object) -> str:
    return json.dumps({"item": f"i{number}", "price": number / 2, "n": number, **more})
