"""How fast small segments are merged, beside plain Spark that reads the same files and writes them.

Input: --records rows (a key of ~11 bytes, an incompressible value of 100 bytes) in --files segments over --partitions
partitions. Ours: the files read with all checks, the merged ones forced to disk, swapped in, and published. The
peer: `spark.read.parquet(files).write.parquet`, its result in as many files. They take turns --rounds times after a
warm-up, and the medians are compared.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.machine import describe_machine
from benchmarks.throughput import spark_session
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.config import ClusterSettings
from spark_log.log.append.write_ids import Writer
from spark_log.log.log import Records
from spark_log.log.records.schema import RECORD_SCHEMA
from spark_log.maintenance import MaintenanceContext, Report
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.rewrite_tasks import merge_segments
from spark_log.maintenance.spark_merge import merge_on_spark
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.tables.publication import delta_tables

BAR = 0.5
"""Within twice the time."""

_FILES_A_CALL = 100
"""Appended in one transaction, so that making the input does not take most of the time."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--files", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where to measure [the system's temporary folder]")
    parser.add_argument("--postgresql", metavar="URL", help="the metadata in this empty database [a SQLite file]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as name:
        _measure(Path(name), arguments)


def _measure(folder: Path, arguments: argparse.Namespace) -> None:
    spark = spark_session(folder)
    address = arguments.postgresql or str(folder / "cluster")
    log_dir = str(folder / "log-dir") if arguments.postgresql else None
    with Cluster.init(address, log_dir=log_dir) as cluster:
        times: dict[str, list[float]] = {"threads": [], "Spark": [], "peer": []}
        for number in range(arguments.rounds + 1):
            for way, spent in times.items():
                topic = _small_segments(cluster, f"{way}-{number}", arguments)
                seconds = _seconds(_action(way, cluster, spark, topic, folder / "plain", arguments))
                if number:  # the first one warms up
                    spent.append(seconds)
                _remove(cluster, topic, folder / "plain")
        medians = {way: statistics.median(spent) for way, spent in times.items()}
    spark.stop()
    print(
        f"merge of {arguments.files:,} segments with {arguments.records:,} records, {arguments.partitions} partitions:"
    )
    print(f"  plain Spark    {medians['peer']:6.2f} s")
    for way in ("threads", "Spark"):
        ratio = medians["peer"] / medians[way]
        print(f"  ours, {way:<8} {medians[way]:6.2f} s   ratio {ratio:.2f}  (bar >= {BAR})")
    print(f"{datetime.now(UTC):%Y-%m-%d}, {describe_machine()}")


def _small_segments(cluster: Cluster, name: str, arguments: argparse.Namespace) -> Topic:
    topic = create_topic(cluster, name, arguments.partitions, configs={"inline.max.bytes": "0", "retention.ms": "-1"})
    assert topic is not None
    per_file = arguments.records // arguments.files
    random = np.random.default_rng(1)
    log = ClientLog(cluster)
    for first in range(0, arguments.files, _FILES_A_CALL):
        numbers = range(first, min(first + _FILES_A_CALL, arguments.files))
        log.append(topic, [Records(number % arguments.partitions, _table(per_file, random)) for number in numbers])
    log.close()
    return topic


def _table(rows: int, random: np.random.Generator) -> pa.Table:
    keys = pa.array([f"key-{number:07}" for number in random.integers(0, 10**7, rows)]).cast(pa.binary())
    offsets = pa.array(np.arange(0, 100 * (rows + 1), 100, dtype=np.int32))
    values = pa.Array.from_buffers(
        pa.binary(), rows, [None, offsets.buffers()[1], pa.py_buffer(random.bytes(100 * rows))]
    )
    times = pa.array(np.full(rows, 1_700_000_000_000_000)).cast(RECORD_SCHEMA.field("timestamp").type)
    headers = pa.nulls(rows, RECORD_SCHEMA.field("headers").type)
    return pa.table([keys, values, headers, times], schema=RECORD_SCHEMA)


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
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
