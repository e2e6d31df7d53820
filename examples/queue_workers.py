"""A queue: Spark writes jobs, Python workers share them, and Spark reads the jobs that failed.

Spark writes 40 jobs into topic `jobs`. Three worker processes are members of share group `workers`: each job is
delivered to one of them, which accepts it. One worker is killed with SIGKILL while it works; its jobs are delivered to
the others when its locks have ended. Job 13 cannot be done: after three deliveries it is a dead letter in topic
`dlq.jobs`, which is read like any topic.

    python examples/queue_workers.py --cluster /tmp/queue

It prints:

    worker 1 was killed by SIGKILL
    39 of 40 jobs are done
    +----------+--------------+----------+
    |value     |cause         |deliveries|
    +----------+--------------+----------+
    |{"job":13}|delivery-count|3         |
    +----------+--------------+----------+

DIR must not exist yet.
"""

import argparse
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from typing import Any

from kafka.admin import ConfigResource, ConfigResourceType
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, map_from_entries, struct, to_json

from spark_log import AcknowledgeType, Admin, Cluster, Producer, ShareConsumer, create_topic, read_topic, write_topic

JOBS = 40
BAD_JOB = 13
WORKERS = 3
CONFIGS = {
    "share.auto.offset.reset": "earliest",  # a new group begins at the first job, not at those to come
    "share.delivery.count.limit": "3",
    "share.record.lock.duration.ms": "1000",  # a job of a killed worker is delivered again after this time
    "errors.deadletterqueue.topic.name": "dlq.jobs",
}


def prepare(cluster: str) -> None:
    with Cluster.init(cluster) as opened:
        create_topic(opened, "jobs", partitions=2)
        create_topic(opened, "done")
        create_topic(opened, "dlq.jobs", configs={"errors.deadletterqueue.group.enable": "true"})
    with Admin(cluster=cluster) as admin:
        shortest = {"group.share.min.record.lock.duration.ms": "1000"}  # 15 seconds by default
        admin.alter_configs([ConfigResource(ConfigResourceType.BROKER, "", shortest)])
        admin.alter_configs([ConfigResource(ConfigResourceType.GROUP, "workers", CONFIGS)])


def write_jobs(spark: SparkSession, cluster: str) -> None:
    jobs = spark.range(1, JOBS + 1).select(to_json(struct(col("id").alias("job"))).alias("value"))
    write_topic(jobs, cluster, "jobs")


def work(cluster: str, number: int, kill_after: int | None) -> None:
    """Do jobs until none comes for three seconds. The process kills itself at its job number `kill_after`, if given."""
    consumer = ShareConsumer(
        "jobs",
        cluster=cluster,
        group_id="workers",
        client_id=f"worker {number}",
        share_acknowledgement_mode="explicit",
        share_acquire_mode="record_limit",
        max_poll_records=4,
    )
    count = 0
    with consumer, Producer(cluster=cluster) as producer:
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < 3:
            for records in consumer.poll(timeout_ms=500).values():
                for record in records:
                    count += 1
                    if count == kill_after:
                        os.kill(os.getpid(), signal.SIGKILL)
                    done = do(record, producer)
                    consumer.acknowledge(record, AcknowledgeType.ACCEPT if done else AcknowledgeType.RELEASE)
                    quiet_since = time.monotonic()
            consumer.commit_sync()


def do(record: Any, producer: Producer) -> bool:
    job = json.loads(record.value)["job"]
    if job == BAD_JOB:
        return False
    time.sleep(0.1)
    producer.send("done", key=str(job).encode(), value=b"done").get()
    return True


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A queue of jobs with workers, one of which is killed.")
    parser.add_argument("--cluster", required=True, metavar="DIR", help="folder of the new cluster")
    cluster = parser.parse_args(arguments).cluster
    prepare(cluster)
    spark = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    write_jobs(spark, cluster)

    processes = multiprocessing.get_context("spawn")
    workers = [processes.Process(target=work, args=(cluster, n, 1 if n == 1 else None)) for n in range(1, WORKERS + 1)]
    for worker in workers:
        worker.start()
    for number, worker in enumerate(workers, 1):
        worker.join()
        if worker.exitcode:
            print(f"worker {number} was killed by {signal.Signals(-worker.exitcode).name}")

    done = read_topic(spark, cluster, "done").select("key").distinct().count()
    print(f"{done} of {JOBS} jobs are done")
    letters = read_topic(spark, cluster, "dlq.jobs", include_headers=True)
    facts = map_from_entries("headers")
    letters.select(
        col("value").cast("string"),
        facts["spark-log.dlq.cause"].cast("string").alias("cause"),
        facts["__dlq.errors.delivery.count"].cast("string").alias("deliveries"),
    ).show(truncate=False)


if __name__ == "__main__":
    main()
