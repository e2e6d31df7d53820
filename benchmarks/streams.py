"""How fast streams over the log are, as ratios against a stream over plain Parquet files in the same run:
`format("spark_log")`, whose records pass through Python workers, and `stream_topic`, whose files Spark reads itself.
`make bench-streams`.

Input: --records events of a year, each with one of 10 keys and a small number as its value, in --partitions. The query
counts and averages them by key in windows of an hour (87,600 results), with a watermark, AvailableNow, all in one
micro-batch, into noop. The peer reads the very segment files of the topic (hard links) through
`spark.readStream.parquet`, so they differ in nothing but the source. They take turns --rounds times after warm-ups,
and the medians are compared. Nothing here is a test.
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from rich.console import Console

from benchmarks.kafka_report import OURS, Row, parser, print_rows
from benchmarks.setup import in_turns, medians
from benchmarks.throughput import spark_session
from spark_log import DELTA_SETTINGS, stream_topic
from spark_log.cluster.cluster import Cluster
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.spark.streams.windows import Tumbling, windowed

TOPIC = "events"
STREAM_TOPIC, PARQUET = f"{OURS}, stream_topic", "Parquet"
BAR = 0.9
_YEAR_S = 365 * 24 * 3600
_FIRST_S = 1_356_998_400
"""2013-01-01 in seconds."""


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--records", type=int, default=5_000_000)
    options.add_argument("--partitions", type=int, default=4)
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as name:
        row = Bench(Path(name), arguments, Console()).run()
    print_rows(f"streams, {arguments.partitions} partitions, {arguments.rounds} rounds", [row], arguments.json)


class Bench:
    """One run, in one folder, on one Spark session."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, console: Console) -> None:
        self.folder, self.arguments, self.console = folder, arguments, console
        self.address = str(folder / "cluster")
        self.cluster = Cluster.init(self.address)
        self.spark: SparkSession = spark_session(folder, DELTA_SETTINGS)
        self.files = folder / "files"
        self.numbers = count()

    def run(self) -> Row:
        self._step("making events")
        self._make_events()
        sources = {OURS: self._data_source, STREAM_TOPIC: self._stream_topic, PARQUET: self._peer}
        queries = {who: partial(self._seconds, source) for who, source in sources.items()}
        seconds = medians(in_turns(queries, self.arguments.rounds, warm_up=2))
        self.spark.stop()
        shown = {who: f"{self.arguments.records / taken / 1e6:.2f} M/s" for who, taken in seconds.items()}
        row = Row(f"hourly windows by key over {self.arguments.records:,} events, AvailableNow", shown, seconds)
        return row.with_bar(OURS, BAR, PARQUET).with_bar(STREAM_TOPIC, BAR, PARQUET)

    def _make_events(self) -> None:
        create_topic(self.cluster, TOPIC, self.arguments.partitions)
        number, records = F.col("id"), self.arguments.records
        events = self.spark.range(records).select(
            F.concat(F.lit("key-"), F.pmod(F.xxhash64(number), F.lit(10))).alias("key"),
            F.pmod(F.xxhash64(number, F.lit(1)), F.lit(100_000)).cast("string").alias("value"),
            F.timestamp_seconds(F.lit(_FIRST_S) + F.floor(number * _YEAR_S / records)).alias("timestamp"),
        )
        events.write.format("spark_log").option("cluster", self.address).option("topic", TOPIC).mode("append").save()
        self.files.mkdir()
        for segment in Path(self.address).rglob("_segments/*/*.parquet"):
            os.link(segment, self.files / segment.name)

    def _data_source(self) -> DataFrame:
        options = {"cluster": self.address, "subscribe": TOPIC, "startingOffsets": "earliest"}
        return self.spark.readStream.format("spark_log").options(**options, columns="key,value,timestamp").load()

    def _stream_topic(self) -> DataFrame:
        return stream_topic(self.spark, self.cluster, TOPIC, history=str(self.folder / f"history-{next(self.numbers)}"))

    def _peer(self) -> DataFrame:
        return self.spark.readStream.schema("key BINARY, value BINARY, timestamp TIMESTAMP").parquet(str(self.files))

    def _seconds(self, source: Callable[[], DataFrame]) -> float:
        checkpoint = self.folder / f"checkpoint-{next(self.numbers)}"
        number = F.col("value").cast("string").cast("double")
        aggregates = [F.count("*").alias("events"), F.avg(number).alias("mean")]
        begin = time.perf_counter()
        result = windowed(source(), "timestamp", Tumbling("1 hour"), "key", watermark="1 hour", aggregates=aggregates)
        writer = result.writeStream.format("noop").outputMode("append").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        query.awaitTermination()
        taken = time.perf_counter() - begin
        self._step(f"{source.__name__}: {taken:.2f} s")
        read = sum(progress.numInputRows for progress in query.recentProgress)
        assert read == self.arguments.records, f"{read:,} records were read"
        shutil.rmtree(checkpoint)
        return taken

    def _step(self, what: str) -> None:
        self.console.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {what}")


if __name__ == "__main__":
    main()
