"""Retention dropping 10,000 segments, and readers beside it: `make bench-maintenance`.

Of one partition, and of 1,000. On a SQLite cluster, and on PostgreSQL too with --postgresql. The segments that go are
rows and entries of the Delta table only (nothing opens their files); those that stay are read, by another process than
the one that drops, while nothing happens and while it does. Time is all of it: transactions and publication.
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
from benchmarks.producer import Row
from benchmarks.replication import values
from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.append.rules import Appended
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.removal.retention import apply_retention
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.tables.publication import publish

SEGMENTS = 10_000
QUIET_S = 5.0
PAUSE_S = 0.02
YOUNG = {"message.timestamp.type": "LogAppendTime", "inline.max.bytes": "0"}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--segments", type=int, default=SEGMENTS, help="how many are dropped [%(default)s]")
    arguments.add_argument("--postgresql", metavar="URL", help="an empty database to measure too")
    chosen = arguments.parse_args()
    report = Table(title=f"Retention: {describe_machine()}", title_justify="left")
    for column in ("what", "store", "measured", "bar"):
        report.add_column(column)
    for store, url in (("SQLite", None), ("PostgreSQL", chosen.postgresql)):
        if store == "PostgreSQL" and url is None:
            continue
        with tempfile.TemporaryDirectory(prefix="spark-log-bench-") as name:
            address = url or str(Path(name, "cluster"))
            with Cluster.init(address, log_dir=str(Path(name, "log-dir"))) as cluster:
                for row in measure(cluster, address, store, chosen.segments):
                    report.add_row(row.what, row.store, row.measured, row.bar)
                    print(f"{row.store}: {row.what}: {row.measured}   (bar {row.bar})", flush=True)
    Console().print(report)
    return 0


def measure(cluster: Cluster, address: str, store: str, segments: int) -> Iterator[Row]:
    log = ClientLog(cluster)
    for partitions in (1, 1_000):
        topic = create_topic(cluster, f"t-{partitions}", partitions, configs=YOUNG)
        assert topic is not None
        each = segments // partitions
        fill(cluster, topic, each)
        for _ in range(10):
            [outcome] = log.append(topic, [Records(0, values(1_000))])
            assert isinstance(outcome, Appended)
        publish(cluster, topic)
        wanted = {TopicPartition(topic.name, 0): OffsetRange(each, each + 10_000)}

        def read(wanted: dict[TopicPartition, OffsetRange] = wanted) -> int:
            return sum(batch.num_rows for batch in log.read(wanted))

        quiet = seconds_of(read, lambda began_s: time.perf_counter() - began_s > QUIET_S)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=drop, args=(address, topic, theirs))
        process.start()
        assert ours.recv() == "ready"
        ours.send("go")
        busy = seconds_of(read, lambda _began_s, pipe=ours: pipe.poll())  # type: ignore[misc]
        taken_s, dropped = ours.recv()
        process.join()
        assert dropped == segments, dropped
        what = f"retention drops {segments:,} segments of {partitions:,} partition{'s' * (partitions > 1)}"
        yield Row(what, store, f"{taken_s:.2f} s", "<= 5 s")
        yield Row(
            "  reading 10 segments beside it, p50 / p99", store, f"{shown(busy)}; alone {shown(quiet)}", "as alone"
        )
    log.close()


def drop(address: str, topic: Topic, pipe: Connection) -> None:
    """In a process of its own, as the coordinator would."""
    with Cluster.open(address) as cluster:
        pipe.send("ready")
        pipe.recv()
        began_s = time.perf_counter()
        dropped = apply_retention(cluster, topic)
        pipe.send((time.perf_counter() - began_s, dropped.segments))


def fill(cluster: Cluster, topic: Topic, each: int) -> None:
    """So many segments from long ago in each partition."""
    facts = {
        "topic_id": topic.topic_id, "record_count": 1, "bytes": 1_000_000, "min_timestamp_ms": 0, "max_timestamp_ms": 0,
        "timestamp_type": 1, "leader_epoch": 0, "codec": "zstd", "checksum": "0" * 32, "inline": False, "change": 1,
        "appended_ms": clock.wall_ms(),
    }  # fmt: skip
    rows = [
        {
            **facts, "partition": number, "base_offset": n, "end_offset": n + 1,
            "name": f"{number:016x}{n:016x}-0.parquet",
        }
        for number in range(topic.partition_count) for n in range(each)
    ]  # fmt: skip
    p, r = t.partition, t.replica
    ends = p.update().where(p.c.topic_id == topic.topic_id).values(log_end_offset=each, high_watermark=each, change=1)
    replicas = r.update().where(r.c.topic_id == topic.topic_id).values(log_end_offset=each)
    cluster.store.transact(lambda connection: connection.execute(t.segment.insert(), rows))
    cluster.store.transact(lambda connection: (connection.execute(ends), connection.execute(replicas)))


def seconds_of(action: Callable[[], object], finished: Callable[[float], bool]) -> list[float]:
    taken: list[float] = []
    began_s = time.perf_counter()
    while not finished(began_s) or not taken:
        one_s = time.perf_counter()
        action()
        taken.append(time.perf_counter() - one_s)
        time.sleep(PAUSE_S)  # or it would measure how two processes share the cores
    return taken


def shown(taken_s: list[float]) -> str:
    p99 = statistics.quantiles(taken_s, n=100)[-1] if len(taken_s) > 1 else taken_s[0]
    return f"{1000 * statistics.median(taken_s):.1f} / {1000 * p99:.1f} ms ({len(taken_s)} reads)"


if __name__ == "__main__":
    raise SystemExit(main())
