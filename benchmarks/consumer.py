"""How fast a consumer reads: records a second out of segment files, and how soon a waiting one has a new record.

100-byte values with 10-byte keys, one partition, everything in sealed segment files that the system has in its cache.
Rates are the best of --rounds. Latency: another process appends a record every 10 ms and the consumer, waiting in
poll(), compares the clock with the time in its value.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa
from kafka.structs import TopicPartition

from benchmarks import setup
from benchmarks.kafka_report import percentiles
from benchmarks.machine import seconds_of
from benchmarks.setup import VALUE_BYTES, StoreRow, parser, report
from spark_log import Consumer
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic

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
    options = parser(__doc__)
    options.add_argument("--records", type=int, default=2_000_000)
    options.add_argument("--messages", type=int, default=1_000)
    arguments = options.parse_args()
    title = f"{arguments.records:,} records of {VALUE_BYTES} bytes; {arguments.messages:,} messages"
    report(title, arguments, lambda store, address, _: _measure(store, address, arguments))


def _measure(store: str, address: str, arguments: argparse.Namespace) -> Iterator[StoreRow]:
    counted = arguments.records
    with Cluster.open(address) as cluster:
        create_topic(cluster, "latency", 1)
        _fill(cluster, create_topic(cluster, "rate", 1), counted)
    for what, read, bar in (
        ("poll(), 500 records a poll", _poll, "500 k/s"),
        ("iteration", _iterate, ""),
        ("poll_arrow()", _poll_arrow, "5 M/s"),
    ):
        best = min(seconds_of(partial(read, address, counted)) for _ in range(arguments.rounds))
        yield StoreRow(what, store, f"{counted / best / 1000:,.0f} k records/s", bar)
    bar = f"p50 {2.5 if store == 'SQLite' else 4} ms, p99 3 x p50"
    yield StoreRow("append to a waiting consumer", store, percentiles(_latencies(address, arguments.messages)), bar)


def _fill(cluster: Cluster, topic: Topic, records: int) -> None:
    log = ClientLog(cluster)
    random = np.random.default_rng(1)
    for first in range(0, records, _APPEND_RECORDS):
        count = min(_APPEND_RECORDS, records - first)
        letters = pa.py_buffer(random.integers(97, 123, count * VALUE_BYTES, np.uint8).tobytes())
        value = pa.FixedSizeBinaryArray.from_buffers(pa.binary(VALUE_BYTES), count, [None, letters]).cast(pa.binary())
        keys = pa.array([b"key-%06d" % (n % 1_000_000) for n in range(first, first + count)], pa.binary())
        log.append(topic, [Records(0, setup.records(value, keys, time.time_ns() // 1_000_000))])
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
                found += [(now_ns - int(record.value)) / 1e9 for record in records]
    return found[_WARM_UP:]


if __name__ == "__main__":
    main()
