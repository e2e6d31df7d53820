"""Writes the results of a streaming query exactly once to topics and Delta tables, or prints them on the console.

For one topic in append or complete mode, the query uses the sink `format("spark_log")`. Other outputs use foreachBatch:
the rows for topics of one cluster are one transaction (`batch_transaction`), and the rows for a Delta table are one
write with the query's id and the batch's number (`txnAppId`, `txnVersion`). After a crash, Spark replays a micro-batch
with the same input and the same state, and the replay only writes outputs that are missing.
"""

import posixpath
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal, get_args
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_log.errors import InvalidOptionError, redact
from spark_log.failpoints import failpoint
from spark_log.spark.datasource.options.source_options import WriteOptions
from spark_log.spark.datasource.write.topic_write import activate_session
from spark_log.spark.datasource.write.write_schema import check_write_schema
from spark_log.spark.delta_jars import check_loaded
from spark_log.spark.streams.micro_batch import BatchLocation, MicroBatch, checkpoint_of_batch
from spark_log.spark.streams.transacted_batch import batch_transaction
from spark_log.text import parse_interval_ms

OutputMode = Literal["append", "update", "complete"]

AVAILABLE_NOW = "available-now"
AS_FAST_AS_POSSIBLE = "0 seconds"
_SHOWN_MAX = 100
"""The number of characters after which a key is truncated in an error."""
_NO_TABLE = ("DELTA_PATH_DOES_NOT_EXIST", "DELTA_MISSING_DELTA_TABLE", "DELTA_TABLE_NOT_FOUND", "PATH_NOT_FOUND")


@dataclass(frozen=True, repr=False)
class TopicOutput:
    """A topic. Rows have the columns of a write: value, and optionally key, headers, partition and timestamp."""

    cluster: str
    """Address: a folder or a URL."""
    topic: str

    def __repr__(self) -> str:
        return f"TopicOutput({redact(self.cluster)!r}, {self.topic!r})"


@dataclass(frozen=True)
class DeltaOutput:
    """A Delta table, which is created if it does not exist. In mode complete, each batch replaces its rows."""

    path: str
    keys: tuple[str, ...] = ()
    """With keys, a row replaces the row with the same values in these columns (MERGE). Mode update requires keys. Rows
    of a batch have no order, so two rows with the same key in a batch are an error (`keep_last` reduces them to one).
    """


@dataclass(frozen=True)
class ConsoleOutput:
    """Prints each batch as a table on stdout. A replayed batch is printed again."""

    limit: int = 20
    """Number of rows to print of each batch."""


Output = TopicOutput | DeltaOutput | ConsoleOutput
Route = Callable[[DataFrame], Sequence[tuple[DataFrame, Output]]]
"""A function that splits a micro-batch into rows for outputs. These are written in this order, but topics last. It is
called once for each batch, whose rows are persisted meanwhile, and must return the same rows for the same batch.
"""


def write_stream(
    frame: DataFrame,
    outputs: "Output | Sequence[Output] | Route",
    *,
    checkpoint: str,
    trigger: str = AS_FAST_AS_POSSIBLE,
    output_mode: OutputMode = "append",
    name: str | None = None,
    group_id: str | None = None,
) -> StreamingQuery:
    """Start a query that writes `frame` to one output, to each of several outputs, or in parts that a function chooses.

    `trigger` is "available-now" (process the available records, then end) or an interval such as "10 seconds". Topics
    and Delta tables get each result exactly once, whatever crashes, as long as `checkpoint` is kept. A query may name
    each of them only once as an output. The rows of a micro-batch for all topics of a cluster become visible at once.
    With `group_id`, the same transaction commits the batch's end offsets in the query's sources to the group. These
    sources must be topics of this cluster, without the option `group.id`.
    Raises InvalidOptionError, and DeltaNotInstalledError for a Delta table if Delta's JARs are missing.
    """
    if output_mode not in get_args(OutputMode):
        raise InvalidOptionError(f"output_mode {output_mode!r}: expected append, update or complete")
    if not checkpoint:
        raise InvalidOptionError("checkpoint '': required: with it a restart continues where the last run ended")
    if isinstance(outputs, TopicOutput | DeltaOutput | ConsoleOutput):
        outputs = (outputs,)
    if not callable(outputs):
        check_outputs(outputs, output_mode, group_id)
        if any(isinstance(each, DeltaOutput) for each in outputs):
            check_loaded(frame.sparkSession)
        for cluster, topic in ((each.cluster, each.topic) for each in outputs if isinstance(each, TopicOutput)):
            options = WriteOptions.parse({"cluster": cluster, "topic": topic}, streaming=True, environ={})
            check_write_schema(frame.schema, options)
    activate_session(frame.sparkSession)
    writer = _triggered(frame.writeStream, trigger).outputMode(output_mode).option("checkpointLocation", checkpoint)
    if name is not None:
        writer = writer.queryName(name)
    if not callable(outputs) and len(outputs) == 1 and output_mode != "update" and group_id is None:
        [only] = outputs
        if isinstance(only, TopicOutput):
            return writer.format("spark_log").options(cluster=only.cluster, topic=only.topic).start()
    if callable(outputs):
        route, keep = outputs, True
    else:
        route, keep = _whole_to_each(outputs), len(outputs) > 1 or any(map(_reads_again_or_in_part, outputs))
    first = True

    def write(batch: DataFrame, batch_id: int) -> None:
        nonlocal first
        may_repeat, first = first, False
        write_batch(batch, route, output_mode, keep, group_id, BatchLocation(batch_id, checkpoint), may_repeat)

    return writer.foreachBatch(write).start()


def write_batch(
    batch: DataFrame,
    route: Route,
    output_mode: OutputMode,
    keep: bool,
    group_id: str | None,
    location: BatchLocation,
    may_repeat: bool,
) -> None:
    """Write a micro-batch in foreachBatch. With `keep`, persist it, so that it and the state are computed only once.

    Spark fails a batch that has not computed all its state. So `keep` also computes the whole batch, for outputs that
    read it in part. Without `keep`, `may_repeat` means that Delta may have the batch and not read it at all.
    """
    current = checkpoint_of_batch(batch.sparkSession, location).batch
    if keep:
        batch.persist()
    try:
        if keep:
            batch.write.format("noop").mode("append").save()
        parts = route(batch)
        outputs = [output for _, output in parts]
        check_outputs(outputs, output_mode, group_id)
        failpoint("stream.batch-begun")
        with ExitStack() as stack:
            transactions = {
                cluster: stack.enter_context(
                    batch_transaction(batch, cluster=cluster, group_id=group_id, **location._asdict())
                )
                for cluster in sorted(_clusters(outputs))
            }
            # Topics last: the time limit of the transactions begins with their first write.
            for rows, output in sorted(parts, key=lambda part: isinstance(part[1], TopicOutput)):
                if isinstance(output, TopicOutput):
                    transactions[output.cluster].write(rows, output.topic)
                elif may_repeat and not keep and isinstance(output, DeltaOutput):
                    _write_or_compute(rows, output, output_mode, current)
                else:
                    _write(rows, output, output_mode, current)
                failpoint("stream.output-written")
    finally:
        if keep:
            batch.unpersist()


def _whole_to_each(outputs: Sequence[Output]) -> Route:
    return lambda batch: [(batch, output) for output in outputs]


def _reads_again_or_in_part(output: Output) -> bool:
    return isinstance(output, ConsoleOutput) or (isinstance(output, DeltaOutput) and bool(output.keys))


def _clusters(outputs: Sequence[Output]) -> set[str]:
    return {output.cluster for output in outputs if isinstance(output, TopicOutput)}


def check_outputs(outputs: Sequence[Output], output_mode: OutputMode, group_id: str | None = None) -> None:
    """Raise InvalidOptionError for outputs that cannot be written exactly once. A second write to the same table would
    look like a replay, and offsets can only be committed with the topics of one cluster.
    """
    if group_id is not None and len(_clusters(outputs)) != 1:
        raise InvalidOptionError(
            f"group_id {group_id!r}: its offsets are committed with topics of one cluster, and the outputs name"
            f" {len(_clusters(outputs))} clusters"
        )
    if not outputs:
        raise InvalidOptionError("outputs: at least one is needed")
    lasting = [output for output in outputs if not isinstance(output, ConsoleOutput)]
    targets = [_place(output.path) if isinstance(output, DeltaOutput) else output for output in lasting]
    for output, target in zip(lasting, targets, strict=True):
        if targets.count(target) > 1:
            raise InvalidOptionError(f"outputs: {output} is named twice: union the rows instead")
        if isinstance(output, DeltaOutput) and not output.keys and output_mode == "update":
            raise InvalidOptionError(
                f"outputs: {output} needs keys in output mode update: they say which row a changed one replaces"
            )


def _place(path: str) -> str:
    """Return one text for the spellings of a path, such as /data/table and file:///data/table/."""
    return posixpath.normpath(re.sub("^file:(//)?(?=/)", "", path))


def _write(rows: DataFrame, output: DeltaOutput | ConsoleOutput, output_mode: OutputMode, batch: MicroBatch) -> None:
    match output:
        case ConsoleOutput(limit):
            print(f"batch {batch.batch_id}", flush=True)
            rows.show(limit, truncate=False)
        case DeltaOutput(path, keys):
            if keys and output_mode != "complete":
                _check_one_row_per_key(rows, output)
                if _merged(rows, path, keys):
                    return
            once = {"txnAppId": batch.query_id, "txnVersion": str(batch.batch_id)}
            mode = "overwrite" if output_mode == "complete" else "append"
            rows.write.format("delta").options(**once).mode(mode).save(path)


def _write_or_compute(rows: DataFrame, output: DeltaOutput, output_mode: OutputMode, batch: MicroBatch) -> None:
    """Write the rows to the table. If Delta skips them, because the table has the batch, only compute them."""
    before = _version(rows.sparkSession, output.path)
    _write(rows, output, output_mode, batch)
    if before is not None and before == _version(rows.sparkSession, output.path):
        rows.write.format("noop").mode("append").save()


def _check_one_row_per_key(rows: DataFrame, output: DeltaOutput) -> None:
    """Raise InvalidOptionError if a key has several rows: MERGE would insert all of them, or fail if the table has the
    key. The check runs one more job with a shuffle for each micro-batch, even if the query has grouped its rows by key.
    """
    counts = rows.groupBy(*(sf.col(_quoted(key)) for key in output.keys)).agg(sf.count("*"))
    numbered = counts.toDF(*map(str, range(len(counts.columns))))  # a key may have any name
    repeated = numbered.where(f"`{len(output.keys)}` > 1").first()
    if repeated is not None:
        *key, count = repeated
        named = ", ".join(f"{name} {value!r}" for name, value in zip(output.keys, key, strict=True))
        named = named if len(named) <= _SHOWN_MAX else f"{named[:_SHOWN_MAX]}..."
        raise InvalidOptionError(
            f"outputs: {output}: a batch has {count} rows with {named}, and it is not known which one replaces the"
            " others: reduce them to one in a function that is given as outputs, for example with keep_last"
        )


def _merged(rows: DataFrame, path: str, keys: Sequence[str]) -> bool:
    """Merge the rows into the table, or return False if there is no table yet. A repetition changes nothing."""
    if not has_delta_table(rows.sparkSession, path):
        return False
    same = " AND ".join(f"old.{_quoted(key)} <=> new.{_quoted(key)}" for key in keys)
    view = f"spark_log_{uuid4().hex}"
    rows.createOrReplaceTempView(view)
    try:
        rows.sparkSession.sql(
            f"MERGE INTO {_table(path)} AS old USING {view} AS new ON {same}"
            " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
    finally:
        rows.sparkSession.catalog.dropTempView(view)
    return True


def has_delta_table(spark: SparkSession, path: str) -> bool:
    """Whether there is a Delta table at the path."""
    try:
        _ = spark.read.format("delta").load(path).schema  # Spark Connect looks for the table only now
    except AnalysisException as error:
        if error.getCondition() in _NO_TABLE:
            return False
        raise
    return True


def _version(spark: SparkSession, path: str) -> int | None:
    """Return the version of a Delta table, or None if there is no table."""
    if not has_delta_table(spark, path):
        return None
    return int(spark.sql(f"DESCRIBE HISTORY {_table(path)} LIMIT 1").collect()[0].version)


def _table(path: str) -> str:
    return f"delta.{_quoted(path)}"


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _triggered(writer: DataStreamWriter, trigger: str) -> DataStreamWriter:
    if trigger == AVAILABLE_NOW:
        return writer.trigger(availableNow=True)
    try:
        interval_ms = parse_interval_ms(trigger)
    except ValueError as error:
        raise InvalidOptionError(f"trigger {trigger!r}: neither {AVAILABLE_NOW!r} nor an interval: {error}") from None
    return writer.trigger(processingTime=f"{interval_ms} milliseconds")
