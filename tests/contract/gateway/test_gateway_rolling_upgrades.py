"""Groups with members of the classic and of the consumer protocol, and gateways that are killed."""

from collections import Counter

import confluent_kafka as rdkafka
import pytest

from spark_log import Consumer
from spark_log.cluster.settings import alter_settings
from spark_log.facts.groups import describe_groups
from tests.support.consumer_members import (
    Ownership,
    RollingReader,
)
from tests.support.topics import make
from tests.support.waiting import wait_until


@pytest.fixture
def many_heartbeats(cluster):
    alter_settings(cluster, {"group.consumer.heartbeat.interval.ms": "100"})


@pytest.fixture
def gateways(many_heartbeats, gateways):
    return gateways


CLASSIC = {"partition.assignment.strategy": "cooperative-sticky", "heartbeat.interval.ms": 100}


EAGER = {"partition.assignment.strategy": "range", "heartbeat.interval.ms": 100}


CONSUMER = {"group.protocol": "consumer"}


class Rolling:
    """Readers of one group, and a producer that does not rest."""

    def __init__(self, cluster, gateways):
        self.servers = ",".join(each.address for each in gateways)
        self.cluster, self.ownership, self.readers, self.sent = cluster, Ownership(), [], 0
        self.running = {}
        self._producer = rdkafka.Producer({"bootstrap.servers": self.servers, "linger.ms": 1})

    def produce(self, count):
        for number in range(self.sent, self.sent + count):
            self._producer.produce("t", b"%d" % number, partition=number % 6)
        self.sent += count
        assert self._producer.flush(60) == 0

    def start(self, place, protocol):
        """A reader in the place of the one before, which is closed first."""
        if place in self.running:
            self.running.pop(place).stop()
        reader = self.reader(f"{place}-{len(self.readers)}", protocol)
        self.running[place] = reader
        self.produce(200)
        self.until_balanced()

    def reader(self, name, protocol):
        settings = {
            "bootstrap.servers": self.servers, "group.id": "g", "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 200, "fetch.wait.max.ms": 50, "reconnect.backoff.max.ms": 200, **protocol,
        }  # fmt: skip
        self.readers.append(RollingReader(name, settings, ["t"], self.ownership))
        return self.readers[-1]

    def until_balanced(self):
        def balanced():
            return all(self.ownership.count(each.name) == 6 // len(self.running) for each in self.running.values())

        wait_until(balanced, "the partitions are not balanced")

    def finish(self):
        """Everything is read; returns how often each record was."""
        wanted = {b"%d" % number for number in range(self.sent)}
        wait_until(lambda: wanted <= {value for each in self.readers for value in each.seen}, "records are missing")
        for reader in self.running.values():
            reader.stop()
        return Counter(value for each in self.readers for value in each.seen)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cluster_address", "classic"),
    [pytest.param("postgres", CLASSIC, id="postgres-cooperative"), pytest.param("sqlite", EAGER, id="sqlite-eager")],
    indirect=["cluster_address"],
)
def test_rolling_upgrade_and_downgrade_lose_and_double_nothing(cluster, gateways, classic):
    make(cluster, "t", 6)
    # It is also librdkafka's time limit of a heartbeat. After a lost one, the member may be fenced.
    alter_settings(cluster, {"group.consumer.heartbeat.interval.ms": "1000"})
    rolling = Rolling(cluster, gateways)
    try:
        for protocol in (classic, CONSUMER, classic):
            for place in range(2):
                rolling.start(place, protocol)
            [described] = describe_groups(cluster.store, ["g"])
            assert described.type == ("consumer" if protocol is CONSUMER else "classic")
        read = rolling.finish()
    finally:
        for reader in rolling.running.values():
            reader.stop()
    twice = sorted(int(value) for value, times in read.items() if times > 1)
    assert (twice, rolling.ownership.twice, rolling.ownership.lost) == ([], [], 0)


@pytest.mark.on_sqlite
def test_consumers_of_spark_log_and_both_protocols_share_a_group_and_gateways_are_killed(
    cluster, cluster_address, gateways
):
    make(cluster, "t", 6)
    # It is also librdkafka's time limit of a heartbeat. After a lost one, the member may be fenced.
    alter_settings(cluster, {"group.consumer.heartbeat.interval.ms": "1000"})
    rolling = Rolling(cluster, gateways)
    ours = Consumer(
        "t", cluster=cluster_address, group_id="g", auto_offset_reset="earliest", heartbeat_interval_ms=100,
        partition_assignment_strategy=["range", "cooperative-sticky"],
    )  # fmt: skip
    seen = []

    def poll():
        seen.extend(record.value for records in ours.poll(timeout_ms=50).values() for record in records)

    try:
        poll()
        rolling.running = {0: rolling.reader("new", CONSUMER), 1: rolling.reader("old", CLASSIC)}

        def shared():
            poll()
            return len(ours.assignment()) == rolling.ownership.count("new") == rolling.ownership.count("old") == 2

        for gateway in (None, *gateways):
            if gateway is not None:
                gateway.kill()
                gateway.start()
            rolling.produce(300)
            wait_until(shared, "the partitions are not shared")
        wanted = {b"%d" % number for number in range(rolling.sent)}

        def complete():
            poll()
            return wanted <= {*seen, *(value for each in rolling.readers for value in each.seen)}

        wait_until(complete, "records are missing")
    finally:
        for reader in rolling.running.values():
            reader.stop()
        ours.close()
    assert rolling.ownership.twice == []
