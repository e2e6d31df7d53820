"""Spark's real-time mode on topics, through a gateway beside the driver."""

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_log import Producer
from spark_log.cluster.cluster import Cluster
from spark_log.gateway import serve
from tests.spark.queries import running
from tests.support.topics import all_stored, make

BATCH = "10 minutes"
PATIENCE_S = 240


@pytest.mark.slow
def test_records_arrive_while_the_batch_runs(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    """In any other mode, the results of a batch of ten minutes would come after its end."""
    for name in ("in", "out"):
        make(cluster, name, 2)
    address = str(cluster.store.address)
    with serve(cluster) as servers, Producer(cluster=address) as producer:
        kafka = {"kafka.bootstrap.servers": servers}
        orders = spark.readStream.format("kafka").options(**kafka).options(subscribe="in", startingOffsets="earliest")
        rows = orders.load().selectExpr("key", "upper(string(value)) AS value")
        writer = rows.writeStream.format("kafka").options(**kafka).option("topic", "out").outputMode("update")
        with running(
            writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(realTime=BATCH).start()
        ) as query:
            for text in ("a", "b", "c"):
                producer.send("in", text.encode()).get()
                until = time.monotonic() + PATIENCE_S
                while text.upper() not in all_stored(cluster, "out"):
                    assert query.isActive and time.monotonic() < until, query.exception()
                    time.sleep(0.05)
            assert query.lastProgress is None, "the first batch has not ended"
    assert all_stored(cluster, "out") == ["A", "B", "C"]
