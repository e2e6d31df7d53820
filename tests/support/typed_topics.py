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
from spark_log.log.columns.key_and_value import PARTS
from spark_log.log.records.schema import SEGMENT_SCHEMA, read_schema
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata.sql_columns import SEGMENT
from tests.support.records import ranges_of
from tests.support.stores import topics_view
from tests.support.topics import make

SCHEMA = "item STRING, price DOUBLE, n BIGINT"
WIDER = "note STRING, item STRING, price DOUBLE, n BIGINT"
SHORT = ("item", "price", "n")
KEYS = {"key_format": "json", "key_schema": "n BIGINT, item STRING"}
"""Configs of a topic whose keys are typed too."""
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
    rows = topics_view(cluster).store.read(
        lambda connection: connection.execute(query.order_by(SEGMENT.base_offset)).all()
    )
    log_dir = LogDir(info.uri)
    return [
        (row.columns_version, pq.read_table(log_dir.open(segment_path(topic.folder, row.partition, row.name))))
        for row in rows
    ]


def check_records(rows: pa.Table) -> None:
    """The typed columns of the rows are their decoded keys and values."""
    for part in PARTS:
        if part.record in rows.schema.names:
            names = [field.name for field in rows.schema.field(part.record).type]
            columns = rows.select([part.source, part.error, part.record]).to_pydict().values()
            for given, error, record in zip(*columns, strict=True):
                expected = oracle(given, names)
                assert record == expected
                assert (error is not None) == (given is not None and expected is None)


def check_columns(cluster: Cluster, log: ClientLog, name: str = "orders") -> dict[int, bytes | None]:
    """The columns in files, and those that a reader gets, are the decoded keys and values. Returns the value of each
    offset.
    """
    topic = log.find_topic(name)
    assert topic.columns is not None
    fields = topic.columns.fields
    schema = read_schema(columns=["key", "value", "offset", *fields.names], typed=fields)
    read = pa.Table.from_batches(log.read(ranges_of(log, topic), schema), schema)
    check_records(read)
    for version, rows in files(cluster, topic):
        assert (len(rows.schema) > len(SEGMENT_SCHEMA)) == (version is not None)
        assert version != topic.columns.version or list(rows.schema)[len(SEGMENT_SCHEMA) :] == list(fields)
        check_records(rows)
    return dict(zip(read.column("offset").to_pylist(), read.column("value").to_pylist(), strict=True))


def document(number: int, **more: object) -> str:
    return json.dumps({"item": f"i{number}", "price": number / 2, "n": number, **more})
