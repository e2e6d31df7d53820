"""The cost of replication, and how fast it recovers: `python -m benchmarks.replication`, `make bench-replication`.

Three embedded brokers with a local log dir each, on a SQLite cluster and on PostgreSQL too with --postgresql. Factor 3
and factor 1 take turns in the same run, and their medians are compared.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import sqlalchemy as sa
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
from benchmarks.producer import Row
from spark_log import Producer
from spark_log.cluster.brokers import BrokerSession, add_broker, embed_broker
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Lease
from spark_log.cluster.topics import find_topics
from spark_log.config import ClusterSettings
from spark_log.log.append.rules import Appended
from spark_log.log.log import Records
from spark_log.log.partitions.partition_rows import read_partitions
from spark_log.log.records.schema import RECORD_SCHEMA
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


def alternate(rounds: int, one: Callable[[], float], other: Callable[[], float]) -> tuple[float, float]:
    """Medians of both; they take turns, after one that does not count."""
    one(), other()
    found = [(one(), other()) for _ in range(rounds)]
    return statistics.median(a for a, _ in found), statistics.median(b for _, b in found)


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
    columns = [
        pa.nulls(count, pa.binary()),
        pa.array([b"%0100d" % number for number in range(count)], pa.binary()),
        pa.nulls(count, RECORD_SCHEMA.field("headers").type),
        pa.array([time.time_ns() // 1_000] * count, pa.int64()).cast(RECORD_SCHEMA.field("timestamp").type),
    ]
    return pa.table(columns, schema=RECORD_SCHEMA)


def measure(cluster: Cluster, address: str, store: str, rounds: int) -> Iterator[Row]:
    for factor in (1, 3):
        create_topic(cluster, f"bulk-{factor}", 4, factor)
        create_topic(cluster, f"get-{factor}", 1, factor)
    text = pa.array([b"%0100d" % number for number in range(BULK_RECORDS)], pa.binary())
    noise = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(100), BULK_RECORDS, [None, pa.py_buffer(np.random.default_rng(0).bytes(100 * BULK_RECORDS))]
    ).cast(pa.binary())
    for kind, column in (("text", text), ("incompressible", noise)):
        table = pa.table({"value": column})
        one, three = alternate(
            rounds,
            lambda table=table: bulk(address, "bulk-1", table),  # type: ignore[misc]
            lambda table=table: bulk(address, "bulk-3", table),  # type: ignore[misc]
        )
        what = f"bulk write of {BULK_RECORDS:,} values of 100 bytes, {kind}, acks=all, factor 3"
        yield Row(what, store, f"{three / one:.2f} of factor 1 ({three:,.0f}/s, {one:,.0f}/s)", ">= 0.4")
    one, three = alternate(rounds, lambda: get_ms(address, "get-1"), lambda: get_ms(address, "get-3"))
    what = "send().get() of one small record, acks=all, factor 3, p50"
    yield Row(what, store, f"{three / one:.2f} x factor 1 ({three:.2f} ms, {one:.2f} ms)", "<= 1.5 x")
    os.sync()  # the next fsync shall not wait for what the bulk writes left to the kernel
    elected_s, working_s = failover(cluster)
    what = f"failover of {FAILED_PARTITIONS:,} partitions, after the lease's end"
    yield Row(what, store, f"{elected_s:.2f} s; the next append is acknowledged at {working_s:.2f} s", "<= 2 s")
    embed_broker(cluster, 2)
    create_topic(cluster, "many", MANY_PARTITIONS, 3)
    taken = statistics.median(full_load(cluster) for _ in range(rounds))
    what = f"a new controller reads {MANY_PARTITIONS:,} partitions x 3 replicas and looks at each"
    yield Row(what, store, f"{taken:.2f} s", "<= 2 s")


def three_brokers(address: str, folder: Path) -> Cluster:
    cluster = Cluster.init(address, log_dir=str(folder / "d1"))
    for broker in (2, 3):
        add_broker(cluster, broker, [str(folder / f"d{broker}")])
    return cluster


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=5, help="turns of each measurement [%(default)s]")
    arguments.add_argument("--postgresql", metavar="URL", help="an empty database to measure too")
    chosen = arguments.parse_args()
    stores: dict[str, str | None] = {"SQLite": None, "PostgreSQL": chosen.postgresql}
    report = Table(title=f"Replication: {describe_machine()}", title_justify="left")
    for column in ("what", "store", "measured", "bar"):
        report.add_column(column)
    for store, url in stores.items():
        if store == "PostgreSQL" and url is None:
            continue
        with tempfile.TemporaryDirectory(prefix="spark-log-bench-") as name:
            folder = Path(name)
            address = url or str(folder / "cluster")
            with three_brokers(address, folder) as cluster:
                for row in measure(cluster, address, store, chosen.rounds):
                    report.add_row(row.what, row.store, row.measured, row.bar)
                    print(f"{row.store}: {row.what}: {row.measured}   (bar {row.bar})", flush=True)
    Console().print(report)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
