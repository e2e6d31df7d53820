"""Shared functions of the producer's tests: reading a topic back, and changing metadata without notice
to a producer.
"""

from typing import Any

from kafka.consumer.fetcher import ConsumerRecord

from spark_log import Consumer
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import in_each_store
from spark_log.maintenance.client_log import ClientLog
from tests.support.records import ranges_of

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


def rows(log: ClientLog, topic: str) -> list[dict[str, Any]]:
    """Every record of a topic by partition and offset; offsets must be dense."""
    found = log.find_topic(topic)
    read = [row for batch in log.read(ranges_of(log, found)) for row in batch.to_pylist()]
    for partition in range(found.partition_count):
        offsets = [row["offset"] for row in read if row["partition"] == partition]
        assert offsets == list(range(len(offsets)))
    return read


def stored(log: ClientLog, topic: str) -> dict[int, list[bytes]]:
    """The values of each partition that has any, in order."""
    found: dict[int, list[bytes]] = {}
    for row in rows(log, topic):
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


def change(cluster: Cluster, statement: Any) -> None:
    """Run a statement on each metadata store: the rows of a table are in the store of their topic, or at home."""
    in_each_store(cluster, lambda view: view.store.transact(lambda connection, _: connection.execute(statement)))
