"""`jobs/compact.py` compacts large topics."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from spark_log import clock
from spark_log.spark.jobs.failures import guarded
from spark_log.spark.jobs.options.arguments import ClusterAddress
from spark_log.spark.jobs.options.command import Group, Job
from spark_log.text import count_of, rate_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_log.cluster.cluster import Cluster
    from spark_log.maintenance.report import Report

EXAMPLES = """\
JOBS=$(spark-log path jobs)
spark-submit $JOBS/compact.py --cluster /data/log
spark-submit $JOBS/compact.py --cluster /data/log \\
    --topic planes --topic airports --force"""


@dataclass(frozen=True)
class CompactArguments:
    cluster: ClusterAddress = field(repr=False)
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this topic; repeatable. [default: all that are compacted]"),
    ] = None
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Compact topics with few new records too (min.cleanable.dirty.ratio); min.compaction.lag.ms still"
            " applies.",
        ),
    ] = False
    json: Annotated[bool, typer.Option("--json", help="Print reports and summary as JSON lines.")] = False

    @property
    def topics(self) -> tuple[str, ...] | None:
        """The topics to compact, or None for all that are compacted."""
        return None if self.topic is None else tuple(dict.fromkeys(self.topic))


JOB = Job(
    "compact",
    "Compact topics with cleanup.policy=compact: keep the last value of every key, at its offset.",
    EXAMPLES,
    (Group(CompactArguments),),
    lambda given: given,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job; return its exit code."""
    given = JOB.parse(arguments)
    return guarded(JOB.name, lambda: run(given))


def run(arguments: CompactArguments) -> int:
    """Run the compaction; return the exit code. Raises errors of spark-log and of Spark."""
    from spark_log.cluster.cluster import Cluster
    from spark_log.spark.jobs.session import end_session, start_session

    with Cluster.open(arguments.cluster) as cluster:
        check(cluster, arguments)
        spark = start_session("compact", delta=False)
        compact(spark, cluster, arguments)
        end_session(spark)
    return 0


def check(cluster: "Cluster", arguments: CompactArguments) -> None:
    """Check without Spark that the topics exist and are compacted."""
    from spark_log.log.append.write_ids import Writer
    from spark_log.maintenance.compaction.passes import compacted_topics
    from spark_log.maintenance.context import MaintenanceContext

    context = MaintenanceContext(
        cluster, cluster.store.settings, Writer(cluster.store, "compact", 60_000), topic_names=arguments.topics
    )
    compacted_topics(context, arguments.topics)


def compact(spark: "SparkSession", cluster: "Cluster", arguments: CompactArguments) -> None:
    """Compact, and report progress, each topic and a summary."""
    from spark_log.maintenance.compaction.spark_compaction import compact_on_spark
    from spark_log.spark.jobs.summary import print_lines

    def progress(what: str) -> None:
        print_lines(json.dumps({"event": "progress", "text": what}) if arguments.json else what)

    started = clock.monotonic_s()
    reports = compact_on_spark(spark, cluster, arguments.topics, arguments.force, progress=progress)
    print_lines(*_summary(reports, clock.monotonic_s() - started, arguments.json))


def _summary(reports: "Sequence[Report]", seconds: float, as_json: bool) -> list[str]:
    from spark_log.maintenance.report import Amount

    before = sum((each.before for each in reports), Amount())
    after = sum((each.after for each in reports), Amount())
    if as_json:
        lines = [json.dumps({"event": "report", **asdict(each)}) for each in reports]
        summary = {
            "event": "summary",
            "job": "compact",
            "topics": len(reports),
            "before": asdict(before),
            "after": asdict(after),
            "seconds": round(seconds, 3),
        }
        return [*lines, json.dumps(summary)]
    if not reports:
        return [f"compact: nothing is due, {seconds:.1f} s"]
    lines = [str(each) for each in reports]
    rate = rate_of(before.records, seconds)
    return [*lines, f"compact: {before.records:,} -> {count_of(after.records, 'record')}, {seconds:.1f} s{rate}"]
