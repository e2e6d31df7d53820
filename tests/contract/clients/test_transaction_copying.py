"""Consume, transform, produce in processes that are killed at every step or stopped: each record is copied once."""

import itertools

import pytest

from spark_log.facts.groups import describe_groups
from spark_log.failpoints import POINTS
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.ids import TopicPartition
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.child_programs import producer_value
from tests.support.children import Child
from tests.support.records import SMALL_TAILS
from tests.support.topics import contents
from tests.support.transaction_programs import GROUP, SOURCE, TARGET, transformed
from tests.support.waiting import wait_until

PARTITIONS = 2
LONG_MS, SHORT_MS = 30_000, 1_500


@pytest.fixture
def topics(cluster):
    for topic in (SOURCE, TARGET):
        create_topic(cluster, topic, PARTITIONS, configs=SMALL_TAILS)


@pytest.fixture
def fill(produce, topics):
    """A function that appends `count` records to each partition of the source."""
    producer, numbers = produce(), itertools.count()

    def add(count):
        for number in itertools.islice(numbers, count * PARTITIONS):
            producer.send(SOURCE, producer_value("v", number), b"k%d" % number, partition=number % PARTITIONS)
        producer.flush()

    return add


def check_copy(cluster, log, count):
    """The target equals the source, in order and without duplicates; the group is at the end."""
    source, target = contents(log, SOURCE), contents(log, TARGET)
    assert target == {partition: [transformed(text) for text in texts] for partition, texts in source.items()}
    assert committed_offsets(cluster.store, GROUP) == all_at(count)


def all_at(offset):
    return {TopicPartition(SOURCE, number): offset for number in range(PARTITIONS)}


@pytest.fixture
def copiers(cluster_address):
    """A function that starts copiers; they are killed at the end."""
    made = []

    def start(name, *lives, session_ms=LONG_MS, instance="-"):
        command = ("tests.support.transaction_programs", "copy_loop", cluster_address, name, session_ms, instance)
        made.append(Child(*command, *(lives or ("on",))))
        return made[-1]

    yield start
    for child in made:
        child.kill()


JOINING = ["group.changed", "group.target-decided", "group.target-written"]
COPYING = [point for point in POINTS if point.startswith(("transaction.", "append.", "file."))]
LATER = ["append.decided:3", "append.committed:3", "transaction.registered:5"]


@pytest.mark.slow
@pytest.mark.on_sqlite
def test_each_record_is_copied_once_when_a_copier_is_killed_at_every_step(cluster, log, fill, copiers):
    """A static member keeps its partitions, so that each life continues at once."""
    lives = [*JOINING, *COPYING, *LATER, "kill", "kill", "kill", "on"]
    fill(30)
    copier = copiers("one", *lives, instance="static")
    copier.end()
    assert copier.count("lived") == len(lives) - 1
    check_copy(cluster, log, 30)
    copied = [tuple(line[1:]) for line in copier.lines if line[0] == "copied"]
    assert len(copied) == len(set(copied)), "nor has it processed one twice that it said was done"


@pytest.mark.parametrize("cluster_address", ["postgres"], indirect=True)
def test_each_record_is_copied_once_when_a_copier_is_stopped_beyond_its_session(cluster, log, fill, copiers):
    """Another copier gets its partition meanwhile, and has copied the records that it had not committed."""
    one, two = (copiers(name, session_ms=SHORT_MS) for name in ("one", "two"))
    wait_until(lambda: settled(cluster))
    one.say("pause")
    one.waits_for(lambda child: child.printed("pausing"))
    fill(10)
    one.waits_for(lambda child: child.printed("paused"))
    one.stop(cluster.store)
    wait_until(lambda: committed_offsets(cluster.store, GROUP) == all_at(10))
    check_copy(cluster, log, 10)
    before = one.count("copied")
    one.go_on()
    one.waits_for(lambda child: child.printed("again") or child.count("copied") > before)
    assert one.printed("again", "CommitFailedError")
    assert one.count("copied") == before
    wait_until(lambda: settled(cluster))
    check_copy(cluster, log, 10)
    fill(5)
    wait_until(lambda: committed_offsets(cluster.store, GROUP) == all_at(15))
    for copier in (one, two):
        copier.end()
    check_copy(cluster, log, 15)


def settled(cluster):
    """Whether two members have a partition each."""
    found = describe_groups(cluster.store, [GROUP])
    return bool(found) and found[0].state == "Stable" and len(found[0].members) == PARTITIONS
