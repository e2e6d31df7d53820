"""`jobs/erase.py` erases every record of given keys, with Spark's tasks."""

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from spark_log.errors import InvalidOptionError
from spark_log.spark.jobs.options.arguments import ClusterAddress, usage_error
from spark_log.spark.jobs.options.command import Group, Job

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

EXAMPLES = """\
JOBS=$(spark-log path jobs)
spark-submit $JOBS/erase.py users --keys-file forget.txt --purge
spark-submit $JOBS/erase.py users \\
    --keys-parquet s3a://privacy/requests --keys-column user_id"""


@dataclass(frozen=True)
class _KeyOptions:
    key: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="A key; repeatable. Other users see it in `ps`.")
    ] = None
    keys_file: Annotated[str | None, typer.Option(metavar="FILE", help="One key on each line.")] = None
    keys_parquet: Annotated[
        str | None, typer.Option(metavar="PATH", help="Parquet that Spark reads, with the keys in a column.")
    ] = None
    keys_column: Annotated[str, typer.Option(metavar="NAME", help="Text or binary.")] = "key"
    base64: Annotated[
        bool, typer.Option("--base64", help="--key and --keys-file contain base64 of the keys' bytes.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class _EraseOptions:
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", show_default=False)]
    cluster: ClusterAddress = field(repr=False)
    purge: Annotated[
        bool,
        typer.Option(
            "--purge",
            help="Delete the old files at once: readers of them fail, older Delta versions cannot be read.",
        ),
    ] = False
    json: Annotated[bool, typer.Option("--json", help="Print the report as one line of JSON.")] = False


@dataclass(frozen=True)
class EraseArguments:
    keys: _KeyOptions
    erase: _EraseOptions


def _build(keys: _KeyOptions, erase: _EraseOptions) -> EraseArguments:
    if not keys.key and keys.keys_file is None and keys.keys_parquet is None:
        raise usage_error("--key, --keys-file or --keys-parquet", "one is needed")
    return EraseArguments(keys, erase)


JOB = Job(
    "erase",
    "Erase every record of some keys from a topic; the other records keep their offsets.",
    EXAMPLES,
    (Group(_KeyOptions, "Keys (at least one of the first three)"), Group(_EraseOptions)),
    _build,
)
main = JOB.main("spark_log.spark.jobs.erase:run")


def run(arguments: EraseArguments) -> int:
    """Erase the records; return the exit code. Raises errors of spark-log and of Spark."""
    import pyarrow as pa

    from spark_log.cluster.cluster import Cluster
    from spark_log.cluster.topics import find_topic
    from spark_log.maintenance.erase.erase import erase
    from spark_log.maintenance.erase.erase_keys import keys_of
    from spark_log.maintenance.erase.spark_workers import on_spark
    from spark_log.spark.jobs.session import end_session, start_session
    from spark_log.spark.jobs.summary import print_lines

    chosen, erase_options = arguments.keys, arguments.erase
    direct = keys_of(chosen.key or (), chosen.keys_file, encoded=chosen.base64)
    with Cluster.open(erase_options.cluster) as cluster:
        cluster.store.read(lambda connection: find_topic(connection, erase_options.topic))  # before Spark starts
        spark = start_session("erase", delta=False)
        keys = pa.chunked_array([direct, *_from_parquet(spark, chosen)])
        erased = erase(cluster, erase_options.topic, keys, purge=erase_options.purge, workers=on_spark(spark))
    if erase_options.json:
        print_lines(json.dumps({"event": "summary", "job": "erase", **erased.as_dict()}))
    else:
        print_lines(*erased.lines())
    end_session(spark)
    return 0


def _from_parquet(spark: "SparkSession", chosen: _KeyOptions) -> "list[pa.Array]":
    import pyarrow as pa

    if chosen.keys_parquet is None:
        return []
    frame = spark.read.parquet(chosen.keys_parquet)
    column = next((field for field in frame.schema if field.name == chosen.keys_column), None)
    if column is None or column.dataType.simpleString() not in ("string", "binary"):
        has = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema)
        raise InvalidOptionError(
            f"--keys-column: expected a text or binary column {chosen.keys_column!r} in {chosen.keys_parquet!r},"
            f" which has {has}"
        )
    chunks = frame.select(column.name).distinct().toArrow().column(0).cast(pa.binary()).chunks
    return list(chunks)
