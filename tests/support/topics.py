"""Topics for the tests: made, filled, read back with and without Spark, compacted, and aged."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from kafka.consumer.fetcher import ConsumerRecord
from pyspark.sql import DataFrame, SparkSession

from spark_log import Consumer
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import in_each_store
from spark_log.cluster.topics import Topic, find_topic
from spark_log.config import ClusterSettings
from spark_log.ids import OffsetRange
from spark_log.log.append.rules import Acks, Appended
from spark_log.log.append.write_ids import Writer
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.compaction.local_compaction import compact
from spark_log.maintenance.context import MaintenanceContext
from spark_log.maintenance.report import Report
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import SEGMENT
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.records import NOON_MS, read_rows, table
from tests.support.stores import change


def make(cluster: Cluster, name: str, partitions: int = 1, **configs: str) -> Topic:
    """Create a topic; configs have `_` for `.` in their names."""
    topic = create_topic(cluster, name, partitions, configs={key.replace("_", "."): v for key, v in configs.items()})
    assert topic is not None
    return topic


def append(
    log: ClientLog, topic: Topic | str, *values: str | None, partition: int = 0, acks: Acks = "all", **columns: Any
) -> Appended:
    """Append records to one partition, in one batch."""
    found = log.find_topic(topic) if isinstance(topic, str) else topic
    [outcome] = log.append(found, [Records(partition, table(*values, **columns))], acks=acks)
    assert isinstance(outcome, Appended), outcome
    return outcome


def put(log: ClientLog, topic: Topic | str, key: str, value: str | None, partition: int = 0) -> None:
    """Append one record with a key."""
    append(log, topic, value, key=key.encode(), partition=partition)


def append_to(cluster: Cluster, topic: Topic | str, *values: str | None, **options: Any) -> Appended:
    """Append as `append` does, with a log that is open for this append only."""
    with contextlib.closing(ClientLog(cluster)) as log:
        return append(log, topic, *values, **options)


def fill(log: ClientLog, topic: Topic | str, counts: Sequence[int], first: int = 0) -> None:
    """Append `counts[p]` records "p/n" to partition p, a second of record time apart."""
    for partition, count in enumerate(counts):
        for n in range(first, first + count):
            append(log, topic, f"{partition}/{n}", partition=partition, timestamp_ms=NOON_MS + n * 1000)


def read(spark: SparkSession, cluster: Cluster | str, **options: Any) -> DataFrame:
    """A batch read. Options have `__` for `.` in their names."""
    address = cluster if isinstance(cluster, str) else str(cluster.store.address)
    return spark.read.format("spark_log").options(**{"cluster": address, **_named(options)}).load()


def read_stream(spark: SparkSession, cluster: Cluster, **options: Any) -> DataFrame:
    named = {"cluster": str(cluster.store.address), **_named(options)}
    return spark.readStream.format("spark_log").options(**named).load()


def write(frame: DataFrame, cluster: Cluster, mode: str = "append", **options: Any) -> None:
    named = {"cluster": str(cluster.store.address), **_named(options)}
    frame.write.format("spark_log").options(**named).mode(mode).save()


def stored(cluster: Cluster, topic: str) -> dict[int, list[str]]:
    """The values ("null" for null) of each partition in offset order, read without Spark; offsets must be dense."""
    found: dict[int, list[str]] = {}
    with contextlib.closing(ClientLog(cluster)) as log:
        for tp, (start, end) in log.positions(log.find_topic(topic)).items():
            rows = [row for batch in log.read({tp: OffsetRange(start, end)}) for row in batch.to_pylist()]
            assert [row["offset"] for row in rows] == list(range(start, end))
            if rows:
                found[tp.partition] = ["null" if row["value"] is None else row["value"].decode() for row in rows]
    return found


def all_stored(cluster: Cluster, topic: str) -> list[str]:
    """Every value of the topic, sorted."""
    return sorted(value for values in stored(cluster, topic).values() for value in values)


def values(frame: DataFrame) -> dict[int, list[str]]:
    """The values of each partition in offset order, as a DataFrame of the source's columns has them."""
    found: dict[int, list[str]] = {}
    for row in frame.select("partition", "offset", "value").orderBy("partition", "offset").collect():
        found.setdefault(row.partition, []).append(row.value.decode())
    return found


@contextlib.contextmanager
def fails(*texts: str) -> Iterator[None]:
    """Checks that the block fails with a message that contains each of `texts`."""
    try:
        yield
    except Exception as error:  # Spark wraps the error of a worker in one of several of its own
        for text in texts:
            assert text in str(error), f"{text!r} is not in: {str(error)[:3000]}"
    else:
        pytest.fail(f"no error, expected one with {texts}")


def _named(options: Mapping[str, Any]) -> dict[str, str]:
    return {key.replace("__", "."): _text(value) for key, value in options.items()}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def find(cluster: Cluster, name: str) -> Topic:
    """The topic as its store has it, with its configs."""
    at_home = cluster.store.read(lambda connection: find_topic(connection, name))
    return cluster.of(at_home).store.read(lambda connection: find_topic(connection, name))


def compact_now(cluster: Cluster, topic: str) -> Report:
    """Compact all of the topic that can be compacted; there must be work."""
    writer = Writer(cluster.store, "compaction of a test", 60_000)
    try:
        [report] = compact(MaintenanceContext(cluster, ClusterSettings(), writer, topic_names=[topic]), force=True)
        return report
    finally:
        writer.close()


TRANSACTION = """
import sys
from spark_log import Producer
with Producer(cluster=sys.argv[1], transactional_id="x") as producer:
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", b"committed", partition=0)
    producer.commit_transaction()
"""
"""A program that commits a transaction with one record in topic t of the cluster that is its argument."""


def dense_rows(log: ClientLog, topic: str) -> list[dict[str, Any]]:
    """Every record of a topic by partition and offset; offsets must be dense."""
    found = log.find_topic(topic)
    read = read_rows(log, found)
    for partition in range(found.partition_count):
        offsets = [row["offset"] for row in read if row["partition"] == partition]
        assert offsets == list(range(len(offsets)))
    return read


def contents(log: ClientLog, topic: str) -> dict[int, list[bytes]]:
    """The values of each partition that has any, in order."""
    found: dict[int, list[bytes]] = {}
    for row in dense_rows(log, topic):
        found.setdefault(row["partition"], []).append(row["value"])
    return found


def consume_all(address: str, count: int, topic: str) -> list[ConsumerRecord]:
    """The records of a topic, of which there must be `count`, read with a consumer without a group."""
    with Consumer(topic, cluster=address, auto_offset_reset="earliest") as consumer:
        found: list[ConsumerRecord] = []
        while len(found) < count:
            polled = consumer.poll(60_000)
            assert polled, f"only {len(found)} of {count} records of {topic}"
            found += [record for records in polled.values() for record in records]
        assert consumer.poll(0) == {}
    return found


def tail(cluster: Cluster) -> int:
    """Records in inline tails, of all stores."""
    query = sa.select(sa.func.coalesce(sa.func.sum(SEGMENT.record_count), 0)).where(SEGMENT.inline)
    counts = in_each_store(cluster, lambda view: view.store.read(lambda c: c.execute(query).scalar_one()))
    return int(sum(counts.values()))


def make_older(cluster: Cluster, by_ms: int) -> None:
    """Age every segment by `by_ms`, as if it had been appended earlier."""
    change(cluster, t.segment.update().values(appended_ms=SEGMENT.appended_ms - by_ms))
