"""IoT windows: Spark Structured Streaming aggregates sensor readings by the hour, into a topic and a Delta table.

Two sensors send a temperature every 15 minutes. A streaming query computes count, mean and maximum for each sensor and
hour. An hour is written once, when the watermark (the newest reading's time minus 10 minutes) has passed its end. The
query runs twice, as a scheduled job would, and the second run continues where the first one ended. In between come two
more hours, a reading that is too late for its hour, and a reading that is not valid JSON.

    python examples/iot_windows.py --cluster /tmp/iot                          # or with spark-submit
    python examples/iot_windows.py --cluster /tmp/iot --delta /tmp/iot-hours   # needs `spark-log delta install` once

It prints the hours that are complete; the last hour stays open until newer readings come:

    run 1: 0 late readings dropped
    run 2: 1 late reading dropped
    +-------------------+------+-----+------+----+
    |hour               |sensor|count|mean  |max |
    +-------------------+------+-----+------+----+
    |2026-01-01 00:00:00|attic |4    |10.75 |11.5|
    |2026-01-01 00:00:00|cellar|4    |6.75  |7.5 |
    |2026-01-01 01:00:00|attic |4    |11.875|13.0|
    ...

DIR must not exist yet. The checkpoint of the query is in DIR-checkpoint.
"""

import argparse
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession

from spark_log import DELTA_SETTINGS, Cluster, Producer, create_topic, read_topic
from spark_log.spark.streams import (
    DeltaOutput,
    Json,
    TopicOutput,
    Tumbling,
    decode,
    encode,
    late_records,
    valid,
    windowed,
    write_stream,
)

READING = Json("sensor STRING, time TIMESTAMP, celsius DOUBLE")
HOUR = Json("window_start TIMESTAMP, window_end TIMESTAMP, sensor STRING, count BIGINT, mean DOUBLE, max DOUBLE")
MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)
SENSORS = {"attic": 10.0, "cellar": 6.0}


def send_readings(cluster: str, first_hour: int, hours: int, *further: bytes) -> None:
    """Send the readings of some hours to topic `readings`, with the sensor as the key, and then `further` values."""
    with Producer(cluster=cluster) as producer:
        for quarter in range(4 * first_hour, 4 * (first_hour + hours)):
            for sensor, base in SENSORS.items():
                time = (MIDNIGHT + timedelta(minutes=15 * quarter)).isoformat()
                reading = {"sensor": sensor, "time": time, "celsius": base + quarter % 7 * 0.5}
                producer.send("readings", key=sensor.encode(), value=json.dumps(reading).encode())
        for value in further:
            producer.send("readings", value=value)


def run_query(spark: SparkSession, cluster: str, delta: str | None) -> int:
    """Aggregate the readings that are new since the last run; returns how many late ones were dropped."""
    source = spark.readStream.format("spark_log").option("cluster", cluster).option("subscribe", "readings")
    records = source.option("startingOffsets", "earliest").load()
    hours = windowed(
        valid(decode(records, READING)).select("value.*"),
        "time",
        Tumbling("1 hour"),
        "sensor",
        aggregates=["count", "mean(celsius) as mean", "max(celsius) as max"],
        watermark="10 minutes",
    )

    def outputs(batch: DataFrame) -> list[tuple[DataFrame, TopicOutput | DeltaOutput]]:
        to_topic = (encode(batch, HOUR, key="sensor"), TopicOutput(cluster, "hours"))
        return [to_topic, (batch, DeltaOutput(delta))] if delta else [to_topic]

    query = write_stream(hours, outputs, checkpoint=f"{cluster}-checkpoint", trigger="available-now")
    query.awaitTermination()
    return late_records(query)


def show_hours(spark: SparkSession, cluster: str, delta: str | None) -> None:
    hours = decode(read_topic(spark, cluster, "hours"), HOUR).select("value.*")
    hours = hours.selectExpr("window_start AS hour", "sensor", "count", "mean", "max")
    hours.orderBy("hour", "sensor").show(truncate=False)
    if delta:
        print(f"{spark.read.format('delta').load(delta).count()} rows in the Delta table")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Aggregate sensor readings by the hour.")
    parser.add_argument("--cluster", required=True, metavar="DIR", help="folder of the new cluster")
    parser.add_argument("--delta", metavar="DIR", help="write the hours into this Delta table too")
    given = parser.parse_args(arguments)

    with Cluster.init(given.cluster) as opened:
        create_topic(opened, "readings", partitions=2)
        create_topic(opened, "hours")
    builder = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").config("spark.sql.shuffle.partitions", 2)
    if given.delta:
        builder.config(map=DELTA_SETTINGS)
    spark = builder.getOrCreate()

    late = json.dumps({"sensor": "attic", "time": MIDNIGHT.isoformat(), "celsius": 99.0}).encode()
    for run, further in enumerate(((), (late, b"not JSON"))):
        send_readings(given.cluster, 2 * run, 2, *further)
        dropped = run_query(spark, given.cluster, given.delta)
        print(f"run {run + 1}: {dropped} late {'reading' if dropped == 1 else 'readings'} dropped")
    show_hours(spark, given.cluster, given.delta)


if __name__ == "__main__":
    main()
