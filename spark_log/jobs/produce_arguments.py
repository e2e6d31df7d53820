"""Arguments of `jobs/produce.py`. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from spark_log.jobs.arguments import AvailableNow, Every, Parser, Run, Shared, pair, positive, unique

FORMATS = ("csv", "json", "parquet", "orc", "text", "delta", "rate")
_BY_SUFFIX = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet", ".orc": "orc"}
_COMPRESSIONS = (".gz", ".bz2", ".zst", ".snappy", ".lz4")

EXAMPLES = """\
  spark-submit jobs/produce.py flights flights.csv --key tailnum --timestamp time_hour \\
      --create-topic --partitions 4 --config retention.ms=-1     # keeps records however old their timestamps are
  spark-submit jobs/produce.py clicks 'data/*.json' --key 'cast(user as string)' --value 'to_json(struct(user, url))'
  spark-submit jobs/produce.py clicks /data/incoming --format json --schema 'user STRING, url STRING' \\
      --stream --checkpoint /data/checkpoints/clicks --trigger '10 seconds'
  spark-submit jobs/produce.py ticks --format rate --option rowsPerSecond=100 --stream --checkpoint /tmp/ticks"""


@dataclass(frozen=True)
class Columns:
    """SQL expressions over the input's columns, one a record field. None: left to the log."""

    key: str | None
    """None: null keys, spread round-robin."""
    value: str | None
    """None: all columns as one JSON object."""
    timestamp: str | None
    """A timestamp, or a text that casts to one. None: the time of the write."""
    partition: str | None
    headers: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class NewTopic:
    """What --create-topic makes, where the topic is missing."""

    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


@dataclass(frozen=True)
class ProduceArguments:
    shared: Shared
    topic: str
    paths: tuple[str, ...]
    """Empty for --format rate."""
    format: str
    schema: str | None
    """DDL; None: inferred (files) or the format's own."""
    options: Mapping[str, str]
    """Options for Spark's reader."""
    columns: Columns
    new_topic: NewTopic | None


def parse(arguments: Sequence[str], environ: Mapping[str, str]) -> ProduceArguments:
    """SystemExit(2) with a message on stderr for wrong usage."""
    parser = _parser()
    given = parser.parse_args(arguments)
    format_ = given.format or _format_of(given.paths)
    if format_ is None:
        parser.error(f"--format: needed, since the paths do not tell: one of {', '.join(FORMATS)}")
    if format_ == "rate":
        if given.paths:
            parser.error(f"--format rate reads no files, got {given.paths[0]!r}")
        if not given.stream:
            parser.error("--format rate: only with --stream")
    elif not given.paths:
        parser.error("PATH: at least one file, folder or glob is needed")
    run: Run = Every("1 seconds") if format_ == "rate" else AvailableNow()
    shared = parser.shared(given, environ, run)
    if format_ == "rate" and isinstance(shared.run, AvailableNow):
        parser.error("--trigger available-now: --format rate never ends")
    if given.stream and len(given.paths) > 1:
        parser.error("PATH: a stream watches one folder or glob")
    if given.stream and format_ in ("csv", "json") and given.schema is None and not given.infer_schema:
        parser.error("--schema: a stream of csv or json files needs one (or --infer-schema, from the files there now)")
    if not given.create_topic:
        for name in ("partitions", "replication_factor", "config"):
            if getattr(given, name) is not None:
                parser.error(f"--{name.replace('_', '-')}: only with --create-topic")
    options = unique(parser, given.option or (), "--option")
    if given.max_files_per_trigger is not None:
        if not given.stream:
            parser.error("--max-files-per-trigger: only with --stream")
        options["maxFilesPerTrigger"] = str(given.max_files_per_trigger)
    return ProduceArguments(
        shared,
        given.topic,
        tuple(given.paths),
        format_,
        given.schema,
        options,
        Columns(given.key, given.value, given.timestamp, given.partition, tuple(given.header or ())),
        NewTopic(given.partitions or 1, given.replication_factor or 1, unique(parser, given.config or (), "--config"))
        if given.create_topic
        else None,
    )


def _parser() -> Parser:
    parser = Parser("jobs/produce.py", "Send files or a stream to a topic.", EXAMPLES)
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("paths", metavar="PATH", nargs="*", help="files, folders or globs, also URIs that Spark opens")
    read = parser.add_argument_group("what to read")
    read.add_argument("--format", choices=FORMATS, help="default: by the first path's name")
    read.add_argument("--schema", metavar="DDL", help="columns of csv or json, as 'id LONG, name STRING'")
    read.add_argument("--infer-schema", action="store_true", help="with --stream: from the files there at the start")
    read.add_argument("--option", metavar="NAME=VALUE", type=pair, action="append", help="for Spark's reader; repeat")
    read.add_argument("--max-files-per-trigger", metavar="N", type=positive, help="rate limit of a file stream")
    record = parser.add_argument_group("what a record holds (columns or SQL expressions)")
    record.add_argument("--key", metavar="EXPR", help="default: no key; numbers become text")
    record.add_argument("--value", metavar="EXPR", help="default: all columns as JSON")
    record.add_argument(
        "--timestamp", metavar="EXPR", help="default: the time of the write; retention.ms counts from it"
    )
    record.add_argument("--partition", metavar="EXPR", help="default: by the key, or round-robin")
    record.add_argument("--header", metavar="NAME=EXPR", type=pair, action="append", help="repeat for more")
    topic = parser.add_argument_group("topic")
    topic.add_argument("--create-topic", action="store_true", help="make the topic if it is missing")
    topic.add_argument("--partitions", metavar="N", type=positive)
    topic.add_argument("--replication-factor", metavar="N", type=positive)
    topic.add_argument("--config", metavar="NAME=VALUE", type=pair, action="append", help="a topic config; repeat")
    parser.add_shared()
    return parser


def _format_of(paths: Sequence[str]) -> str | None:
    if not paths:
        return None
    path = PurePath(paths[0].partition("?")[0] if "://" in paths[0] else paths[0])
    suffixes = [suffix.lower() for suffix in path.suffixes]
    while suffixes and suffixes[-1] in _COMPRESSIONS:
        suffixes.pop()
    return _BY_SUFFIX.get(suffixes[-1]) if suffixes else None
