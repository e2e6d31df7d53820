"""Joins of two streams, with late rows, duplicates and rows without a match; and joins with static data."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from spark_log.cluster.cluster import Cluster
from spark_log.errors import InvalidOptionError
from spark_log.maintenance.client_log import ClientLog
from spark_log.spark.streams.joins import Bounds, Kind, Side, join_static, join_streams
from spark_log.spark.streams.windows import Tumbling, late_records, windowed
from tests.spark.queries import running
from tests.support.records import NOON_MS
from tests.support.spark import assert_same_rows
from tests.support.topics import append, make, read, read_stream

MINUTE_MS = 60_000
HOUR_BEFORE = Bounds(before="1 hour")


def sides(source: DataFrame, watermark: str | None = "10 minutes") -> tuple[Side, Side]:
    """Orders and payments of topics of these names: order 'o1' is paid by the payment with key 'o1'."""
    at = source.withColumns({"id": sf.col("key").cast("string"), "what": sf.col("value").cast("string")})
    orders = at.where("topic = 'orders'").selectExpr("id", "what AS item", "timestamp AS ordered")
    payments = at.where("topic = 'payments'").selectExpr("id AS paid_id", "what AS paid", "timestamp AS paid_at")
    return Side(orders, "ordered", watermark), Side(payments, "paid_at", watermark)


def send(log: ClientLog, topic: str, key: str, value: str, minute: int) -> None:
    append(log, topic, value, key=key.encode(), timestamp_ms=NOON_MS + minute * MINUTE_MS)


@pytest.fixture
def topics(cluster: Cluster, log: ClientLog) -> None:
    make(cluster, "orders")
    make(cluster, "payments")


def test_each_kind_in_a_batch(spark: SparkSession, cluster: Cluster, log: ClientLog, topics: None) -> None:
    """o1 twice; p-early and p-late are out of the bounds by one minute, p-from and p-to just within; o3
    has no match.
    """
    for key, value, minute in (("o1", "tea", 60), ("o1", "cup", 60), ("o2", "jug", 60), ("o3", "pot", 60)):
        send(log, "orders", key, value, minute)
    for key, value, minute in (
        ("o1", "p-early", -1), ("o1", "p-from", 0), ("o1", "p-to", 60), ("o1", "p-late", 61), ("o2", "p", 30),
        ("o9", "q", 60),
    ):  # fmt: skip
        send(log, "payments", key, value, minute)
    left, right = sides(read(spark, cluster, subscribe="orders,payments"))
    matched = [("o1", item, paid) for item in ("tea", "cup") for paid in ("p-from", "p-to")] + [("o2", "jug", "p")]
    only_left: list[tuple[str, str | None, str | None]] = [("o3", "pot", None)]
    only_right: list[tuple[str, str | None, str | None]] = [
        ("o1", None, "p-early"),
        ("o1", None, "p-late"),
        ("o9", None, "q"),
    ]
    expected: dict[Kind, list[tuple[str, str | None, str | None]]] = {
        "inner": [*matched],
        "left": [*matched, *only_left],
        "right": [*matched, *only_right],
        "full": [*matched, *only_left, *only_right],
    }
    for how, rows in expected.items():
        joined = join_streams(left, right, {"id": "paid_id"}, within=HOUR_BEFORE, how=how)
        assert joined.columns == ["id", "item", "ordered", "paid", "paid_at"]
        assert_same_rows(joined.select("id", "item", "paid"), rows)


@pytest.mark.slow
def test_outer_rows_are_emitted_when_the_watermark_passes(
    spark: SparkSession, cluster: Cluster, log: ClientLog, topics: None, tmp_path: Path
) -> None:
    source = read_stream(spark, cluster, subscribe="orders,payments", startingOffsets="earliest")
    joined = join_streams(*sides(source), {"id": "paid_id"}, within=Bounds("10 minutes", "10 minutes"), how="full")
    found: list[tuple[str, str | None, str | None]] = []

    def collect(batch: DataFrame, _id: int) -> None:
        found.extend((row.id, row.item, row.paid) for row in batch.orderBy("id").collect())

    def come() -> list[tuple[str, str | None, str | None]]:
        query.processAllAvailable()
        rows = sorted(found, key=str)
        found.clear()
        return rows

    writer = joined.writeStream.foreachBatch(collect).option("checkpointLocation", str(tmp_path / "c"))
    with running(writer.start()) as query:
        send(log, "orders", "o1", "tea", 0)
        send(log, "orders", "o2", "jug", 0)
        send(log, "payments", "o1", "p", 5)
        send(log, "payments", "o1", "p", 5)
        send(log, "payments", "o9", "q", 5)
        assert come() == [("o1", "tea", "p"), ("o1", "tea", "p")], "a payment that was sent twice is two"
        send(log, "payments", "o2", "p", 10)
        assert come() == [("o2", "jug", "p")]
        send(log, "orders", "o3", "pot", 120)
        assert come() == [], "the watermark is the slower side's"
        send(log, "payments", "o3", "p", 120)
        assert come() == [("o3", "pot", "p"), ("o9", None, "q")]
        send(log, "payments", "o1", "late", 5)
        assert come() == [], "the order's state has gone"
        assert late_records(query) > 0


@pytest.mark.slow
def test_joins_on_equal_event_times_need_no_bounds_and_keep_the_watermark(
    spark: SparkSession, cluster: Cluster, log: ClientLog, topics: None, tmp_path: Path
) -> None:
    """Like flights and weather of the same place and hour; followed by a window of the joined rows in
    the same query.
    """
    for topic, value in (("orders", "1"), ("orders", "2"), ("payments", "rain")):
        send(log, topic, "JFK", value, 0)
    for topic in ("orders", "payments"):
        send(log, topic, "END", "", 600)
    records = read_stream(spark, cluster, subscribe="orders,payments", startingOffsets="earliest")
    rows = records.selectExpr(
        "topic", "CAST(key AS string) AS origin", "CAST(value AS string) AS v", "timestamp AS hour"
    )
    flights = rows.where("topic = 'orders'").selectExpr("origin", "v AS flight", "hour")
    weather = rows.where("topic = 'payments'").selectExpr("origin", "v AS weather", "hour")
    joined = join_streams(
        Side(flights, "hour", "1 hour"), Side(weather, "hour", "1 hour"), ["origin", "hour"], how="left"
    )
    assert joined.columns == ["origin", "flight", "hour", "weather"]
    counted = windowed(
        joined, "hour", Tumbling("1 hour"), "origin", "weather", aggregates=[sf.count("*").alias("flights")]
    )
    found: list[tuple[str, str, int]] = []
    counted.writeStream.foreachBatch(
        lambda batch, _id: found.extend((row.origin, row.weather, row.flights) for row in batch.collect())
    ).option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    assert found == [("JFK", "rain", 2)]


def test_a_static_side(spark: SparkSession, cluster: Cluster, log: ClientLog, topics: None, tmp_path: Path) -> None:
    send(log, "orders", "o1", "tea", 0)
    send(log, "orders", "o2", "sugar", 0)
    prices = spark.createDataFrame([("tea", 3)], "item string, price int")
    orders = sides(read_stream(spark, cluster, subscribe="orders", startingOffsets="earliest"))[0].frame
    found: list[tuple[str, int | None]] = []
    join_static(orders, prices, "item").writeStream.foreachBatch(
        lambda batch, _id: found.extend((row.item, row.price) for row in batch.collect())
    ).option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    assert sorted(found) == [("sugar", None), ("tea", 3)]
    assert join_static(prices, prices.withColumnRenamed("price", "old"), ["item"], how="inner").count() == 1
    for message, wrong in {
        "static: a streaming frame": lambda: join_static(prices, orders, "item"),
        "how 'right': expected inner or left": lambda: join_static(orders, prices, "item", how="right"),
        "columns price are on both sides": lambda: join_static(prices, prices, "item"),
        "on 'x': no such column on the left": lambda: join_static(orders, prices, "x"),
    }.items():
        with pytest.raises(InvalidOptionError, match=message):
            wrong()


def test_joins_that_are_refused(spark: SparkSession, cluster: Cluster, topics: None) -> None:
    left, right = sides(read_stream(spark, cluster, subscribe="orders,payments"))
    unmarked = sides(read_stream(spark, cluster, subscribe="orders,payments"), watermark=None)
    on = {"id": "paid_id"}
    same = Side(right.frame.withColumnRenamed("paid", "ITEM"), "paid_at", "1 hour")
    for message, wrong in {
        r"within: required, or the event times among `on` \(ordered = paid_at\)": lambda: join_streams(left, right, on),
        "left watermark: required on both sides of a left join": lambda: join_streams(
            *unmarked, on, within=HOUR_BEFORE, how="left"
        ),
        "right watermark: required": lambda: join_streams(left, unmarked[1], on, within=HOUR_BEFORE, how="full"),
        "left watermark 'soon': expected an interval": lambda: join_streams(
            Side(left.frame, "ordered", "soon"), right, on, within=HOUR_BEFORE
        ),
        "before '1 h': expected an interval": lambda: join_streams(left, right, on, within=Bounds("1 h")),
        "how 'cross': expected inner, left, right, full": lambda: join_streams(left, right, on, how="cross"),
        "columns item are on both sides": lambda: join_streams(left, same, on, within=HOUR_BEFORE),
        "on 'id': no such column on the right": lambda: join_streams(left, right, "id", within=HOUR_BEFORE),
        "on: at least one column": lambda: join_streams(left, right, [], within=HOUR_BEFORE),
        "event time 'item' is string, expected timestamp": lambda: join_streams(
            Side(left.frame, "item"), right, on, within=HOUR_BEFORE
        ),
    }.items():
        with pytest.raises(InvalidOptionError, match=message):
            wrong()
    assert join_streams(*unmarked, on, within=HOUR_BEFORE).isStreaming, "inner joins may do without: state grows"
