"""Retention beside readers of the topic's Delta table in Spark."""

import pytest

from spark_log import clock
from spark_log.maintenance import run_tasks
from spark_log.maintenance.removal.retention import apply_retention
from spark_log.tables.publication import delta_tables
from tests.support.table_checks import assert_delta_is_the_log
from tests.support.topics import append, make, stored


@pytest.mark.slow
@pytest.mark.delta_jars
def test_a_lagging_delta_stream_continues_through_retention(spark, cluster, log, tmp_path):
    """Dropped segments are no data change: the stream gets every record once, the deleted ones too."""
    topic = make(cluster, "t", inline_max_bytes="0")
    (location,) = delta_tables(cluster, topic).values()
    now_ms = clock.wall_ms()
    append(log, topic, "0", timestamp_ms=1)

    read = []

    def run():
        stream = spark.readStream.format("delta").load(location)
        writer = stream.selectExpr("base_offset + offset_delta AS offset", "CAST(value AS STRING) AS value").writeStream
        writer = writer.foreachBatch(lambda frame, _: read.extend((row.offset, row.value) for row in frame.collect()))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        writer.start().awaitTermination()
        return sorted(read)

    assert run() == [(0, "0")]
    for number in range(1, 5):
        append(log, topic, f"{number}", timestamp_ms=1 if number < 4 else now_ms)
    assert apply_retention(cluster, topic).segments == 4
    assert_delta_is_the_log(cluster)
    append(log, topic, "5", timestamp_ms=now_ms)
    assert list(run_tasks(cluster, ["retention", "files"])) == []
    assert run() == [(number, f"{number}") for number in range(6)]
    assert stored(cluster, "t") == {0: ["4", "5"]}, "and who begins now"
