"""`jobs/consume.py` reads on the console only what it shows, and for a group each record once."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_log.cluster.cluster import Cluster
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.ids import TopicPartition
from spark_log.maintenance.client_log import ClientLog
from spark_log.spark.jobs.queries import consume_query
from tests.support.spark import run_job
from tests.support.topics import append, fill, make, stored


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


@pytest.mark.parametrize("sink", ["--to-topic copy", "--parquet {folder}", "--limit 5"])
def test_records_that_come_while_spark_starts_are_read_by_the_next_run_of_the_group(
    spark: SparkSession,
    cluster: Cluster,
    log: ClientLog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sink: str,
) -> None:
    """The first run finds no records, so it writes none."""
    for name in ("t", "copy"):
        make(cluster, name)
    check = consume_query.check

    def check_before_a_record_comes(*arguments: Any) -> Any:
        found = check(*arguments)
        append(log, "t", "a")
        return found

    job = ["--subscribe", "t", "--group-id", "g", "--starting-offsets", "committed", "--json"]
    with monkeypatch.context() as patch:
        patch.setattr(consume_query, "check", check_before_a_record_comes)
        first = run_job(spark, tmp_path / "cluster", "consume", *job, *sink.format(folder=tmp_path / "one").split())
    assert committed_offsets(cluster.store, "g") == {TopicPartition("t", 0): 0}
    second = run_job(spark, tmp_path / "cluster", "consume", *job, *sink.format(folder=tmp_path / "two").split())
    assert committed_offsets(cluster.store, "g") == {TopicPartition("t", 0): 1}
    assert [json.loads(run.out.splitlines()[-1])["records"] for run in (first, second)] == [0, 1]
    assert stored(cluster, "copy") == ({0: ["a"]} if "copy" in sink else {})
