"""What the arguments of all stream jobs have in common: inputs, output and run. Pure, but for the file of --config."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from spark_log.cluster.names import validate_user_topic
from spark_log.datasource.options import ReadOptions
from spark_log.errors import SparkLogError, redact
from spark_log.jobs.arguments import AvailableNow, Every, Parser, Run, Shared, add_config, positive
from spark_log.streams.codecs import Avro, Codec, Json, Protobuf
from spark_log.streams.outputs import AS_FAST_AS_POSSIBLE, ConsoleOutput, DeltaOutput, Output, OutputMode, TopicOutput
from spark_log.streams.windows import parse_interval

ValueFormat = Literal["json", "avro", "protobuf"]


@dataclass(frozen=True)
class Input:
    """One or more topics, whose values become columns."""

    options: Mapping[str, str] = field(repr=False)
    """Of format("spark_log"), the cluster included."""
    codec: Codec
    """The record's own columns follow the schema's: _key, _topic, _partition, _offset, _timestamp."""
    event_time: str
    """Column of the event time."""
    watermark: str | None
    """How late a record may be, as "10 minutes"; None: no watermark."""


@dataclass(frozen=True)
class StreamArguments:
    """What every stream job needs beside its inputs and its own arguments."""

    shared: Shared
    output: Output
    output_mode: OutputMode
    key: str | None
    """SQL expression over the result's columns, for the key of a record in an output topic; None: the job's choice."""
    dead_letter_topic: str | None
    """For records whose values cannot be read. None: such a record is an error."""


class StreamParser(Parser):
    """A parser of a stream job: `add_input`, the job's own groups, `add_stream`; then `read`, `input`, `stream`."""

    def add_input(self, prefix: str = "", title: str = "input", *, required: bool = True) -> None:
        """The arguments of an input, their names with `prefix` ("left-")."""
        group = self.add_argument_group(title)
        group.add_argument(f"--{prefix}subscribe", metavar="TOPIC[,TOPIC]", required=required)
        group.add_argument(
            f"--{prefix}value-format", choices=get_args(ValueFormat), default="json", help="of the values [%(default)s]"
        )
        group.add_argument(
            f"--{prefix}value-schema",
            metavar="SCHEMA",
            required=required,
            help="json: DDL as 'origin STRING, dep_delay DOUBLE'; avro: JSON; protobuf: file of a descriptor set",
        )
        group.add_argument(f"--{prefix}value-message", metavar="NAME", help="protobuf: the message's full name")
        group.add_argument(
            f"--{prefix}event-time",
            metavar="COLUMN",
            default="_timestamp",
            help="of type TIMESTAMP [_timestamp: the record's]",
        )
        group.add_argument(
            f"--{prefix}watermark",
            metavar="INTERVAL",
            help="how late a record may be, as '10 minutes'",
        )
        group.add_argument(
            f"--{prefix}starting-offsets",
            metavar="WHERE",
            default="earliest",
            help="of a new checkpoint: earliest (default), latest, committed, or JSON",
        )

    def add_stream(self) -> None:
        """What all inputs and the output share; call it last."""
        out = self.add_argument_group("output (default: the console)")
        one = out.add_mutually_exclusive_group()
        one.add_argument("--to-topic", metavar="TOPIC", help="results as JSON")
        one.add_argument("--to-delta", metavar="DIR", help="results as rows of a Delta table")
        one.add_argument("--limit", metavar="N", type=positive, help="rows shown of each batch on the console [20]")
        out.add_argument("--to-cluster", metavar="ADDRESS", help="of --to-topic; default: the same")
        out.add_argument("--key", metavar="EXPR", help="of records in --to-topic, over the columns of the result")
        out.add_argument("--output-mode", choices=("append", "update", "complete"))
        out.add_argument("--dead-letter-topic", metavar="TOPIC", help="gets records that cannot be read, and why")
        run = self.add_argument_group("cluster and run")
        add_config(run)
        run.add_argument(
            "--cluster", metavar="ADDRESS", help="folder or postgresql+psycopg:// URL [env SPARK_LOG_CLUSTER]"
        )
        run.add_argument("--checkpoint", metavar="DIR", required=True, help="where the query keeps its progress")
        run.add_argument(
            "--trigger",
            metavar="WHEN",
            help="available-now (take what is there and end), or an interval as '10 seconds' [as fast as it can]",
        )
        run.add_argument("--max-offsets-per-trigger", metavar="N", type=positive, help="rate limit: records of a batch")
        run.add_argument("--group-id", metavar="GROUP", help="commit the end of each batch, so that the lag shows")
        run.add_argument("--json", action="store_true", help="progress and summary as JSON lines")

    def input(self, given: argparse.Namespace, environ: Mapping[str, str], prefix: str = "") -> Input:
        facts = vars(given)
        named = prefix.replace("-", "_")
        options = {
            "cluster": self.cluster(given, environ),
            "subscribe": facts[f"{named}subscribe"],
            "startingOffsets": facts[f"{named}starting_offsets"],
            "maxOffsetsPerTrigger": given.max_offsets_per_trigger,
            "group.id": given.group_id,
            "includeHeaders": "true" if given.dead_letter_topic is not None else None,
        }
        chosen = {name: str(value) for name, value in options.items() if value is not None}
        try:
            ReadOptions.parse(chosen, streaming=True, environ={})
        except SparkLogError as error:
            self.error(redact(str(error)))
        watermark = facts[f"{named}watermark"]
        if watermark is not None:
            watermark = self.interval(f"{prefix}watermark", watermark)
        return Input(chosen, self._codec(facts, prefix, named), facts[f"{named}event_time"], watermark)

    def _codec(self, facts: Mapping[str, Any], prefix: str, named: str) -> Codec:
        schema, message = facts[f"{named}value_schema"], facts[f"{named}value_message"]
        form: ValueFormat = facts[f"{named}value_format"]
        if (message is not None) != (form == "protobuf"):
            self.error(f"--{prefix}value-message: needed with --{prefix}value-format protobuf, and only there")
        match form:
            case "json":
                return Json(schema)
            case "avro":
                return Avro(schema)
            case "protobuf":
                return Protobuf(message, schema)

    def stream(
        self, given: argparse.Namespace, environ: Mapping[str, str], output_mode: OutputMode, keys: Sequence[str] = ()
    ) -> StreamArguments:
        """`output_mode` is the job's default; `keys` are the result's columns that a changed row is known by."""
        cluster = self.cluster(given, environ)
        mode = cast(OutputMode, given.output_mode or output_mode)
        if given.to_topic is None:
            for name in ("to_cluster", "key"):
                if getattr(given, name) is not None:
                    self.error(f"--{name.replace('_', '-')}: only with --to-topic")
        for name in ("to_topic", "dead_letter_topic"):
            if (topic := getattr(given, name)) is not None:
                try:
                    validate_user_topic(topic, "write to", f"--{name.replace('_', '-')}")
                except SparkLogError as error:
                    self.error(str(error))
        output: Output
        if given.to_topic is not None:
            output = TopicOutput(given.to_cluster or cluster, given.to_topic)
        elif given.to_delta is not None:
            output = DeltaOutput(given.to_delta, tuple(keys) if mode == "update" else ())
        else:
            output = ConsoleOutput(given.limit or 20)
        run: Run = Every(AS_FAST_AS_POSSIBLE) if given.trigger is None else self.trigger(given.trigger)
        shared = Shared(cluster, run, given.checkpoint, given.json)
        return StreamArguments(shared, output, mode, given.key, given.dead_letter_topic)

    def interval(self, name: str, text: str) -> str:
        """A span of time; usage error that names the argument."""
        try:
            parse_interval(f"--{name}", text)
        except SparkLogError as error:
            self.error(str(error))
        return text


def trigger_of(run: Run) -> str:
    """As `write_stream` takes it."""
    match run:
        case AvailableNow():
            return "available-now"
        case Every(interval):
            return interval
        case _:
            raise AssertionError("a stream job has a trigger")
