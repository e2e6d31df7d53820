"""`jobs/transform.py` calls a function with the records of topics, exactly once, in plain Python."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from spark_log.cluster.names import validate_user_topic
from spark_log.errors import SparkLogError
from spark_log.spark.datasource.options.topic_choice import SubscribePattern, SubscribeTopics
from spark_log.spark.jobs.mirror import ONE_CHOICE, TOPICS, TopicChoice
from spark_log.spark.jobs.options.arguments import ClusterAddress, usage_error
from spark_log.spark.jobs.options.command import Group, Job, OneOf
from spark_log.spark.jobs.options.config_file import ConfigFile
from spark_log.spark.jobs.options.job_arguments import TransformArguments

EXAMPLES = """\
JOBS=$(spark-log path jobs)
python $JOBS/transform.py --subscribe orders --to-topic orders-copy \\
    --group-id copies
python $JOBS/transform.py --subscribe orders --function billing:bill \\
    --group-id bills
python $JOBS/transform.py --subscribe-pattern '^orders-' --arrow \\
    --function billing:bill_table --group-id bills
python $JOBS/transform.py --config bills.toml --consumer-timeout-ms 5000

# billing.py, in this folder or installed. records: ConsumerRecords, in order
def bill(records, producer):
    for record in records:
        value = b"paid " + record.value
        producer.send("bills", key=record.key, value=value)"""


@dataclass(frozen=True)
class _WorkOptions:
    function: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Called with (records, producer); it sends."),
    ] = None
    to_topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Copy key, value, timestamp and headers to this topic.")
    ] = None
    arrow: Annotated[bool, typer.Option("--arrow", help="Call the function with (Arrow table, producer).")] = False


@dataclass(frozen=True, kw_only=True)
class _RunOptions:
    config: ConfigFile = None
    cluster: ClusterAddress
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

    def consumer(self) -> dict[str, int | str]:
        """Return settings of the consumer, by their names."""
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


def _build(choice: TopicChoice, work: _WorkOptions, run: _RunOptions) -> TransformArguments:
    if work.arrow and work.function is None:
        raise usage_error("--arrow", "only with --function")
    topics = choice.parsed()
    if work.to_topic is not None:
        try:
            validate_user_topic(work.to_topic, "write to", "--to-topic")
        except SparkLogError as error:
            raise typer.BadParameter(str(error)) from None
        if _reads(topics, work.to_topic):
            raise usage_error(f"--to-topic {work.to_topic!r}", "is subscribed too: the job would read its own output")
    producer = {} if run.transaction_timeout_ms is None else {"transaction_timeout_ms": run.transaction_timeout_ms}
    return TransformArguments(
        run.cluster,
        topics,
        work.function,
        work.arrow,
        work.to_topic,
        run.group_id,
        run.transactional_id,
        run.consumer(),
        producer,
        run.retries,
        run.json,
    )


def _reads(topics: SubscribeTopics | SubscribePattern, name: str) -> bool:
    return bool(topics.select([name])) if isinstance(topics, SubscribePattern) else name in topics.topics


JOB = Job(
    "transform",
    "Call a function with the records of topics, exactly once: the records that it sends and the consumed offsets are"
    " committed together. Started again, it continues where it stopped; several runs share the partitions. SIGTERM"
    " finishes the transaction in progress.",
    EXAMPLES,
    (TOPICS, Group(_WorkOptions, "Function or copy (one of)"), Group(_RunOptions, "Cluster and run")),
    _build,
    (ONE_CHOICE, OneOf(("function", "to_topic"), required=True)),
    started_by="python",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job; return its exit code. An error of the function is raised with its traceback."""
    given = JOB.parse(arguments)

    from spark_log.spark.jobs.queries.transform_loop import run_guarded

    return run_guarded(given)
