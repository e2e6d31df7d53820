"""The message of a user error is in the first lines of Spark's output."""

import pytest
from pyspark.errors import PySparkException

from spark_log import read_topic
from spark_log.cluster.cluster import Cluster
from spark_log.errors import InvalidConfigurationError
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.records import table


def shown(action) -> list[str]:
    """The lines that a user sees, without Spark's description of a streaming query, which follows them."""
    with pytest.raises(PySparkException) as raised:
        action()
    return str(raised.value).partition("\n=== Streaming Query ===")[0].splitlines()


def test_the_error_message_is_in_the_first_lines(spark, cluster, tmp_path) -> None:
    create_topic(cluster, "t")
    address = str(cluster.store.address)

    def read(**options):
        return lambda: spark.read.format("spark_log").options(**options).load().count()

    def write(rows, topic):
        return lambda: rows.write.format("spark_log").options(cluster=address, topic=topic).mode("append").save()

    def stream(sink, **options):
        query = spark.readStream.format("spark_log").options(cluster=address, **options).load().writeStream
        query = query.format(sink).options(cluster=address, topic="no-sink", checkpointLocation=str(tmp_path / sink))
        return lambda: query.trigger(availableNow=True).start().awaitTermination()

    large = spark.sql("SELECT repeat('x', 2000000) AS value")
    for action, message in [
        (read(cluster=address), "One of the following options must be specified"),
        (read(cluster=str(tmp_path / "nothing"), subscribe="t"), "ClusterNotFoundError: no cluster at"),
        (read(cluster=address, subscribe="t", startingOffsets="3"), "InvalidOptionError: Expected e.g."),
        (read(cluster=address, subscribe="no-topic"), "topic 'no-topic': unknown topic or partition"),
        (write(large, "no-topic"), "topic 'no-topic': unknown topic or partition"),
        (write(spark.range(1), "t"), "Required attribute 'value' not found"),
        (write(large, "t"), "MessageSizeTooLargeError: value: the record in row 0 has"),
        (stream("noop", subscribe="no-topic"), "topic 'no-topic': unknown topic or partition"),
        (stream("noop", subscribe="t", endingOffsets="latest"), "ending offset not valid in streaming queries"),
        (stream("spark_log", subscribe="t"), "topic 'no-sink': unknown topic or partition"),
    ]:
        lines = shown(action)
        assert len(lines) <= 3, lines
        assert message in "\n".join(lines[:2]), lines


def test_a_missing_file_system_of_hadoop_is_named(spark, tmp_path, s3_uri) -> None:
    with Cluster.init(str(tmp_path / "cluster"), log_dir=s3_uri) as cluster:
        log, topic = ClientLog(cluster), create_topic(cluster, "t", configs={"inline.max.bytes": "0"})
        log.append(topic, [Records(0, table("a", "b"))])
        log.close()
        address = str(cluster.store.address)
    with pytest.raises(InvalidConfigurationError, match=r"s3a://.*--packages org.apache.hadoop:hadoop-aws:3\.5\.0 "):
        read_topic(spark, address, "t")
    assert spark.read.format("spark_log").options(cluster=address, subscribe="t").load().count() == 2
