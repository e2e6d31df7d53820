"""A Spark session for Iceberg tables, in an environment with another PySpark than the tests: `IcebergSpark` starts it.

It answers each request on stdin, the pickled name and arguments of a method, with a pickle on stdout.
"""

import os
import pickle
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",  # so that the plan of a query is the one that has its metrics
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.log": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.log.type": "hadoop",
    "spark.sql.catalog.log.cache-enabled": "false",
}
Rows = list[dict[str, Any]]


class Session:
    """Answers requests. `warehouse` is a folder above all tables, with which the catalog `log` finds them by name."""

    def __init__(self, warehouse: str) -> None:
        builder = SparkSession.builder.master("local[2]").appName("spark-log tests")
        self._spark = builder.config(map={**SETTINGS, "spark.sql.catalog.log.warehouse": warehouse}).getOrCreate()

    def sql(self, text: str) -> Rows:
        return _rows(self._spark.sql(text))

    def scan(self, location: str, where: str, options: dict[str, str]) -> tuple[Rows, int]:
        """The rows of a table, and the number of files that Spark planned to read."""
        frame = self._spark.read.format("iceberg").options(**options).load(location).where(where)
        rows = _rows(frame)
        [scan] = _sequence(frame._jdf.queryExecution().executedPlan().collectLeaves())
        return rows, scan.metrics().apply("resultDataFiles").value()

    def stream(self, location: str, checkpoint: str, options: dict[str, str]) -> Rows:
        """All rows that are new to a stream, which continues at its checkpoint."""
        rows: Rows = []
        frame = self._spark.readStream.format("iceberg").options(**options).load(location)
        writer = frame.writeStream.foreachBatch(lambda batch, _: rows.extend(_rows(batch)))
        # not availableNow, with which Iceberg plans all snapshots from the first one anew
        query = writer.option("checkpointLocation", checkpoint).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        return rows


def _rows(frame: DataFrame) -> Rows:
    return [row.asDict(recursive=True) for row in frame.collect()]


def _sequence(scala: Any) -> list[Any]:
    return [scala.apply(number) for number in range(scala.size())]


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the JVM prints there too
    session = Session(sys.argv[1])
    while True:
        try:
            name, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = True, getattr(session, name)(*arguments)
        except Exception as error:  # the test decides about it
            answer = False, str(error)
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main()
