"""How fast compaction on Spark is, as a ratio against the plain job that finds the same rows. `make bench-maintenance`.

Input: a compacted topic of --records records with a key of ~11 bytes, one key in ten distinct, and an incompressible
value of 100 bytes, in --partitions partitions. The peer is `groupBy("key").max_by(…)` over the same Parquet files, its
result written as zstd Parquet; offsets, order and replicas are not asked of it. Both take turns, each round of ours on
a fresh copy of the cluster, and the medians are compared.
"""

import shutil
import tempfile
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from benchmarks import setup
from benchmarks.machine import describe_machine
from benchmarks.setup import keys, noise
from benchmarks.throughput import spark_session
from spark_log.cluster.cluster import Cluster
from spark_log.log.append.partitioner import partition_of, split_by_partition
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.compaction.spark_compaction import compact_on_spark
from spark_log.replication.controller.topic_operations import create_topic

TOPIC = "bench"
BAR = 0.5
_CHUNK = 1_000_000


def main() -> None:
    options = setup.parser(__doc__, rounds=3)
    options.add_argument("--records", type=int, default=5_000_000)
    options.add_argument("--partitions", type=int, default=4)
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as name:
        folder = Path(name)
        _fill(folder / "filled", arguments.records, arguments.partitions)
        spark = spark_session(folder)
        sides = {"ours": partial(_ours, spark, folder), "peer": partial(_peer, spark, folder)}
        middle = setup.medians(setup.in_turns(sides, arguments.rounds))
        spark.stop()
    mine, theirs = middle["ours"], middle["peer"]
    rates = [f"{arguments.records / seconds / 1e6:.2f} M/s" for seconds in (mine, theirs)]
    print(f"compaction of {arguments.records:,} records / groupBy(key).max_by, written:")
    print(f"  {rates[0]} / {rates[1]} = {theirs / mine:.2f} (bar: >= {BAR})")
    print(f"{datetime.now(UTC):%Y-%m-%d}, {describe_machine()}")


def _fill(folder: Path, records: int, partitions: int) -> None:
    random = np.random.default_rng(7)
    configs = {"cleanup.policy": "compact"}
    with Cluster.init(str(folder)) as cluster:
        topic = create_topic(cluster, TOPIC, partitions, configs=configs)
        log = ClientLog(cluster)
        for first in range(0, records, _CHUNK):
            count = min(_CHUNK, records - first)
            key = keys(count, random, records // 10)
            table = setup.records(noise(count, random), key)
            parts = split_by_partition(table, partition_of(key, None, partitions))
            log.append(topic, [Records(number, part) for number, part in parts])
        log.close()


def _ours(spark: SparkSession, folder: Path) -> float:
    """Seconds to compact a copy of the cluster; its segments, which never change, are the same files."""
    copy = folder / "copy"
    shutil.copytree(folder / "filled", copy, copy_function=_link_segments)
    begin = time.perf_counter()
    [report] = compact_on_spark(spark, str(copy), [TOPIC])
    seconds = time.perf_counter() - begin
    print(f"ours: {seconds:.1f} s: {report}", flush=True)
    shutil.rmtree(copy)
    return seconds


def _link_segments(source: str, target: str) -> None:
    if source.endswith(".parquet"):
        Path(target).hardlink_to(source)
    else:
        shutil.copy2(source, target)


def _peer(spark: SparkSession, folder: Path) -> float:
    files = sorted(str(path) for path in folder.glob("filled/*/*/_segments/*/*.parquet"))
    target = folder / "peer"
    begin = time.perf_counter()
    last = F.max_by(F.struct("offset_delta", "timestamp", "value", "headers"), "offset_delta")
    found = spark.read.parquet(*files).groupBy("key").agg(last.alias("last"))
    found.select("key", "last.*").write.option("compression", "zstd").parquet(str(target))
    seconds = time.perf_counter() - begin
    print(f"peer: {seconds:.1f} s", flush=True)
    shutil.rmtree(target)
    return seconds


if __name__ == "__main__":
    main()
