"""A driver program warns of misspelt options, once for each read, write and query."""

import os
import subprocess
import sys

from tests.support.spark import ENVIRONMENT

PROGRAM = """
import sys
from pyspark.sql import SparkSession
from spark_log import Cluster, create_topic

address, checkpoint = sys.argv[1:]
with Cluster.init(address) as cluster:
    create_topic(cluster, "t"), create_topic(cluster, "copy")
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
base = {"cluster": address, "path": "ignored", "queryName": "ignored"}
rows = spark.range(9).selectExpr("cast(id as string) value")
rows.write.format("spark_log").options(**base, topic="t", topics="t").mode("append").save()
frame = spark.read.format("spark_log").options(**base, subscribe="t", startingOffset="earliest").load()
assert frame.where("offset > 3").count() == 5 and frame.count() == 9
stream = spark.readStream.format("spark_log").options(**base, subscribe="t", startingOffsets="earliest")
stream = stream.options(maxOffsetsPerTrigger="3", maxRecordPerPartition="2").load().writeStream.format("spark_log")
stream = stream.options(cluster=address, topic="copy", checkpointLocation=checkpoint, **{"kafka.group_id": "g"})
query = stream.trigger(availableNow=True).start()
query.awaitTermination()
assert len(query.recentProgress) > 2
"""


def test_each_misspelt_option_is_reported_once(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "log"), str(tmp_path / "checkpoint")]
    environment = {**os.environ, **ENVIRONMENT}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-8000:]
    suggestions = {
        "topics": "topic",
        "startingoffset": "startingOffsets",
        "maxrecordperpartition": "maxRecordsPerPartition",
        "kafka.group_id": "kafka.group.id",
    }
    for name, option in suggestions.items():
        warning = f'Option {name!r} of format("spark_log") has no effect. Did you mean {option!r}?'
        assert done.stderr.count(warning) == 1, done.stderr[-8000:]
    assert done.stderr.count("has no effect") == len(suggestions)
