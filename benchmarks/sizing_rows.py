"""Bytes that each thing of a cluster takes in the metadata store, with its indexes: `python -m benchmarks.sizing_rows`.

Each thing is made many times, as clients make it or by `benchmarks.scale_rows`, and the growth of its tables is divided
by their number. The tables are as densely filled as new ones are: a store that is updated all the time has up to twice
as much.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import sqlalchemy as sa

from benchmarks import scale_rows as simulated
from benchmarks.replication import values
from benchmarks.setup import clusters, parser, print_table
from spark_log import Consumer, Producer
from spark_log.clients.kafka import OffsetAndMetadata
from spark_log.cluster.brokers import add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.ids import TopicPartition
from spark_log.log.append.producer_rows import register_producer
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.removal.retention import apply_retention
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic

_OPEN = {"inline.tail.bytes": "67108864", "delta.max.lag.ms": "-1"}
"""A tail that no append of the benchmark seals."""


def main() -> None:
    arguments = parser(__doc__, rounds=None).parse_args()
    found = {}
    for store, address, folder in clusters(arguments):
        found[store] = dict(measure(address, folder))
    lines = ([thing, *(f"{of_store[thing]:,.0f}" for of_store in found.values())] for thing in found["SQLite"])
    print_table("Bytes in the metadata store, with indexes", ("one", *found), lines)


def measure(address: str, folder: Path) -> Iterator[tuple[str, float]]:
    """Things and their bytes."""
    with Cluster.open(address) as cluster:
        for number in (2, 3):
            add_broker(cluster, number, [f"{folder}/log-dir-{number}"])

        def grown(make: Callable[[], object], count: int, *names: str) -> float:
            before = table_bytes(cluster)
            make()
            after = table_bytes(cluster)
            return sum(after[name] - before[name] for name in names) / count

        def topics() -> None:
            for number in range(300):
                _topic(cluster, f"topic-{number:03}", 1)

        yield "topic of one partition", grown(topics, 300, "topic", "partition", "replica")
        wide = grown(lambda: _topic(cluster, "wide", 10_000), 10_000, "partition", "replica")
        yield "partition, one replica", wide
        three = grown(lambda: create_topic(cluster, "three", 10_000, 3), 10_000, "partition", "replica")
        yield "replica more", (three - wide) / 2
        long = _topic(cluster, "long", 4)
        yield "segment", grown(lambda: simulated.add_segments(cluster, long, 5_000), 20_000, "segment")
        yield "replaced or expired file", grown(lambda: _retire(cluster, long), 20_000, "retired_file")
        grouped = _topic(cluster, "grouped", 1_000)
        yield (
            "member of a group, with one partition",
            grown(
                lambda: simulated.add_members(cluster, "g", grouped, range(1_000)),
                1_000,
                "group_member",
                "group_partition",
            ),
        )
        with Consumer(cluster=address, group_id="offsets", enable_auto_commit=False) as consumer:
            offsets = {TopicPartition("wide", number): OffsetAndMetadata(0, "", 0) for number in range(10_000)}
            consumer.assign(list(offsets))
            committed = grown(lambda: consumer.commit(offsets), 10_000, "group_offset")
        yield "committed offset of a partition", committed
        yield (
            "idle producer",
            grown(lambda: [register_producer(cluster.store, 60_000) for _ in range(2_000)], 2_000, "producer"),
        )
        yield from _appends(cluster, address, grown)


def _appends(cluster: Cluster, address: str, grown: Callable[..., float]) -> Iterator[tuple[str, float]]:
    tails = create_topic(cluster, "tails", 1, configs=_OPEN)
    assert tails is not None
    log = ClientLog(cluster)
    one = [Records(0, values(1))]
    yield (
        "append of one record of 100 bytes, until it is sealed",
        grown(lambda: [log.append(tails, one) for _ in range(2_000)], 2_000, "segment", "blob"),
    )
    log.stop_sealing()
    log.close()
    with Producer(cluster=address, enable_idempotence=True, linger_ms=0) as producer:
        batches = grown(lambda: _send(producer, "wide", 5 * 1_000, 1_000), 5_000, "producer_batch")
    yield "producer's state of a partition it writes to (5 batches)", 5 * batches
    with Producer(cluster=address, transactional_id="sizing", linger_ms=0) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        yield (
            "batch of an open transaction, without its records",
            grown(lambda: _send(producer, "wide", 1_000, 1_000), 1_000, "transaction_segment"),
        )
        producer.abort_transaction()


def _send(producer: Producer, topic: str, count: int, partitions: int) -> None:
    """Batches of one record, one after the other to each partition."""
    for number in range(count):
        producer.send(topic, b"v" * 100, partition=number % partitions)
        if number % partitions == partitions - 1:
            producer.flush()


def _topic(cluster: Cluster, name: str, partitions: int) -> Topic:
    topic = create_topic(cluster, name, partitions, configs=simulated.CONFIGS)
    assert topic is not None
    return topic


def _retire(cluster: Cluster, topic: Topic) -> None:
    """Let retention drop all segments of the topic."""

    def age(connection: sa.Connection) -> None:
        here = t.segment.c.topic_id == topic.topic_id
        connection.execute(t.segment.update().where(here).values(min_timestamp_ms=1, max_timestamp_ms=1))

    cluster.store.transact(age)
    apply_retention(cluster, topic)


def table_bytes(cluster: Cluster) -> dict[str, int]:
    """The bytes of each table with its indexes. PostgreSQL's are those of pages in use after a vacuum."""
    if cluster.store.sqlite:
        query = (
            "SELECT m.tbl_name, sum(s.pgsize) FROM dbstat AS s JOIN sqlite_master AS m ON m.name = s.name"
            " GROUP BY m.tbl_name"
        )
    else:
        query = "SELECT relname, pg_total_relation_size(relid) FROM pg_stat_user_tables"
    with cluster.store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if not cluster.store.sqlite:
            connection.exec_driver_sql("VACUUM")
        return {str(name): int(size) for name, size in connection.exec_driver_sql(query)}


if __name__ == "__main__":
    main()
