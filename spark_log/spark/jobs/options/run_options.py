"""Defines how a job runs: on which cluster, once or as a streaming query, and with which reports."""

from dataclasses import dataclass, field
from typing import Annotated

import typer

from spark_log.spark.jobs.options.arguments import ClusterAddress, usage_error
from spark_log.spark.jobs.options.command import only_with
from spark_log.text import parse_interval_ms


@dataclass(frozen=True)
class Batch:
    """Runs a batch query, which reads the records that the input has now, without a checkpoint."""


@dataclass(frozen=True)
class AvailableNow:
    """Runs a streaming query that processes the records that have arrived since its last run, and ends."""


@dataclass(frozen=True)
class Every:
    """Runs a streaming query until it is stopped, with a batch each interval. 0 starts batches as soon as possible."""

    interval_ms: int

    def __str__(self) -> str:
        """Return the interval in the form that Spark's processing-time trigger reads."""
        whole_s, rest_ms = divmod(self.interval_ms, 1000)
        return f"{self.interval_ms} milliseconds" if rest_ms else f"{whole_s} seconds"


Run = Batch | AvailableNow | Every

Json = Annotated[bool, typer.Option("--json", help="Print progress and summary as JSON lines.")]
Metrics = Annotated[
    bool,
    typer.Option(
        "--metrics/--no-metrics", help="Report the streaming query's lag and rates in topic __metrics of the cluster."
    ),
]
Checkpoint = typer.Option(metavar="DIR", help="Where the streaming query keeps its progress.", show_default=False)


@dataclass(frozen=True)
class Shared:
    """The cluster of a job, its kind of run and its reports."""

    cluster: str = field(repr=False)
    """Folder or URL of the cluster. It may hold a password."""
    run: Run
    checkpoint: str | None
    json: bool
    """Whether progress and summary are JSON lines."""
    metrics: bool = True
    """Whether the streaming query is reported in `__metrics` of the cluster."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of a job that is a batch unless --stream is given."""

    cluster: ClusterAddress
    stream: Annotated[bool, typer.Option("--stream", help="Run as a streaming query; needs --checkpoint.")] = False
    trigger: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="With --stream: available-now (process what has arrived, then end), or an interval such as"
            " '10 seconds' (run until SIGTERM).",
        ),
    ] = None
    checkpoint: Annotated[str | None, Checkpoint] = None
    metrics: Metrics = True
    json: Json = False

    def shared(self, default: Run) -> Shared:
        """Return the checked run. `default` is the run of --stream without --trigger. Raises a usage error."""
        if not self.stream:
            only_with("--stream", {"trigger": self.trigger, "checkpoint": self.checkpoint})
            return Shared(self.cluster, Batch(), None, self.json)
        if not self.checkpoint:
            raise usage_error("--checkpoint", "needed with --stream: a restart continues from it")
        run = default if self.trigger is None else parse_trigger(self.trigger)
        return Shared(self.cluster, run, self.checkpoint, self.json, self.metrics)


def parse_trigger(text: str) -> AvailableNow | Every:
    """Parse available-now or an interval. Raises a usage error for another text."""
    if text.strip().lower() == "available-now":
        return AvailableNow()
    try:
        return Every(parse_interval_ms(text))
    except ValueError:
        message = f"expected available-now or an interval such as '10 seconds', got {text!r}"
        raise usage_error("--trigger", message) from None
