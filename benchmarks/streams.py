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
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
from benchmarks.throughput import Result, spark_session
from spark_log import DELTA_SETTINGS, stream_topic
from spark_log.cluster.cluster import Cluster
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.spark.streams.windows import Tumbling, windowed

TOPIC = "events"
BAR = 0.9
_YEAR_S = 365 * 24 * 3600
_FIRST_S = 1_356_998_400
"""2013-01-01 in seconds."""


def main() -> None:
    arguments = _arguments()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as name:
        results = Bench(Path(name), arguments, console).run()
    table = Table(title=f"{arguments.records:,} events, {arguments.partitions} partitions, {arguments.rounds} rounds")
    for column in ("what", "ours", "peer", "ratio", "bar"):
        table.add_column(column)
    for result in results:
        table.add_row(result.what, result.ours, result.peer, f"{result.ratio:.2f}", f">= {result.bar}")
    console.print(table)
    console.print(f"{datetime.now(UTC):%Y-%m-%d}, {describe_machine()}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps([asdict(result) for result in results], indent=1))


class Bench:
    """One run, in one folder, on one Spark session."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, console: Console) -> None:
        self.folder, self.arguments, self.console = folder, arguments, console
        self.address = str(folder / "cluster")
        self.cluster = Cluster.init(self.address)
        self.spark: SparkSession = spark_session(folder, DELTA_SETTINGS)
        self.files = folder / "files"
        self.numbers = count()

    def run(self) -> list[Result]:
        self._step("making events")
        self._make_events()
        sources = (self._data_source, self._stream_topic, self._peer)
        seconds: list[list[float]] = [[] for _ in sources]
        for turn in range(-2, self.arguments.rounds):  # two turns warm up
            for source, taken in zip(sources, seconds, strict=True):
                taken.append(self._seconds(source))
            self._step(f"turn {turn + 1}: " + " / ".join(f"{taken[-1]:.2f} s" for taken in seconds))
        self.spark.stop()
        *ours, peer = (statistics.median(taken[2:]) for taken in seconds)

        def rate(seconds: float) -> str:
            return f"{self.arguments.records / seconds / 1e6:.2f} M/s"

        return [
            Result(
                f"hourly windows by key: {name} / spark.readStream.parquet", rate(mine), rate(peer), peer / mine, BAR
            )
            for name, mine in zip(('format("spark_log")', "stream_topic"), ours, strict=True)
        ]

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
        read = sum(progress.numInputRows for progress in query.recentProgress)
        assert read == self.arguments.records, f"{read:,} records were read"
        shutil.rmtree(checkpoint)
        return taken

    def _step(self, what: str) -> None:
        self.console.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {what}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--postgresql", help="not used: the metadata store has no part in this")
    parser.add_argument("--folder", help="where to work (default: the system's temporary folder)")
    parser.add_argument("--json", help="write the result to this file as well")
    return parser.parse_args()


if __name__ == "__main__":
    main()
