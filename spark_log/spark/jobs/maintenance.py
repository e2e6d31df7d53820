"""`jobs/maintenance.py` maintains large clusters, and merges and compacts in Spark tasks."""

import json
import logging
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import find_topic, find_topics
from spark_log.errors import SparkLogError
from spark_log.maintenance import TASKS, Report, run_tasks
from spark_log.maintenance.compaction.passes import check_compacted
from spark_log.spark.jobs.failures import one_line
from spark_log.spark.jobs.options.arguments import ClusterAddress, usage_error
from spark_log.spark.jobs.options.command import Group, Job
from spark_log.spark.jobs.summary import print_lines
from spark_log.text import count_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_NAMES = tuple(task.name for task in TASKS)
_SCHEDULED = tuple(task.name for task in TASKS if task.every_ms is not None)
_ON_SPARK = ("compact", "merge")

EXAMPLES = """\
JOBS=$(spark-log path jobs)
spark-submit $JOBS/maintenance.py --cluster /data/log
spark-submit $JOBS/maintenance.py --cluster /data/log --dry-run
spark-submit $JOBS/maintenance.py --cluster /data/log \\
    --task seal --task merge --topic flights --json
spark-submit $JOBS/maintenance.py --cluster /data/log \\
    --task compact --topic planes --force"""


@dataclass(frozen=True)
class MaintenanceArguments:
    cluster: ClusterAddress = field(repr=False)
    topic: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this topic; repeatable. [default: all]")
    ] = None
    task: Annotated[
        list[str] | None, typer.Option(metavar="TASK", help="Only this task; repeatable. [default: all but columns]")
    ] = None
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Change nothing; show what would be done and deleted, and why."),
    ] = False
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Compact topics with few new records too (min.cleanable.dirty.ratio); min.compaction.lag.ms still"
            " applies.",
        ),
    ] = False
    json: Annotated[bool, typer.Option("--json", help="Print progress, reports and summary as JSON lines.")] = False

    @property
    def topics(self) -> tuple[str, ...] | None:
        """The topics to maintain, or None for all."""
        return None if self.topic is None else tuple(dict.fromkeys(self.topic))

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks, in the order in which they run."""
        return tuple(name for name in _NAMES if name in (_SCHEDULED if self.task is None else self.task))


def _build(arguments: MaintenanceArguments) -> MaintenanceArguments:
    for name in arguments.task or ():
        if name not in _NAMES:
            raise usage_error("--task", f"{name!r} is not one of {', '.join(_NAMES)}")
    if arguments.force and (arguments.dry_run or "compact" not in arguments.tasks):
        raise usage_error("--force", "only for task compact, and not with --dry-run")
    return arguments


JOB = Job(
    "maintenance",
    "Run maintenance now, with merging and compaction on Spark, and report it.\n\nTasks, in their order:\n\n"
    + "\n".join(f"- {task.name}: {task.summary}" for task in TASKS),
    EXAMPLES,
    (Group(MaintenanceArguments),),
    _build,
)
main = JOB.main("spark_log.spark.jobs.maintenance:run")


def run(arguments: MaintenanceArguments) -> int:
    """Run the tasks; return the exit code. Raises errors of spark-log and of Spark."""
    from spark_log.spark.jobs.session import end_session, start_session

    with Cluster.open(arguments.cluster) as cluster:
        _check(cluster, arguments)
        needed = not arguments.dry_run and set(arguments.tasks) & set(_ON_SPARK)
        spark = start_session("maintenance", delta=False) if needed else None
        failures = do_tasks(spark, cluster, arguments)
        if spark is not None:
            end_session(spark)
    for text in failures:
        print(f"maintenance: {text}", file=sys.stderr, flush=True)
    return 1 if failures else 0


def _check(cluster: Cluster, arguments: MaintenanceArguments) -> None:
    """Check the topics before Spark starts. Raises UnknownTopicOrPartitionError. If task `compact` is named, also
    raises InvalidConfigurationError for a topic that is not compacted.
    """
    names = arguments.topics or ()
    topics = cluster.store.read(lambda connection: [find_topic(connection, name) for name in names])
    if "compact" in (arguments.task or ()):
        check_compacted(topics)


def do_tasks(spark: "SparkSession | None", cluster: Cluster, arguments: MaintenanceArguments) -> list[str]:
    """Run the tasks. Print progress, reports and a summary. Return one line for each failed task."""
    began = clock.monotonic_s()
    failures: list[str] = []
    count = 0
    for name in arguments.tasks:
        _print_progress(name if arguments.json else f"{name} …", arguments.json)
        try:
            for report in _reports(name, spark, cluster, arguments):
                count += 1
                print_lines(json.dumps({"event": "report", **asdict(report)}) if arguments.json else f"  {report}")
        except Exception as error:  # the other tasks go on
            if not isinstance(error, SparkLogError | OSError):
                logger.exception("unexpected error")
            failures.append(f"{name}: {one_line(error)}")
    seconds = clock.monotonic_s() - began
    if arguments.json:
        summary = {"job": "maintenance", "reports": count, "failures": failures, "seconds": round(seconds, 3)}
        print_lines(json.dumps({"event": "summary", **summary}))
    else:
        dry = " (dry run, nothing was changed)" if arguments.dry_run else ""
        done = f"{count_of(count, 'report')}, {count_of(len(failures), 'failure')}"
        print_lines(f"maintenance{dry}: {done}, {seconds:.1f} s")
    return failures


def _print_progress(text: str, as_json: bool) -> None:
    print_lines(json.dumps({"event": "progress", "text": text}) if as_json else text)


def _reports(
    task: str, spark: "SparkSession | None", cluster: Cluster, arguments: MaintenanceArguments
) -> Iterable[Report]:
    from spark_log.maintenance.compaction.spark_compaction import compact_on_spark
    from spark_log.maintenance.spark_merge import merge_on_spark

    topics = arguments.topics
    if task == "merge" and spark is not None:
        return merge_on_spark(spark, cluster, topics=topics)
    if task == "compact" and spark is not None:
        found = cluster.store.read(lambda connection: find_topics(connection, topics))
        compacted = [topic.name for topic in found.values() if topic.config.compacts]
        return compact_on_spark(
            spark,
            cluster,
            None if topics is None else compacted,
            arguments.force,
            progress=lambda text: _print_progress(text if arguments.json else f"  {text}", arguments.json),
        )
    return run_tasks(cluster, [task], topics=topics, dry_run=arguments.dry_run)
