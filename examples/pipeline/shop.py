"""A declarative pipeline: tables, materialized views and a topic from topics. docs/guides/pipelines.md starts it.

`orders` has order events, `customers` the changes of a table of customers, both as JSON.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json, max_by, struct, sum, to_json

spark = SparkSession.active()


def topic(name: str, fields: str) -> DataFrame:
    """The records of a topic from its start: the fields of their JSON, and their offset."""
    records = spark.readStream.format("spark_log").options(subscribe=name, startingOffsets="earliest").load()
    return records.select(from_json(col("value").cast("string"), fields).alias("it"), "offset").select("it.*", "offset")


@dp.table
def orders() -> DataFrame:
    return topic("orders", "id INT, customer INT, amount INT")


@dp.materialized_view
def revenue() -> DataFrame:
    return spark.read.table("orders").groupBy("customer").agg(sum("amount").alias("amount"))


dp.create_sink("large_orders", "spark_log", {"topic": "large-orders"})


@dp.append_flow(target="large_orders")
def large() -> DataFrame:
    order = topic("orders", "id INT, customer INT, amount INT").where("amount >= 100")
    return order.select(to_json(struct("id", "customer", "amount")).alias("value"))


@dp.table
def customer_changes() -> DataFrame:
    return topic("customers", "id INT, name STRING, operation STRING")


@dp.materialized_view
def customers() -> DataFrame:
    """The newest state of each customer. All changes of one have the same key, so their offsets are in order."""
    change = max_by(struct("name", "operation"), "offset")
    newest = spark.read.table("customer_changes").groupBy("id").agg(change.alias("newest"))
    return newest.where("newest.operation <> 'delete'").select("id", "newest.name")
