"""Topics for the Spark tests: created, filled, read and written in one line each."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic, find_topic
from spark_log.ids import OffsetRange
from spark_log.log.append.rules import Acks, Appended
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.records import NOON_MS, table


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
    log = ClientLog(cluster)
    try:
        positions = log.positions(log.find_topic(topic))
        found: dict[int, list[str]] = {}
        for tp, (start, end) in positions.items():
            rows = [row for batch in log.read({tp: OffsetRange(start, end)}) for row in batch.to_pylist()]
            assert [row["offset"] for row in rows] == list(range(start, end))
            if rows:
                found[tp.partition] = ["null" if row["value"] is None else row["value"].decode() for row in rows]
        return found
    finally:
        log.close()


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
