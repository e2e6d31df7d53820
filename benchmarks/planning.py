"""How long describing and planning take in a large cluster: 10,000 partitions, and 100,000 segments in one topic.

The segments are rows only (planning never opens a file), put into the store by SQL. Times are medians of --rounds.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

import sqlalchemy as sa
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine, seconds_of
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.facts.topics import describe_topics
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.spark.datasource.options.source_options import ReadOptions
from spark_log.spark.datasource.read.read_planner import ReadPlanner

RECORDS_PER_SEGMENT = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--segments", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--postgresql", help="URL of an empty PostgreSQL database, to be measured too")
    arguments = parser.parse_args()
    table = Table(
        title=f"{arguments.partitions:,} partitions; {arguments.segments:,} segments in a topic of 4 partitions"
    )
    for column in ("what", "store", "seconds", "bar"):
        table.add_column(column)
    for store, address in (("SQLite", None), ("PostgreSQL", arguments.postgresql)):
        if store == "PostgreSQL" and address is None:
            continue
        with tempfile.TemporaryDirectory(prefix="spark-log-bench-") as folder:
            cluster_address = address or f"{folder}/cluster"
            cluster = Cluster.init(cluster_address, log_dir=None if address is None else f"{folder}/log-dir")
            for what, seconds, bar in _measure(cluster, cluster_address, arguments):
                table.add_row(what, store, f"{seconds:.3f}", bar)
    console = Console()
    console.print(table)
    console.print(describe_machine())


def _measure(cluster: Cluster, address: str, arguments: argparse.Namespace) -> list[tuple[str, float, str]]:
    begin = time.perf_counter()
    wide = create_topic(cluster, "wide", arguments.partitions)
    created = time.perf_counter() - begin
    long = create_topic(cluster, "long", 4)
    assert wide is not None and long is not None
    _insert_segments(cluster, wide, arguments.partitions)
    _insert_segments(cluster, long, arguments.segments)
    log = ClientLog(cluster)
    every = {tp: OffsetRange(*limits) for tp, limits in log.positions(long).items()}
    middle = every[TopicPartition("long", 0)].end // 2
    few = {TopicPartition("long", 0): OffsetRange(middle, middle + 10 * RECORDS_PER_SEGMENT - 1)}

    def plan_query(topic: str) -> None:
        planner = ReadPlanner(ReadOptions.parse({"subscribe": topic, "cluster": address}, streaming=False, environ={}))
        planner.tasks(*planner.batch_ranges())
        planner.close()

    def median(action: Callable[[], object]) -> float:
        action()
        return statistics.median(seconds_of(action) for _ in range(arguments.rounds))

    return [
        ("create the wide topic", created, "seconds"),
        ("describe the wide topic", median(lambda: describe_topics(cluster, ["wide"])), "< 1"),
        ("plan a batch query of the wide topic, into tasks", median(lambda: plan_query("wide")), "< 1"),
        ("plan a range of 10 segments of the long topic", median(lambda: log.plan(few)), "<< 0.1"),
        ("plan the whole long topic", median(lambda: log.plan(every)), "< 2"),
        ("plan a batch query of the long topic, into tasks", median(lambda: plan_query("long")), "< 2"),
    ]


def _insert_segments(cluster: Cluster, topic: Topic, segments: int) -> None:
    per_partition = segments // topic.partition_count
    end = per_partition * RECORDS_PER_SEGMENT

    def insert(connection: sa.Connection) -> None:
        rows = [
            {
                "topic_id": topic.topic_id,
                "partition": partition,
                "base_offset": number * RECORDS_PER_SEGMENT,
                "end_offset": (number + 1) * RECORDS_PER_SEGMENT,
                "record_count": RECORDS_PER_SEGMENT,
                "bytes": 100_000,
                "min_timestamp_ms": number,
                "max_timestamp_ms": number + 1,
                "timestamp_type": 0,
                "leader_epoch": 0,
                "codec": "zstd",
                "checksum": "0" * 32,
                "name": f"{'0' * 32}-{partition}-{number}.parquet",
                "inline": False,
                "change": number,
            }
            for partition in range(topic.partition_count)
            for number in range(per_partition)
        ]
        for first in range(0, len(rows), 10_000):
            connection.execute(t.segment.insert(), rows[first : first + 10_000])
        here = t.partition.c.topic_id == topic.topic_id
        connection.execute(t.partition.update().where(here).values(log_end_offset=end, high_watermark=end))
        connection.execute(t.replica.update().where(t.replica.c.topic_id == topic.topic_id).values(log_end_offset=end))

    cluster.store.transact(insert)


if __name__ == "__main__":
    main()
