"""Replicas move while a producer writes and a consumer reads, and while the moving process is killed."""

import os
import threading
from collections import defaultdict

import pytest

from spark_log import Consumer, Producer
from spark_log.cluster.cluster import Cluster
from spark_log.config import ClusterSettings
from spark_log.facts.topics import describe_topics
from spark_log.ids import TopicPartition
from spark_log.maintenance.coordinator.coordinator import Coordinator, controller_status
from spark_log.metadata import tables as t
from spark_log.replication.controller.reassignment_rows import list_reassignments
from spark_log.replication.controller.reassignments import begin_reassignments
from spark_log.replication.replicas import followers, replica_moves
from spark_log.replication.replicas.replica_moves import run_reassignments
from spark_log.replication.replicas.throttle import Throttle
from spark_log.tables.publication import try_publish
from tests.support.python_process import killed_at
from tests.support.records import read_all
from tests.support.replicas import add_brokers, assigned, topic_on
from tests.support.stores import change
from tests.support.table_checks import assert_delta_is_the_log, assert_replicas_are_whole
from tests.support.topics import append
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.delta, pytest.mark.on_sqlite]

SETTINGS = ClusterSettings()
SMALL_TAILS = {"inline_max_bytes": "2000", "inline_tail_bytes": "4000"}


@pytest.fixture
def brokers(cluster, tmp_path):
    add_brokers(cluster, tmp_path, 2, 3, 4)
    return cluster


class Traffic:
    """A producer that writes numbered records until it is stopped, and a consumer that reads them all."""

    def __init__(self, address, topic):
        self.acked = {}
        self.read = []
        self.failures = []
        self._address, self._topic = address, topic
        self._stop, self._progress = threading.Event(), threading.Condition()
        self._all_sent = None
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in (self._produce, self._consume)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in self._threads)

    def wait_for_progress(self, count=50):
        """Wait until `count` more records have been acknowledged and `count` more have been read."""
        with self._progress:
            acked, read = len(self.acked) + count, len(self.read) + count
            self._progress.wait_for(lambda: self.failures or (len(self.acked) >= acked and len(self.read) >= read), 60)
            assert self.failures == []
            assert len(self.acked) >= acked
            assert len(self.read) >= read

    def _run(self, work):
        try:
            work()
        except BaseException as error:
            with self._progress:
                self.failures.append(error)
                self._progress.notify_all()
            self._stop.set()

    def _produce(self):
        with Producer(cluster=self._address, acks="all", linger_ms=5) as producer:
            number = 0
            while not self._stop.is_set():
                futures = []
                for _ in range(10):
                    value = b"%d-" % number + os.urandom(400 if number % 10 == 9 else 10).hex().encode()
                    futures.append((number, producer.send(self._topic, value, b"k%d" % (number % 7))))
                    number += 1
                for sent, future in futures:
                    metadata = future.get(60)
                    with self._progress:
                        self.acked[sent] = (metadata.partition, metadata.offset)
                        self._progress.notify_all()
            self._all_sent = number

    def _consume(self):
        with Consumer(self._topic, cluster=self._address, auto_offset_reset="earliest", group_id=None) as consumer:
            while self._all_sent is None or len(self.read) < self._all_sent:
                for records in consumer.poll(200).values():
                    with self._progress:
                        self.read += [(int(r.value.split(b"-")[0]), (r.partition, r.offset)) for r in records]
                        self._progress.notify_all()
                if self.failures:
                    return


def everything_arrived_once_and_in_order(traffic):
    assert traffic.failures == []
    assert sorted(traffic.acked) == list(range(len(traffic.acked))), "every record was acknowledged"
    assert dict(traffic.read) == traffic.acked, "each was read at its acknowledged offset"
    assert len(traffic.read) == len(traffic.acked), "none twice"
    of_key, offsets = defaultdict(list), defaultdict(list)
    for number, (partition, offset) in traffic.read:
        of_key[number % 7].append(number)
        offsets[partition].append(offset)
    assert all(numbers == sorted(numbers) for numbers in of_key.values())
    assert all(found == list(range(len(found))) for found in offsets.values())


def test_producer_and_consumer_continue_during_a_reassignment(brokers, cluster_address, log):
    topic = topic_on(brokers, "t", [[1, 2], [2, 1]], **SMALL_TAILS)
    both = [TopicPartition("t", 0), TopicPartition("t", 1)]
    with Traffic(cluster_address, "t") as traffic:
        traffic.wait_for_progress()
        for target in ([2, 3], [3, 4]):
            begin_reassignments(brokers, dict.fromkeys(both, target), 50_000_000)
            run_reassignments(brokers, SETTINGS, both)
            assert assigned(brokers, "t") == [target, target]
            traffic.wait_for_progress()
        begin_reassignments(brokers, {both[0]: [1, 2], both[1]: [1, 2]})
        traffic.wait_for_progress(10)
        begin_reassignments(brokers, dict.fromkeys(both))
        assert assigned(brokers, "t") == [[3, 4], [3, 4]]
        traffic.wait_for_progress()
    everything_arrived_once_and_in_order(traffic)
    partitions = describe_topics(brokers, ["t"])[0].partitions
    assert all(part.isr == (3, 4) and part.high_watermark == part.log_end_offset for part in partitions)
    log.seal(topic, [0, 1])
    assert_delta_is_the_log(brokers)
    assert_replicas_are_whole(brokers)


def test_the_controller_copies_and_switches_replicas(brokers, cluster_address, log, monkeypatch):
    class Idle(followers.Followers):
        def wake(self):
            raise AssertionError("the requesting process must only watch")

    monkeypatch.setattr(replica_moves, "Followers", Idle)
    topic = topic_on(brokers, "t", [[1, 2]], **SMALL_TAILS)
    partition = TopicPartition("t", 0)
    with Cluster.open(cluster_address) as own, Coordinator(own) as coordinator:
        wait_until(lambda: coordinator.controller.acting)
        term = controller_status(brokers).epoch
        with Traffic(cluster_address, "t") as traffic:
            traffic.wait_for_progress()
            begin_reassignments(brokers, {partition: [2, 3]})
            run_reassignments(brokers, SETTINGS, [partition])
            traffic.wait_for_progress()
        assert assigned(brokers, "t") == [[2, 3]]
        assert controller_status(brokers).epoch == term, "no other process was the controller"
    everything_arrived_once_and_in_order(traffic)
    log.seal(topic, [0])
    try_publish(brokers, [topic])  # the coordinator may have sealed all, and ended before it published
    assert_delta_is_the_log(brokers)
    assert_replicas_are_whole(brokers)


def test_a_throttle_limits_all_copies_together(brokers, log, monkeypatch):
    taken = defaultdict(int)

    class Counting(Throttle):
        def __init__(self, bytes_per_s):
            super().__init__(bytes_per_s)
            self.bytes_per_s = bytes_per_s

        def take(self, size):
            taken[self] += size
            return super().take(size)

    monkeypatch.setattr(followers, "Throttle", Counting)
    topic_on(brokers, "t", [[1], [1]], inline_max_bytes="0")
    for partition in (0, 1, 0, 1):
        append(log, "t", *(os.urandom(40).hex() for _ in range(200)), partition=partition)
    both = [TopicPartition("t", 0), TopicPartition("t", 1)]
    begin_reassignments(brokers, {tp: [2] for tp in both}, 1_000_000)
    left = []
    run_reassignments(
        brokers, SETTINGS, both, lambda status: left.append(sum(one.bytes_left for one in status.values()))
    )
    [throttle] = taken
    assert throttle.bytes_per_s == 1_000_000
    assert taken[throttle] == left[0] > 0
    assert left == sorted(left, reverse=True)
    assert left[-1] == 0
    assert assigned(brokers, "t") == [[2], [2]]


@pytest.mark.parametrize(
    "point", ["reassignment.begun", "copy.file-written:2", "copy.committed", "reassignment.switched"]
)
def test_another_process_continues_after_the_moving_process_is_killed(point, brokers, cluster_address, log):
    topic = topic_on(brokers, "t", [[1, 2], [2, 1]], inline_max_bytes="0")
    for number in range(6):
        append(log, "t", str(number), partition=number % 2)
    program = "from spark_log.cli.main import app; app()"
    arguments = ["partition", "reassign", "--to-brokers", "3,4", "--cluster", cluster_address]
    killed_at(point, "-c", program, *arguments)
    change(brokers, t.lease.update().values(until_ms=0))  # instead of waiting for the end of its lease
    for number in range(6, 8):
        append(log, "t", str(number), partition=number % 2)
    run_reassignments(brokers, SETTINGS, list(list_reassignments(brokers.store)))
    assert sorted(map(sorted, assigned(brokers, "t"))) == [[3, 4], [3, 4]]
    assert all(len(part.isr) == 2 for part in describe_topics(brokers, ["t"])[0].partitions)
    for number in range(8, 10):
        append(log, "t", str(number), partition=number % 2)
    values = [(partition, int(value)) for partition, _, value in read_all(log, topic)]
    assert values == [(number % 2, number) for number in (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)]
    assert_delta_is_the_log(brokers)
    assert_replicas_are_whole(brokers)
