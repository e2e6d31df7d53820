"""`jobs/transform.py` calls a function with the records of topics, exactly once, in plain Python."""

from collections.abc import Sequence

import typer

from spark_log.cluster.names import validate_user_topic
from spark_log.errors import SparkLogError
from spark_log.spark.datasource.options.topic_choice import SubscribePattern, SubscribeTopics
from spark_log.spark.jobs.mirror import ONE_CHOICE, TOPICS, TopicChoice
from spark_log.spark.jobs.options.arguments import usage_error
from spark_log.spark.jobs.options.command import Group, Job, OneOf
from spark_log.spark.jobs.options.transform_options import TransformArguments, TransformRunOptions, WorkOptions

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


def _build(choice: TopicChoice, work: WorkOptions, run: TransformRunOptions) -> TransformArguments:
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
    return TransformArguments(topics, work, run)


def _reads(topics: SubscribeTopics | SubscribePattern, name: str) -> bool:
    return bool(topics.select([name])) if isinstance(topics, SubscribePattern) else name in topics.topics


JOB = Job(
    "transform",
    "Call a function with the records of topics, exactly once: the records that it sends and the consumed offsets are"
    " committed together. Started again, it continues where it stopped; several runs share the partitions. SIGTERM"
    " finishes the transaction in progress.",
    EXAMPLES,
    (TOPICS, Group(WorkOptions, "Function or copy (one of)"), Group(TransformRunOptions, "Cluster and run")),
    _build,
    (ONE_CHOICE, OneOf(("function", "to_topic"), required=True)),
    started_by="python",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job. Return its exit code. Raises errors of the function."""
    given = JOB.parse(arguments)

    from spark_log.spark.jobs.queries.transform_loop import run_guarded

    return run_guarded(given)
