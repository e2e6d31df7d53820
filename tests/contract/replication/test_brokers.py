"""Three served brokers, producers and consumers in separate processes; they are killed, stopped, or lose log dirs."""

import shutil
import signal
from collections import Counter

import pytest
import sqlalchemy as sa

from spark_log.cluster.brokers import list_brokers
from spark_log.facts.topics import describe_topics
from spark_log.ids import TopicPartition
from spark_log.maintenance.coordinator.coordinator import controller_status
from spark_log.metadata import tables as t
from spark_log.replication.controller.reassignment_rows import list_reassignments
from spark_log.replication.controller.reassignments import begin_reassignments
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.child_programs import producer_value
from tests.support.children import Child
from tests.support.server_processes import BrokerProcess
from tests.support.table_checks import assert_replicas_are_whole
from tests.support.topics import contents
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("test_brokers.py")
"""One after the other: each has seven busy processes, and followers do not catch up if three tests share two cores."""

PARTITIONS = 3
PROGRAMS = "tests.support.child_programs"
CONFIGS = {"inline.max.bytes": "1500", "inline.tail.bytes": "20000"}
"""Every tenth record of a steady producer is a file, and the tails between them are sealed from time to time."""


class World:
    """The cluster, the processes of its brokers, and queries of its state."""

    def __init__(self, folder, address, cluster):
        self.folder, self.address, self.cluster = folder, address, cluster
        self.topic = create_topic(self.cluster, "t", PARTITIONS, replication_factor=3, configs=CONFIGS)
        self.brokers = {broker: BrokerProcess(folder, address, broker) for broker in (1, 2, 3)}
        self.steady = []

    def start(self):
        for broker in self.brokers.values():
            broker.start()
        wait_until(lambda: all(status.lease_left_ms for status in list_brokers(self.cluster)), "three brokers serve")
        wait_until(lambda: self.controller() is not None, "one of them is the controller")

    def close(self):
        for child in self.steady:
            child.kill()
        for broker in self.brokers.values():
            broker.kill()

    def produce(self, name):
        self.steady.append(Child(PROGRAMS, "numbered_producer", self.address, "t", name))
        return self.steady[-1]

    def consume(self, name):
        self.steady.append(Child(PROGRAMS, "numbered_consumer", self.address, "t", name, 1, 30_000))
        return self.steady[-1]

    def partitions(self):
        return describe_topics(self.cluster, ["t"])[0].partitions

    def controller(self):
        """The broker that is the controller; None while there is none."""
        status = controller_status(self.cluster)
        if not status.left_ms:
            return None
        process = status.holder.split("-")[-2]
        return next((b for b, one in self.brokers.items() if one.running and str(one.pid) == process), None)

    def in_sync(self, *brokers):
        return all(set(part.isr) == set(brokers) and part.leader in brokers for part in self.partitions())

    def leader(self):
        return self.partitions()[0].leader

    def wait_for_progress(self, producers):
        before = [len(one.acked()) for one in producers]
        wait_until(
            lambda: all(len(one.acked()) > count + 50 for one, count in zip(producers, before, strict=True)),
            "progress of the writers",
        )


@pytest.fixture
def cluster(three_brokers):
    return three_brokers


@pytest.fixture
def world(cluster, cluster_address, tmp_path):
    world = World(tmp_path, cluster_address, cluster)
    yield world
    world.close()


def check(world, log, producers, consumer):
    """Each acknowledged record is in the log once, in order, at its offset; the consumer has processed each once."""
    for one in producers.values():
        one.end()
    found = contents(log, "t")
    everything = [text for values in found.values() for text in values]
    assert max(Counter(everything).values()) == 1, "nothing twice"
    for name, one in producers.items():
        acked = one.acked()
        ((sent,),) = one.said("sent")
        assert len(acked) == int(sent), "every record was acknowledged"
        for number, (partition, offset) in acked.items():
            assert found[partition][offset] == producer_value(name, number)
        for values in found.values():
            mine = [int(text.split(b"-")[1]) for text in values if text.startswith(name.encode() + b"-")]
            assert mine == sorted(mine), "a producer's records keep their order in a partition"
    wait_until(lambda: consumer.count("processed") >= len(everything), "the consumer comes to the end")
    processed = [(int(p), int(offset), text.encode()) for p, offset, text in consumer.said("processed")]
    expected = {(p, offset, text) for p, values in found.items() for offset, text in enumerate(values)}
    assert len(processed) == len(expected) and set(processed) == expected
    for partition in found:
        offsets = [offset for p, offset, _ in processed if p == partition]
        assert offsets == sorted(offsets)
    assert_replicas_are_whole(world.cluster)


@pytest.mark.slow
@pytest.mark.parametrize("cluster_address", ["postgres"], indirect=True)
def test_leaders_followers_and_controllers_are_killed(world, log):
    """One store is enough: test_elections and test_group_crashes have elections and killed coordinators on both."""
    world.start()
    producers = {name: world.produce(name) for name in ("a", "b")}
    consumer = world.consume("g")
    world.wait_for_progress(producers.values())
    for who in ("leader", "controller", "follower"):
        victim = wait_until(
            {
                "leader": world.leader,
                "controller": world.controller,
                "follower": lambda: next(b for b in (1, 2, 3) if b not in (world.leader(), world.controller())),
            }[who],
            f"there is a {who}",  # its lease may have run out a moment ago
        )
        world.brokers[victim].kill()
        survivors = {1, 2, 3} - {victim}
        wait_until(lambda survivors=survivors: world.in_sync(*survivors), f"{who} {victim} is taken out")
        wait_until(lambda survivors=survivors: world.controller() in survivors, "there is a controller")
        world.wait_for_progress(producers.values())
        world.brokers[victim].start()
        wait_until(lambda: world.in_sync(1, 2, 3), f"{who} {victim} comes back in")
    wait_until(lambda: len({part.leader for part in world.partitions()}) == 3, "preferred leaders lead again")
    check(world, log, producers, consumer)


@pytest.mark.slow
@pytest.mark.parametrize("cluster_address", ["postgres"], indirect=True)
def test_brokers_are_stopped_for_longer_than_their_lease(world, log):
    """On SQLite a process that is stopped inside a transaction holds the lock of the file and blocks all others."""
    world.start()
    producers = {"a": world.produce("a")}
    consumer = world.consume("g")
    world.wait_for_progress(producers.values())
    for who in (world.leader, world.controller):
        victim = wait_until(who)
        world.brokers[victim].signal(signal.SIGSTOP)
        survivors = {1, 2, 3} - {victim}
        wait_until(lambda survivors=survivors: world.in_sync(*survivors), f"broker {victim} is taken out")
        wait_until(lambda survivors=survivors: world.controller() in survivors, "there is a controller")
        world.wait_for_progress(producers.values())
        world.brokers[victim].signal(signal.SIGCONT)
        wait_until(lambda: world.in_sync(1, 2, 3), f"broker {victim} comes back in")
    check(world, log, producers, consumer)


@pytest.mark.slow
@pytest.mark.parametrize("cluster_address", ["sqlite"], indirect=True)
def test_a_log_dir_is_moved_away_and_brought_back_empty(world, log, tmp_path):
    """Only the storage fails here, so one store is enough; test_failover has it on both."""
    world.start()
    producers = {name: world.produce(name) for name in ("a", "b")}
    consumer = world.consume("g")
    world.wait_for_progress(producers.values())
    for victim in (wait_until(world.leader), 2):
        survivors = {1, 2, 3} - {victim}
        (tmp_path / f"d{victim}").rename(tmp_path / "away")
        wait_until(lambda survivors=survivors: world.in_sync(*survivors), f"log dir {victim} is taken out")
        world.wait_for_progress(producers.values())
        shutil.rmtree(tmp_path / "away")
        (tmp_path / f"d{victim}").mkdir(exist_ok=True)  # a writer may have created the folder again
        wait_until(lambda: world.in_sync(1, 2, 3), f"log dir {victim} has caught up")
        world.wait_for_progress(producers.values())
    check(world, log, producers, consumer)


@pytest.mark.parametrize("cluster_address", ["sqlite"], indirect=True)
def test_the_processes_carry_out_a_reassignment(world, log):
    """The requesting process may end: brokers copy, and the controller switches. test_reassignment_traffic has a
    reassignment by processes on both stores.
    """
    world.start()
    producers = {"a": world.produce("a")}
    consumer = world.consume("g")
    world.wait_for_progress(producers.values())
    for target in ([2, 3], [3, 2, 1]):
        begin_reassignments(world.cluster, {TopicPartition("t", number): target for number in range(PARTITIONS)})
        wait_until(lambda: not list_reassignments(world.cluster.store), f"{target} is reached")
        assert all([r.broker_id for r in part.replicas] == target for part in world.partitions())
        world.wait_for_progress(producers.values())
    check(world, log, producers, consumer)


@pytest.mark.parametrize("cluster_address", ["sqlite"], indirect=True)
def test_records_of_acks_1_that_were_lost_are_reported(world, log, tmp_path):
    """The first of the three classic ways to lose a message: acks=1. One store is enough: test_elections has both."""
    create_topic(world.cluster, "files", replication_factor=3, configs={"inline.max.bytes": "0"})
    world.start()
    for broker in world.brokers.values():
        broker.kill()  # at once: no process is left to shrink the ISR or to copy
    world.cluster.store.transact(lambda c: c.execute(t.partition.update().values(leader=1)))
    producer = Child(PROGRAMS, "numbered_producer", world.address, "files", "a", "acks=1")
    world.steady.append(producer)
    wait_until(lambda: len(producer.acked()) >= 20, "acknowledged by the leader alone")
    producer.end()
    acked = producer.acked()
    assert contents(log, "files") == {}, "readers wait for the ISR"
    shutil.rmtree(tmp_path / "d1")
    for broker in (2, 3):
        world.brokers[broker].start()
    wait_until(lambda: describe_topics(world.cluster, ["files"])[0].partitions[0].leader in (2, 3), "a new leader")
    assert contents(log, "files") == {}
    with world.cluster.store.snapshot() as connection:
        (loss,) = connection.execute(sa.select(t.truncation)).all()
    lost = sorted(offset for _, offset in acked.values())
    assert list(range(loss.start_offset, loss.end_offset)) == lost
    assert (loss.record_count, loss.unclean, loss.high_watermark) == (len(lost), False, 0)
