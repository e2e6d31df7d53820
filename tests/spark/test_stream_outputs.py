"""A streaming query writes each row through `write_stream` once, to any output and after any crash."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from spark_log.cluster.cluster import Cluster
from spark_log.errors import InvalidOptionError
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.ids import TopicPartition
from spark_log.maintenance.client_log import ClientLog
from spark_log.spark.streams import ConsoleOutput, DeltaOutput, TopicOutput, keep_last, write_stream
from spark_log.spark.streams.outputs import Output, Route
from tests.spark.queries import configured
from tests.support.python_process import killed_at, run_process
from tests.support.spark import driver_gateway, uncommit
from tests.support.topics import all_stored, append, fails, make, read_stream, stored


def numbers(spark: SparkSession, cluster: Cluster) -> DataFrame:
    """A stream of topic in with three records per batch."""
    frame = read_stream(spark, cluster, subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger=3)
    return frame.select("value", F.col("value").cast("string").cast("int").alias("n"))


@pytest.mark.slow
@pytest.mark.delta_jars
def test_parts_of_a_batch_go_to_several_outputs_once(
    spark: SparkSession, cluster: Cluster, log: ClientLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One topic is missing at first: the other gets no record either. A repeated batch changes nothing."""
    address, table, checkpoint = str(cluster.store.address), str(tmp_path / "table"), tmp_path / "checkpoint"
    make(cluster, "in")
    make(cluster, "even")
    append(log, "in", "1", "2", "3", "4", "5")

    def parts(batch: DataFrame) -> Sequence[tuple[DataFrame, Output]]:
        return [
            (batch.where("n % 2 = 0"), TopicOutput(address, "even")),
            (batch.where("n % 2 = 1"), TopicOutput(address, "odd")),
            (batch.select("n"), DeltaOutput(table)),
            (batch.select("n"), ConsoleOutput(1)),
        ]

    def run() -> None:
        write_stream(
            numbers(spark, cluster), parts, checkpoint=str(checkpoint), trigger="available-now", name="parts"
        ).awaitTermination()

    with fails("topic 'odd': unknown topic or partition"):
        run()
    assert stored(cluster, "even") == {}
    make(cluster, "odd")
    run()
    uncommit(checkpoint, 1)
    run()
    assert stored(cluster, "even") == {0: ["2", "4"]}
    assert stored(cluster, "odd") == {0: ["1", "3", "5"]}
    assert sorted(row.n for row in spark.read.format("delta").load(table).collect()) == [1, 2, 3, 4, 5]
    assert "batch 1" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.delta_jars
def test_changed_groups_replace_old_ones(spark: SparkSession, cluster: Cluster, log: ClientLog, tmp_path: Path) -> None:
    """Mode update into a topic by key and a Delta table by MERGE; mode complete into a table that is replaced."""
    make(cluster, "in")
    make(cluster, "out", cleanup_policy="compact")
    append(log, "in", "1", "2", "3", "4", "5")
    counts = numbers(spark, cluster).groupBy((F.col("n") % 2).alias("odd")).count()
    rows = counts.withColumns({"key": F.col("odd").cast("string"), "value": F.col("count").cast("string")})
    merged, replaced = str(tmp_path / "merged"), str(tmp_path / "replaced")
    outputs = [TopicOutput(str(cluster.store.address), "out"), DeltaOutput(merged, ("odd",))]
    for _ in range(2):
        write_stream(
            rows, outputs, checkpoint=str(tmp_path / "update"), trigger="available-now", output_mode="update"
        ).awaitTermination()
        uncommit(tmp_path / "update", 1)
    assert all_stored(cluster, "out") == ["1", "2", "2", "3"]
    write_stream(
        counts, DeltaOutput(replaced), checkpoint=str(tmp_path / "complete"), trigger="available-now",
        output_mode="complete",
    ).awaitTermination()  # fmt: skip
    for table in (merged, replaced):
        assert sorted((row.odd, row["count"]) for row in spark.read.format("delta").load(table).collect()) == [
            (0, 2),
            (1, 3),
        ]


@pytest.mark.slow
@pytest.mark.delta_jars
def test_state_is_saved_if_outputs_read_a_batch_in_part_or_not_at_all(
    spark: SparkSession, cluster: Cluster, log: ClientLog, tmp_path: Path
) -> None:
    """Delta skips a repeated batch, the console shows the first rows, and a function may choose some. Spark fails a
    batch that has not saved the state of every partition.
    """
    make(cluster, "in")
    append(log, "in", *map(str, range(20)))
    source = read_stream(spark, cluster, subscribe="in", startingOffsets="earliest")
    counts = source.groupBy("value").count()
    table = DeltaOutput(str(tmp_path / "table"))

    def run(name: str, outputs: Output | Route) -> None:
        write_stream(
            counts, outputs, checkpoint=str(tmp_path / name), trigger="available-now", output_mode="complete"
        ).awaitTermination()

    run("repeated", table)
    uncommit(tmp_path / "repeated", 0)
    run("repeated", table)
    assert spark.read.format("delta").load(table.path).count() == 20
    run("console", ConsoleOutput(1))
    run("some", lambda batch: [(batch.limit(1), DeltaOutput(str(tmp_path / "first")))])


@pytest.mark.slow
@pytest.mark.delta_jars
def test_several_rows_of_a_key_in_one_batch_are_refused_by_a_table_with_keys(
    spark: SparkSession, cluster: Cluster, log: ClientLog, tmp_path: Path
) -> None:
    """Before there is a table in the empty folder, and in MERGE. Then the function that reduces them continues."""
    make(cluster, "in")
    table = DeltaOutput(str(tmp_path / "table"), ("odd", "a.b"))
    (tmp_path / "table").mkdir()
    rows = numbers(spark, cluster).select("n", (F.col("n") % 2).alias("odd"), F.lit("x").alias("a.b"))
    run = partial(write_stream, rows, checkpoint=str(tmp_path / "checkpoint"), trigger="available-now")
    for values, last in ((["1", "2", "3"], [(0, 2), (1, 3)]), (["5", "7"], [(0, 2), (1, 7)])):
        append(log, "in", *values)
        with fails("a batch has 2 rows with odd 1, a.b 'x', and it is not known which one", "keep_last"):
            run(table).awaitTermination()
        run(lambda batch: [(keep_last(batch, "odd", order=["n"]), table)]).awaitTermination()
        found = spark.read.format("delta").load(table.path).select("odd", "n")
        assert sorted(map(tuple, found.collect())) == last


@pytest.mark.slow
def test_a_key_of_any_name_may_be_repeated_in_the_error_which_shows_its_beginning(
    spark: SparkSession, cluster: Cluster, log: ClientLog, tmp_path: Path
) -> None:
    make(cluster, "in")
    append(log, "in", "1", "2")
    rows = numbers(spark, cluster).select(F.lit("x" * 200).alias("_rows"))
    table = DeltaOutput(str(tmp_path / "table"), ("_rows",))
    checkpoint = str(tmp_path / "checkpoint")
    with fails(f"a batch has 2 rows with _rows '{'x' * 93}..., and it is not known"):
        write_stream(
            rows, lambda batch: [(batch, table)], checkpoint=checkpoint, trigger="available-now"
        ).awaitTermination()


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    """The state store that transformWithState needs; conf/spark-defaults.conf sets it too."""
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    with configured(spark, "spark.sql.streaming.stateStore.providerClass", provider):
        yield


@pytest.mark.slow
def test_state_of_ones_own_and_functions_on_arrow(
    spark: SparkSession, cluster: Cluster, log: ClientLog, rocksdb: None, tmp_path: Path
) -> None:
    """transformWithStateInPandas in mode update, then mapInArrow; a repeated batch changes nothing."""
    make(cluster, "in")
    make(cluster, "out", cleanup_policy="compact")
    append(log, "in", "1", "2", "3", "4", "5")

    class Sums(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.sum = handle.getValueState("sum", "sum int")

        def handleInputRows(
            self, key: tuple[int, ...], rows: Iterator[pd.DataFrame], timerValues: TimerValues
        ) -> Iterator[pd.DataFrame]:
            stored = self.sum.get()
            total = (0 if stored is None else stored[0]) + int(sum(part.n.sum() for part in rows))
            self.sum.update((total,))
            yield pd.DataFrame({"odd": [key[0]], "sum": [total]})

        def close(self) -> None:
            pass

    def records(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            texts = [pc.cast(batch[name], pa.string()) for name in ("odd", "sum")]
            yield pa.record_batch(texts, ["key", "value"])

    keyed = numbers(spark, cluster).withColumn("odd", F.col("n") % 2).groupBy("odd")
    sums = keyed.transformWithStateInPandas(Sums(), "odd int, sum int", "update", "none")
    rows = sums.mapInArrow(records, "key string, value string")
    for _ in range(2):
        write_stream(
            rows, TopicOutput(str(cluster.store.address), "out"), checkpoint=str(tmp_path / "sums"),
            trigger="available-now", output_mode="update",
        ).awaitTermination()  # fmt: skip
        uncommit(tmp_path / "sums", 1)
    assert all_stored(cluster, "out") == ["2", "4", "6", "9"]


def test_invalid_outputs_are_refused(spark: SparkSession, cluster: Cluster, log: ClientLog, tmp_path: Path) -> None:
    make(cluster, "in")
    append(log, "in", "1")
    frame, topic = numbers(spark, cluster), TopicOutput(str(cluster.store.address), "in")
    for change, said in [
        ({"checkpoint": ""}, "checkpoint ''"),
        ({"trigger": "often"}, "trigger 'often'"),
        ({"output_mode": "upsert"}, "output_mode 'upsert'"),
        ({"outputs": [topic, topic]}, "named twice"),
        ({"outputs": []}, "at least one"),
        ({"frame": frame.select("n")}, "Required attribute 'value' not found"),
        ({"outputs": [topic, TopicOutput("/other", "in")], "group_id": "g"}, "the outputs name 2 clusters"),
    ]:
        given = {"frame": frame, "outputs": topic, "checkpoint": str(tmp_path / "c"), **change}
        with pytest.raises(InvalidOptionError, match=said):
            write_stream(**given)
    twice = write_stream(
        frame, lambda batch: [(batch, topic), (batch, topic)], checkpoint=str(tmp_path / "d"), trigger="available-now"
    )
    with fails("named twice"):
        twice.awaitTermination()
    assert stored(cluster, "in") == {0: ["1"]}, "nothing is written where a part would pass for a replay"


DRIVER = """
import sys
from pyspark.sql import functions as F
from spark_log.spark.streams import TopicOutput, Tumbling, windowed, write_stream
from tests.support.spark import connect_driver

address, checkpoint, *gateway = sys.argv[1:]
spark = connect_driver(*gateway, spark_sql_shuffle_partitions="1")
records = spark.readStream.format("spark_log").options(
    cluster=address, subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger="2"
).load()
events = records.select(F.timestamp_seconds(F.col("value").cast("string").cast("bigint")).alias("at"))
windows = windowed(events, "at", Tumbling("1 minute"), aggregates=["count"], watermark="0 seconds")
rows = windows.select(F.concat_ws(" ", F.unix_seconds("window_start"), "count").alias("value"))
write_stream(
    rows, [TopicOutput(address, "first"), TopicOutput(address, "second")],
    checkpoint=checkpoint, trigger="available-now", output_mode="update", group_id="g",
).awaitTermination()
"""


# (failpoint, contents of first and second after the driver is killed there, the group's offset): each run continues
# after the last one
KILLS = (
    ("stream.output-written:1", [], None),  # between the outputs of batch 0
    ("append.decided:2", ["0 2"], 2),  # in the transaction of batch 1
    ("append.committed:2", ["0 2", "0 3", "60 1", "60 3"], 6),  # after that of batch 2
)


@pytest.mark.slow
def test_outputs_are_written_once_when_the_driver_is_killed_at_every_step(
    spark: SparkSession, cluster: Cluster, log: ClientLog, tmp_path: Path
) -> None:
    """Counts by window in mode update: each change is in both topics once, and visible together with the offsets.

    The JVM survives; test_stream_sink.py kills it too.
    """
    for name in ("in", "first", "second"):
        make(cluster, name)
    append(log, "in", "0", "1", "2", "60", "61", "62", "120", "121")
    with driver_gateway(spark) as place:
        driver = ("-c", DRIVER, cluster.store.address, tmp_path / "checkpoint", *place)
        for point, values, offset in KILLS:
            killed_at(point, *driver)
            assert all_stored(cluster, "first") == all_stored(cluster, "second") == sorted(values)
            assert committed_offsets(cluster.store, "g").get(TopicPartition("in", 0)) == offset
        done = run_process(*driver)
    assert done.returncode == 0, done.stderr[-5000:]
    whole = sorted(["0 2", "0 3", "60 1", "60 3", "120 2"])
    assert all_stored(cluster, "first") == all_stored(cluster, "second") == whole
    assert committed_offsets(cluster.store, "g") == {TopicPartition("in", 0): 8}
