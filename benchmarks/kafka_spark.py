"""`format("spark_log")` beside Spark's Kafka connector with a real broker, and beside Parquet: `make bench-kafka`.

One Spark session, one run, the competitors taking turns: batch write, read and aggregate, a stream with AvailableNow,
a micro-batch with one record, and the bytes that the flights of 2013 take. spark-log's writes are on disk when they are
acknowledged; Kafka's, by its defaults, are in the page cache.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import confluent_kafka
import kafka
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from rich.console import Console

from benchmarks.flights import flights_as_json
from benchmarks.kafka_report import OURS, Row, parser, print_rows
from benchmarks.setup import medians, seconds_in_turns, write_input
from benchmarks.throughput import aggregate, noop, spark_session
from spark_log import DELTA_SETTINGS, Producer, read_topic
from spark_log.cluster.cluster import Cluster
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.kafka_programs import KafkaBroker, connector_jars

READ_TOPIC, KAFKA, PARQUET = f"{OURS}, read_topic", "Kafka's connector", "Parquet"
PARTS = ("write", "read", "stream", "micro_batch", "bytes")
WRITE_BAR = 2
"""Of the rate of Kafka's connector."""
READ_BARS = {KAFKA: 4.5, PARQUET: 0.65}


class Bench:
    """A spark-log cluster, a broker and one Spark session with both connectors."""

    def __init__(self, folder: Path, broker: KafkaBroker, arguments: argparse.Namespace, console: Console) -> None:
        self.folder, self.broker, self.arguments, self.console = folder, broker, arguments, console
        self.address = str(folder / "cluster")
        self.cluster = Cluster.init(self.address)
        self.spark = spark_session(folder, {**DELTA_SETTINGS, "spark.jars": connector_jars()})
        self.names = iter(f"t{number}" for number in range(10_000))

    def measure(self, parts: Sequence[str]) -> Iterator[Row]:
        write_input(self.folder / "input", self.arguments.records, self.arguments.partitions)
        for part in parts:
            self.console.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {part}")
            measure: Callable[[], Iterator[Row]] = getattr(self, f"_{part}")
            yield from measure()
        self.spark.stop()

    def _write(self) -> Iterator[Row]:
        source = self.spark.read.parquet(str(self.folder / "input"))
        writes = {OURS: self._ours_writer(source), KAFKA: self._kafka_writer(source), PARQUET: self._parquet(source)}
        yield self._rate("batch write", self._turns(writes)).with_bar(OURS, WRITE_BAR, KAFKA)

    def _ours_writer(self, source: DataFrame) -> Callable[[], None]:
        def write() -> None:
            name = next(self.names)
            create_topic(self.cluster, name, self.arguments.partitions)
            self._write_ours(source, name)

        return write

    def _write_ours(self, source: DataFrame, topic: str) -> None:
        options = {"cluster": self.address, "topic": topic}
        source.write.format("spark_log").options(**options).mode("append").save()

    def _kafka_writer(self, source: DataFrame) -> Callable[[], None]:
        def write() -> None:
            name = next(self.names)
            self.broker.create_topic(name, self.arguments.partitions)
            self._write_kafka(source, name)
            self.broker.delete_topic(name)

        return write

    def _write_kafka(self, source: DataFrame, topic: str) -> None:
        options = {"kafka.bootstrap.servers": self.broker.address, "topic": topic}
        source.write.format("kafka").options(**options).save()

    def _parquet(self, source: DataFrame) -> Callable[[], None]:
        def write() -> None:
            source.write.option("compression", "zstd").parquet(str(self.folder / next(self.names)))

        return write

    def _read(self) -> Iterator[Row]:
        source = self.spark.read.parquet(str(self.folder / "input"))
        create_topic(self.cluster, "read", self.arguments.partitions)
        self.broker.create_topic("read", self.arguments.partitions)
        self._write_ours(source, "read")
        self._write_kafka(source, "read")
        parquet = str(self.folder / "read")
        self._topic_columns(source).write.option("compression", "zstd").parquet(parquet)
        frames: dict[str, Callable[[], DataFrame]] = {
            OURS: partial(self._ours, "read"),
            READ_TOPIC: partial(read_topic, self.spark, self.address, "read"),
            KAFKA: partial(self._kafka, "read"),
            PARQUET: partial(self.spark.read.parquet, parquet),
        }
        row = self._rate("read of 7 columns into noop", self._turns(_applied(frames, noop)))
        for peer, bar in READ_BARS.items():
            row = row.with_bar(OURS, bar, peer)
        yield row
        cut: dict[str, Callable[[], DataFrame]] = {**frames, OURS: partial(self._ours, "read", columns="value,offset")}
        yield self._rate("aggregate of two columns (`columns` names them)", self._turns(_applied(cut, aggregate)))

    def _stream(self) -> Iterator[Row]:
        def run(source: Callable[[], DataFrame]) -> None:
            folder = self.folder / next(self.names)
            writer = source().writeStream.format("noop").option("checkpointLocation", str(folder))
            writer.trigger(availableNow=True).start().awaitTermination()

        def parquet() -> DataFrame:
            folder = str(self.folder / "read")
            return self.spark.readStream.schema(self.spark.read.parquet(folder).schema).parquet(folder)

        streams: dict[str, Callable[[], None]] = {
            OURS: partial(run, partial(self._ours_stream, "read")),
            KAFKA: partial(run, partial(self._kafka_stream, "read")),
            PARQUET: partial(run, parquet),
        }
        yield self._rate("stream of 7 columns into noop, AvailableNow", self._turns(streams))

    def _micro_batch(self) -> Iterator[Row]:
        create_topic(self.cluster, "ticks", 1)
        self.broker.create_topic("ticks", 1)
        ours = Producer(cluster=self.address)
        peer = kafka.KafkaProducer(bootstrap_servers=self.broker.address)
        found = {
            OURS: self._batches(self._ours_stream("ticks"), lambda value: ours.send("ticks", value).get()),
            KAFKA: self._batches(self._kafka_stream("ticks"), lambda value: peer.send("ticks", value).get()),
        }
        ours.close()
        peer.close()
        shown = {who: f"{1000 * seconds:.0f} ms" for who, seconds in found.items()}
        yield Row("micro-batch of one record into noop, median", shown, found)

    def _batches(self, stream: DataFrame, send: Callable[[bytes], object]) -> float:
        writer = stream.writeStream.format("noop").option("checkpointLocation", str(self.folder / next(self.names)))
        query = writer.start()
        taken: list[float] = []
        for number in range(40):
            send(b"%d" % number)
            query.processAllAvailable()
            progress = query.lastProgress
            assert progress is not None
            taken.append(progress["durationMs"]["triggerExecution"] / 1000)
        query.stop()
        return statistics.median(taken[10:])

    def _bytes(self) -> Iterator[Row]:
        flights = flights_as_json()
        topic = create_topic(self.cluster, "flights", 4)
        assert topic is not None
        with Producer(cluster=self.address) as client:
            client.send_table("flights", flights).get()
        log = ClientLog(self.cluster)
        log.seal(topic, range(4))
        log.close()
        stored = {OURS: _size(self.folder / "cluster", "flights-*/**/*")}
        keys, values = flights["key"].to_pylist(), flights["value"].to_pylist()
        for compression in ("none", "zstd"):
            name = f"flights-{compression}"
            self.broker.create_topic(name, 4)
            settings = {"compression.type": compression, "linger.ms": 50, "batch.size": 1_000_000}
            peer = confluent_kafka.Producer({"bootstrap.servers": self.broker.address, **settings})
            for key, value in zip(keys, values, strict=True):
                peer.produce(name, value, key)
                peer.poll(0 if len(peer) < 90_000 else 1)
            assert peer.flush() == 0
            stored[f"Kafka, compression {compression}"] = _size(self.broker.data, f"{name}-*/*.log")
        shown = {who: f"{size / 1e6:.1f} MB" for who, size in stored.items()}
        yield Row(f"bytes on disk of {flights.num_rows:,} flights as JSON", shown, dict(stored))

    def _ours(self, topic: str, **options: str) -> DataFrame:
        reader = self.spark.read.format("spark_log").option("cluster", self.address).option("subscribe", topic)
        return reader.options(**options).load()

    def _kafka(self, topic: str) -> DataFrame:
        options = {"kafka.bootstrap.servers": self.broker.address, "subscribe": topic}
        return self.spark.read.format("kafka").options(**options).load()

    def _ours_stream(self, topic: str) -> DataFrame:
        options = {"cluster": self.address, "subscribe": topic, "startingOffsets": "earliest"}
        return self.spark.readStream.format("spark_log").options(**options).load()

    def _kafka_stream(self, topic: str) -> DataFrame:
        options = {
            "kafka.bootstrap.servers": self.broker.address,
            "subscribe": topic,
            "startingOffsets": "earliest",
        }
        return self.spark.readStream.format("kafka").options(**options).load()

    def _topic_columns(self, source: DataFrame) -> DataFrame:
        """The columns of a topic, as Parquet has them."""
        return source.select(
            "key",
            "value",
            F.lit("read").alias("topic"),
            F.spark_partition_id().alias("partition"),
            F.monotonically_increasing_id().alias("offset"),
            F.current_timestamp().alias("timestamp"),
            F.lit(0).alias("timestampType"),
        )

    def _turns(self, actions: dict[str, Callable[[], None]]) -> dict[str, float]:
        """Median seconds of each, after two rounds that do not count: the JVM compiles meanwhile."""
        return medians(seconds_in_turns(actions, self.arguments.rounds, 2))

    def _rate(self, what: str, seconds: dict[str, float]) -> Row:
        records = self.arguments.records
        shown = {who: f"{records / taken / 1e6:.2f} M/s" for who, taken in seconds.items()}
        return Row(f"{what}, {records:,} records", shown, seconds)


def _applied(
    frames: dict[str, Callable[[], DataFrame]], query: Callable[[DataFrame], None]
) -> dict[str, Callable[[], None]]:
    def action(frame: Callable[[], DataFrame]) -> Callable[[], None]:
        return lambda: query(frame())

    return {who: action(frame) for who, frame in frames.items()}


def _size(folder: Path, pattern: str) -> float:
    return float(sum(path.stat().st_size for path in folder.rglob(pattern) if path.is_file()))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--records", type=int, default=2_000_000)
    options.add_argument("--partitions", type=int, default=4)
    options.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    arguments = options.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as name,
        KafkaBroker(Path(name)) as broker,
    ):
        rows = list(Bench(Path(name), broker, arguments, Console()).measure(arguments.parts))
    print_rows("Spark: spark-log beside Kafka's connector and Parquet", rows, arguments.json)


if __name__ == "__main__":
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    main()
