"""`jobs/produce.py` sends files or a stream to a topic."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, get_args

import typer

from spark_log.spark.jobs.options.arguments import parse_pair, parse_pairs, usage_error
from spark_log.spark.jobs.options.command import Group, Job, only_with
from spark_log.spark.jobs.options.job_arguments import Columns, Format, NewTopic, ProduceArguments
from spark_log.spark.jobs.options.run_options import AvailableNow, Every, Run, RunOptions

_BY_SUFFIX: dict[str, Format] = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".orc": "orc",
}
_COMPRESSIONS = (".gz", ".bz2", ".zst", ".snappy", ".lz4")

EXAMPLES = """\
JOBS=$(spark-log path jobs)
# --config retention.ms=-1 keeps records however old their timestamps are
spark-submit $JOBS/produce.py flights flights.csv \\
    --key tailnum --timestamp time_hour \\
    --create-topic --partitions 4 --config retention.ms=-1
spark-submit $JOBS/produce.py clicks 'data/*.json' \\
    --key 'cast(user as string)' --value 'to_json(struct(user, url))'
spark-submit $JOBS/produce.py clicks /data/incoming --format json \\
    --schema 'user STRING, url STRING' --trigger '10 seconds' \\
    --stream --checkpoint /data/checkpoints/clicks
spark-submit $JOBS/produce.py ticks --format rate \\
    --option rowsPerSecond=100 --stream --checkpoint /tmp/ticks"""


@dataclass(frozen=True)
class _TargetOptions:
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)]
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="PATH", help="Files, folders or globs, or URIs that Spark opens.")
    ] = None


@dataclass(frozen=True)
class _InputOptions:
    format: Annotated[
        Format | None,
        typer.Option(metavar="FORMAT", help=f"{', '.join(get_args(Format))}. [default: by the name of the first PATH]"),
    ] = None
    schema: Annotated[
        str | None, typer.Option(metavar="DDL", help="Columns of csv or json, such as 'id LONG, name STRING'.")
    ] = None
    infer_schema: Annotated[
        bool, typer.Option("--infer-schema", help="With --stream: infer it from the files present at the start.")
    ] = False
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="An option of Spark's reader; repeatable.")
    ] = None
    max_files_per_trigger: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Rate limit of a file stream.")
    ] = None


@dataclass(frozen=True)
class _RecordOptions:
    key: Annotated[str | None, typer.Option(metavar="EXPR", help="Numbers become text. [default: no key]")] = None
    value: Annotated[str | None, typer.Option(metavar="EXPR", help="[default: all columns as JSON]")] = None
    timestamp: Annotated[
        str | None,
        typer.Option(metavar="EXPR", help="retention.ms counts from it. [default: the time of the write]"),
    ] = None
    partition: Annotated[str | None, typer.Option(metavar="EXPR", help="[default: by the key, or round-robin]")] = None
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=EXPR", help="A header; repeatable.")] = None


@dataclass(frozen=True)
class _TopicOptions:
    create_topic: Annotated[bool, typer.Option("--create-topic", help="Create the topic if it does not exist.")] = False
    partitions: Annotated[int | None, typer.Option(metavar="N", min=1, help="Partitions of a new topic.")] = None
    replication_factor: Annotated[int | None, typer.Option(metavar="N", min=1, help="Replicas of a new topic.")] = None
    config: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A config of a new topic; repeatable.")
    ] = None


def _build(
    target: _TargetOptions, source: _InputOptions, record: _RecordOptions, topic: _TopicOptions, run: RunOptions
) -> ProduceArguments:
    paths = tuple(target.paths or ())
    format_ = source.format or _format_of(paths)
    if format_ is None:
        formats = ", ".join(get_args(Format))
        raise usage_error("--format", f"needed, because the paths do not show it: one of {formats}")
    if format_ == "rate":
        if paths:
            raise usage_error("--format rate", f"reads no files, got {paths[0]!r}")
        if not run.stream:
            raise usage_error("--format rate", "only with --stream")
    elif not paths:
        raise usage_error("PATH", "at least one file, folder or glob is needed")
    default: Run = Every(1000) if format_ == "rate" else AvailableNow()
    shared = run.shared(default)
    if format_ == "rate" and isinstance(shared.run, AvailableNow):
        raise usage_error("--trigger available-now", "--format rate never ends")
    if run.stream and len(paths) > 1:
        raise usage_error("PATH", "a stream watches one folder or glob")
    if run.stream and format_ in ("csv", "json") and source.schema is None and not source.infer_schema:
        raise usage_error(
            "--schema", "a stream of csv or json files needs one (or --infer-schema, from the files present now)"
        )
    options = parse_pairs(source.option or (), "--option")
    if source.max_files_per_trigger is not None:
        if not run.stream:
            raise usage_error("--max-files-per-trigger", "only with --stream")
        options["maxFilesPerTrigger"] = str(source.max_files_per_trigger)
    headers = tuple(parse_pair(text, "--header") for text in record.header or ())
    columns = Columns(record.key, record.value, record.timestamp, record.partition, headers)
    return ProduceArguments(shared, target.topic, paths, format_, source.schema, options, columns, _new_topic(topic))


def _new_topic(given: _TopicOptions) -> NewTopic | None:
    if not given.create_topic:
        only_with("--create-topic", {name: value for name, value in vars(given).items() if name != "create_topic"})
        return None
    configs = parse_pairs(given.config or (), "--config")
    return NewTopic(given.partitions or 1, given.replication_factor or 1, configs)


def _format_of(paths: Sequence[str]) -> Format | None:
    if not paths:
        return None
    path = PurePath(paths[0].partition("?")[0] if "://" in paths[0] else paths[0])
    suffixes = [suffix.lower() for suffix in path.suffixes]
    while suffixes and suffixes[-1] in _COMPRESSIONS:
        suffixes.pop()
    return _BY_SUFFIX.get(suffixes[-1]) if suffixes else None


JOB = Job(
    "produce",
    "Send files or a stream to a topic.",
    EXAMPLES,
    (
        Group(_TargetOptions),
        Group(_InputOptions, "Input"),
        Group(_RecordOptions, "Record (columns or SQL expressions)"),
        Group(_TopicOptions, "Topic"),
        Group(RunOptions, "Cluster and run"),
    ),
    _build,
)
main = JOB.main("spark_log.spark.jobs.queries.produce_query:run")
