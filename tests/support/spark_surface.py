"""`python -m tests.support.spark_surface FOLDER`: calls spark-log's functions for Spark, over Spark Connect.

Each case is a function of a session and a new cluster, and returns what a user sees. The program prints one line of
JSON for each case: its name, and its result or its error.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_log import Cluster, Producer, create_topic, read_topic, write_topic
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.maintenance.erase.erase import erase
from spark_log.maintenance.erase.spark_workers import on_spark
from spark_log.maintenance.spark_merge import merge_on_spark
from spark_log.spark import streams
from spark_log.spark.streams.outputs import Output
from tests.support.spark import delta_settings

Rows = list[list[Any]]
PLANE = "name STRING, seats INT"


@dataclass(frozen=True)
class Place:
    """A session, an empty cluster, and a folder for checkpoints and tables."""

    spark: SparkSession
    cluster: Cluster
    folder: Path

    @property
    def address(self) -> str:
        return str(self.cluster.store.address)

    def fill(self, topic: str, *records: tuple[str | None, str | None], **configs: str) -> None:
        """Create the topic with one partition, and append records (key, value), each in an append of its own."""
        given = {"retention_ms": "-1", **configs}
        create_topic(self.cluster, topic, configs={name.replace("_", "."): value for name, value in given.items()})
        with Producer(cluster=self.address) as producer:
            for key, value in records:
                producer.send(topic, _encoded(value), _encoded(key), timestamp_ms=1_700_000_000_000).get()

    def numbers(self, topic: str, count: int) -> None:
        self.fill(topic, *((str(n % 2), str(n)) for n in range(count)))

    def read(self, topic: str, **options: str) -> DataFrame:
        return self.spark.read.format("spark_log").options(cluster=self.address, subscribe=topic, **options).load()

    def stream(self, topic: str, **options: str) -> DataFrame:
        given = {"cluster": self.address, "subscribe": topic, "startingOffsets": "earliest", **options}
        return self.spark.readStream.format("spark_log").options(**given).load()

    def values(self, topic: str) -> Rows:
        return rows(self.read(topic).select(sf.col("value").cast("string")))

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def run(self, writer: DataStreamWriter, checkpoint: str = "checkpoint") -> None:
        writer.option("checkpointLocation", self.path(checkpoint)).trigger(availableNow=True).start().awaitTermination()


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def rows(frame: DataFrame) -> Rows:
    return sorted(([*row] for row in frame.collect()), key=str)


def batch_read_and_write(place: Place) -> Rows:
    create_topic(place.cluster, "t", 2)
    frame = place.spark.createDataFrame([(n, str(n)) for n in range(4)], "partition INT, value STRING")
    written = frame.withColumn("partition", sf.col("partition") % 2)
    written.write.format("spark_log").options(cluster=place.address, topic="t").mode("append").save()
    found = place.read("t").where("partition = 1 AND offset >= 1")
    return rows(found.select("topic", "partition", "offset", sf.col("value").cast("string")))


def read_and_write_topic(place: Place) -> Rows:
    place.numbers("t", 3)
    write_topic(place.spark.createDataFrame([("x",)], "value STRING"), place.address, "t", txn=("app", 1))
    write_topic(place.spark.createDataFrame([("x",)], "value STRING"), place.address, "t", txn=("app", 1))
    return rows(read_topic(place.spark, place.address, "t").select("offset", sf.col("value").cast("string")))


def views_of_sql(place: Place) -> Rows:
    place.numbers("t", 3)
    options = f"cluster '{place.address}', subscribe 't'"
    place.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW t USING spark_log OPTIONS ({options})")
    return rows(place.spark.sql("SELECT offset, CAST(value AS STRING) FROM t WHERE offset > 0"))


def stream_into_a_topic(place: Place) -> Rows:
    place.numbers("in", 5)
    create_topic(place.cluster, "out")
    frame = place.stream("in", maxOffsetsPerTrigger="3").select("value")
    place.run(frame.writeStream.format("spark_log").options(cluster=place.address, topic="out"))
    return place.values("out")


def batch_transactions(place: Place) -> Rows:
    """The last batch is replayed: its commit is missing in the checkpoint."""
    place.numbers("in", 5)
    for name in ("a", "b"):
        create_topic(place.cluster, name)
    address, checkpoint = place.address, place.path("checkpoint")

    def process(batch: DataFrame, batch_id: int) -> None:
        with streams.batch_transaction(
            batch, cluster=address, group_id="g", batch_id=batch_id, checkpoint=checkpoint
        ) as transaction:
            transaction.write(batch.select("value"), topic="a")
            transaction.write(batch.select("value"), topic="b")

    for _ in range(2):
        place.run(place.stream("in", maxOffsetsPerTrigger="2").writeStream.foreachBatch(process))
        for name in ("2", ".2.crc"):
            (place.folder / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    committed = committed_offsets(place.cluster.store, "g").values()
    return [*place.values("a"), *place.values("b"), list(committed)]


def streams_into_topics_and_delta(place: Place) -> Rows:
    place.numbers("in", 5)
    create_topic(place.cluster, "out")
    counts = streams.running(
        place.stream("in", maxOffsetsPerTrigger="3").select(sf.col("key").cast("string").alias("key")),
        "key",
        aggregates=["count"],
    )
    frame = counts.withColumn("value", sf.concat_ws(" ", "key", "count"))
    outputs: list[Output] = [
        streams.TopicOutput(place.address, "out"),
        streams.DeltaOutput(place.path("table"), keys=("key",)),
    ]
    for _ in range(2):
        streams.write_stream(
            frame, outputs, checkpoint=place.path("checkpoint"), trigger="available-now", output_mode="update"
        ).awaitTermination()
    table = place.spark.read.format("delta").load(place.path("table")).select("key", "count")
    return [*place.values("out"), *rows(table)]


def tables(place: Place) -> Rows:
    place.fill("planes", ("a", "1"), ("b", "2"), ("a", "3"), cleanup_policy="compact")
    changes = place.spark.createDataFrame([("b", None), ("c", "4")], "key STRING, value STRING")
    streams.write_table(changes, place.address, "planes", key="key", value="value")
    found = streams.read_table(place.spark, place.address, "planes")
    return rows(found.select(sf.col("key").cast("string"), sf.col("value").cast("string")))


def decoded_values(place: Place) -> Rows:
    place.fill("t", ("k", '{"name": "x", "seats": 2}'), ("k", "bad"), ("k", None))
    decoded = streams.decode(place.read("t"), streams.Json(PLANE))
    dead = streams.dead_letters(decoded)
    encoded = streams.encode(streams.valid(decoded).where("value IS NOT NULL").select("value.*"), streams.Json(PLANE))
    return [
        *rows(streams.valid(decoded).select("value.name", "value.seats")),
        *rows(dead.select(sf.col("value").cast("string"))),
        *rows(encoded.select(sf.col("value").cast("string"))),
    ]


def typed_topics(place: Place) -> Rows:
    place.fill("t", value_format="json", value_schema=PLANE)
    planes = place.spark.createDataFrame([("x", 2), ("y", 3)], PLANE)
    write_topic(streams.typed(planes, place.address, "t"), place.address, "t")
    return rows(read_topic(place.spark, place.address, "t", record=True).select("record.name", "record.seats"))


def stateful_streams(place: Place) -> Rows:
    place.numbers("in", 4)
    left = place.stream("in").select("key", "timestamp", sf.col("value").cast("string").alias("n"))
    windows = streams.windowed(
        left,
        "timestamp",
        streams.Tumbling("1 minute"),
        "key",
        aggregates=["count"],
        watermark="0 seconds",
    )
    joined = streams.join_streams(
        streams.Side(left, "timestamp"),
        streams.Side(left.withColumnRenamed("n", "m"), "timestamp"),
        ["key", "timestamp"],
    )
    static = streams.join_static(left, place.spark.createDataFrame([("1", 1)], "n STRING, one INT"), "n")
    once = streams.deduplicated(left, "key", within="1 minute")
    for name, frame, mode in (
        ("d", once, "append"),
        ("w", windows, "complete"),
        ("j", joined, "append"),
        ("s", static, "append"),
    ):
        place.run(frame.writeStream.format("memory").queryName(name).outputMode(mode), name)
    return [
        *rows(place.spark.table("w").select("count")),
        [place.spark.table("d").count()],
        [place.spark.table("j").count()],
        *rows(place.spark.table("s").select("n", "one")),
    ]


def live_tables(place: Place) -> Rows:
    place.fill("planes", ("0", "A"), ("1", "B"), cleanup_policy="compact")
    place.numbers("in", 3)
    create_topic(place.cluster, "out")
    address = place.address
    with streams.Table(place.spark, address, "planes") as planes:

        def route(batch: DataFrame) -> Sequence[tuple[DataFrame, Output]]:
            joined = planes.join(batch, on="key").select(sf.concat("value", "planes.value").alias("value"))
            return [(joined, streams.TopicOutput(address, "out"))]

        streams.write_stream(
            place.stream("in"), route, checkpoint=place.path("checkpoint"), trigger="available-now"
        ).awaitTermination()
    return place.values("out")


def observed_queries(place: Place) -> Rows:
    place.numbers("in", 3)
    with streams.observing_queries(place.spark, place.address) as listener:
        place.run(place.stream("in").writeStream.format("noop").queryName("q"))
    return [[report.name, report.state, report.lag, report.total_rows] for report in listener.queries()]


def maintenance(place: Place) -> Rows:
    place.fill("t", ("a", "1" * 900), ("b", "2" * 900), ("a", "3" * 900), inline_max_bytes="0")
    merged = [report.before.files for report in merge_on_spark(place.spark, place.cluster, topics=["t"])]
    erased = erase(place.cluster, "t", [b"a"], workers=on_spark(place.spark))
    return [[sum(merged) > 0, erased.records], *rows(place.read("t").select("offset"))]


Case = Callable[[Place], Rows]
CASES: dict[Case, Rows] = {
    batch_read_and_write: [["t", 1, 1, "3"]],
    read_and_write_topic: [[0, "0"], [1, "1"], [2, "2"], [3, "x"]],
    views_of_sql: [[1, "1"], [2, "2"]],
    stream_into_a_topic: [["0"], ["1"], ["2"], ["3"], ["4"]],
    batch_transactions: [["0"], ["1"], ["2"], ["3"], ["4"], ["0"], ["1"], ["2"], ["3"], ["4"], [5]],
    streams_into_topics_and_delta: [["0 2"], ["0 3"], ["1 1"], ["1 2"], ["0", 3], ["1", 2]],
    tables: [["a", "3"], ["c", "4"]],
    decoded_values: [["x", 2], [None, None], ["bad"], ['{"name":"x","seats":2}']],
    typed_topics: [["x", 2], ["y", 3]],
    stateful_streams: [[2], [2], [2], [8], ["0", None], ["1", 1], ["2", None], ["3", None]],
    live_tables: [["0A"], ["1B"], ["2A"]],
    observed_queries: [["q", "terminated", 0, 3]],
    maintenance: [[True, 2], [1]],
}
"""The cases with their results."""
REFUSED = (live_tables,)
"""The cases that Spark Connect cannot do."""
WITH_DELTA = (streams_into_topics_and_delta,)
"""The cases that need Delta's JARs."""

_THIN_CLIENT = """
import json, sys
sys.modules["spark_log"] = None
from pyspark.sql import SparkSession

url, cluster, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote(url).getOrCreate()
spark.createDataFrame([("a",)], "value STRING").write.format("spark_log").options(cluster=cluster, topic="in").mode(
    "append").save()
frame = spark.readStream.format("spark_log").options(cluster=cluster, subscribe="in", startingOffsets="earliest").load()
query = frame.select("value").writeStream.format("spark_log").options(cluster=cluster, topic="out")
query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
found = spark.read.format("spark_log").options(cluster=cluster, subscribe="out").load()
print(json.dumps([[*row] for row in found.selectExpr("offset", "string(value)").collect()]))
"""


def thin_client(place: Place) -> Rows:
    """A program without spark-log and Java uses the server of this session of Spark Connect."""
    for name in ("in", "out"):
        create_topic(place.cluster, name)
    builder: Any = place.spark.client._builder  # a session of Spark Connect has it
    command = [sys.executable, "-c", _THIN_CLIENT, f"sc://{builder.endpoint}", place.address, place.path("checkpoint")]
    environment = {**os.environ, "PATH": "", "JAVA_HOME": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found: Rows = json.loads(done.stdout.splitlines()[-1])
    return found


OF_THIN_CLIENT: Rows = [[0, "a"]]


def run_case(case: Case, spark: SparkSession, folder: Path) -> Any:
    """Return the result of the case, or the class and the beginning of the text of its error."""
    folder.mkdir()
    with Cluster.init(str(folder / "cluster")) as cluster:
        try:
            return json.loads(json.dumps(case(Place(spark, cluster, folder))))
        except Exception as error:
            return f"{type(error).__name__}: {error!s}"


def main(folder: Path) -> None:
    SparkContext._ensure_initialized()
    os.environ["SPARK_TESTING"] = "1"  # PySpark selects a free port; the JVM runs already, and does not test itself
    settings: dict[str, Any] = {
        **delta_settings(),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.databricks.delta.snapshotPartitions": "2",
        # interpreted, as in the session of the tests: there is little to compute
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    spark = SparkSession.builder.remote("local[2]").config(map=settings).getOrCreate()
    for case in (*CASES, thin_client):
        print(json.dumps([case.__name__, run_case(case, spark, folder / case.__name__)]), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
