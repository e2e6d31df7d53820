"""Fetch Delta's JARs once and put them beside Spark's own in this environment.

Spark's resolver (Ivy) fetches them as it would for `spark.jars.packages`. Kept in pyspark's `jars` folder they cost
nothing at each start, and drivers, executors and standalone workers of this environment all find them.
"""

import shutil
import tempfile
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"
OURS = ("io.delta_", "io.unitycatalog_")
"""Prefixes of what Delta adds. All else that it names, Spark has already, some of it in another version."""
SPARK_HAS = ("org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime")
"""Left out of the download for their size."""


def main() -> None:
    jars = Path(pyspark.__file__).parent / "jars"
    if any(jars.glob("io.delta_delta-spark_*.jar")):
        return
    with tempfile.TemporaryDirectory() as ivy:
        SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config(
            "spark.jars.packages", DELTA
        ).config("spark.jars.excludes", ",".join(SPARK_HAS)).config("spark.jars.ivy", ivy).getOrCreate().stop()
        fetched = [jar for jar in sorted(Path(ivy, "jars").glob("*.jar")) if jar.name.startswith(OURS)]
        if not any("delta-spark" in jar.name for jar in fetched):
            raise SystemExit(f"{DELTA} was not fetched")
        for jar in fetched:
            shutil.copy(jar, jars / jar.name)
            print(f"{jar.name} -> pyspark/jars")


if __name__ == "__main__":
    main()
