"""A queue at work: three workers share the jobs of a topic, one is killed, and a job that fails is a dead letter.

    python scripts/demo_queue.py --cluster ADDRESS [--jobs 300] [--help]

`make demo` runs it. The workers are processes, and members of one share group. Each job is delivered to one of them.
The first worker gets SIGKILL while it has jobs: their locks end after 15 seconds, the shortest time that a cluster
allows by default, and the others do them. Job 13 fails in each of its three deliveries. At the end every other job is
done, and job 13 is in the dead letter topic. Exit code 1 if not.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from kafka.admin import ConfigResource, ConfigResourceType
from rich.console import Console

from spark_log import AcknowledgeType, Admin, Cluster, Consumer, Producer, ShareConsumer, create_topic
from spark_log.errors import SparkLogError

console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
BAD_JOB = 13
LOCK_MS = 15_000
GIVE_UP_S = 90
NAMES = ("first", "second", "third")


def main() -> int:
    arguments = _arguments()
    if arguments.member:
        return work(arguments)
    group, topic = f"demo-queue-{os.getpid()}", f"demo-jobs-{os.getpid()}"
    letters = f"dlq.{topic}"
    prepare(arguments.cluster, group, topic, arguments.jobs)
    console.print(f"  topic {topic}: {arguments.jobs} jobs for {len(NAMES)} workers of share group {group}")
    environment = {
        **os.environ,
        "SPARK_LOG_CLUSTER": arguments.cluster,
    }  # not on the command line: it may hold a password
    command = [sys.executable, __file__, "--group", group, "--topic", topic]
    workers = {name: subprocess.Popen([*command, "--member", name], env=environment) for name in NAMES}
    try:
        done, failed = watch(arguments.cluster, topic, letters, arguments.jobs, workers)
        sys.stdout.flush()
        subprocess.run([sys.executable, "-m", "spark_log", "group", "describe", group], env=environment, check=True)
    finally:
        for worker in workers.values():
            worker.terminate()
            worker.wait(timeout=30)
    expected = {f"job {number}" for number in range(arguments.jobs)} - {f"job {BAD_JOB}"}
    if set(done) != expected or failed != [f"job {BAD_JOB}"]:
        console.print(f"[bold red]queue:[/bold red] {len(expected - set(done))} jobs are not done, letters: {failed}")
        return 1
    twice = done.total() - len(done)
    console.print(f"  all {len(done)} other jobs are done, {twice} of them twice; job {BAD_JOB} is in {letters}")
    return 0


def prepare(address: str, group: str, topic: str, jobs: int) -> None:
    """Create the topics, configure the group, and send the jobs."""
    with Cluster.open(address) as cluster:
        create_topic(cluster, topic, partitions=2)
        create_topic(cluster, f"{topic}-done")
        create_topic(cluster, f"dlq.{topic}", configs={"errors.deadletterqueue.group.enable": "true"})
    configs = {
        "share.auto.offset.reset": "earliest",
        "share.delivery.count.limit": "3",
        "share.record.lock.duration.ms": str(LOCK_MS),
        "errors.deadletterqueue.topic.name": f"dlq.{topic}",
    }
    with Admin(cluster=address) as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.GROUP, group, configs)])
    with Producer(cluster=address) as producer:
        for number in range(jobs):
            producer.send(topic, f"job {number}".encode(), partition=number % 2)


def work(arguments: argparse.Namespace) -> int:
    """A worker: the loop that a user would write. It says in topic `-done` which jobs it has done."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    consumer = ShareConsumer(
        arguments.topic,
        cluster=arguments.cluster,
        group_id=arguments.group,
        client_id=arguments.member,
        share_acknowledgement_mode="explicit",
        share_acquire_mode="record_limit",
        max_poll_records=10,
    )
    with consumer, Producer(cluster=arguments.cluster) as producer:
        while True:
            for records in consumer.poll(timeout_ms=500).values():
                for record in records:
                    time.sleep(0.01)  # the work
                    if record.value == f"job {BAD_JOB}".encode():
                        consumer.acknowledge(record, AcknowledgeType.RELEASE)
                        continue
                    producer.send(f"{arguments.topic}-done", record.value, key=arguments.member.encode()).get()
                    consumer.acknowledge(record, AcknowledgeType.ACCEPT)
            consumer.commit_sync()


def watch(
    address: str, topic: str, letters: str, jobs: int, workers: dict[str, "subprocess.Popen[bytes]"]
) -> tuple[Counter[str], list[str]]:
    """Return how often each job was done, and the dead letters, once each job is in one of both. Kills the first worker
    when it has done a job.
    """
    done: Counter[str] = Counter()
    failed: list[str] = []
    victim = workers[NAMES[0]]
    killed = False
    deadline_s = time.monotonic() + GIVE_UP_S
    with Consumer(f"{topic}-done", letters, cluster=address, auto_offset_reset="earliest") as consumer:
        while (len(done) + len(failed) < jobs or not killed) and time.monotonic() < deadline_s:
            for partition, records in consumer.poll(timeout_ms=200).items():
                values = [record.value.decode() for record in records]
                if partition.topic == letters:
                    failed += values
                    continue
                done.update(values)
                if not killed and any(record.key == NAMES[0].encode() for record in records):
                    victim.send_signal(signal.SIGKILL)
                    killed = True
                    console.print(f"  SIGKILL to the {NAMES[0]} worker, {len(done)} jobs are done")
    return done, failed


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("SPARK_LOG_CLUSTER") or str(Path(".demo").absolute() / "cluster")
    parser.add_argument("--cluster", default=default, help="folder or URL [env SPARK_LOG_CLUSTER; .demo/cluster]")
    parser.add_argument("--jobs", type=int, default=300, metavar="N", help="number of jobs [300]")
    for hidden in ("--group", "--topic", "--member"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SparkLogError as error:
        console.print(f"[bold red]queue:[/bold red] {error}")
        sys.exit(1)
