"""How fresh a Delta table is that a Spark stream keeps from a Kafka topic: the peer of `benchmarks.tables`.

A Kafka 4.4 broker gets --topics times 4 records a second of 100 bytes, over as many topics. A query reads all topics
with Spark's Kafka connector and appends them to one Delta table, each micro-batch as soon as the one before has ended.
The session has Delta's state in 2 partitions instead of 50, which nearly halves a micro-batch on two cores.
Ten times a second the age of the oldest record is sampled that the table lacks.
"""

import json
import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import kafka

from benchmarks.kafka_report import Row, parser, print_rows
from benchmarks.tables import RATE, oldest_row
from benchmarks.throughput import spark_session
from spark_log import DELTA_SETTINGS
from tests.support.kafka_programs import KafkaBroker, connector_jars

PEER = "Kafka, its connector, Spark's Delta sink"
_TUNED = {"spark.databricks.delta.snapshotPartitions": "2"}
_WARM_UP_S = 40


@dataclass
class Sent:
    """The times at which records were sent, in order, by the monotonic clock."""

    times_s: list[float] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def send(self, address: str, topics: list[str]) -> None:
        producer = kafka.KafkaProducer(bootstrap_servers=address)
        while not self.stop.wait(random.expovariate(RATE * len(topics))):
            self.times_s.append(time.monotonic())
            producer.send(random.choice(topics), os.urandom(100))
        producer.close()


def measure(broker: KafkaBroker, folder: Path, topics: int, seconds: float) -> Iterator[Row]:
    names = [f"topic-{number}" for number in range(topics)]
    for name in names:
        broker.create_topic(name, 1)
    spark = spark_session(folder, {**DELTA_SETTINGS, **_TUNED, "spark.jars": connector_jars()})
    table = folder / "table"
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker.address)
    query = (
        source.option("subscribe", ",".join(names))
        .load()
        .writeStream.format("delta")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start(str(table))
    )
    query.processAllAvailable()
    sent = Sent()
    sender = threading.Thread(target=sent.send, args=(broker.address, names))
    sender.start()
    try:
        ages_s = list(_ages(table / "_delta_log", sent, seconds))
    finally:
        sent.stop.set()
        sender.join()
        query.stop()
        spark.stop()
    yield oldest_row(topics, {PEER: ages_s})


def _ages(log: Path, sent: Sent, seconds: float) -> Iterator[float]:
    """Yield samples of the age of the oldest record that the table lacks. Records get into it in the order of sending,
    but for those of one micro-batch.
    """
    version = records = 0
    begin_s = time.monotonic() + _WARM_UP_S
    while (now_s := time.monotonic()) < begin_s + seconds:
        while (commit := log / f"{version:020d}.json").exists():
            actions = [json.loads(line) for line in commit.read_text().splitlines()]
            records += sum(json.loads(each["add"]["stats"])["numRecords"] for each in actions if "add" in each)
            version += 1
        if now_s >= begin_s and len(sent.times_s) > records:
            yield now_s - sent.times_s[records]
        time.sleep(0.1)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--topics", type=int, default=20)
    options.add_argument("--seconds", type=float, default=60.0)
    arguments = options.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as name,
        KafkaBroker(Path(name)) as broker,
    ):
        rows = list(measure(broker, Path(name), arguments.topics, arguments.seconds))
    print_rows("a Delta table kept by a Spark stream from Kafka", rows, arguments.json)


if __name__ == "__main__":
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    main()
