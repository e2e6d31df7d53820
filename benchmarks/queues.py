"""Share groups: `python -m benchmarks.queues`, `make bench-queues`.

Records of 100 bytes, every acknowledgement durable. Rates of whole polls of 500 records and of single records, by
processes at once, on a SQLite cluster, and on PostgreSQL too with --postgresql. Then rows with many ranges, records
whose lock ends, delayed records, rejected records with dead letters, and members that wait.
"""

import argparse
import multiprocessing
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from benchmarks import queue_gateway
from benchmarks.kafka_report import percentiles
from benchmarks.setup import StoreRow, parser, report
from spark_log import AcknowledgeType, Producer, ShareConsumer
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.settings import alter_settings
from spark_log.groups.share import rows
from spark_log.groups.share.looks import look
from spark_log.groups.share.rules import Delayed
from spark_log.log.partitions.partition_rows import Key
from spark_log.replication.controller.topic_operations import create_topic

VALUE = b"x" * 100
GROUP = "workers"


@dataclass(frozen=True)
class Bench:
    address: str
    store: str
    arguments: argparse.Namespace

    def rows(self) -> Iterator[StoreRow]:
        with self._cluster() as cluster:
            alter_settings(
                cluster,
                {
                    "group.share.min.record.lock.duration.ms": "1",
                    "group.share.max.partition.max.record.locks": "100000",
                },
            )
        yield from self._batches()
        yield from self._single()
        yield self._ranges()
        yield self._redelivery()
        yield from self._delays()
        yield self._dead_letters()
        yield self._idle()
        yield from self._gateway()

    @contextmanager
    def _cluster(self) -> Iterator[Cluster]:
        with Cluster.open(self.address) as cluster:
            yield cluster

    def _topic(self, name: str, partitions: int, records: int, **configs: object) -> None:
        """Create a topic with records, and set the group's configs."""
        overrides = {"share.auto.offset.reset": "earliest"}
        overrides |= {key.replace("_", "."): str(value) for key, value in configs.items()}
        with self._cluster() as cluster:
            create_topic(cluster, name, partitions)
            cluster.store.transact(lambda connection: rows.save_configs(connection, f"of-{name}", overrides))
        if records:
            with Producer(cluster=self.address) as producer:
                for _ in range(0, records, 500_000):
                    count = min(records, 500_000)
                    producer.send_table(name, pa.table({"value": pa.array([VALUE] * count, pa.binary())}))

    def _batches(self) -> Iterator[StoreRow]:
        bars = {"poll": ">= 100,000/s", "poll_arrow": ">= 300,000/s"}
        for partitions in (1, 4):
            for processes in (1, 4):
                for method, bar in bars.items():
                    name = f"batches-{method}-{partitions}-{processes}"
                    self._topic(name, partitions, self.arguments.records)
                    rate = self._together(processes, _poll_all, name, method)
                    what = f"{method} of 500, {processes} process(es), {partitions} partition(s)"
                    yield StoreRow(what, self.store, f"{rate:,.0f} records/s", bar)

    def _single(self) -> Iterator[StoreRow]:
        for processes in (1, 4, 16):
            name = f"single-{processes}"
            self._topic(name, 4, 100_000)
            rate = self._together(processes, _poll_single, name, "record_limit")
            bar = ">= 500/s" if self.store == "SQLite" else ">= 1,000/s (4 or 16 processes)"
            yield StoreRow(f"poll of 1, record_limit, {processes} process(es)", self.store, f"{rate:,.0f} polls/s", bar)
            sends = self._together(processes, _send_single, name, "")
            yield StoreRow(f"send().get(), {processes} process(es)", self.store, f"{sends:,.0f}/s", "polls >= 0.8 x")
        self._topic("memory", 1, 500_000)
        rate = self._together(1, _poll_single, "memory", "batch_optimized")
        yield StoreRow("poll(max_records=1), batch_optimized", self.store, f"{rate:,.0f} polls/s", ">= 20,000/s")

    def _ranges(self) -> StoreRow:
        """A row with 1,900 ranges of one record: every second record of 3,800 is accepted."""
        self._topic("ranges", 1, 20_000, share_partition_max_record_locks=4_000)
        with (
            self._consumer("ranges", explicit=True, records=3_800) as holder,
            self._consumer("ranges", mode="record_limit") as worker,
        ):
            [records] = holder.poll(10_000).values()
            for record in records[::2]:
                holder.acknowledge(record)
            holder.commit_sync()
            began, polls = time.perf_counter(), 0
            while time.perf_counter() - began < self.arguments.seconds:
                polls += bool(worker.poll(1_000, max_records=1))
            rate = polls / (time.perf_counter() - began)
        return StoreRow(
            f"{len(records) // 2:,} ranges in the row, poll of 1", self.store, f"{rate:,.0f} polls/s", ">= 250/s"
        )

    def _redelivery(self) -> StoreRow:
        self._topic("redelivery", 1, 100_000, share_record_lock_duration_ms=200, share_delivery_count_limit=10)
        late = []
        with (
            self._consumer("redelivery", explicit=True, mode="record_limit", records=1) as slow,
            self._consumer("redelivery", mode="record_limit", records=1) as other,
        ):
            for _ in range(50):
                [[held]] = slow.poll(5_000).values()
                ends = time.perf_counter() + 0.2
                while True:
                    [[record]] = other.poll(5_000).values()
                    if record.offset == held.offset:
                        break
                late.append(max(0.0, time.perf_counter() - ends))
                other.commit_sync()
                slow.acknowledge(held)
                slow.commit_sync()  # refused: the lock has ended
        return StoreRow("delivery after a lock's end, lateness", self.store, percentiles(late), "p99 <= 1 s")

    def _delays(self) -> Iterator[StoreRow]:
        rates = {}
        for delayed in (0, self.arguments.delayed):
            name = f"delayed-{delayed}"
            self._topic(name, 1, 1_000_000)
            if delayed:
                self._delay(name, delayed)
            rates[delayed] = self._together(1, _poll_all, name, "poll")
        ratio = rates[0] / rates[self.arguments.delayed]
        what = f"poll of 500 beside {self.arguments.delayed:,} delayed records: time of a poll"
        yield StoreRow(what, self.store, f"{ratio:.2f} of that without", "<= 1.2")
        self._topic("due", 1, 0)
        late = []
        with self._consumer("due") as consumer, Producer(cluster=self.address) as producer:
            consumer.poll()
            for _ in range(30):
                due_ms = int(time.time() * 1000) + 100
                producer.send("due", VALUE, deliver_at_ms=due_ms).get()
                assert consumer.poll(5_000)
                late.append(max(0.0, time.time() - due_ms / 1000))
        yield StoreRow("a record with a delivery time, lateness", self.store, percentiles(late), "p99 <= 1 s")

    def _delay(self, name: str, count: int) -> None:
        """Let the group have delayed records far in the future."""
        with self._consumer(name) as consumer:
            consumer.poll(5_000)
            with self._cluster() as cluster:
                [key] = look(cluster.store, f"of-{name}").offers
                for first in range(0, count, 50_000):
                    entries = [Delayed(10**9 + n, 4 * 10**12, 0) for n in range(first, min(count, first + 50_000))]
                    self._insert(cluster, name, key, entries)

    @staticmethod
    def _insert(cluster: Cluster, name: str, key: Key, entries: list[Delayed]) -> None:
        cluster.store.transact(lambda connection: rows.delay(connection, f"of-{name}", key, entries))

    def _dead_letters(self) -> StoreRow:
        self._topic("bad", 1, 200_000, errors_deadletterqueue_topic_name="dlq.bad")
        with self._cluster() as cluster:
            create_topic(cluster, "dlq.bad", configs={"errors.deadletterqueue.group.enable": "true"})
        with self._consumer("bad", explicit=True) as consumer:
            began, count = time.perf_counter(), 0
            while time.perf_counter() - began < self.arguments.seconds:
                for table in consumer.poll_arrow(1_000).values():
                    consumer.acknowledge(table, AcknowledgeType.REJECT)
                    count += table.num_rows
                consumer.commit_sync()
            rate = count / (time.perf_counter() - began)
        return StoreRow("rejected records, with their letters", self.store, f"{rate:,.0f} records/s", ">= 20,000/s")

    def _idle(self) -> StoreRow:
        self._topic("idle", 4, 0)
        members, seconds = self.arguments.idle, self.arguments.seconds * 2
        queue = multiprocessing.get_context("spawn").Queue()
        process = multiprocessing.get_context("spawn").Process(
            target=_wait_idle, args=(self.address, "idle", members, seconds, queue)
        )
        process.start()
        share = float(queue.get())
        process.join()
        return StoreRow(f"{members} members that wait, in one process", self.store, f"{share:.1%} of a core", "")

    def _gateway(self) -> Iterator[StoreRow]:
        self._topic("wire", 4, 200_000)
        for workers in (1, 2):
            with queue_gateway.gateway(self.address, workers) as port:
                rate = queue_gateway.fetch_together(port, "wire", self.arguments.seconds)
            what = f"poll of 1 by 16 Kafka clients, a gateway of {workers} process(es)"
            yield StoreRow(what, self.store, f"{rate:,.0f}/s", ">= 1,000/s")
        members = 200
        self._topic("quiet", 4, 0)
        share = queue_gateway.cpu_while_waiting(self.address, "quiet", members, self.arguments.seconds * 5)
        yield StoreRow(
            f"{members} Kafka clients that wait, on a gateway", self.store, f"{share:.1%} of a core", "< 5 %"
        )

    def _consumer(
        self, topic: str, *, explicit: bool = False, mode: str = "batch_optimized", records: int = 500
    ) -> ShareConsumer:
        return ShareConsumer(
            topic, cluster=self.address, group_id=f"of-{topic}", share_acquire_mode=mode, max_poll_records=records,
            share_acknowledgement_mode="explicit" if explicit else "implicit",
        )  # fmt: skip

    def _together(self, processes: int, target: Callable[..., None], topic: str, how: str) -> float:
        """Return how much processes do in a second together."""
        context = multiprocessing.get_context("spawn")
        ready, queue = context.Barrier(processes), context.Queue()
        running = [
            context.Process(target=target, args=(self.address, topic, how, self.arguments.seconds, ready, queue))
            for _ in range(processes)
        ]
        for each in running:
            each.start()
        total = sum(float(queue.get()) for _ in running)
        for each in running:
            each.join()
        return total


def _poll_all(address: str, topic: str, method: str, seconds: float, ready: object, queue: object) -> None:
    with ShareConsumer(topic, cluster=address, group_id=f"of-{topic}") as consumer:
        poll = getattr(consumer, method)
        poll(5_000)
        ready.wait()  # type: ignore[attr-defined]
        began, count = time.perf_counter(), 0
        while (taken := time.perf_counter() - began) < seconds:
            count += sum(map(len, poll(1_000).values()))
    queue.put(count / taken)  # type: ignore[attr-defined]


def _poll_single(address: str, topic: str, mode: str, seconds: float, ready: object, queue: object) -> None:
    with ShareConsumer(topic, cluster=address, group_id=f"of-{topic}", share_acquire_mode=mode) as consumer:
        for _ in range(16):  # until every partition has been read
            consumer.poll(5_000, max_records=1)
        ready.wait()  # type: ignore[attr-defined]
        began, count = time.perf_counter(), 0
        while (taken := time.perf_counter() - began) < seconds:
            count += bool(consumer.poll(1_000, max_records=1))
    queue.put(count / taken)  # type: ignore[attr-defined]


def _send_single(address: str, topic: str, _how: str, seconds: float, ready: object, queue: object) -> None:
    with Producer(cluster=address) as producer:
        producer.send(topic, VALUE).get()
        ready.wait()  # type: ignore[attr-defined]
        began, count = time.perf_counter(), 0
        while (taken := time.perf_counter() - began) < seconds:
            producer.send(topic, VALUE).get()
            count += 1
    queue.put(count / taken)  # type: ignore[attr-defined]


def _wait_idle(address: str, topic: str, members: int, seconds: float, queue: object) -> None:
    consumers = [ShareConsumer(topic, cluster=address, group_id=f"of-{topic}") for _ in range(members)]
    for consumer in consumers:
        consumer.poll()
    threads = [threading.Thread(target=consumer.poll, args=(seconds * 1000,)) for consumer in consumers]
    for thread in threads:
        thread.start()
    time.sleep(seconds / 4)
    before, began = _cpu_s(), time.perf_counter()
    time.sleep(seconds / 2)
    share = (_cpu_s() - before) / (time.perf_counter() - began)
    for thread in threads:
        thread.join()
    for consumer in consumers:
        consumer.close()
    queue.put(share)  # type: ignore[attr-defined]


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    options = parser(__doc__, rounds=None)
    options.add_argument("--seconds", type=float, default=3.0, help="of each measurement [%(default)s]")
    options.add_argument("--records", type=int, default=2_000_000, help="of the topics read in batches [%(default)s]")
    options.add_argument("--delayed", type=int, default=1_000_000, help="delayed records [%(default)s]")
    options.add_argument("--idle", type=int, default=50, help="members that wait [%(default)s]")
    arguments = options.parse_args()
    report("share groups", arguments, lambda store, address, _: Bench(address, store, arguments).rows())


if __name__ == "__main__":
    main()
