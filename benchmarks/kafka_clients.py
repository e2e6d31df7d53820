"""The clients beside kafka-python and confluent-kafka on a real broker: `make bench-kafka`.

All competitors take turns in one run, on the same machine: spark-log on a SQLite cluster, with --postgresql for single
records on PostgreSQL too, the others on a Kafka 4.4 broker with one node. spark-log acknowledges what has been forced
to disk. Kafka by default does not wait for the disk; with `flush.messages=1` its topic forces every message.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import confluent_kafka
import kafka

from benchmarks.kafka_report import ON_POSTGRESQL, OURS, Bar, Row, latency_bars, parser, percentiles, print_rows
from benchmarks.setup import medians, seconds_in_turns
from spark_log import Consumer, Producer
from spark_log.cluster.cluster import Cluster
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.kafka_programs import KafkaBroker

VALUE_BYTES = 100
PARTS = ("send", "get", "read", "latency")
SENDS_BAR = 500_000
"""Records a second."""
GET_BARS_MS = {OURS: 0.9, ON_POSTGRESQL: 1.6}
LATENCY_BARS_MS = {OURS: 2.5, ON_POSTGRESQL: 4.0}
_WARM_UP = 50
_FEWER = 10
"""kafka-python sends a tenth of the records that the others send, because it takes tens of times as long."""
_VALUES = [os.urandom(VALUE_BYTES // 2).hex().encode() for _ in range(1_000)]
_KEYS = [b"key-%d" % number for number in range(1_000)]

WRITER = """
import sys, time
kind, address, messages, pause_s = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
topic = "latency-" + kind
if kind == "spark-log":
    from spark_log import Producer
    client = Producer(cluster=address)
    send = lambda value: client.send(topic, value).get()
elif kind == "kafka-python":
    from kafka import KafkaProducer
    client = KafkaProducer(bootstrap_servers=address)
    send = lambda value: client.send(topic, value).get()
else:
    from confluent_kafka import Producer
    client = Producer({"bootstrap.servers": address, "linger.ms": 0})
    send = lambda value: (client.produce(topic, value), client.flush())
send(b"0")
sys.stdin.readline()
for _ in range(messages):
    send(b"%d" % time.time_ns())
    time.sleep(pause_s)
"""
"""Sends the time in nanoseconds in each value, once it has been told to begin."""


class Bench:
    """A spark-log cluster and a broker, with the same topics."""

    def __init__(self, folder: Path, broker: KafkaBroker, arguments: argparse.Namespace) -> None:
        self.address, self.broker, self.rounds = str(folder / "cluster"), broker, arguments.rounds
        self.sends, self.gets, self.messages = arguments.sends, arguments.gets, arguments.messages
        self.ours = {OURS: self.address}
        if arguments.postgresql:
            self.ours[ON_POSTGRESQL] = arguments.postgresql
        topics = {"send": 4, "get": 1, "read": 1}
        for address in self.ours.values():
            with Cluster.init(address, log_dir=None if address == self.address else str(folder / "log-dir")) as cluster:
                for name, partitions in {**topics, "latency-spark-log": 1}.items():
                    create_topic(cluster, name, partitions)
        for name, partitions in topics.items():
            broker.create_topic(name, partitions)
        broker.create_topic("send-flushed", 4, flush_messages=1)
        broker.create_topic("get-flushed", 1, flush_messages=1)

    def measure(self, parts: Sequence[str]) -> Iterator[Row]:
        for part in parts:
            yield from {"send": self._send, "get": self._get, "read": self._read, "latency": self._latency}[part]()

    # --- many records, no waiting -----------------------------------------------------------------------------------

    def _send(self) -> Iterator[Row]:
        sends: dict[str, Callable[[], None]] = {
            "spark-log": self._send_ours,
            "kafka-python": partial(self._send_kafka_python, "send"),
            "confluent-kafka": partial(self._send_confluent, "send"),
            "confluent-kafka, fsync": partial(self._send_confluent, "send-flushed"),
        }
        found = self._turns(sends)
        found["kafka-python"] *= _FEWER
        what = f"send: {self.sends:,} keyed values of {VALUE_BYTES} bytes, linger 5 ms, all acknowledged"
        shown = {name: f"{self.sends / seconds / 1000:,.0f} k/s" for name, seconds in found.items()}
        yield Row(what, shown, found, [Bar(OURS, f">= {SENDS_BAR // 1000} k/s", self.sends / found[OURS] >= SENDS_BAR)])

    def _send_ours(self) -> None:
        with Producer(cluster=self.address, linger_ms=5) as client:
            send = client.send
            for number in range(self.sends):
                send("send", _VALUES[number % 1_000], _KEYS[number % 1_000])
            client.flush()

    def _send_kafka_python(self, topic: str) -> None:
        client = kafka.KafkaProducer(bootstrap_servers=self.broker.address, linger_ms=5)
        for number in range(self.sends // _FEWER):
            client.send(topic, _VALUES[number % 1_000], _KEYS[number % 1_000])
        client.flush()
        client.close()

    def _send_confluent(self, topic: str) -> None:
        client = confluent_kafka.Producer(
            {"bootstrap.servers": self.broker.address, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
        )
        for number in range(self.sends):
            client.produce(topic, _VALUES[number % 1_000], _KEYS[number % 1_000])
            if number % 1_000 == 0:
                client.poll(0)
        assert client.flush() == 0

    # --- one record at a time ---------------------------------------------------------------------------------------

    def _get(self) -> Iterator[Row]:
        gets: dict[str, Callable[[], list[float]]] = {
            **{name: partial(self._get_ours, address) for name, address in self.ours.items()},
            "kafka-python": partial(self._get_kafka_python, "get"),
            "confluent-kafka": partial(self._get_confluent, "get"),
            "kafka-python, fsync": partial(self._get_kafka_python, "get-flushed"),
            "confluent-kafka, fsync": partial(self._get_confluent, "get-flushed"),
        }
        taken: dict[str, list[float]] = {name: [] for name in gets}
        for _ in range(self.rounds):
            for name, get in gets.items():
                taken[name] += get()
        shown = {name: percentiles(seconds) for name, seconds in taken.items()}
        middles = {name: statistics.median(seconds) for name, seconds in taken.items()}
        bars = [bar for name in self.ours for bar in latency_bars(name, taken[name], GET_BARS_MS[name])]
        yield Row(f"one record of {VALUE_BYTES} bytes, wait for its acknowledgement", shown, middles, bars)

    def _get_ours(self, address: str) -> list[float]:
        with Producer(cluster=address) as client:
            return self._timed(lambda value: client.send("get", value).get())

    def _get_kafka_python(self, topic: str) -> list[float]:
        client = kafka.KafkaProducer(bootstrap_servers=self.broker.address)
        try:
            return self._timed(lambda value: client.send(topic, value).get())
        finally:
            client.close()

    def _get_confluent(self, topic: str) -> list[float]:
        client = confluent_kafka.Producer({"bootstrap.servers": self.broker.address, "linger.ms": 0})

        def get(value: bytes) -> None:
            client.produce(topic, value)
            assert client.flush() == 0

        return self._timed(get)

    def _timed(self, get: Callable[[bytes], object]) -> list[float]:
        seconds = []
        for number in range(_WARM_UP + self.gets):
            began = time.perf_counter()
            get(_VALUES[number % 1_000])
            seconds.append(time.perf_counter() - began)
        return seconds[_WARM_UP:]

    # --- reading ----------------------------------------------------------------------------------------------------

    def _read(self) -> Iterator[Row]:
        with Producer(cluster=self.address, linger_ms=5) as client:
            for number in range(self.sends):
                client.send("read", _VALUES[number % 1_000], _KEYS[number % 1_000])
        peer = confluent_kafka.Producer(
            {"bootstrap.servers": self.broker.address, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
        )
        for number in range(self.sends):
            peer.produce("read", _VALUES[number % 1_000], _KEYS[number % 1_000])
            peer.poll(0)
        peer.flush()
        reads = {
            "spark-log": self._read_ours,
            "spark-log, poll_arrow": self._read_arrow,
            "kafka-python": self._read_kafka_python,
            "confluent-kafka": self._read_confluent,
        }
        found = self._turns(reads)
        what = f"poll: {self.sends:,} records of {VALUE_BYTES} bytes, 500 a poll"
        yield Row(what, {name: f"{self.sends / seconds / 1000:,.0f} k/s" for name, seconds in found.items()}, found)

    def _read_ours(self) -> None:
        with Consumer(cluster=self.address, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
            consumer.assign([kafka.TopicPartition("read", 0)])
            self._count(lambda: sum(map(len, consumer.poll(1_000).values())))

    def _read_arrow(self) -> None:
        with Consumer(cluster=self.address, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
            consumer.assign([kafka.TopicPartition("read", 0)])
            self._count(lambda: sum(table.num_rows for table in consumer.poll_arrow(1_000).values()))

    def _read_kafka_python(self) -> None:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.broker.address, auto_offset_reset="earliest", enable_auto_commit=False
        )
        consumer.assign([kafka.TopicPartition("read", 0)])
        self._count(lambda: sum(map(len, consumer.poll(1_000).values())))
        consumer.close()

    def _read_confluent(self) -> None:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self.broker.address, "group.id": "bench", "enable.auto.commit": False}
        )
        consumer.assign([confluent_kafka.TopicPartition("read", 0, confluent_kafka.OFFSET_BEGINNING)])
        self._count(lambda: len(consumer.consume(500, 1.0)))
        consumer.close()

    def _count(self, poll: Callable[[], int]) -> None:
        seen = 0
        while seen < self.sends:
            seen += poll()

    # --- from one process to another --------------------------------------------------------------------------------

    def _latency(self) -> Iterator[Row]:
        for name in ("latency-kafka-python", "latency-confluent-kafka"):  # each consumer sees its own messages only
            self.broker.create_topic(name, 1)
        ours = {}
        for name, address in self.ours.items():
            ours[name] = Consumer(cluster=address, auto_offset_reset="earliest", enable_auto_commit=False)
            ours[name].assign([kafka.TopicPartition("latency-spark-log", 0)])
        python = kafka.KafkaConsumer(
            bootstrap_servers=self.broker.address, auto_offset_reset="earliest", enable_auto_commit=False
        )
        python.assign([kafka.TopicPartition("latency-kafka-python", 0)])
        confluent = confluent_kafka.Consumer(
            {"bootstrap.servers": self.broker.address, "group.id": "latency", "enable.auto.commit": False}
        )
        beginning = confluent_kafka.OFFSET_BEGINNING
        confluent.assign([confluent_kafka.TopicPartition("latency-confluent-kafka", 0, beginning)])

        def poll(consumer: Consumer | kafka.KafkaConsumer) -> list[bytes]:
            return [record.value for records in consumer.poll(1_000).values() for record in records]

        polls: dict[str, tuple[str, Callable[[], list[bytes]]]] = {
            **{name: (self.ours[name], partial(poll, consumer)) for name, consumer in ours.items()},
            "kafka-python": (self.broker.address, partial(poll, python)),
            "confluent-kafka": (self.broker.address, partial(poll_confluent, confluent)),
        }
        taken: dict[str, list[float]] = {name: [] for name in polls}
        for _ in range(self.rounds):
            for name, (address, values) in polls.items():
                taken[name] += self._latencies(name.partition(",")[0], address, values)
        for consumer in ours.values():
            consumer.close()
        python.close()
        confluent.close()
        shown = {name: percentiles(seconds) for name, seconds in taken.items()}
        middles = {name: statistics.median(seconds) for name, seconds in taken.items()}
        bars = [bar for name in self.ours for bar in latency_bars(name, taken[name], LATENCY_BARS_MS[name])]
        yield Row("from send to a waiting consumer in another process", shown, middles, bars)

    def _latencies(self, kind: str, address: str, poll: Callable[[], list[bytes]]) -> list[float]:
        command = [sys.executable, "-c", WRITER, kind, address, str(self.messages + _WARM_UP), "0.01"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as writer:
            found: list[float] = []
            while not poll():  # the first message says that the writer is ready
                pass
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
            while len(found) < self.messages + _WARM_UP:
                values = poll()
                now_ns = time.time_ns()
                found += [(now_ns - int(value)) / 1e9 for value in values]
        return found[_WARM_UP:]

    def _turns(self, actions: dict[str, Callable[[], None]]) -> dict[str, float]:
        return medians(seconds_in_turns(actions, self.rounds))


def poll_confluent(consumer: confluent_kafka.Consumer) -> list[bytes]:
    message = consumer.poll(1.0)
    return [] if message is None else [message.value() or b""]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--sends", type=int, default=300_000)
    options.add_argument("--gets", type=int, default=300)
    options.add_argument("--messages", type=int, default=500)
    options.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    arguments = options.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as name,
        KafkaBroker(Path(name)) as broker,
    ):
        rows = list(Bench(Path(name), broker, arguments).measure(arguments.parts))
    print_rows("clients: spark-log beside Kafka", rows, arguments.json)


if __name__ == "__main__":
    main()
