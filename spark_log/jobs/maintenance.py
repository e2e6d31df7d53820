"""Maintenance of large clusters, merging and compaction as Spark tasks: `spark-submit jobs/maintenance.py --help`."""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from pyspark.sql import SparkSession

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import find_topics
from spark_log.errors import SparkLogError, UnknownTopicOrPartitionError
from spark_log.jobs.arguments import Parser
from spark_log.jobs.failures import guarded, one_line
from spark_log.jobs.session import start_session
from spark_log.jobs.summary import tell
from spark_log.maintenance import TASKS, Report, run_tasks
from spark_log.maintenance.compact_on_spark import compact_on_spark
from spark_log.maintenance.on_spark import merge_on_spark
from spark_log.quantities import count_of

_NAMES = tuple(task.name for task in TASKS)
_ON_SPARK = ("compact", "merge")

_EXAMPLES = """\
  spark-submit jobs/maintenance.py --cluster /data/log
  spark-submit jobs/maintenance.py --cluster /data/log --dry-run
  spark-submit jobs/maintenance.py --cluster /data/log --task seal --task merge --topic flights --json"""


@dataclass(frozen=True)
class MaintenanceArguments:
    cluster: str = field(repr=False)
    topics: tuple[str, ...] | None
    """None: all."""
    tasks: tuple[str, ...]
    """In the order in which they run."""
    json: bool
    dry_run: bool = False


def parse(arguments: Sequence[str], environ: Mapping[str, str]) -> MaintenanceArguments:
    """The job's arguments; a usage error names the one that is wrong."""
    tasks = "\n".join(f"  {task.name:<10} {task.summary}" for task in TASKS)
    parser = Parser(
        "jobs/maintenance.py",
        f"Run maintenance now, merging and compaction on Spark, and report it.\n\ntasks, in their order:\n{tasks}",
        _EXAMPLES,
    )
    parser.add_argument(
        "--cluster", metavar="ADDRESS", help="folder or postgresql+psycopg:// URL [env SPARK_LOG_CLUSTER]"
    )
    parser.add_argument("--topic", action="append", metavar="NAME", help="only this one; may be repeated [all]")
    parser.add_argument(
        "--task", action="append", choices=_NAMES, metavar="TASK", help="only this one; may be repeated [all]"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="change nothing; tell what would be done and deleted, and why"
    )
    parser.add_argument("--json", action="store_true", help="progress, reports and summary as JSON lines")
    given = parser.parse_args(arguments)
    topics = None if given.topic is None else tuple(dict.fromkeys(given.topic))
    tasks_given = tuple(name for name in _NAMES if given.task is None or name in given.task)
    return MaintenanceArguments(parser.cluster(given, environ), topics, tasks_given, given.json, given.dry_run)


def main(arguments: Sequence[str] | None = None) -> int:
    """The job; returns its exit code."""
    parsed = parse(sys.argv[1:] if arguments is None else arguments, os.environ)
    return guarded("maintenance", lambda: run(parsed))


def run(arguments: MaintenanceArguments) -> int:
    """Raises errors of ours and of Spark's."""
    with Cluster.open(arguments.cluster) as cluster:
        _check(cluster, arguments.topics)
        needed = not arguments.dry_run and set(arguments.tasks) & set(_ON_SPARK)
        spark = start_session("maintenance", delta=False) if needed else None
        failures = do_tasks(spark, cluster, arguments)
        if spark is not None:
            spark.stop()
    for text in failures:
        print(f"maintenance: {text}", file=sys.stderr, flush=True)
    return 1 if failures else 0


def _check(cluster: Cluster, names: Sequence[str] | None) -> None:
    """What can be checked before Spark starts. UnknownTopicOrPartitionError."""
    found = cluster.store.read(lambda connection: find_topics(connection, names))
    for name in names or ():
        if name not in found:
            raise UnknownTopicOrPartitionError(f"topic {name!r}: unknown topic or partition")


def do_tasks(spark: SparkSession | None, cluster: Cluster, arguments: MaintenanceArguments) -> list[str]:
    """Do the tasks, and tell: progress, a report for each topic, a summary. Returns what failed, a line for a task."""
    began = clock.monotonic_s()
    failures: list[str] = []
    count = 0
    for name in arguments.tasks:
        tell(json.dumps({"event": "progress", "text": name}) if arguments.json else f"{name} …")
        try:
            for report in _reports(name, spark, cluster, arguments):
                count += 1
                tell(json.dumps({"event": "report", **asdict(report)}) if arguments.json else f"  {report}")
        except (SparkLogError, OSError) as error:
            failures.append(f"{name}: {one_line(error)}")
    seconds = clock.monotonic_s() - began
    if arguments.json:
        summary = {"job": "maintenance", "reports": count, "failures": failures, "seconds": round(seconds, 3)}
        tell(json.dumps({"event": "summary", **summary}))
    else:
        dry = " (dry run, nothing was changed)" if arguments.dry_run else ""
        done = f"{count_of(count, 'report')}, {count_of(len(failures), 'failure')}"
        tell(f"maintenance{dry}: {done}, {seconds:.1f} s")
    return failures


def _reports(
    task: str, spark: SparkSession | None, cluster: Cluster, arguments: MaintenanceArguments
) -> Iterable[Report]:
    topics = arguments.topics
    if task == "merge" and spark is not None:
        return merge_on_spark(spark, cluster, topics=topics)
    if task == "compact" and spark is not None:
        found = cluster.store.read(lambda connection: find_topics(connection, topics))
        compacted = [topic.name for topic in found.values() if topic.config.compacts]
        return compact_on_spark(spark, cluster, None if topics is None else compacted)
    return run_tasks(cluster, [task], topics=topics, dry_run=arguments.dry_run)
