"""Fetch the JARs of Delta and Avro once and put them beside Spark's own in this environment.

Spark's resolver (Ivy) fetches them as it would for `spark.jars.packages`. Kept in pyspark's `jars` folder they cost
nothing at each start, and drivers, executors and standalone workers of this environment all find them. Without Avro's,
everything but that codec works (spark_log/streams/codecs.py).
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"
AVRO = ("org.apache.spark:spark-avro_2.13:4.2.0", "org.apache.spark:spark-avro_2.13:4.1.1")
"""The one of this Spark, or an older one whose from_avro and to_avro work with it: some mirrors are late."""
OURS = ("io.delta_", "io.unitycatalog_", "org.apache.spark_spark-avro_")
"""Prefixes of what they add. All else that they name, Spark has already, some of it in another version."""
SPARK_HAS = ("org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime")
"""Left out of the download for their size."""

_RESOLVE = """
import sys
from pyspark.sql import SparkSession
packages, excludes, ivy = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.jars.packages", packages).config("spark.jars.excludes", excludes)
builder.config("spark.jars.ivy", ivy).getOrCreate().stop()
"""


def main() -> None:
    jars = Path(pyspark.__file__).parent / "jars"
    if not _fetch(jars, DELTA):
        raise SystemExit(f"{DELTA} was not fetched")
    if not any(_fetch(jars, coordinate) for coordinate in AVRO):
        print(f"{' and '.join(AVRO)}: not to be had; what needs it is left out", file=sys.stderr)


def _fetch(jars: Path, coordinate: str) -> bool:
    """Whether the JARs are there, now."""
    group, artifact, _ = coordinate.split(":")
    if any(jars.glob(f"{group}_{artifact}-*.jar")):
        return True
    with tempfile.TemporaryDirectory() as ivy:
        command = [sys.executable, "-c", _RESOLVE, coordinate, ",".join(SPARK_HAS), ivy]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            return False
        for jar in sorted(Path(ivy, "jars").glob("*.jar")):
            if jar.name.startswith(OURS):
                shutil.copy(jar, jars / jar.name)
                print(f"{jar.name} -> pyspark/jars")
    return any(jars.glob(f"{group}_{artifact}-*.jar"))


if __name__ == "__main__":
    main()
