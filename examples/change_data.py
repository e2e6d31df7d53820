"""Change data: the changes of a small table go into a compacted topic, and the current table is read back from it.

The source table has customers. Its changes come in two batches of inserts, updates and deletes. Each change becomes a
record with the row's id as the key; the value is the row as JSON, or null (a tombstone) after a delete. The current
table is the last value of each key.

    python examples/change_data.py --cluster /tmp/crm        # or with spark-submit

It prints the table after each batch. The second batch inserts Barbara, updates Grace twice and deletes Ada:

    batch 2: changes 5, 7 and 8 written
    +---+-------+----------+
    |id |name   |city      |
    +---+-------+----------+
    |2  |Grace  |Washington|
    |3  |Edsger |Austin    |
    |4  |Barbara|Boston    |
    +---+-------+----------+

    6 records in the topic, 3 rows in the table

DIR must not exist yet. A coordinator, or `spark-log maintenance compact`, later deletes the superseded records.
"""

import argparse
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from spark_log import Cluster, create_topic, read_topic
from spark_log.spark.streams import Json, decode, keep_last, read_table, write_table

TOPIC = "customers"
ROW = "name STRING, city STRING"
CHANGE = "sequence INT, operation STRING, id INT, name STRING, city STRING"
BATCHES = (
    [
        (1, "insert", 1, "Ada", "London"),
        (2, "insert", 2, "Grace", "New York"),
        (3, "insert", 3, "Edsger", "Rotterdam"),
        (4, "update", 3, "Edsger", "Austin"),
    ],
    [
        (5, "insert", 4, "Barbara", "Boston"),
        (6, "update", 2, "Grace", "Arlington"),
        (7, "update", 2, "Grace", "Washington"),
        (8, "delete", 1, None, None),
    ],
)


def write_changes(changes: DataFrame, cluster: str) -> list[int]:
    """Write the last change of each row; returns the sequence numbers of the changes written."""
    # The rows of one write have no order, so only one change of each row may be in it.
    last = keep_last(changes, "id", order=["sequence"]).selectExpr("*", "operation = 'delete' AS deleted")
    write_table(last, cluster, TOPIC, key="id", value=["name", "city"], deleted="deleted")
    return sorted(row.sequence for row in last.collect())


def current_table(spark: SparkSession, cluster: str) -> DataFrame:
    """The rows that are in the table now, with typed columns."""
    rows = decode(read_table(spark, cluster, TOPIC), Json(ROW))
    return rows.selectExpr("int(string(key)) AS id", "value.*").orderBy("id")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Keep a table in a compacted topic.")
    parser.add_argument("--cluster", required=True, metavar="DIR", help="folder of the new cluster")
    cluster = parser.parse_args(arguments).cluster

    with Cluster.init(cluster) as opened:
        create_topic(opened, TOPIC, partitions=2, configs={"cleanup.policy": "compact"})
    spark = SparkSession.builder.getOrCreate()
    for number, changes in enumerate(BATCHES, start=1):
        written = write_changes(spark.createDataFrame(changes, CHANGE), cluster)
        print(f"batch {number}: changes {', '.join(map(str, written[:-1]))} and {written[-1]} written")
        current_table(spark, cluster).show(truncate=False)
    records, rows = read_topic(spark, cluster, TOPIC).count(), current_table(spark, cluster).count()
    print(f"{records} records in the topic, {rows} rows in the table")


if __name__ == "__main__":
    main()
