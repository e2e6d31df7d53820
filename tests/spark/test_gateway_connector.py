"""Spark's own Kafka connector through a gateway: batch and streaming, reading and writing."""

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from tests.support.server_processes import GatewayProcess
from tests.support.topics import make, stored

ROWS = 500


@pytest.fixture
def gateway(cluster, tmp_path):
    with GatewayProcess(tmp_path, str(cluster.store.address)) as running:
        yield running


@pytest.mark.slow
def test_sparks_kafka_connector_reads_and_writes(spark, cluster, gateway, tmp_path):
    make(cluster, "t", 2)
    servers = {"kafka.bootstrap.servers": gateway.address}
    rows = spark.range(ROWS).select(
        F.col("id").cast("string").alias("key"), F.format_string("value %d", "id").alias("value")
    )
    rows.write.format("kafka").options(**servers).option("topic", "t").save()
    assert sorted(value for values in stored(cluster, "t").values() for value in values) == sorted(
        f"value {number}" for number in range(ROWS)
    )
    read = spark.read.format("kafka").options(**servers).option("subscribe", "t").load()
    found = read.select(F.col("key").cast("string"), "partition", "offset").collect()
    assert {row.key for row in found} == {str(number) for number in range(ROWS)}
    assert len({(row.partition, row.offset) for row in found}) == ROWS
    source = spark.readStream.format("kafka").options(**servers).options(subscribe="t", startingOffsets="earliest")
    copy = source.load().select("key", "value").writeStream.format("kafka").options(**servers).option("topic", "copy")
    query = copy.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert sum(map(len, stored(cluster, "copy").values())) == ROWS
