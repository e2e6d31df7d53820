"""Processes with consumers in groups: killed between work and commit, and forked; and the thread of a consumer."""

import gc
import subprocess
import threading
from functools import partial

import pytest
from kafka.structs import TopicPartition

from spark_log import Consumer
from spark_log.facts.groups import describe_groups
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.metadata.tables import group_member
from tests.support.group_members import move_session_end, settle_consumers
from tests.support.python_process import PythonProcess, output_of
from tests.support.stores import change
from tests.support.topics import fill, make
from tests.support.waiting import LIMIT_S

P0, P1, P2, P3 = (TopicPartition("t", number) for number in range(4))


@pytest.fixture
def consume(consume):
    return partial(consume, enable_auto_commit=True, heartbeat_interval_ms=100)


def committed(cluster, group="g"):
    return {(name, number): offset for (name, number), offset in committed_offsets(cluster.store, group).items()}


def members(cluster, group="g"):
    [described] = describe_groups(cluster.store, [group])
    return described.members


def numbered_consumer(address, poll_records):
    command = ("-m", "tests.support.child_programs", "numbered_consumer", address, "t", "g", poll_records)
    pipe = subprocess.PIPE
    return PythonProcess(*command, stdin=pipe, stdout=pipe, text=True, bufsize=1)


@pytest.mark.on_sqlite
def test_a_killed_consumer_skips_nothing_and_repeats_only_uncommitted_records(cluster, log, cluster_address):
    """Killed repeatedly between processing and commit; the next consumer repeats from the last commit."""
    make(cluster, "t", 2)
    processed = {0: [], 1: []}
    last_commit = {0: 0, 1: 0}

    def start(number):
        """The consumer that is killed may read and commit everything before that: the next one has new records."""
        fill(log, "t", [12, 12], first=12 * number)
        return numbered_consumer(cluster_address, 2)

    def run(process, polls):
        """Read its output until it has processed `polls` records; its offsets must continue at the last commit."""
        here = {}
        count = 0
        for line in process.stdout:
            word, *rest = line.split()
            if word == "processed":
                partition, offset, value = int(rest[0]), int(rest[1]), rest[2]
                assert value == f"{partition}/{offset}"
                expected = here.get(partition, last_commit[partition])
                assert offset == expected, "nothing skipped, nothing repeated but what was not committed"
                here[partition] = offset + 1
                processed[partition].append(offset)
                count += 1
                if count == polls:
                    return
            elif word == "committed":
                last_commit.update(here)

    for number, polls in enumerate((5, 8)):
        process = start(number)
        run(process, polls)
        process.kill()
        for line in process.stdout.read().splitlines():  # it went on until it was killed
            word, *rest = line.split()
            if word == "processed":
                processed[int(rest[0])].append(int(rest[1]))
        process.communicate(timeout=60)
        change(cluster, group_member.update().values(until_ms=0))  # its session has ended
        last_commit = {partition: committed(cluster).get(("t", partition), 0) for partition in (0, 1)}
    process = start(2)
    run(process, 72 - sum(last_commit.values()))
    process.stdin.close()
    process.stdout.read()
    assert process.wait(LIMIT_S) == 0
    for offsets in processed.values():
        assert sorted(set(offsets)) == list(range(36))


@pytest.mark.on_sqlite
def test_the_remaining_member_takes_over_from_a_killed_one(cluster, log, cluster_address, consume):
    make(cluster, "t", 2)
    stays = consume("t")
    settle_consumers(stays, share=[2])
    with numbered_consumer(cluster_address, 1) as process:
        settle_consumers(stays, share=[1])
        process.kill()
    [killed] = {member.member_id for member in members(cluster)} - {stays.group_metadata().member_id}
    move_session_end(cluster.store, killed, 0)
    settle_consumers(stays, share=[2])
    fill(log, "t", [2, 2])
    [seen] = settle_consumers(stays, until=lambda: all((stays.position(name) or 0) >= 2 for name in (P0, P1)))
    assert sorted(seen) == ["0/0", "0/1", "1/0", "1/1"]


def threads_of(group):
    return [thread for thread in threading.enumerate() if thread.name == f"spark-log-consumer-{group}"]


@pytest.mark.on_sqlite
def test_the_background_thread_ends_with_its_consumer(cluster, cluster_address):
    make(cluster, "t", 1)
    closed = Consumer("t", cluster=cluster_address, group_id="closed")
    dropped = Consumer("t", cluster=cluster_address, group_id="dropped")
    settle_consumers(closed, share=[1])
    settle_consumers(dropped, share=[1])
    assert len(threads_of("closed")) == len(threads_of("dropped")) == 1
    closed.close()
    assert threads_of("closed") == []
    [thread] = threads_of("dropped")
    del dropped
    gc.collect()
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_a_consumer_of_the_parent_process_is_refused_in_a_fork(tmp_path):
    program = """
import os, sys
from kafka.errors import IllegalStateError
from spark_log import Cluster, Consumer, ShareConsumer, create_topic
address = sys.argv[1]
with Cluster.init(address) as cluster:
    create_topic(cluster, "t")
consumer = Consumer("t", cluster=address, group_id="g")
while not consumer.assignment():
    consumer.poll(200)
consumer.seek(*consumer.assignment(), 0)
shares = ShareConsumer("t", cluster=address, group_id="s")
shares.poll(0)
child = os.fork()
if child == 0:
    refused = 0
    for call in (lambda: consumer.poll(0), consumer.commit, consumer.commit_async, shares.poll, shares.commit_sync):
        try:
            call()
        except IllegalStateError as error:
            refused += "another process" in str(error)
    consumer.close()
    shares.close()
    os._exit(refused)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
consumer.poll(100)
consumer.close()
shares.poll(0)
shares.close()
print("fine")
"""
    assert output_of(program, tmp_path / "cluster") == "fine\n"
