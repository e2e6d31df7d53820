"""Spark's real-time mode over a gateway, beside a broker of Kafka: `make bench-real-time`.

The query copies a topic of 5 partitions to another one. 1,000 records a second carry the time at which they were sent.
A consumer of the second topic sees how old they are: that is the latency of the query. A consumer of the first topic
sees the part of it that is not Spark's: one send and one fetch. Both sides have the same Spark session, one after the
other. spark-log's records are on disk when they are acknowledged; the broker's, by its defaults, are in the page cache.
"""

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles

import confluent_kafka
from pyspark.sql import SparkSession

from benchmarks.kafka_report import OURS, Row, parser, print_rows
from benchmarks.throughput import spark_session
from spark_log.cluster.cluster import Cluster
from spark_log.gateway import serve
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.kafka_programs import KafkaBroker, connector_jars

KAFKA = "Kafka"
PARTITIONS, RECORDS_PER_S, TICK_S = 5, 1_000, 0.005
BARS = "bar: the p50 of spark-log is at most 3 times the broker's (0.33 x)"


def main() -> None:
    arguments = _arguments()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="real-time-", dir=arguments.folder)))
        cluster = stack.enter_context(Cluster.init(str(folder / "cluster")))
        broker = stack.enter_context(KafkaBroker(folder))
        for name in ("in", "out"):
            create_topic(cluster, name, PARTITIONS)
            broker.create_topic(name, PARTITIONS)
        spark = spark_session(folder, {"spark.jars": connector_jars(), "spark.master": f"local[{PARTITIONS + 1}]"})
        servers = {OURS: stack.enter_context(serve(cluster)), KAFKA: broker.address}
        ages: dict[str, dict[str, list[float]]] = {OURS: {}, KAFKA: {}}
        for turn in range(arguments.rounds):
            for side, address in servers.items():
                place = folder / f"checkpoint-{side}-{turn}"
                for topic, measured in _measure(spark, address, place, arguments).items():
                    ages[side].setdefault(topic, []).extend(measured)
        spark.stop()
    print_rows("real-time mode", _rows(ages), arguments.json)
    print(BARS)


def _rows(ages: dict[str, dict[str, list[float]]]) -> list[Row]:
    rows = []
    for topic, what in (("out", "from send to a consumer of the result"), ("in", "from send to a consumer, no Spark")):
        percentiles = {side: quantiles(of_topics[topic], n=100) for side, of_topics in ages.items()}
        for number in (50, 99):
            amounts = {side: each[number - 1] for side, each in percentiles.items()}
            shown = {side: f"{seconds * 1000:.1f} ms" for side, seconds in amounts.items()}
            rows.append(Row(f"{what}, p{number}", shown, amounts))
    return rows


def _measure(spark: SparkSession, servers: str, place: Path, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Run the query for some seconds, and return the ages in seconds that consumers of both topics saw."""
    options = {"kafka.bootstrap.servers": servers}
    linger = {"kafka.linger.ms": str(arguments.linger_ms)}
    source = spark.readStream.format("kafka").options(**options, subscribe="in", startingOffsets="latest").load()
    writer = source.select("key", "value").writeStream.format("kafka").options(**options, **linger, topic="out")
    writer = writer.outputMode("update").option("checkpointLocation", str(place))
    writer = writer.trigger(realTime="5 minutes")  # type: ignore[call-overload]  # pyspark 4.2 lacks its type
    stopping, ages = threading.Event(), {"in": list[float](), "out": list[float]()}
    consumers = {topic: _consumer(servers, topic) for topic in ages}
    threads = [
        threading.Thread(target=_read, args=(consumers[topic], ages[topic], stopping)) for topic in ages
    ]  # fmt: skip
    threads.append(threading.Thread(target=_send, args=(servers, stopping, arguments.linger_ms)))
    query = writer.start()
    try:
        for thread in threads:
            thread.start()
        _wait(lambda: bool(ages["out"]) or not query.isActive)
        time.sleep(arguments.warm_up)
        for measured in ages.values():
            measured.clear()
        time.sleep(arguments.seconds)
        found = {topic: list(measured) for topic, measured in ages.items()}
        assert query.isActive, query.exception()
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
        query.stop()
        for consumer in consumers.values():
            consumer.close()
    return found


def _wait(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until_s, "no record has come through the query"
        time.sleep(0.05)


def _consumer(servers: str, topic: str) -> confluent_kafka.Consumer:
    """A consumer at the ends of the topic."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "bench", "fetch.wait.max.ms": 500})
    partitions = [confluent_kafka.TopicPartition(topic, number) for number in range(PARTITIONS)]
    for each in partitions:
        each.offset = consumer.get_watermark_offsets(each, timeout=30)[1]
    consumer.assign(partitions)
    return consumer


def _read(consumer: confluent_kafka.Consumer, ages: list[float], stopping: threading.Event) -> None:
    while not stopping.is_set():
        for message in consumer.consume(500, 0.01):
            value = message.value()
            if message.error() is None and value is not None:
                ages.append(time.time() - float(value))


def _send(servers: str, stopping: threading.Event, linger_ms: int = 0) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "linger.ms": linger_ms, "acks": "all"})
    due_s, number = time.monotonic(), 0
    while not stopping.is_set():
        for _ in range(int(RECORDS_PER_S * TICK_S)):
            producer.produce("in", repr(time.time()).encode(), partition=number % PARTITIONS)
            number += 1
        producer.poll(0)
        due_s += TICK_S
        time.sleep(max(0.0, due_s - time.monotonic()))
    producer.flush(30)


def _arguments() -> argparse.Namespace:
    options = parser(__doc__, rounds=2)
    options.add_argument("--seconds", type=float, default=30, help="of each measurement [%(default)s]")
    options.add_argument("--warm-up", type=float, default=15, help="seconds before it [%(default)s]")
    options.add_argument("--linger-ms", type=int, default=0, help="linger.ms of the producers [%(default)s]")
    return options.parse_args()


if __name__ == "__main__":
    main()
