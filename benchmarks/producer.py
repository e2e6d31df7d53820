"""How fast the producer is, against the bars of the project: `python -m benchmarks.producer`, `make bench-clients`.

Measured on a SQLite cluster, and on PostgreSQL too with --postgresql. Every number is the median of --rounds turns
after a warm-up, with the spread beside it. Durable: an acknowledgement waits for fsync, which is the default.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from benchmarks.kafka_report import percentiles
from benchmarks.setup import StoreRow, noise, parser, report
from spark_log import Producer
from spark_log.cluster.cluster import Cluster
from spark_log.replication.controller.topic_operations import create_topic

SENDS = 500_000
TABLE_RECORDS = 3_000_000
GETS = 1_000
GETS_BARS_MS = {"SQLite": 0.9, "PostgreSQL": 1.6}


@dataclass(frozen=True)
class Bench:
    """A cluster to be measured."""

    address: str
    store: str
    rounds: int

    def median(self, measure: Callable[[], float]) -> tuple[float, float, float]:
        """(median, least, most) of the rounds; one more goes first and does not count."""
        measure()
        found = [measure() for _ in range(self.rounds)]
        return statistics.median(found), min(found), max(found)


def rate(found: tuple[float, float, float]) -> str:
    """Records a second."""
    middle, least, most = found
    return f"{middle:,.0f}/s ({least:,.0f} to {most:,.0f})"


def measure(bench: Bench) -> Iterator[StoreRow]:
    with Cluster.open(bench.address) as cluster:
        for name, partitions in (("produce-send", 4), ("produce-table", 4), ("produce-get", 1)):
            create_topic(cluster, name, partitions)
    what = f"send(): {SENDS:,} keyed values of 100 bytes, linger 5 ms, flush"
    yield StoreRow(what, bench.store, rate(bench.median(lambda: _send(bench.address))), ">= 500,000/s")
    text, keys = _text(TABLE_RECORDS), _keys(TABLE_RECORDS)
    for kind, table in (
        ("text", pa.table({"value": text})),
        ("keyed text", pa.table({"key": keys, "value": text})),
        ("incompressible", pa.table({"value": noise(TABLE_RECORDS, np.random.default_rng())})),
    ):
        what = f"send_table(): {TABLE_RECORDS:,} values of 100 bytes, {kind}"
        found = bench.median(lambda table=table: _send_table(bench.address, table))  # type: ignore[misc]
        yield StoreRow(what, bench.store, rate(found), ">= 3,000,000/s" if kind == "text" else "")
    bar = f"p50 <= {GETS_BARS_MS[bench.store]} ms, p99 <= 3 x p50"
    yield StoreRow(
        f"send().get(): {GETS:,} times one record, durable", bench.store, percentiles(_gets(bench.address)), bar
    )


def _send(address: str) -> float:
    values, keys = [os.urandom(50).hex().encode() for _ in range(1_000)], [b"key-%d" % n for n in range(1_000)]
    with Producer(cluster=address, linger_ms=5) as client:
        client.partitions_for("produce-send")
        began, send = time.perf_counter(), client.send
        for number in range(SENDS):
            last = send("produce-send", values[number % 1_000], keys[number % 1_000])
        client.flush()
        seconds = time.perf_counter() - began
        assert last.succeeded()
    return SENDS / seconds


def _send_table(address: str, table: pa.Table) -> float:
    with Producer(cluster=address) as client:
        client.partitions_for("produce-table")
        began = time.perf_counter()
        client.send_table("produce-table", table).get()
        return int(table.num_rows) / (time.perf_counter() - began)


def _gets(address: str) -> list[float]:
    value, seconds = os.urandom(100), []
    with Producer(cluster=address) as client:
        for number in range(GETS + 100):
            began = time.perf_counter()
            client.send("produce-get", value).get()
            if number >= 100:
                seconds.append(time.perf_counter() - began)
    return seconds


def _text(count: int) -> pa.Array:
    """Values like a flight's in JSON, 100 bytes each."""
    template = b'{"flight": "UA%04d", "origin": "JFK", "dest": "LAX", "delay": %3d, "air_time": %3d, "distance": %4d }'
    some = [template % (n % 7_919, n % 97, n % 389, n * 31 % 4_001) for n in range(100_000)]
    return pa.concat_arrays([pa.array(some, pa.binary())] * (count // len(some)))


def _keys(count: int) -> pa.Array:
    some = [b"N%05d" % (n * 7_919 % 100_000) for n in range(100_000)]
    return pa.concat_arrays([pa.array(some, pa.binary())] * (count // len(some)))


def main() -> None:
    arguments = parser(__doc__).parse_args()
    title = f"producer, median of {arguments.rounds} rounds"
    report(title, arguments, lambda store, address, _: measure(Bench(address, store, arguments.rounds)))


if __name__ == "__main__":
    main()
