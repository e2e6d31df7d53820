"""Arguments of `jobs/consume.py`. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from spark_log.datasource.options import ReadOptions
from spark_log.errors import SparkLogError
from spark_log.jobs.arguments import AvailableNow, Batch, Parser, Shared, moment_ms, pair, positive, unique

EXAMPLES = """\
  spark-submit jobs/consume.py --subscribe flights --limit 10
  spark-submit jobs/consume.py --subscribe flights --value-schema 'carrier STRING, dep_delay DOUBLE' --parquet out
  spark-submit jobs/consume.py --subscribe flights --delta /data/lake/flights \\
      --stream --checkpoint /data/checkpoints/flights --max-offsets-per-trigger 100000 --trigger '10 seconds'
  spark-submit jobs/consume.py --subscribe flights --to-topic copy --starting-timestamp 2013-06-01T00:00:00Z"""

Mode = Literal["append", "overwrite", "errorifexists", "ignore"]
MODES: tuple[Mode, ...] = ("append", "overwrite", "errorifexists", "ignore")


@dataclass(frozen=True)
class Console:
    limit: int
    """Rows shown: of the result, or of each batch of a stream."""


@dataclass(frozen=True)
class Files:
    """A folder of Parquet files or a Delta table."""

    format: Literal["parquet", "delta"]
    path: str
    mode: Mode


@dataclass(frozen=True)
class OtherTopic:
    """A copy: key, value, headers and timestamp stay as they are; the partition only if `keep_partitions`."""

    topic: str
    cluster: str
    keep_partitions: bool


Sink = Console | Files | OtherTopic


@dataclass(frozen=True)
class ConsumeArguments:
    shared: Shared
    options: Mapping[str, str]
    """Options of format("spark_log"), without the cluster."""
    value_schema: str | None
    """DDL; the values are JSON objects and become these columns. None: key and value stay bytes."""
    sink: Sink


def parse(arguments: Sequence[str], environ: Mapping[str, str]) -> ConsumeArguments:
    """SystemExit(2) with a message on stderr for wrong usage, options that the data source refuses included."""
    parser = _parser()
    given = parser.parse_args(arguments)
    shared = parser.shared(given, environ, AvailableNow())
    sink = _sink(parser, given, shared)
    if isinstance(sink, OtherTopic) and given.value_schema is not None:
        parser.error("--value-schema: a copy to a topic keeps the values as they are")
    options = unique(parser, given.option or (), "--option")
    chosen = {
        "subscribe": given.subscribe,
        "subscribePattern": given.subscribe_pattern,
        "assign": given.assign,
        "startingOffsets": given.starting_offsets,
        "endingOffsets": given.ending_offsets,
        "startingTimestamp": given.starting_timestamp,
        "endingTimestamp": given.ending_timestamp,
        "maxOffsetsPerTrigger": given.max_offsets_per_trigger,
        "group.id": given.group_id,
        "failOnDataLoss": "false" if given.allow_data_loss else None,
        "includeHeaders": "true" if given.headers or isinstance(sink, OtherTopic) else None,
    }
    options.update({name: str(value) for name, value in chosen.items() if value is not None})
    streaming = not isinstance(shared.run, Batch)
    if streaming and not any(re.match("(?i)starting", name) for name in options):
        options["startingOffsets"] = "earliest"  # a job that copies or stores wants all; Spark's default is latest
    if not streaming and given.max_offsets_per_trigger is not None:
        parser.error("--max-offsets-per-trigger: only with --stream")
    try:
        ReadOptions.parse({**options, "cluster": shared.cluster}, streaming=streaming, environ={})
    except SparkLogError as error:
        parser.error(str(error))
    return ConsumeArguments(shared, options, given.value_schema, sink)


def _sink(parser: Parser, given: "object", shared: Shared) -> Sink:
    facts = vars(given)
    if facts["to_topic"] is None:
        for name in ("to_cluster", "keep_partitions"):
            if facts[name]:
                parser.error(f"--{name.replace('_', '-')}: only with --to-topic")
    if facts["mode"] is not None and not (facts["parquet"] or facts["delta"]):
        parser.error("--mode: only with --parquet or --delta")
    if facts["mode"] not in (None, "append") and not isinstance(shared.run, Batch):
        parser.error("--mode: a stream appends")
    if facts["to_topic"] is not None:
        return OtherTopic(facts["to_topic"], facts["to_cluster"] or shared.cluster, facts["keep_partitions"])
    default: Mode = "errorifexists" if isinstance(shared.run, Batch) else "append"
    if facts["parquet"] is not None:
        return Files("parquet", facts["parquet"], facts["mode"] or default)
    if facts["delta"] is not None:
        return Files("delta", facts["delta"], facts["mode"] or default)
    return Console(facts["limit"] or 20)


def _parser() -> Parser:
    parser = Parser("jobs/consume.py", "Read topics into the console, files, a Delta table or another topic.", EXAMPLES)
    topics = parser.add_argument_group("what to read").add_mutually_exclusive_group(required=True)
    topics.add_argument("--subscribe", metavar="TOPIC[,TOPIC]")
    topics.add_argument("--subscribe-pattern", metavar="REGEX")
    topics.add_argument("--assign", metavar="JSON", help='partitions, as {"flights":[0,1]}')
    where = parser.add_argument_group("from where to where")
    where.add_argument("--starting-offsets", metavar="WHERE", help='earliest (default), latest, or {"flights":{"0":5}}')
    where.add_argument("--ending-offsets", metavar="WHERE", help="batch only; latest (default) or JSON")
    where.add_argument("--starting-timestamp", metavar="TIME", type=moment_ms, help="ISO 8601 or milliseconds")
    where.add_argument("--ending-timestamp", metavar="TIME", type=moment_ms, help="batch only")
    where.add_argument("--group-id", metavar="GROUP", help="commit the end offsets to this group")
    where.add_argument("--max-offsets-per-trigger", metavar="N", type=positive, help="rate limit of a stream")
    where.add_argument("--allow-data-loss", action="store_true", help="go on where records are gone (failOnDataLoss)")
    where.add_argument("--option", metavar="NAME=VALUE", type=pair, action="append", help="of format('spark_log')")
    shape = parser.add_argument_group("what comes out")
    shape.add_argument("--value-schema", metavar="DDL", help="values are JSON with these columns; the rest gets a '_'")
    shape.add_argument("--headers", action="store_true", help="with the column headers")
    sink = parser.add_argument_group("where to (default: the console)")
    one = sink.add_mutually_exclusive_group()
    one.add_argument("--limit", metavar="N", type=positive, help="rows shown on the console [20]")
    one.add_argument("--parquet", metavar="DIR")
    one.add_argument("--delta", metavar="DIR")
    one.add_argument("--to-topic", metavar="TOPIC")
    sink.add_argument("--mode", choices=MODES, help="of --parquet and --delta; batch: errorifexists")
    sink.add_argument("--to-cluster", metavar="ADDRESS", help="of --to-topic; default: the same")
    sink.add_argument("--keep-partitions", action="store_true", help="--to-topic: same partitions, not by key")
    parser.add_shared()
    return parser
