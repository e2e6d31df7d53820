"""A driver program warns of misspelt options, once for each read, write and query."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_log.cluster.cluster import Cluster
from tests.spark.queries import register_as
from tests.support.topics import make
from tests.support.waiting import wait_until

SUGGESTIONS = {
    "topics": "topic",
    "startingoffset": "startingOffsets",
    "maxrecordperpartition": "maxRecordsPerPartition",
    "kafka.group_id": "kafka.group.id",
}


@contextmanager
def errors_of_the_driver(spark: SparkSession) -> Iterator[Callable[[], str]]:
    """The standard error of Python processes that the driver starts from now on, which the JVM passes on to its own."""
    jvm: Any = spark._jvm
    before, printed = jvm.java.lang.System.err, jvm.java.io.ByteArrayOutputStream()
    jvm.java.lang.System.setErr(jvm.java.io.PrintStream(printed, True))
    try:
        yield lambda: str(printed.toString())
    finally:
        jvm.java.lang.System.setErr(before)


@pytest.mark.slow
def test_each_misspelt_option_is_reported_once(
    spark: SparkSession, cluster: Cluster, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(cluster, "t"), make(cluster, "copy")
    monkeypatch.setitem(spark.sparkContext.environment, "SPARK_PROCESSES", "for the misspelt options")
    name = register_as(spark, "spark_log_with_processes")  # Spark starts Python processes for it and reuses none
    base = {"cluster": str(cluster.store.address), "path": "ignored", "queryName": "ignored"}
    with errors_of_the_driver(spark) as errors:
        rows = spark.range(9).selectExpr("cast(id as string) value")
        rows.write.format(name).options(**base, topic="t", topics="t").mode("append").save()
        frame = spark.read.format(name).options(**base, subscribe="t", startingOffset="earliest").load()
        assert frame.where("offset > 3").count() == 5 and frame.count() == 9
        stream = spark.readStream.format(name).options(**base, subscribe="t", startingOffsets="earliest")
        records = stream.options(maxOffsetsPerTrigger="3", maxRecordPerPartition="2").load()
        sink = records.writeStream.format(name).options(cluster=base["cluster"], topic="copy")
        sink = sink.options(checkpointLocation=str(checkpoint), **{"kafka.group_id": "g"})
        query = sink.trigger(availableNow=True).start()
        query.awaitTermination()
        assert len(query.recentProgress) > 2
        warnings = [
            f'Option {misspelt!r} of format("spark_log") has no effect. Did you mean {option!r}?'
            for misspelt, option in SUGGESTIONS.items()
        ]
        wait_until(lambda: all(warning in errors() for warning in warnings), "the warnings")
        assert [errors().count(warning) for warning in warnings] == [1, 1, 1, 1], errors()
        assert errors().count("has no effect") == len(SUGGESTIONS)
