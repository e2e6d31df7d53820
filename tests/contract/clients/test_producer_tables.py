"""`send_table`: Arrow tables between single records."""

import kafka.errors
import pyarrow as pa
import pytest

from spark_log.clients.produce.future import Written
from spark_log.ids import TopicPartition
from spark_log.log.append.partitioner import partition_of_key
from spark_log.maintenance.rewrite.rewrite_plan import segments
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.records import NOON_MS
from tests.support.topics import contents, dense_rows
from tests.support.waiting import LIMIT_S

pytestmark = [pytest.mark.usefixtures("resource_oracle"), pytest.mark.on_sqlite]


def test_send_table(produce, cluster, log):
    create_topic(cluster, "t", 3)
    producer = produce(linger_ms=60_000)
    before = producer.send("t", b"before", partition=1)
    table = pa.table(
        {
            "value": ["a", "b", "c", None],
            "key": [None, b"k", b"k", b"x"],
            "partition": pa.array([1, 1, None, 2], pa.int8()),
            "timestamp": pa.array([NOON_MS, None, NOON_MS, NOON_MS], pa.timestamp("ms", "UTC")),
            "headers": pa.array([[("h", b"1")], None, [], None], log_headers()),
        }
    )
    future = producer.send_table("t", table)
    after = producer.send("t", b"after", partition=1)
    written = future.get(timeout=LIMIT_S)
    of_key = partition_of_key(b"k", 3)
    assert sum(end - base for _, base, end in written) == 4
    assert written == sorted(written) and all(isinstance(run, Written) for run in written)
    producer.flush()
    assert before.get().offset == 0
    found = contents(log, "t")
    assert found[1][:3] == [b"before", b"a", b"b"] and found[1][-1] == b"after"
    assert after.get().offset == len(found[1]) - 1
    assert (b"c" in found[of_key] and found[2][-1] is None) or of_key == 2
    first = next(row for row in dense_rows(log, "t") if row["value"] == b"a")
    assert first["headers"] == [{"key": "h", "value": b"1"}] and first["timestamp"].timestamp() * 1000 == NOON_MS


def log_headers():
    return pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def test_large_tables_are_written_to_files_in_order(produce, cluster, log, monkeypatch):
    monkeypatch.setattr("spark_log.clients.produce.table_batches.SLICE_BYTES_MAX", 400_000)
    topic = create_topic(cluster, "t", 2, configs={"inline.max.bytes": "10000"})
    producer = produce(buffer_memory=500_000)
    batch = pa.record_batch(
        {"value": [b"%06d" % n for n in range(60_000)], "partition": [n % 2 for n in range(60_000)]}
    )
    written = producer.send_table("t", batch).get(timeout=60)
    assert written == [Written(TopicPartition("t", number), 0, 30_000) for number in range(2)]
    assert len(cluster.store.read(lambda connection: segments(connection, topic, 0, inline=False))) > 2
    assert contents(log, "t") == {p: [b"%06d" % n for n in range(p, 60_000, 2)] for p in range(2)}


def test_an_empty_table(produce):
    assert produce().send_table("t", pa.table({"value": pa.array([], pa.binary())})).get(timeout=LIMIT_S) == []


BAD_TABLES = [
    ({"value": [1, 2]}, "value: unsupported type int64"), ({"key": [b"k"]}, "value"),
    ({"value": [b"v"], "bogus": [1]}, "bogus"),
    ({"value": [b"v"], "partition": [3]}, "3 does not exist"),
    ({"value": [b"v"], "partition": [-1]}, "-1 does not exist"),
    ({"value": [b"v"], "timestamp": [1]}, "timestamp"),
    ({"value": [b"v", bytes(2000)]}, "max.message.bytes is 1000"),
]  # fmt: skip


def test_a_bad_table_is_refused_as_a_whole(produce, cluster, log):
    create_topic(cluster, "t", 3, configs={"max.message.bytes": "1000"})
    producer = produce()
    for columns, text in BAD_TABLES:
        with pytest.raises(kafka.errors.KafkaError, match=text):
            producer.send_table("t", pa.table(columns))
    with pytest.raises(TypeError, match="table"):
        producer.send_table("t", [b"v"])
    producer.send("t", b"good", partition=0).get(timeout=LIMIT_S)
    assert contents(log, "t") == {0: [b"good"]}
