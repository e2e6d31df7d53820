"""Measures reads of files and tail together: `read_topic` with and without a tail, and `stream_topic` beside
`format("spark_log")`. Part of `make bench-tables`.

A topic gets --records records. `read_topic` aggregates it without a tail and with one of about 3 s of small appends.
Then each of the two streams reads two columns of all records, in triggers of one micro-batch each where it can; after
that a few records are appended for each of --triggers triggers, and the time of each trigger is measured.
"""

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from benchmarks.kafka_report import OURS, Row, parser, print_rows
from benchmarks.machine import seconds_of
from benchmarks.throughput import spark_session
from spark_log import DELTA_SETTINGS, Cluster, Producer, create_topic, read_topic, stream_topic, write_topic

TOPIC = "t"
WITHOUT_TAIL, TAIL_BAR = f"{OURS}, without a tail", 0.95
ALONE = f'{OURS}, format("spark_log") alone'
STREAM_BAR, TRIGGER_BAR = 1.5, 1.2
_TAIL_RECORDS = 60


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--records", type=int, default=5_000_000)
    options.add_argument("--triggers", type=int, default=20)
    arguments = options.parse_args()
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
    print_rows(f"files and tail: {arguments.records:,} records, 4 partitions", results, arguments.json)


def _batch(spark: SparkSession, address: str, rounds: int) -> Row:
    """Rounds without a tail, then the same with one."""

    def seconds() -> float:
        query = read_topic(spark, address, TOPIC).agg(F.max("offset"), F.sum(F.length("value")))
        return seconds_of(query.collect)

    seconds()
    without = statistics.median(seconds() for _ in range(rounds))
    _append(address, _TAIL_RECORDS)
    seconds()
    with_tail = statistics.median(seconds() for _ in range(rounds))
    what = f"read_topic, an aggregate: with a tail of {_TAIL_RECORDS} small appends"
    return _row(what, {OURS: with_tail, WITHOUT_TAIL: without}).with_bar(OURS, TAIL_BAR, WITHOUT_TAIL)


def _streams(spark: SparkSession, address: str, folder: Path, triggers: int) -> list[Row]:
    def warm_up() -> DataFrame:
        return stream_topic(spark, address, TOPIC, history=str(folder / "warm-up-history"))

    def ours() -> DataFrame:
        return stream_topic(spark, address, TOPIC, history=str(folder / "history"))

    def peer() -> DataFrame:
        source = spark.readStream.format("spark_log").option("cluster", address).option("subscribe", TOPIC)
        return source.option("startingOffsets", "earliest").option("columns", "value,offset").load()

    whole: dict[str, float] = {}
    trigger: dict[str, float] = {}
    for who, folder_name, frame in (("warm-up", "warm-up", warm_up), (OURS, "ours", ours), (ALONE, "peer", peer)):
        whole[who] = seconds_of(lambda: _run(frame, folder / folder_name))  # noqa: B023
        trigger[who] = _triggers(frame, folder / folder_name, address, triggers) / 1000
    del whole["warm-up"], trigger["warm-up"]
    return [
        _row("stream_topic: all records, 2 columns", whole).with_bar(OURS, STREAM_BAR, ALONE),
        _row("stream_topic: a trigger with new records afterwards, p50", trigger).with_limit(OURS, TRIGGER_BAR, ALONE),
    ]


def _row(what: str, seconds: dict[str, float]) -> Row:
    return Row(
        what,
        {who: f"{taken:.2f} s" if taken >= 1 else f"{1000 * taken:.0f} ms" for who, taken in seconds.items()},
        seconds,
    )


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


if __name__ == "__main__":
    main()
