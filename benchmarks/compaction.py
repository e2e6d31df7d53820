"""How fast compaction on Spark is, as a ratio against the plain job that finds the same rows. `make bench-maintenance`.

Input: a compacted topic of --records records with a key of ~11 bytes, one key in ten distinct, and an incompressible
value of 100 bytes, in --partitions partitions. The peer is `groupBy("key").max_by(…)` over the same Parquet files, its
result written as zstd Parquet; offsets, order and replicas are not asked of it. Both take turns, each round of ours on
a fresh copy of the cluster, and the medians are compared.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from benchmarks.machine import describe_machine
from benchmarks.throughput import spark_session
from spark_log.cluster.cluster import Cluster
from spark_log.log.append.partitioner import partition_of, split_by_partition
from spark_log.log.log import Records
from spark_log.log.records.schema import RECORD_SCHEMA
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.compaction.spark_compaction import compact_on_spark
from spark_log.replication.controller.topic_operations import create_topic

TOPIC = "bench"
BAR = 0.5
_CHUNK = 1_000_000
_NOON_US = 1_700_000_000_000_000


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as name:
        folder = Path(name)
        _fill(folder / "filled", arguments.records, arguments.partitions)
        spark = spark_session(folder)
        ours, peer = [], []
        for number in range(arguments.rounds + 1):  # the first is the warm-up
            peer.append(_peer(spark, folder))
            ours.append(_ours(spark, folder))
            print(f"round {number}: ours {ours[-1]:.1f} s, peer {peer[-1]:.1f} s", flush=True)
        spark.stop()
    mine, theirs = statistics.median(ours[1:]), statistics.median(peer[1:])
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
            rows = min(_CHUNK, records - first)
            data = pa.py_buffer(random.integers(0, 256, size=rows * 100, dtype=np.uint8).tobytes())
            ends = pa.py_buffer(np.arange(0, rows * 100 + 1, 100, dtype=np.int32).tobytes())
            numbers = random.integers(0, records // 10, rows).tolist()
            keys = pa.array([b"key-%07d" % number for number in numbers], pa.binary())
            columns = [
                keys,
                pa.Array.from_buffers(pa.binary(), rows, [None, ends, data]),
                pa.nulls(rows, RECORD_SCHEMA.field("headers").type),
                pa.array(np.arange(first, first + rows) * 1000 + _NOON_US).cast(RECORD_SCHEMA.field("timestamp").type),
            ]
            table = pa.table(columns, schema=RECORD_SCHEMA)
            parts = split_by_partition(table, partition_of(keys, None, partitions))
            log.append(topic, [Records(number, part) for number, part in parts])
        log.close()


def _ours(spark: SparkSession, folder: Path) -> float:
    """Seconds to compact a copy of the cluster; its segments, which never change, are the same files."""
    copy = folder / "copy"
    shutil.copytree(folder / "filled", copy, copy_function=_link_segments)
    begin = time.perf_counter()
    [report] = compact_on_spark(spark, str(copy), [TOPIC])
    seconds = time.perf_counter() - begin
    print(f"  {report}", flush=True)
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
    shutil.rmtree(target)
    return seconds


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--postgresql", help="ignored: what is measured does not touch the store")
    parser.add_argument("--folder", help="where to work (default: the system's temporary folder)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
