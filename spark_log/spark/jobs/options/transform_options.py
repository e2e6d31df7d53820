"""Defines the options and arguments of `jobs/transform.py`."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import typer

from spark_log.spark.datasource.options.topic_choice import SubscribePattern, SubscribeTopics
from spark_log.spark.jobs.options.arguments import ClusterAddress
from spark_log.spark.jobs.options.config_file import ConfigFile


@dataclass(frozen=True)
class WorkOptions:
    function: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Called with (records, producer); it sends."),
    ] = None
    to_topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Copy key, value, timestamp and headers to this topic.")
    ] = None
    arrow: Annotated[bool, typer.Option("--arrow", help="Call the function with (Arrow table, producer).")] = False


@dataclass(frozen=True, kw_only=True)
class TransformRunOptions:
    config: ConfigFile = None
    cluster: ClusterAddress = field(repr=False)
    group_id: Annotated[str, typer.Option(metavar="GROUP", help="Keeps the offsets and shares the partitions.")]
    transactional_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Of this process alone: a later process with the same id fences this one."
            " [default: the group's id and a random part]",
        ),
    ] = None
    auto_offset_reset: Annotated[
        Literal["earliest", "latest", "none"],
        typer.Option(metavar="WHERE", help="Where a new group starts: earliest, latest or none."),
    ] = "earliest"
    max_poll_records: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Records of a transaction at most. [default: 500]")
    ] = None
    transaction_timeout_ms: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="A longer transaction is aborted. [default: 60000]")
    ] = None
    consumer_timeout_ms: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="End after this time without a record. [default: never]")
    ] = None
    session_timeout_ms: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Others take over from a killed process after this. [default: 45000]"),
    ] = None
    retries: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Of a transaction that can be retried. [default: 5]")
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Print the summary as a JSON line.")] = False

    def consumer_settings(self) -> dict[str, int | str]:
        """Return the settings of the consumer by name, without those that were not given."""
        from spark_log.clients.consume.consumer_settings import ConsumerSettings

        settings: dict[str, int | str | None] = {
            "auto_offset_reset": self.auto_offset_reset,
            "max_poll_records": self.max_poll_records,
            "consumer_timeout_ms": self.consumer_timeout_ms,
            "session_timeout_ms": self.session_timeout_ms,
        }
        if self.session_timeout_ms is not None:
            interval_ms = min(self.session_timeout_ms // 3, ConsumerSettings.heartbeat_interval_ms)
            settings["heartbeat_interval_ms"] = interval_ms
        return {name: value for name, value in settings.items() if value is not None}


@dataclass(frozen=True)
class TransformArguments:
    topics: SubscribeTopics | SubscribePattern
    work: WorkOptions
    run: TransformRunOptions
