"""The cost of transactions: `python -m benchmarks.transactions`, `make bench-transactions`.

One transaction: begin, 10 sends of one record over 4 partitions, offsets of a group, commit; durable. Throughput: keyed
values of 100 bytes in transactions of 1,000 records, against the same sends without transactions, where the program
waits for every 1,000 as a commit does, and where it never waits; they take turns.
Readers: a consumer that reads a topic of --records from its beginning, and records that are sent one by one to another
until that consumer has them; turns beside a transaction that a process has open in all of these partitions, for
--open-s seconds together, and after the same transaction has been aborted. On a SQLite cluster, and on PostgreSQL too
with --postgresql.
"""

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection

import pyarrow as pa
from kafka.structs import OffsetAndMetadata, TopicPartition

from benchmarks.kafka_report import percentiles
from benchmarks.setup import StoreRow, in_turns, medians, parser, report
from spark_log import Consumer, Producer
from spark_log.cluster.cluster import Cluster
from spark_log.replication.controller.topic_operations import create_topic

PARTITIONS = 4
PER_TRANSACTION = 1_000
_WARM_UP = 100
VALUES = [os.urandom(50).hex().encode() for _ in range(1_000)]
KEYS = [b"key-%d" % number for number in range(1_000)]


@dataclass(frozen=True)
class Bench:
    address: str
    store: str
    arguments: argparse.Namespace

    def rows(self) -> Iterator[StoreRow]:
        with Cluster.open(self.address) as cluster:
            for name in ("in", "out", "batches", "read", "tail"):
                create_topic(cluster, name, PARTITIONS)
        sqlite = self.store == "SQLite"
        what = f"one transaction of 10 sends over {PARTITIONS} partitions and offsets, durable"
        yield StoreRow(what, self.store, percentiles(self._latencies()), "p50 <= 4 ms" if sqlite else "")
        yield from self._throughput()
        yield from self._readers()

    def _latencies(self) -> list[float]:
        with Producer(cluster=self.address) as client:
            for number in range(100):
                client.send("in", b"event", b"%d" % number)
        found = []
        with (
            Consumer("in", cluster=self.address, group_id="g", enable_auto_commit=False) as consumer,
            Producer(cluster=self.address, transactional_id="latency") as client,
        ):
            while not consumer.assignment():
                consumer.poll(100)
            client.init_transactions()
            for number in range(self.arguments.transactions + _WARM_UP):
                offsets = {each: OffsetAndMetadata(1 + number % 20, "", -1) for each in consumer.assignment()}
                began = time.perf_counter()
                client.begin_transaction()
                for key in range(10):
                    client.send("out", VALUES[key], KEYS[(number + key) % 1_000])
                client.send_offsets_to_transaction(offsets, consumer.group_metadata())
                client.commit_transaction()
                if number >= _WARM_UP:
                    found.append(time.perf_counter() - began)
        return found

    def _throughput(self) -> Iterator[StoreRow]:
        ends = {"never": None, "flush": "flush", "commit": "commit"}
        rates = medians(in_turns({name: partial(self._rate, end) for name, end in ends.items()}, self.arguments.rounds))
        mine = rates["commit"]
        for peer, other, bar in (
            ("flush() after every 1,000", rates["flush"], ">= 0.8"),
            ("never waiting", rates["never"], ""),
        ):
            measured = f"{mine:,.0f}/s against {other:,.0f}/s: {mine / other:.2f}"
            yield StoreRow(f"transactions of {PER_TRANSACTION:,} records / none, {peer}", self.store, measured, bar)

    def _rate(self, end: str | None) -> float:
        """Records a second; `end` is what is called after every 1,000."""
        settings = {"transactional_id": "batches"} if end == "commit" else {}
        with Producer(cluster=self.address, linger_ms=5, **settings) as client:
            if end == "commit":
                client.init_transactions()
                client.begin_transaction()
            client.partitions_for("batches")
            began, send = time.perf_counter(), client.send
            for _ in range(self.arguments.sends // PER_TRANSACTION):
                for number in range(PER_TRANSACTION):
                    send("batches", VALUES[number], KEYS[number])
                if end == "commit":
                    client.commit_transaction()
                    client.begin_transaction()
                elif end == "flush":
                    client.flush()
            client.flush()
            seconds = time.perf_counter() - began
        return float(self.arguments.sends / seconds)

    def _readers(self) -> Iterator[StoreRow]:
        count = self.arguments.records
        with Producer(cluster=self.address) as client:
            values = pa.array([VALUES[number % 1_000] for number in range(count)], pa.binary())
            client.send_table("read", pa.table({"value": values, "partition": [n % PARTITIONS for n in range(count)]}))
        rates: dict[bool, list[float]] = {False: [], True: []}
        seconds: dict[bool, list[float]] = {False: [], True: []}
        with _opener(self.address) as end:
            opened_s = 0.0
            while opened_s < self.arguments.open_s:
                for is_open in (False, True, True, False):  # whatever grows with time meets both
                    end("open")
                    if not is_open:  # what the sends leave on the disk is there in both
                        end("abort")
                    began = time.perf_counter()
                    self._read(rates[is_open], seconds[is_open])
                    if is_open:
                        opened_s += time.perf_counter() - began
                        end("abort")
        beside, without = statistics.median(rates[True]), statistics.median(rates[False])
        measured = f"{beside:,.0f}/s against {without:,.0f}/s: {beside / without:.2f}"
        yield StoreRow("reading beside an open transaction / without one", self.store, measured, "no slower")
        measured = f"{percentiles(seconds[True])} against {percentiles(seconds[False])}"
        yield StoreRow("from send() until a reader has it, beside one / without", self.store, measured, "no slower")

    def _read(self, rates: list[float], seconds: list[float]) -> None:
        """A read of the whole topic, and 50 records sent one by one."""
        whole, tail = ([TopicPartition(topic, n) for n in range(PARTITIONS)] for topic in ("read", "tail"))
        with (
            Consumer(cluster=self.address, isolation_level="read_committed") as consumer,
            Producer(cluster=self.address) as client,
        ):
            consumer.assign(whole)
            consumer.seek_to_beginning()
            began, read = time.perf_counter(), 0
            while read < self.arguments.records:
                read += sum(batch.num_rows for batch in consumer.poll_arrow(1_000).values())
            rates.append(read / (time.perf_counter() - began))
            consumer.assign(tail)
            consumer.seek_to_end()
            for partition in tail:
                consumer.position(partition)
            for number in range(50):
                began = time.perf_counter()
                client.send("tail", b"new", partition=number % PARTITIONS)
                while not consumer.poll(1_000):
                    pass
                seconds.append(time.perf_counter() - began)


@contextmanager
def _opener(address: str) -> Iterator[Callable[[str], None]]:
    """A process with a producer that is told to `open` a transaction with 10,000 records, and to `abort` it."""
    spawn = multiprocessing.get_context("spawn")
    ours, its = spawn.Pipe()
    process = spawn.Process(target=_obey, args=(address, its))
    process.start()

    def report(what: str) -> None:
        ours.send(what)
        assert ours.recv() == what

    yield report
    ours.send("end")
    process.join()


def _obey(address: str, pipe: Connection) -> None:
    with Producer(cluster=address, transactional_id="open", transaction_timeout_ms=600_000) as client:
        client.init_transactions()
        while (what := pipe.recv()) != "end":
            if what == "open":
                client.begin_transaction()
                for number in range(10_000):
                    client.send(("read", "tail")[number % 2], VALUES[number % 1_000], partition=number // 2 % 4)
                client.flush()
            else:
                client.abort_transaction()
            pipe.send(what)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--transactions", type=int, default=1_000)
    options.add_argument("--sends", type=int, default=200_000, help="records of a turn of the throughput")
    options.add_argument("--records", type=int, default=1_000_000, help="of the topic that is read")
    options.add_argument("--open-s", type=int, default=60, help="seconds for which a transaction is open")
    arguments = options.parse_args()
    report("transactions", arguments, lambda store, address, _: Bench(address, store, arguments).rows())


if __name__ == "__main__":
    main()
