"""An archive of the classes that Spark loads, which halves the CPU time that a JVM of the tests takes to start.

`make test` creates it once for each environment: `python -m tests.support.class_archive`. A JVM that it does not fit
(another Java, other JARs, a folder with settings first on the class path) starts without it.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

FILE = Path(sys.prefix) / "spark-classes.jsa"
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""Without this a JVM prints a warning on stdout if an archive does not fit."""


def jvm_options() -> str:
    """The options with which a JVM uses the archive, if there is one."""
    return f"-XX:SharedArchiveFile={FILE} {_QUIET}" if FILE.exists() else ""


PROGRAM = """
import sys
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import functions as F

from spark_log import Cluster, create_topic, write_topic
from spark_log.spark.streams import DeltaOutput, TopicOutput, Tumbling, windowed, write_stream
from tests.support.spark import session

folder = sys.argv[1]
spark = session("local[2]", Path(folder) / "warehouse", spark_driver_extraJavaOptions=sys.argv[2])
address = folder + "/cluster"
with Cluster.init(address) as cluster:
    create_topic(cluster, "in")
    create_topic(cluster, "out")
rows = spark.range(20).selectExpr("CAST(id AS string) key", "CAST(id * 1000 AS string) value")
for format in ("csv", "json", "parquet", "delta"):
    rows.write.format(format).save(folder + "/" + format)
    spark.read.format(format).load(folder + "/" + format).groupBy().count().collect()
rows.write.format("spark_log").options(cluster=address, topic="in").mode("append").save()
write_topic(rows.alias("a").join(rows.alias("b"), "key").select("key", "a.value"), address, "in")
source = spark.readStream.format("spark_log").options(cluster=address, subscribe="in")
source = source.option("startingOffsets", "earliest").load()
events = source.select(F.timestamp_seconds(F.col("value").cast("string").cast("bigint")).alias("at"))
windows = windowed(events, "at", Tumbling("1 minute"), aggregates=["count"], watermark="0 seconds")
values = windows.select("window_start", F.col("count").cast("string").alias("value"))
write_stream(
    values, [TopicOutput(address, "out"), DeltaOutput(folder + "/windows", ("window_start",))],
    checkpoint=folder + "/checkpoint", trigger="available-now", output_mode="update",
).awaitTermination()
copy = source.select("key", "value").writeStream.format("spark_log").options(cluster=address, topic="out")
copy.option("checkpointLocation", folder + "/copied").trigger(availableNow=True).start().awaitTermination()
spark.stop()
jvm = SparkContext._gateway.proc
jvm.stdin.close()  # it ends, and writes the archive
sys.exit(jvm.wait(120))
"""


def make() -> None:
    FILE.unlink(missing_ok=True)  # before the import: QUICK_JVM names the archive if there is one
    from tests.support.python_process import REPOSITORY
    from tests.support.spark import QUICK_JVM

    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / FILE.name
        options = f"{QUICK_JVM} -XX:ArchiveClassesAtExit={made} {_QUIET}"
        subprocess.run([sys.executable, "-c", PROGRAM, folder, options], check=True, cwd=REPOSITORY)
        beside = FILE.with_suffix(".partial")
        beside.write_bytes(made.read_bytes())
        os.replace(beside, FILE)


if __name__ == "__main__":
    make()
