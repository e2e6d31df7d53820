"""The cost of replication, and how fast it recovers: `python -m benchmarks.replication`, `make bench-replication`.

Three embedded brokers with a local log dir each, on a SQLite cluster and on PostgreSQL too with --postgresql. Factor 3
and factor 1 take turns in the same run, and their medians are compared.
"""

import os
import statistics
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import sqlalchemy as sa

from benchmarks.setup import StoreRow, in_turns, medians, noise, parser, records, report
from spark_log import Producer
from spark_log.cluster.brokers import BrokerSession, add_broker, embed_broker
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Lease
from spark_log.cluster.topics import find_topics
from spark_log.config import ClusterSettings
from spark_log.log.append.rules import Appended
from spark_log.log.log import Records
from spark_log.log.partitions.partition_rows import read_partitions
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.coordinator.coordinator import Coordinator
from spark_log.metadata import tables as t
from spark_log.replication.controller.controller import LEASE, elect_leaders
from spark_log.replication.controller.isr_lag import read_lagging_members
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.replication.replicas.replicas_to_copy import find_lagging_replicas

BULK_RECORDS = 2_000_000
GETS = 400
FAILED_PARTITIONS = 1_000
MANY_PARTITIONS = 10_000
LEASE_MS = 2_000


def bulk(address: str, topic: str, table: pa.Table) -> float:
    """Records a second of a bulk write that waits for every replica."""
    with Producer(cluster=address, acks="all") as producer:
        began = time.perf_counter()
        producer.send_table(topic, table)
        producer.flush()
        return int(table.num_rows) / (time.perf_counter() - began)


def get_ms(address: str, topic: str) -> float:
    """Median milliseconds of send().get() of one small record."""
    taken = []
    with Producer(cluster=address, acks="all") as producer:
        for _ in range(GETS):
            began = time.perf_counter()
            producer.send(topic, b"x" * 100).get()
            taken.append(time.perf_counter() - began)
    return 1000 * statistics.median(taken)


def failover(cluster: Cluster) -> tuple[float, float]:
    """Seconds from the end of a dead broker's lease to the last new leader, and to the next acks=all append."""
    topic = create_topic(cluster, "failover", FAILED_PARTITIONS, 3, {"inline.max.bytes": "0"})
    assert topic is not None
    log = ClientLog(cluster)
    session = BrokerSession(cluster.store, 2, LEASE_MS)
    with Coordinator(cluster, settings=ClusterSettings(auto_leader_rebalance_enable=False)) as coordinator:
        while not coordinator.controller.acting:
            time.sleep(0.01)
        # all of the leaders are on the broker that dies
        mine = t.partition.update().where(t.partition.c.topic_id == topic.topic_id).values(leader=2)
        cluster.store.transact(lambda connection: connection.execute(mine))
        before = time.perf_counter()
        session.register()
        lease_end = (before + time.perf_counter()) / 2 + LEASE_MS / 1000
        led = sa.select(sa.func.count()).where(t.partition.c.topic_id == topic.topic_id, t.partition.c.leader == 2)
        while cluster.store.read(lambda connection: connection.execute(led).scalar_one()):
            time.sleep(0.01)
        elected_s = time.perf_counter() - lease_end
        (outcome,) = log.append(topic, [Records(0, values(10))])
        assert isinstance(outcome, Appended)
        working_s = time.perf_counter() - lease_end
    log.close()
    return elected_s, working_s


def full_load(cluster: Cluster) -> float:
    """Seconds in which a new controller takes the lease and checks all metadata once."""
    settings = ClusterSettings()
    began = time.perf_counter()
    lease = Lease(cluster.store, LEASE, settings.controller_lease_ms)
    assert lease.take_or_renew()
    with cluster.store.snapshot() as connection:
        found = sum(len(read_partitions(connection, topic.topic_id)) for topic in find_topics(connection).values())
        read_lagging_members(connection)
        find_lagging_replicas(connection, cluster.store.clock(connection))
    elect_leaders(cluster.store, lease.check)
    taken = time.perf_counter() - began
    assert found >= MANY_PARTITIONS
    lease.give_back()
    return taken


def values(count: int) -> pa.Table:
    numbers = pa.array([b"%0100d" % number for number in range(count)], pa.binary())
    return records(numbers, timestamp_ms=time.time_ns() // 1_000_000)


def measure(cluster: Cluster, address: str, store: str, rounds: int) -> Iterator[StoreRow]:
    for factor in (1, 3):
        create_topic(cluster, f"bulk-{factor}", 4, factor)
        create_topic(cluster, f"get-{factor}", 1, factor)
    text = pa.array([b"%0100d" % number for number in range(BULK_RECORDS)], pa.binary())
    for kind, column in (("text", text), ("incompressible", noise(BULK_RECORDS, np.random.default_rng(0)))):
        table = pa.table({"value": column})
        rates = {factor: partial(bulk, address, f"bulk-{factor}", table) for factor in ("1", "3")}
        one, three = medians(in_turns(rates, rounds)).values()
        what = f"bulk write of {BULK_RECORDS:,} values of 100 bytes, {kind}, acks=all, factor 3"
        yield StoreRow(what, store, f"{three / one:.2f} of factor 1 ({three:,.0f}/s, {one:,.0f}/s)", ">= 0.4")
    gets = {factor: partial(get_ms, address, f"get-{factor}") for factor in ("1", "3")}
    one, three = medians(in_turns(gets, rounds)).values()
    what = "send().get() of one small record, acks=all, factor 3, p50"
    yield StoreRow(what, store, f"{three / one:.2f} x factor 1 ({three:.2f} ms, {one:.2f} ms)", "<= 1.5 x")
    os.sync()  # the next fsync shall not wait for what the bulk writes left to the kernel
    elected_s, working_s = failover(cluster)
    what = f"failover of {FAILED_PARTITIONS:,} partitions, after the lease's end"
    yield StoreRow(what, store, f"{elected_s:.2f} s; the next append is acknowledged at {working_s:.2f} s", "<= 2 s")
    embed_broker(cluster, 2)
    create_topic(cluster, "many", MANY_PARTITIONS, 3)
    taken = statistics.median(full_load(cluster) for _ in range(rounds))
    what = f"a new controller reads {MANY_PARTITIONS:,} partitions x 3 replicas and looks at each"
    yield StoreRow(what, store, f"{taken:.2f} s", "<= 2 s")


def main() -> None:
    arguments = parser(__doc__).parse_args()

    def rows(store: str, address: str, folder: Path) -> Iterator[StoreRow]:
        with Cluster.open(address) as cluster:
            for broker in (2, 3):
                add_broker(cluster, broker, [str(folder / f"d{broker}")])
            yield from measure(cluster, address, store, arguments.rounds)

    report("Replication", arguments, rows)


if __name__ == "__main__":
    main()
