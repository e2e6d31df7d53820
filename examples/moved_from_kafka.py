"""A Spark job moved from Kafka: the same job for `format("kafka")` and for spark-log, of which three lines differ.

The job appends payments to topic `payments` (batch write), copies those of 100 and more to topic `large-payments`
(streaming query with a checkpoint), and counts both topics (batch read). All names of options and columns are those of
Spark's Kafka connector. These lines change:

    - payments.write.format("kafka").option("kafka.bootstrap.servers", "broker-1:9092")
    + payments.write.format("spark_log").option("kafka.bootstrap.servers", "/tmp/bank").mode("append")

    - spark.readStream.format("kafka").option("kafka.bootstrap.servers", "broker-1:9092")
    + spark.readStream.format("spark_log").option("kafka.bootstrap.servers", "/tmp/bank")

    - large.writeStream.format("kafka").option("kafka.bootstrap.servers", "broker-1:9092")
    + large.writeStream.format("spark_log").option("kafka.bootstrap.servers", "/tmp/bank")

Here the format and the servers are arguments, so that one program is the job for both. Spark requires
`.mode("append")` of batch writes to spark-log; the Kafka connector accepts it. `--format kafka` needs a Kafka broker
and the connector's package:

    python examples/moved_from_kafka.py --cluster /tmp/bank               # or with spark-submit
    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 \\
        examples/moved_from_kafka.py --format kafka --cluster broker-1:9092

It prints where the records are:

    +--------------+---------+-------+-----------+
    |topic         |partition|records|last_offset|
    +--------------+---------+-------+-----------+
    |large-payments|0        |23     |22         |
    ...

With spark-log DIR must not exist yet. The checkpoint is a temporary folder.
"""

import argparse
import tempfile
from collections.abc import Sequence

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from spark_log import Cluster, create_topic

TOPICS = ("payments", "large-payments")


def append_payments(spark: SparkSession, format: str, servers: str) -> None:
    """Batch write: 100 payments of 20 customers."""
    payments = spark.range(100).selectExpr(
        "concat('customer-', id % 20) AS key",
        "to_json(struct(id AS payment, id * 37 % 200 AS amount)) AS value",
    )
    writer = payments.write.format(format).option("kafka.bootstrap.servers", servers).option("topic", "payments")
    writer.mode("append").save()


def copy_large_payments(spark: SparkSession, format: str, servers: str, checkpoint: str) -> None:
    """Streaming query: all that is there now, then it ends; with the same checkpoint it continues."""
    payments = (
        spark.readStream.format(format)
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "payments")
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", "true")
        .load()
    )
    large = payments.where("CAST(get_json_object(string(value), '$.amount') AS INT) >= 100").select("key", "value")
    writer = large.writeStream.format(format).option("kafka.bootstrap.servers", servers)
    writer = writer.option("topic", "large-payments").option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


def show_topics(spark: SparkSession, format: str, servers: str) -> None:
    """Batch read of both topics."""
    reader = spark.read.format(format).option("kafka.bootstrap.servers", servers)
    records = reader.option("subscribe", ",".join(TOPICS)).load()
    counts = [sf.count("*").alias("records"), sf.max("offset").alias("last_offset")]
    records.groupBy("topic", "partition").agg(*counts).orderBy("topic", "partition").show(truncate=False)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Run one Spark job on spark-log or on Kafka.")
    parser.add_argument("--cluster", required=True, metavar="DIR", help="new folder, or HOST:PORT of a Kafka broker")
    parser.add_argument("--format", choices=("spark_log", "kafka"), default="spark_log", help="[%(default)s]")
    given = parser.parse_args(arguments)
    format, servers = given.format, given.cluster

    if format == "spark_log":  # for Kafka, kafka-topics.sh creates them, or the broker at the first write
        with Cluster.init(servers) as opened:
            for topic in TOPICS:
                create_topic(opened, topic, partitions=2)
    spark = SparkSession.builder.getOrCreate()
    append_payments(spark, format, servers)
    with tempfile.TemporaryDirectory() as checkpoint:
        copy_large_payments(spark, format, servers, checkpoint)
    show_topics(spark, format, servers)


if __name__ == "__main__":
    main()
