"""Runs the steps of `jobs/mirror.py` in Spark tasks."""

from collections.abc import Mapping, Sequence

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.errors import CorruptRecordError, InvalidRecordError, NotLeaderForPartitionError, SourceUnavailableError
from spark_log.ids import TopicPartition
from spark_log.log.append.transfer import Transfer, Transferred, transfer
from spark_log.metadata.store import DEFAULT_TIMEOUT_MS
from spark_log.spark.jobs.failures import raise_error_of_task
from spark_log.spark.jobs.options.job_arguments import MirrorArguments
from spark_log.spark.jobs.options.run_options import AvailableNow, Every
from spark_log.spark.jobs.queries.query_runner import stop_on_signals
from spark_log.spark.jobs.session import end_session, start_session
from spark_log.spark.jobs.summary import BatchProgress, Summary, print_lines, progress_line, summary_lines
from spark_log.spark.mirror.mirror import Mirror, Step

_ERRORS_OF_TASKS = (CorruptRecordError, InvalidRecordError, NotLeaderForPartitionError, SourceUnavailableError)
"""The errors of `transfer` that concern a single topic."""
_TASKS_PER_CORE = 4
_PAUSE_S_MIN = 0.1
"""Shortest pause between two steps. Steps are costly: each reads the positions of all partitions."""


def run(arguments: MirrorArguments) -> int:
    """Mirror the topics. Return the exit code. Raises errors of spark-log and of Spark. With available-now, also raises
    an error at the end that names the failed topics.
    """
    with Cluster.open(arguments.cluster) as source, Cluster.open(arguments.to_cluster) as target:
        for cluster in (source, target):
            cluster.store.read_timeout_ms = DEFAULT_TIMEOUT_MS  # a failover does not end the mirror
        mirror = Mirror(source, target, arguments.settings)
        try:
            steps = _mirror(mirror, arguments)
        finally:
            for cluster in (source, target):
                cluster.give_up_soon()
            mirror.close()
    summary = Summary("mirror", steps.records, steps.record_bytes, steps.seconds, steps.before, steps.after)
    print_lines(*summary_lines(summary, arguments.json))
    if isinstance(arguments.run, AvailableNow):
        mirror.topics.raise_failures()
    return 0


def _mirror(mirror: Mirror, arguments: MirrorArguments) -> "_Steps":
    # checks the topics without Spark; a run with available-now ends with these ranges
    lacking = mirror.ranges()
    steps = _Steps(arguments.json)
    if isinstance(arguments.run, AvailableNow) and not any(offsets.size for offsets in lacking.values()):
        if arguments.groups:
            mirror.copy_groups()
        return steps
    spark = start_session("mirror", delta=False)
    stop = stop_on_signals(spark)
    started = clock.monotonic_s()
    match arguments.run:
        case AvailableNow():
            until = {tp: offsets.end for tp, offsets in lacking.items()}
            while not stop.is_set() and _step(spark, mirror, arguments, steps, until):
                pass
        case Every(interval_ms):
            while not stop.is_set():  # a step in progress is finished first
                begun = clock.monotonic_s()
                _step(spark, mirror, arguments, steps)
                stop.wait(max(_PAUSE_S_MIN, interval_ms / 1000 - (clock.monotonic_s() - begun)))
    steps.seconds = clock.monotonic_s() - started
    end_session(spark)
    return steps


class _Steps:
    """Counts the totals of the steps so far, and reports each step."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json
        self._number = 0
        self.seconds = 0.0
        self.records = 0
        self.record_bytes = 0
        self.before: dict[TopicPartition, int] = {}
        self.after: dict[TopicPartition, int] = {}

    def add(self, step: Step, seconds: float) -> None:
        rate = step.records / seconds if seconds else 0.0
        progress = BatchProgress(self._number, step.records, step.record_bytes, rate, step.behind)
        print_lines(progress_line(progress, self._json))
        self._number += 1
        self.records += step.records
        self.record_bytes += step.record_bytes
        self.before = {**step.before, **self.before}
        self.after.update(step.after)


def _step(
    spark: SparkSession,
    mirror: Mirror,
    arguments: MirrorArguments,
    steps: _Steps,
    until: Mapping[TopicPartition, int] | None = None,
) -> bool:
    """Run one step, and copy the groups. Return False if the step had nothing to copy."""
    begun = clock.monotonic_s()
    step = mirror.step(lambda transfers: _on_spark(spark, transfers), until)
    if step is not None:
        steps.add(step, clock.monotonic_s() - begun)
    if arguments.groups:
        mirror.copy_groups()
    return step is not None


def _on_spark(spark: SparkSession, transfers: Sequence[Transfer]) -> list[Transferred]:
    context = spark.sparkContext
    tasks = min(len(transfers), _TASKS_PER_CORE * context.defaultParallelism)
    try:
        return context.parallelize(list(transfers), tasks).map(transfer).collect()
    except (PySparkException, Py4JError) as error:
        raise_error_of_task(error, _ERRORS_OF_TASKS)
