"""Defines the options that all stream jobs have: inputs, output and run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from spark_log.cluster.names import validate_user_topic
from spark_log.errors import SparkLogError, redact
from spark_log.spark.datasource.options.source_options import ReadOptions
from spark_log.spark.jobs.options.arguments import ClusterAddress, usage_error
from spark_log.spark.jobs.options.command import Group, OneOf, only_with
from spark_log.spark.jobs.options.config_file import ConfigFile
from spark_log.spark.jobs.options.run_options import Checkpoint, Every, Json, Metrics, Run, Shared, parse_trigger
from spark_log.text import parse_sql_interval_ms

if TYPE_CHECKING:
    from spark_log.spark.streams.formats.codecs import Codec
    from spark_log.spark.streams.outputs import Output, OutputMode

ValueFormat = Literal["json", "avro", "protobuf"]
_OutputMode = Literal["append", "update", "complete"]


@dataclass(frozen=True)
class Input:
    """One or more topics, whose values become columns."""

    options: dict[str, str] = field(repr=False)
    """Options of format("spark_log"), including the cluster."""
    codec: "Codec"
    """Decodes values to columns. The record's _key, _topic, _partition, _offset and _timestamp follow them."""
    event_time: str
    """Name of the column with the event time."""
    watermark: str | None
    """Maximum delay of a record, such as "10 minutes". With None, there is no watermark."""


@dataclass(frozen=True)
class StreamArguments:
    """Arguments of every stream job, in addition to its inputs and its own arguments."""

    shared: Shared
    output: "Output"
    output_mode: "OutputMode"
    key: str | None
    """SQL expression over the result's columns: a record's key in an output topic. None means the job's default."""
    dead_letter_topic: str | None
    """Topic for records whose values cannot be read. With None, such a record is an error."""


@dataclass(frozen=True)
class InputOptions:
    """Options of one input. Their names begin with the `prefix` of the group, such as "left-"."""

    subscribe: Annotated[str | None, typer.Option(metavar="TOPIC[,TOPIC]", help="Topics to read.")] = None
    value_format: Annotated[
        ValueFormat, typer.Option(metavar="FORMAT", help="Of the values: json, avro or protobuf.")
    ] = "json"
    value_schema: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEMA",
            help="json: DDL such as 'origin STRING, dep_delay DOUBLE'; avro: JSON; protobuf: file of a descriptor set.",
        ),
    ] = None
    value_message: Annotated[
        str | None, typer.Option(metavar="NAME", help="protobuf: the full name of the message.")
    ] = None
    event_time: Annotated[
        str, typer.Option(metavar="COLUMN", help="Of type TIMESTAMP; by default the time of the record.")
    ] = "_timestamp"
    watermark: Annotated[
        str | None, typer.Option(metavar="INTERVAL", help="How late a record may be, such as '10 minutes'.")
    ] = None
    starting_offsets: Annotated[
        str, typer.Option(metavar="WHERE", help="Of a new checkpoint: earliest, latest, committed, or JSON.")
    ] = "earliest"

    def input(self, run: "StreamRunOptions", dead_letters: bool, prefix: str = "") -> Input:
        """Return the checked input. Raises a usage error."""
        if self.subscribe is None or self.value_schema is None:
            missing = "value-schema" if self.value_schema is None else "subscribe"
            raise usage_error(f"--{prefix}{missing}", f"needed with --{prefix}subscribe")
        options = {
            "cluster": run.cluster,
            "subscribe": self.subscribe,
            "startingOffsets": self.starting_offsets,
            "maxOffsetsPerTrigger": run.max_offsets_per_trigger,
            "group.id": run.group_id,
            "includeHeaders": "true" if dead_letters else None,
        }
        chosen = {name: str(value) for name, value in options.items() if value is not None}
        try:
            ReadOptions.parse(chosen, streaming=True, environ={})
        except SparkLogError as error:
            raise typer.BadParameter(redact(str(error))) from None
        if self.watermark is not None:
            check_interval(f"--{prefix}watermark", self.watermark)
        return Input(chosen, self._codec(self.value_schema, prefix), self.event_time, self.watermark)

    def _codec(self, schema: str, prefix: str) -> "Codec":
        from spark_log.spark.streams.formats.codecs import Avro, Json, Protobuf

        if self.value_format == "protobuf" and self.value_message is not None:
            return Protobuf(self.value_message, schema)
        if self.value_format == "protobuf" or self.value_message is not None:
            text = f"needed with --{prefix}value-format protobuf, and only there"
            raise usage_error(f"--{prefix}value-message", text)
        return Avro(schema) if self.value_format == "avro" else Json(schema)


@dataclass(frozen=True)
class OutputOptions:
    to_topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Results as JSON, into this topic.")] = None
    to_delta: Annotated[str | None, typer.Option(metavar="DIR", help="Results as rows of a Delta table.")] = None
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Rows of each batch shown on the console. [default: 20]")
    ] = None
    to_cluster: Annotated[
        str | None, typer.Option(metavar="FOLDER-OR-URL", help="Cluster of --to-topic. [default: the same]")
    ] = None
    key: Annotated[
        str | None,
        typer.Option(metavar="EXPR", help="Key of the records in --to-topic: SQL over the columns of the result."),
    ] = None
    output_mode: Annotated[
        _OutputMode | None, typer.Option(metavar="MODE", help="append, update or complete, as in Spark.")
    ] = None
    dead_letter_topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Receives records that cannot be read, with the reason.")
    ] = None

    def stream(self, run: "StreamRunOptions", output_mode: "OutputMode", keys: Sequence[str] = ()) -> StreamArguments:
        """Return checked arguments. `output_mode` is the job's default; `keys` identify a row. Raises a usage error."""
        mode = self.output_mode or output_mode
        if self.to_topic is None:
            only_with("--to-topic", {"to_cluster": self.to_cluster, "key": self.key})
        check_output_topic("--to-topic", self.to_topic)
        check_output_topic("--dead-letter-topic", self.dead_letter_topic)
        output = self._output(run.cluster, tuple(keys) if mode == "update" else ())
        return StreamArguments(run.shared(), output, mode, self.key, self.dead_letter_topic)

    def _output(self, cluster: str, keys: tuple[str, ...]) -> "Output":
        from spark_log.spark.streams.outputs import ConsoleOutput, DeltaOutput, TopicOutput

        if self.to_topic is not None:
            return TopicOutput(self.to_cluster or cluster, self.to_topic)
        return ConsoleOutput(self.limit or 20) if self.to_delta is None else DeltaOutput(self.to_delta, keys)


@dataclass(frozen=True, kw_only=True)
class StreamRunOptions:
    config: ConfigFile = None
    cluster: ClusterAddress
    checkpoint: Annotated[str, Checkpoint]
    trigger: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="available-now (process what has arrived, then end), or an interval such as '10 seconds'."
            " [default: a batch as soon as the last one is done]",
        ),
    ] = None
    max_offsets_per_trigger: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Rate limit: records of a batch.")
    ] = None
    group_id: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Commit the end of each batch, so that the lag is visible.")
    ] = None
    metrics: Metrics = True
    json: Json = False

    def shared(self) -> Shared:
        run: Run = Every(0) if self.trigger is None else parse_trigger(self.trigger)
        return Shared(self.cluster, run, self.checkpoint, self.json, self.metrics)


INPUT = Group(InputOptions, "Input", required=("subscribe", "value_schema"))
OUTPUT = Group(OutputOptions, "Output (by default the console)")
RUN = Group(StreamRunOptions, "Cluster and run")
ONE_OUTPUT = OneOf(("to_topic", "to_delta", "limit"))


def check_output_topic(option: str, name: str | None) -> None:
    """Raise a usage error if users cannot write to a topic of this name."""
    if name is not None:
        try:
            validate_user_topic(name, "write to", option)
        except SparkLogError as error:
            raise typer.BadParameter(str(error)) from None


def check_interval(option: str, text: str) -> None:
    """Raise a usage error if the text is not an interval."""
    try:
        parse_sql_interval_ms(text)
    except ValueError as error:
        raise usage_error(option, str(error)) from None
