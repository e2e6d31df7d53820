"""How fast a consumer reads: records a second out of segment files, and how soon a waiting one has a new record.

100-byte values with 10-byte keys, one partition, everything in sealed segment files that the system has in its cache.
Rates are the best of --rounds. Latency: another process appends a record every 10 ms and the consumer, waiting in
poll(), compares the clock with the time in its value.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial

import numpy as np
import pyarrow as pa
from kafka.structs import TopicPartition
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine, seconds_of
from spark_log import Consumer
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.log.log import Records
from spark_log.log.records.schema import RECORD_SCHEMA
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic

VALUE_BYTES = 100
_APPEND_RECORDS = 250_000
_WARM_UP = 20
"""Messages that are not counted: the first append imports and opens."""

WRITER = """
import sys, time
import pyarrow as pa
from spark_log.cluster.cluster import Cluster
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.log.records.schema import RECORD_SCHEMA
address, count, pause_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
with Cluster.open(address) as cluster:
    log = ClientLog(cluster)
    topic = log.find_topic("latency")
    sys.stdin.readline()
    for _ in range(count):
        now_ns = time.time_ns()
        columns = [[None], [str(now_ns).encode().ljust(100)], [None], [now_ns // 1000]]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, RECORD_SCHEMA)]
        log.append(topic, [Records(0, pa.table(arrays, schema=RECORD_SCHEMA))])
        time.sleep(pause_s)
    log.close()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--messages", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--postgresql", help="URL of an empty PostgreSQL database, to be measured too")
    arguments = parser.parse_args()
    table = Table(title=f"{arguments.records:,} records of {VALUE_BYTES} bytes; {arguments.messages:,} messages")
    for column in ("what", "store", "measured", "bar"):
        table.add_column(column)
    for store, address in (("SQLite", None), ("PostgreSQL", arguments.postgresql)):
        if store == "PostgreSQL" and address is None:
            continue
        with tempfile.TemporaryDirectory(prefix="spark-log-bench-") as folder:
            cluster_address = address or f"{folder}/cluster"
            with Cluster.init(cluster_address, log_dir=None if address is None else f"{folder}/log-dir") as cluster:
                for what, measured, bar in _measure(cluster, cluster_address, arguments):
                    table.add_row(what, store, measured, bar)
    console = Console()
    console.print(table)
    console.print(describe_machine())


def _measure(cluster: Cluster, address: str, arguments: argparse.Namespace) -> list[tuple[str, str, str]]:
    topic = create_topic(cluster, "rate", 1)
    create_topic(cluster, "latency", 1)
    assert topic is not None
    _fill(cluster, topic, arguments.records)
    counted = arguments.records
    rates = [
        ("poll(), 500 records a poll", _poll, "500 k/s"),
        ("iteration", _iterate, ""),
        ("poll_arrow()", _poll_arrow, "5 M/s"),
    ]
    rows = []
    for what, read, bar in rates:
        best = min(seconds_of(partial(read, address, counted)) for _ in range(arguments.rounds))
        rows.append((what, f"{counted / best / 1000:,.0f} k records/s", bar))
    milliseconds = sorted(_latencies(address, arguments.messages))
    p50, p99 = statistics.median(milliseconds), milliseconds[int(len(milliseconds) * 0.99)]
    bar = f"p50 {2.5 if cluster.store.sqlite else 4} ms, p99 3 x p50"
    rows.append(("append to a waiting consumer", f"p50 {p50:.1f} ms, p99 {p99:.1f} ms", bar))
    return rows


def _fill(cluster: Cluster, topic: Topic, records: int) -> None:
    log = ClientLog(cluster)
    random = np.random.default_rng(1)
    for first in range(0, records, _APPEND_RECORDS):
        rows = min(_APPEND_RECORDS, records - first)
        letters = random.integers(97, 123, rows * VALUE_BYTES, np.uint8).tobytes()
        offsets = pa.py_buffer(np.arange(0, rows * VALUE_BYTES + 1, VALUE_BYTES, dtype=np.int32))
        values = pa.Array.from_buffers(pa.binary(), rows, [None, offsets, pa.py_buffer(letters)])
        keys = pa.array([b"key-%06d" % (n % 1_000_000) for n in range(first, first + rows)], pa.binary())
        times = pa.array(np.full(rows, time.time_ns() // 1_000_000 * 1_000)).cast(RECORD_SCHEMA.field("timestamp").type)
        headers = pa.nulls(rows, RECORD_SCHEMA.field("headers").type)
        log.append(topic, [Records(0, pa.table([keys, values, headers, times], schema=RECORD_SCHEMA))])
    log.seal(topic, [0])
    log.close()


def _poll(address: str, records: int) -> None:
    with _consumer(address) as consumer:
        seen = 0
        while seen < records:
            for found in consumer.poll(1_000).values():
                seen += len(found)


def _iterate(address: str, records: int) -> None:
    with _consumer(address) as consumer:
        for seen, _ in enumerate(consumer, 1):
            if seen == records:
                return


def _poll_arrow(address: str, records: int) -> None:
    with _consumer(address) as consumer:
        seen = 0
        while seen < records:
            for found in consumer.poll_arrow(1_000).values():
                seen += found.num_rows


def _consumer(address: str) -> Consumer:
    consumer = Consumer(cluster=address, auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.assign([TopicPartition("rate", 0)])
    return consumer


def _latencies(address: str, messages: int) -> list[float]:
    command = [sys.executable, "-c", WRITER, address, str(messages + _WARM_UP), "0.01"]
    with (
        Consumer(cluster=address, auto_offset_reset="earliest") as consumer,
        subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as writer,
    ):
        consumer.assign([TopicPartition("latency", 0)])
        consumer.poll(100)
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
        found: list[float] = []
        while len(found) < messages + _WARM_UP:
            for records in consumer.poll(1_000).values():
                now_ns = time.time_ns()
                found += [(now_ns - int(record.value)) / 1e6 for record in records]
    return found[_WARM_UP:]


if __name__ == "__main__":
    main()
