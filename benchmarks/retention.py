"""Retention dropping 10,000 segments, and readers beside it: `make bench-maintenance`.

Of one partition, and of 1,000. On a SQLite cluster, and on PostgreSQL too with --postgresql. The segments that go are
rows and entries of the Delta table only (nothing opens their files); those that stay are read, by another process than
the one that drops, while nothing happens and while it does. Time is all of it: transactions and publication.
"""

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.replication import values
from benchmarks.scale_rows import RECORDS_PER_SEGMENT, add_segments
from benchmarks.setup import StoreRow, parser, report
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


def main() -> None:
    options = parser(__doc__, rounds=None)
    options.add_argument("--segments", type=int, default=SEGMENTS, help="how many are dropped [%(default)s]")
    arguments = options.parse_args()

    def rows(store: str, address: str, _folder: Path) -> Iterator[StoreRow]:
        with Cluster.open(address) as cluster:
            yield from measure(cluster, address, store, arguments.segments)

    report("Retention", arguments, rows)


def measure(cluster: Cluster, address: str, store: str, segments: int) -> Iterator[StoreRow]:
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
        wanted = {
            TopicPartition(topic.name, 0): OffsetRange(each * RECORDS_PER_SEGMENT, each * RECORDS_PER_SEGMENT + 10_000)
        }

        def read(wanted: dict[TopicPartition, OffsetRange] = wanted) -> int:
            return sum(batch.num_rows for batch in log.read(wanted))

        quiet = repeated(read, lambda began_s: time.perf_counter() - began_s > QUIET_S)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=drop, args=(address, topic, theirs))
        process.start()
        assert ours.recv() == "ready"
        ours.send("go")
        busy = repeated(read, lambda _began_s, pipe=ours: pipe.poll())  # type: ignore[misc]
        taken_s, dropped = ours.recv()
        process.join()
        assert dropped == segments, dropped
        what = f"retention drops {segments:,} segments of {partitions:,} partition{'s' * (partitions > 1)}"
        yield StoreRow(what, store, f"{taken_s:.2f} s", "<= 5 s")
        yield StoreRow(
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
    add_segments(cluster, topic, each)
    old = (
        t.segment.update().where(t.segment.c.topic_id == topic.topic_id).values(min_timestamp_ms=0, max_timestamp_ms=0)
    )
    cluster.store.transact(lambda connection: connection.execute(old))


def repeated(action: Callable[[], object], finished: Callable[[float], bool]) -> list[float]:
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
    main()
