"""Every record of given keys goes, with Spark's tasks. `spark-submit jobs/erase.py --help` has the arguments."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import find_topic
from spark_log.errors import InvalidOptionError
from spark_log.jobs.arguments import Parser
from spark_log.jobs.failures import guarded
from spark_log.jobs.session import start_session
from spark_log.jobs.summary import tell
from spark_log.maintenance.erase import erase
from spark_log.maintenance.erase_keys import keys_of
from spark_log.maintenance.erase_on_spark import on_spark

EXAMPLES = """\
  spark-submit jobs/erase.py users --keys-file forget.txt --purge
  spark-submit jobs/erase.py users --keys-parquet s3a://privacy/requests --keys-column user_id"""


@dataclass(frozen=True)
class EraseArguments:
    cluster: str
    """Folder or URL; may hold a password, so it is never printed as it is."""
    topic: str
    keys: tuple[str, ...]
    keys_file: str | None
    keys_parquet: str | None
    keys_column: str
    encoded: bool
    purge: bool
    json: bool


def parse(arguments: Sequence[str], environ: Mapping[str, str]) -> EraseArguments:
    """SystemExit(2) with a message on stderr for wrong usage."""
    parser = Parser(
        "jobs/erase.py", "Erase every record of some keys from a topic; what is left keeps its offsets.", EXAMPLES
    )
    parser.add_argument("topic", help="name of the topic")
    parser.add_argument(
        "--cluster", metavar="ADDRESS", help="folder or postgresql+psycopg:// URL [env SPARK_LOG_CLUSTER]"
    )
    keys = parser.add_argument_group("keys, at least one of")
    keys.add_argument("--key", action="append", metavar="KEY", help="repeatable; other users see it in `ps`")
    keys.add_argument("--keys-file", metavar="FILE", help="one key on each line")
    keys.add_argument("--keys-parquet", metavar="PATH", help="Parquet that Spark reads, with the keys in a column")
    keys.add_argument("--keys-column", metavar="NAME", default="key", help="text or binary [default: key]")
    keys.add_argument("--base64", action="store_true", help="--key and --keys-file have base64 of the keys' bytes")
    parser.add_argument(
        "--purge",
        action="store_true",
        help="delete the old files at once: readers that are on them fail, older Delta versions cannot be read",
    )
    parser.add_argument("--json", action="store_true", help="the report as one line of JSON")
    given = parser.parse_args(arguments)
    if not given.key and given.keys_file is None and given.keys_parquet is None:
        parser.error("--key, --keys-file or --keys-parquet: one is needed")
    return EraseArguments(
        parser.cluster(given, environ), given.topic, tuple(given.key or ()), given.keys_file, given.keys_parquet,
        given.keys_column, given.base64, given.purge, given.json,
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """The job; returns its exit code."""
    parsed = parse(sys.argv[1:] if arguments is None else arguments, os.environ)
    return guarded("erase", lambda: run(parsed))


def run(arguments: EraseArguments) -> int:
    """Raises errors of ours and of Spark's."""
    given = keys_of(arguments.keys, arguments.keys_file, encoded=arguments.encoded)
    with Cluster.open(arguments.cluster) as cluster:
        cluster.store.read(lambda connection: find_topic(connection, arguments.topic))  # before Spark starts
        spark = start_session("erase", delta=False)
        keys = pa.chunked_array([given, *_from_parquet(spark, arguments)])
        erased = erase(cluster, arguments.topic, keys, purge=arguments.purge, workers=on_spark(spark))
    if arguments.json:
        tell(json.dumps({"event": "summary", "job": "erase", **erased.as_dict()}))
    else:
        tell(*erased.lines())
    spark.stop()
    return 0


def _from_parquet(spark: SparkSession, arguments: EraseArguments) -> list[pa.Array]:
    if arguments.keys_parquet is None:
        return []
    frame = spark.read.parquet(arguments.keys_parquet)
    column = next((field for field in frame.schema if field.name == arguments.keys_column), None)
    if column is None or column.dataType.simpleString() not in ("string", "binary"):
        has = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema)
        raise InvalidOptionError(
            f"--keys-column: expected a text or binary column {arguments.keys_column!r} in {arguments.keys_parquet!r},"
            f" which has {has}"
        )
    chunks = frame.select(column.name).distinct().toArrow().column(0).cast(pa.binary()).chunks
    return list(chunks)
