"""How fast small segments are merged, beside plain Spark that reads the same files and writes them.

Input: --records rows (a key of ~11 bytes, an incompressible value of 100 bytes) in --files segments over --partitions
partitions. Ours: the files read with all checks, the merged ones forced to disk, swapped in, and published. The
peer: `spark.read.parquet(files).write.parquet`, its result in as many files. They take turns --rounds times after a
warm-up, and the medians are compared.
"""

import argparse
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

from benchmarks.machine import describe_machine, seconds_of
from benchmarks.setup import in_turns, keys, medians, noise, parser, records
from benchmarks.throughput import spark_session
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.config import ClusterSettings
from spark_log.log.append.write_ids import Writer
from spark_log.log.log import Records
from spark_log.maintenance import MaintenanceContext, Report
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.rewrite_tasks import merge_segments
from spark_log.maintenance.spark_merge import merge_on_spark
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.tables.publication import delta_tables

BAR = 0.5
"""Within twice the time."""

_WAYS = ("threads", "Spark", "peer")
_FILES_A_CALL = 100
"""Appended in one transaction, so that making the input does not take most of the time."""


def main() -> None:
    options = parser(__doc__, rounds=3)
    options.add_argument("--records", type=int, default=2_000_000)
    options.add_argument("--files", type=int, default=1_000)
    options.add_argument("--partitions", type=int, default=4)
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as name:
        _measure(Path(name), arguments)


def _measure(folder: Path, arguments: argparse.Namespace) -> None:
    spark = spark_session(folder)
    address = arguments.postgresql or str(folder / "cluster")
    log_dir = str(folder / "log-dir") if arguments.postgresql else None
    with Cluster.init(address, log_dir=log_dir) as cluster:
        numbers = itertools.count()

        def merge_seconds(way: str) -> float:
            topic = _small_segments(cluster, f"{way}-{next(numbers)}", arguments)
            seconds = _seconds(_action(way, cluster, spark, topic, folder / "plain", arguments))
            _remove(cluster, topic, folder / "plain")
            return seconds

        middle = medians(in_turns({way: partial(merge_seconds, way) for way in _WAYS}, arguments.rounds))
    spark.stop()
    print(
        f"merge of {arguments.files:,} segments with {arguments.records:,} records, {arguments.partitions} partitions:"
    )
    print(f"  plain Spark    {middle['peer']:6.2f} s")
    for way in ("threads", "Spark"):
        ratio = middle["peer"] / middle[way]
        print(f"  ours, {way:<8} {middle[way]:6.2f} s   ratio {ratio:.2f}  (bar >= {BAR})")
    print(f"{datetime.now(UTC):%Y-%m-%d}, {describe_machine()}")


def _small_segments(cluster: Cluster, name: str, arguments: argparse.Namespace) -> Topic:
    topic = create_topic(cluster, name, arguments.partitions, configs={"inline.max.bytes": "0", "retention.ms": "-1"})
    assert topic is not None
    per_file = arguments.records // arguments.files
    random = np.random.default_rng(1)
    log = ClientLog(cluster)
    for first in range(0, arguments.files, _FILES_A_CALL):
        numbers = range(first, min(first + _FILES_A_CALL, arguments.files))
        log.append(
            topic,
            [
                Records(number % arguments.partitions, records(noise(per_file, random), keys(per_file, random, 10**7)))
                for number in numbers
            ],
        )
    log.close()
    return topic


def _action(
    way: str, cluster: Cluster, spark: SparkSession, topic: Topic, target: Path, arguments: argparse.Namespace
) -> Callable[[], None]:
    if way == "peer":
        (location,) = delta_tables(cluster, topic).values()
        files = [str(path) for path in Path(location, "_segments").rglob("*.parquet")]

        def plain() -> None:
            frame = spark.read.parquet(*files).coalesce(arguments.partitions)
            frame.write.option("compression", "zstd").parquet(str(target))

        return plain

    def ours() -> None:
        if way == "Spark":
            reports = list(merge_on_spark(spark, cluster, topics=[topic.name]))
        else:
            reports = _with_threads(cluster, topic)
        (report,) = reports
        assert report.after.files == arguments.partitions, report

    return ours


def _with_threads(cluster: Cluster, topic: Topic) -> list[Report]:
    settings = ClusterSettings()
    writer = Writer(cluster.store, "benchmark", settings.producer_write_id_lease_ms)
    reports = list(merge_segments(MaintenanceContext(cluster, settings, writer, topic_names=[topic.name])))
    writer.close()
    return reports


def _remove(cluster: Cluster, topic: Topic, target: Path) -> None:
    for location in delta_tables(cluster, topic).values():
        shutil.rmtree(location)
    shutil.rmtree(target, ignore_errors=True)


def _seconds(action: Callable[[], None]) -> float:
    os.sync()
    return seconds_of(action)


if __name__ == "__main__":
    main()
