"""The current-state table of change events: it shows the rows of the source's table."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.bad_record_listing import bad_rows
from spark_log.log.reader import LogReader
from spark_log.maintenance.removal.retention import delete_records
from spark_log.maintenance.task_list import run_tasks
from spark_log.replication.controller.topic_operations import alter_configs
from spark_log.tables.publication import publish
from spark_log.tables.verification import verify
from tests.support.stores import each_on_sqlite_last_on_postgres
from tests.support.table_checks import assert_current, location_of
from tests.support.topics import make, put

pytestmark = pytest.mark.delta

CONFIGS = {
    "inline_max_bytes": "0",
    "delta_max_lag_ms": "-1",
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": "0",
    "delete_retention_ms": "0",
    "table_current": "delta",
    "value_format": "json",
    "value_schema": "id BIGINT, price DOUBLE",
    "value_envelope": "debezium",
}
"""Each append writes a file."""

Row = tuple[int, float]


def event(op, before, after, lsn):
    rows = {
        "before": before and {"id": before[0], "price": before[1]},
        "after": after and {"id": after[0], "price": after[1]},
    }
    return json.dumps({**rows, "op": op, "source": {"lsn": lsn}})


def rows_of_record(cluster, topic):
    """The price of each id in the table."""
    query = QueryBuilder().register("t", DeltaTable(location_of(cluster, topic)))
    records = pa.RecordBatchReader.from_stream(query.execute("SELECT record FROM t")).read_all()["record"].to_pylist()
    assert len({each and each["id"] for each in records}) == len(records)
    return {each and each["id"]: each and each["price"] for each in records}


HISTORY = [
    ("1", "r", None, (1, 1.0), 1),
    ("2", "r", None, (2, 2.0), 1),
    ("3", "c", None, (3, 3.0), 2),
    ("1", "u", (1, 1.0), (1, 1.5), 3),
    ("2", "d", (2, 2.0), None, 4),
    ("2", None, None, None, None),
    ("3", "d", (3, 3.0), None, 5),
    ("3", None, None, None, None),
    ("4", "c", None, (4, 3.0), 5),
    ("1", "u", (1, 1.5), (1, 1.75), 6),
]
"""A snapshot, updates, a deletion with its tombstone, and a changed key."""
ROWS = {1: 1.75, 4: 3.0}


def replay(log, topic, history):
    for key, op, *facts in history:
        put(log, topic, key, None if op is None else event(op, *facts))


@each_on_sqlite_last_on_postgres("order", [("offset",), ("sequence",)])
def test_events_are_the_rows_of_the_source(cluster, log, order):
    topic = make(cluster, "t", 1, **CONFIGS, table_current_order=order)
    replay(log, topic, HISTORY)
    put(log, topic, "truncate", event("t", None, None, 7))
    publish(cluster, topic)
    rows = ROWS if order == "sequence" else {**ROWS, None: None}
    assert rows_of_record(cluster, topic) == rows, "the truncation is a bad record"
    reader = LogReader(cluster)
    assert sum(1 for _ in bad_rows(reader, reader.find_topic(topic.name))) == 1
    for task in ("merge", "compact"):
        list(run_tasks(cluster, [task], now=True))
        publish(cluster, topic)
        assert rows_of_record(cluster, topic) == rows
    replay(log, topic, HISTORY)
    publish(cluster, topic)
    assert rows_of_record(cluster, topic) == rows
    assert [each.difference for each in verify(cluster, topic)] == [None, None]


@pytest.mark.on_sqlite
@pytest.mark.parametrize("compacted", [False, True])
def test_events_that_are_repeated_never_show_an_older_row(cluster, log, compacted):
    """Debezium repeats events after a restart. Compaction keeps what is needed to know that they are old."""
    topic = make(cluster, "t", 1, **CONFIGS, table_current_order="sequence")
    replay(log, topic, HISTORY)
    for begin in (0, 5):
        for each in HISTORY[begin:]:
            replay(log, topic, [each])
            if compacted:
                list(run_tasks(cluster, ["compact"], now=True))
            publish(cluster, topic)
            assert rows_of_record(cluster, topic) == ROWS
    assert_current(cluster, topic)
    put(log, topic, "2", event("c", None, (2, 9.0), 7))
    put(log, topic, "1", event("d", (1, 1.75), None, 8))
    list(run_tasks(cluster, ["merge", "compact"], now=True))
    publish(cluster, topic)
    assert rows_of_record(cluster, topic) == {2: 9.0, 4: 3.0}
    assert [each.difference for each in verify(cluster, topic)] == [None, None]


@pytest.mark.on_sqlite
def test_another_order_finds_the_rows_anew(cluster, log):
    topic = make(cluster, "t", 1, **CONFIGS)
    replay(log, topic, HISTORY)
    replay(log, topic, HISTORY[:4])
    publish(cluster, topic)
    older = {1: 1.5, 2: 2.0, 3: 3.0, 4: 3.0}
    assert rows_of_record(cluster, topic) == older
    for order, rows in (("sequence", ROWS), ("offset", older)):
        topic = alter_configs(cluster, "t", {"table.current.order": order})
        publish(cluster, topic)
        assert rows_of_record(cluster, topic) == rows, "no record is needed"
    topic = alter_configs(cluster, "t", {"table.current.order": "sequence", "value.envelope.sequence": "source.ts"})
    publish(cluster, topic)
    assert rows_of_record(cluster, topic) == older, "no event has this number"
    list(run_tasks(cluster, ["compact"], now=True))
    publish(cluster, topic)
    assert rows_of_record(cluster, topic) == older
    assert [each.difference for each in verify(cluster, topic)] == [None, None]


@pytest.mark.on_sqlite
def test_a_larger_sequence_that_is_deleted_shows_the_next_event(cluster, log):
    topic = make(
        cluster, "t", 1, **{**CONFIGS, "cleanup_policy": "delete", "retention_ms": "-1"}, table_current_order="sequence"
    )
    put(log, topic, "1", event("c", None, (1, 1.0), 10))
    put(log, topic, "1", event("u", None, (1, 0.5), 5))
    publish(cluster, topic)
    assert rows_of_record(cluster, topic) == {1: 1.0}
    delete_records(cluster, {TopicPartition("t", 0): 1})
    publish(cluster, topic)
    assert rows_of_record(cluster, topic) == {1: 0.5}
    assert [each.difference for each in verify(cluster, topic)] == [None, None]


@pytest.mark.on_sqlite
def test_a_file_of_another_program_without_a_base_offset_is_removed(cluster, log):
    topic = make(cluster, "t", 1, **CONFIGS, table_current_order="sequence")
    replay(log, topic, HISTORY)
    publish(cluster, topic)
    file = {"path": "x.parquet", "partitionValues": {"partition": "0", "base_offset": None}, "size": 1}
    add = {"add": {**file, "modificationTime": 0, "dataChange": True}}
    version = DeltaTable(location_of(cluster, topic)).version() + 1
    Path(location_of(cluster, topic), "_delta_log", f"{version:020d}.json").write_text(json.dumps(add))
    publish(cluster, topic)
    assert rows_of_record(cluster, topic) == ROWS


@pytest.mark.on_sqlite
def test_compaction_keeps_the_last_tombstone_for_its_retention(cluster, log):
    """Consumers of the log learn of a deletion by it, though the table does without it."""
    topic = make(cluster, "t", 1, **{**CONFIGS, "delete_retention_ms": "86400000"}, table_current_order="sequence")
    replay(log, topic, HISTORY)
    replay(log, topic, HISTORY)
    list(run_tasks(cluster, ["compact"], now=True))
    rows = [row for batch in log.read({TopicPartition("t", 0): OffsetRange(0, 20)}) for row in batch.to_pylist()]
    assert [row["key"] for row in rows if row["value"] is None] == [b"2", b"3"]
    assert len(rows) == 6, "two rows, two events of deletion, and their tombstones"
