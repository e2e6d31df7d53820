"""Compaction of large topics. `spark-submit jobs/compact.py --help` has the arguments."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from pyspark.sql import SparkSession

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.jobs.arguments import Parser
from spark_log.jobs.failures import guarded
from spark_log.jobs.session import start_session
from spark_log.jobs.summary import tell
from spark_log.log.write_ids import Writer
from spark_log.maintenance.compact_on_spark import compact_on_spark
from spark_log.maintenance.compaction_pass import compacted_topics
from spark_log.maintenance.report import Amount, Report
from spark_log.maintenance.work import Work
from spark_log.quantities import count_of

_EXAMPLES = """\
  spark-submit jobs/compact.py --cluster /data/log
  spark-submit jobs/compact.py --cluster /data/log --topic planes --topic airports --force"""


@dataclass(frozen=True)
class CompactArguments:
    cluster: str = field(repr=False)
    topics: tuple[str, ...] | None
    """None: all that are compacted."""
    force: bool
    json: bool


def parse(arguments: Sequence[str], environ: Mapping[str, str]) -> CompactArguments:
    """The job's arguments; a usage error names the one that is wrong."""
    description = "Compact topics with cleanup.policy=compact: keep the last value of every key, at its offset."
    parser = Parser("jobs/compact.py", description, _EXAMPLES)
    parser.add_argument(
        "--cluster", metavar="ADDRESS", help="folder or postgresql+psycopg:// URL [env SPARK_LOG_CLUSTER]"
    )
    parser.add_argument(
        "--topic", action="append", metavar="NAME", help="only this one; may be repeated [all that are compacted]"
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="also where too little is new (min.cleanable.dirty.ratio); min.compaction.lag.ms holds all the same",
    )
    parser.add_argument("--json", action="store_true", help="reports and summary as JSON lines")
    given = parser.parse_args(arguments)
    topics = None if given.topic is None else tuple(dict.fromkeys(given.topic))
    return CompactArguments(parser.cluster(given, environ), topics, given.force, given.json)


def main(arguments: Sequence[str] | None = None) -> int:
    """The job; returns its exit code."""
    parsed = parse(sys.argv[1:] if arguments is None else arguments, os.environ)
    return guarded("compact", lambda: run(parsed))


def run(arguments: CompactArguments) -> int:
    """Raises errors of ours and of Spark's."""
    with Cluster.open(arguments.cluster) as cluster:
        check(cluster, arguments)
        spark = start_session("compact", delta=False)
        compact(spark, cluster, arguments)
        spark.stop()
    return 0


def check(cluster: Cluster, arguments: CompactArguments) -> None:
    """All that can be checked without Spark: the topics are there, and compacted."""
    work = Work(cluster, cluster.store.settings, Writer(cluster.store, "compact", 60_000), topic_names=arguments.topics)
    compacted_topics(work, arguments.topics)


def compact(spark: SparkSession, cluster: Cluster, arguments: CompactArguments) -> None:
    """Compact, and tell: progress, a report for each topic, a summary."""

    def progress(what: str) -> None:
        tell(json.dumps({"event": "progress", "text": what}) if arguments.json else what)

    started = clock.monotonic_s()
    reports = compact_on_spark(spark, cluster, arguments.topics, arguments.force, progress=progress)
    tell(*_summary(reports, clock.monotonic_s() - started, arguments.json))


def _summary(reports: Sequence[Report], seconds: float, as_json: bool) -> list[str]:
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
    rate = f", {before.records / seconds:,.0f} records/s" if seconds > 0 else ""
    return [*lines, f"compact: {before.records:,} -> {count_of(after.records, 'record')}, {seconds:.1f} s{rate}"]
