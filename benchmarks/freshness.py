"""The cost of fresh Delta tables: files and bytes of a topic that gets a steady stream of small messages.

One Producer sends --rate messages of 100 bytes a second, with keys, to --partitions partitions for --seconds, with a
coordinator beside it or (--without-coordinator) without. Each second it asks how long the oldest record has waited that
the Delta table does not list. Printed every --report seconds: that age at most; files and bytes that the table lists;
files and bytes on disk, which include what merges have replaced (kept for file.delete.delay.ms).
"""

import argparse
import itertools
import os
import tempfile
import threading
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from deltalake import DeltaTable

from benchmarks.machine import describe_machine
from spark_log import Producer
from spark_log.cluster.cluster import Cluster
from spark_log.maintenance.coordinator.coordinator import Coordinator
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.tables.lag_measurement import delta_lags
from spark_log.tables.publication import delta_tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=100, help="messages a second [%(default)s]")
    parser.add_argument("--seconds", type=int, default=3_600)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--report", type=int, default=600, help="seconds between two lines [%(default)s]")
    parser.add_argument("--without-coordinator", action="store_true")
    parser.add_argument("--folder", help="where to measure [the system's temporary folder]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as name, ExitStack() as stack:
        cluster = stack.enter_context(Cluster.init(f"{name}/cluster"))
        print(f"{datetime.now(UTC):%Y-%m-%d}, {describe_machine()}")
        _measure(cluster, Path(name), arguments, stack)


def _measure(cluster: Cluster, folder: Path, arguments: argparse.Namespace, stack: ExitStack) -> None:
    topic = create_topic(cluster, "messages", arguments.partitions)
    assert topic is not None
    if not arguments.without_coordinator:
        stack.enter_context(Coordinator(cluster))
    stop = threading.Event()
    sender = threading.Thread(target=_send, args=(folder, arguments.rate, stop))
    began_s = time.monotonic()
    sender.start()
    oldest_ms = 0
    try:
        for second in range(1, arguments.seconds + 1):
            stop.wait(max(0.0, began_s + second - time.monotonic()))
            now_ms = cluster.store.now().wall_ms
            lags = cluster.store.read(delta_lags)
            oldest_ms = max([oldest_ms, *(now_ms - lag.oldest_ms for lag in lags.values())])
            if second % arguments.report == 0 or second == arguments.seconds:
                [table] = delta_tables(cluster, topic).values()
                _report(second, oldest_ms, DeltaTable(table), Path(table))
    finally:
        stop.set()
        sender.join()


def _send(folder: Path, rate: int, stop: threading.Event) -> None:
    value = os.urandom(1 << 20)
    with Producer(cluster=str(folder / "cluster"), linger_ms=50) as producer:
        began_s = time.monotonic()
        for number in itertools.count():
            if stop.wait(max(0.0, began_s + number / rate - time.monotonic())):
                return
            start = number * 7 % (len(value) - 100)
            producer.send("messages", key=b"%d" % number, value=value[start : start + 100])


def _report(second: int, oldest_ms: int, table: DeltaTable, folder: Path) -> None:
    sizes = [int(size) for size in table.get_add_actions(flatten=True)["size_bytes"].to_pylist()]
    written = [path.stat().st_size for path in folder.glob("_segments/*/*.parquet")]
    log = [path.stat().st_size for path in folder.glob("_delta_log/*")]
    print(
        f"{second:5} s: oldest record not in the table {oldest_ms / 1000:.1f} s at most; table: {len(sizes)} files,"
        f" {sum(sizes) / 1e6:.1f} MB, {table.count():,} records, version {table.version()}; on disk: {len(written)}"
        f" files, {sum(written) / 1e6:.1f} MB = {sum(written) / max(1, sum(sizes)):.1f} x; Delta log: {len(log)} files,"
        f" {sum(log) / 1e6:.2f} MB",
        flush=True,
    )


if __name__ == "__main__":
    main()
