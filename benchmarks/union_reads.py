"""Measures reads of files and tail together: `read_topic` with and without a tail, and `stream_topic` beside
`format("spark_log")`. Part of `make bench-tables`.

A topic gets --records records. `read_topic` aggregates it without a tail and with one of about 3 s of small appends.
Then each of the two streams reads two columns of all records, in triggers of one micro-batch each where it can; after
that a few records are appended for each of --triggers triggers, and the time of each trigger is measured.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
from benchmarks.throughput import spark_session
from spark_log import DELTA_SETTINGS, Cluster, Producer, create_topic, read_topic, stream_topic, write_topic

TOPIC = "t"
_TAIL_RECORDS = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--triggers", type=int, default=20)
    parser.add_argument("--postgresql", help="not used")
    parser.add_argument("--folder", help="where to measure [the system's temporary folder]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as name:
        folder = Path(name)
        spark = spark_session(folder, DELTA_SETTINGS)
        address = str(folder / "cluster")
        with Cluster.init(address) as cluster:
            create_topic(cluster, TOPIC, partitions=4, configs={"delta.max.lag.ms": "-1"})
            rows = spark.range(arguments.records).selectExpr("string(id) key", "repeat(uuid(), 3) value")
            write_topic(rows, address, TOPIC)
        results = [_batch(spark, address, arguments.rounds), *_streams(spark, address, folder, arguments.triggers)]
        spark.stop()
    table = Table(title=f"{arguments.records:,} records, 4 partitions")
    for column in ("what", "ours", "peer", "ratio", "bar"):
        table.add_column(column)
    for row in results:
        table.add_row(*row)
    console = Console()
    console.print(table)
    console.print(f"{datetime.now(UTC):%Y-%m-%d}, {describe_machine()}")


def _batch(spark: SparkSession, address: str, rounds: int) -> tuple[str, ...]:
    """Rounds without a tail, then the same with one."""

    def seconds() -> float:
        query = read_topic(spark, address, TOPIC).agg(F.max("offset"), F.sum(F.length("value")))
        return _seconds(query.collect)

    seconds()
    without = statistics.median(seconds() for _ in range(rounds))
    _append(address, _TAIL_RECORDS)
    seconds()
    with_tail = statistics.median(seconds() for _ in range(rounds))
    return (
        "read_topic, aggregate: with a tail / without",
        f"{with_tail:.2f} s",
        f"{without:.2f} s",
        f"{without / with_tail:.2f}",
        ">= 0.95",
    )


def _streams(spark: SparkSession, address: str, folder: Path, triggers: int) -> list[tuple[str, ...]]:
    def warm_up() -> DataFrame:
        return stream_topic(spark, address, TOPIC, history=str(folder / "warm-up-history"))

    def ours() -> DataFrame:
        return stream_topic(spark, address, TOPIC, history=str(folder / "history"))

    def peer() -> DataFrame:
        source = spark.readStream.format("spark_log").option("cluster", address).option("subscribe", TOPIC)
        return source.option("startingOffsets", "earliest").option("columns", "value,offset").load()

    measured = {
        name: (_seconds(lambda: _run(frame, folder / name)), _triggers(frame, folder / name, address, triggers))  # noqa: B023
        for name, frame in (("warm-up", warm_up), ("ours", ours), ("peer", peer))
    }
    (ours_s, ours_ms), (peer_s, peer_ms) = measured["ours"], measured["peer"]
    return [
        (
            "stream_topic: all records, 2 columns",
            f"{ours_s:.2f} s",
            f"{peer_s:.2f} s",
            f"{peer_s / ours_s:.2f}",
            ">= 1.5",
        ),
        ("afterwards, a trigger, p50", f"{ours_ms:.0f} ms", f"{peer_ms:.0f} ms", f"{ours_ms / peer_ms:.2f}", "<= 1.2"),
    ]


def _run(frame: Callable[[], DataFrame], folder: Path) -> None:
    columns = frame().select(F.length("value").alias("n"), "offset")
    writer = columns.writeStream.format("noop").option("checkpointLocation", str(folder))
    writer.trigger(availableNow=True).start().awaitTermination()


def _triggers(frame: Callable[[], DataFrame], folder: Path, address: str, triggers: int) -> float:
    """Return the median duration of a trigger with new records, in ms."""
    columns = frame().select(F.length("value").alias("n"), "offset")
    query = columns.writeStream.format("noop").option("checkpointLocation", str(folder)).start()
    try:
        for _ in range(triggers):
            _append(address, 5)
            query.processAllAvailable()
        durations = [each.durationMs["triggerExecution"] for each in query.recentProgress if each.numInputRows]
    finally:
        query.stop()
    return statistics.median(durations)


def _append(address: str, records: int) -> None:
    with Producer(cluster=address, linger_ms=0) as producer:
        for number in range(records):
            producer.send(TOPIC, b"value %d" % number)


def _seconds(action: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    action()
    return time.perf_counter() - began_s


if __name__ == "__main__":
    main()
