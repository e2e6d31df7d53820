"""How `jobs/consume.py` reads a batch: on the console only what it shows, else by Spark's own scan of the files."""

import json
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession

from spark_log.cluster.cluster import Cluster
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.ids import TopicPartition
from spark_log.maintenance.client_log import ClientLog
from spark_log.spark.jobs.consume import JOB
from spark_log.spark.jobs.queries.consume_query import check, scan_batch
from tests.support.jobs import run_job
from tests.support.topics import append, fill, make, read


def tasks_of(spark: SparkSession, group: str) -> int:
    """Tasks that Spark has run for the jobs of this group."""
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)


def test_limit_ends_the_read_at_the_first_partitions(
    spark: SparkSession, cluster: Cluster, log: ClientLog, tmp_path: Path
) -> None:
    make(cluster, "t", 8)
    fill(log, "t", [4] * 8)
    job = ["--subscribe", "t", "--option", "minPartitions=8", "--json", "--group-id", "g"]
    spark.sparkContext.setJobGroup("limit", "a limit below the records of one partition")
    try:
        few = run_job(spark, tmp_path / "cluster", "consume", *job, "--limit", "3", "--value-schema", "n INT").out
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    summary = json.loads(few.splitlines()[-1])
    assert (summary["records"], summary["bytes"], summary["malformed"]) == (3, 9, 3)
    assert few.count("0/") == 3
    assert tasks_of(spark, "limit") == 2, "one to count the rows, one to show them"

    assert committed_offsets(cluster.store, "g") == {}, "Spark has chosen the rows"
    every = json.loads(run_job(spark, tmp_path / "cluster", "consume", *job, "--limit", "40").out.splitlines()[-1])
    assert (every["records"], every["bytes"], every["after"]["t"]["7"]) == (32, 96, 4)
    assert committed_offsets(cluster.store, "g") == {TopicPartition("t", number): 4 for number in range(8)}


@pytest.mark.parametrize(
    ("option", "scanned"),
    [("includeHeaders=true", True), ("kafka.client.rack=r", True), ("minPartitions=3", False)],
)
def test_files_are_scanned_by_spark_itself_unless_an_option_needs_the_data_source(
    spark: SparkSession, cluster: Cluster, log: ClientLog, tmp_path: Path, option: str, scanned: bool
) -> None:
    topic = make(cluster, "t", 2)
    fill(log, "t", [4, 3])
    log.seal(topic, [0, 1])
    append(log, "t", "tail", partition=1, headers=[("h", b"1")])
    line = ["--cluster", str(tmp_path / "cluster"), "--subscribe", "t", "--parquet", str(tmp_path / "out")]
    arguments = JOB.parse([*line, "--option", option, "--starting-offsets", '{"t": {"0": 1, "1": 0}}'])
    options = {**arguments.options, "cluster": arguments.shared.cluster}
    ranges, _ = check(arguments)
    append(log, "t", "after the plan")
    frame = scan_batch(spark, options, ranges)
    assert (frame is not None) == scanned
    if frame is None:
        return
    assert "BatchScan" not in frame._jdf.queryExecution().executedPlan().toString()
    name, _, value = option.partition("=")
    expected = read(spark, cluster, subscribe="t", **{name.replace(".", "__"): value}).where(
        "value <> 'after the plan'"
    )
    order = ["partition", "offset"]
    expected = expected.where("partition = 1 OR offset >= 1")
    assert_df_equality(frame.orderBy(order), expected.orderBy(order), ignore_nullable=True)


def test_the_data_source_reads_several_topics_and_files_that_spark_cannot(
    spark: SparkSession, s3_uri: str, tmp_path: Path
) -> None:
    """Spark has no file system for the object store here."""
    out = str(tmp_path / "out")
    with Cluster.init(str(tmp_path / "in-s3"), log_dir=s3_uri) as cluster:
        log = ClientLog(cluster)
        for name in ("t", "u"):
            topic = make(cluster, name)
            fill(log, name, [3])
            log.seal(topic, [0])
        log.close()
    for topics in ("t,u", "t"):
        line = ["--subscribe", topics, "--parquet", out, "--mode", "overwrite", "--json"]
        summary = run_job(spark, tmp_path / "in-s3", "consume", *line).out
        expected = [(name, n) for name in topics.split(",") for n in range(3)]
        assert json.loads(summary.splitlines()[-1])["records"] == len(expected)
        assert sorted(map(tuple, spark.read.parquet(out).select("topic", "offset").collect())) == expected
