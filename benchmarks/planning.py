"""How long describing and planning take in a large cluster: 10,000 partitions, and 100,000 segments in one topic.

The segments are rows only (planning never opens a file), put into the store by SQL. Times are medians of --rounds.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.machine import seconds_of
from benchmarks.scale_rows import RECORDS_PER_SEGMENT, add_segments
from benchmarks.setup import StoreRow, parser, report
from spark_log.cluster.cluster import Cluster
from spark_log.facts.topics import describe_topics
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.spark.datasource.options.source_options import ReadOptions
from spark_log.spark.datasource.read.read_planner import ReadPlanner


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--partitions", type=int, default=10_000)
    options.add_argument("--segments", type=int, default=100_000)
    arguments = options.parse_args()

    def measure(store: str, address: str, _folder: Path) -> Iterator[StoreRow]:
        with Cluster.open(address) as cluster:
            for what, seconds, bar in _measure(cluster, address, arguments):
                yield StoreRow(what, store, f"{seconds:.3f} s", bar)

    title = f"{arguments.partitions:,} partitions; {arguments.segments:,} segments in a topic of 4 partitions"
    report(title, arguments, measure)


def _measure(cluster: Cluster, address: str, arguments: argparse.Namespace) -> list[tuple[str, float, str]]:
    begin = time.perf_counter()
    wide = create_topic(cluster, "wide", arguments.partitions)
    created = time.perf_counter() - begin
    long = create_topic(cluster, "long", 4)
    assert wide is not None and long is not None
    add_segments(cluster, wide, 1)
    add_segments(cluster, long, arguments.segments // 4)
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


if __name__ == "__main__":
    main()
