"""A log dir or object storage fails in a read of a share group: the next replica is read, or nothing is acquired, and
the rest goes on.
"""

import threading

import pytest

from spark_log import ShareConsumer
from spark_log.cluster.settings import alter_settings
from spark_log.errors import CorruptRecordError, SparkLogError, StorageUnavailableError
from spark_log.groups.consumer import rows as group_rows
from spark_log.groups.share import start_lookups
from spark_log.groups.share.acquisition_rules import Request
from spark_log.groups.share.administration import alter_group_configs
from spark_log.groups.share.looks import look
from spark_log.groups.share.rules import Acknowledgement, AcknowledgeType
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.disk_faults import replicas_of
from tests.support.gateway_wire import WireConnection
from tests.support.s3 import also_on_s3, give_up_at_once
from tests.support.server_processes import GatewayProcess
from tests.support.share_members import ShareMember, WireShareMember, only_offer
from tests.support.topics import append, make
from tests.support.waiting import LIMIT_S, wait_until

FILES = {"inline.max.bytes": "0"}
COUNT = 4


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    give_up_at_once(monkeypatch)


@pytest.fixture(autouse=True)
def earliest(request):
    cluster = request.getfixturevalue("three_brokers" if "three_brokers" in request.fixturenames else "cluster")
    alter_group_configs(cluster.store, "workers", {"share.auto.offset.reset": "earliest"})


class Lost:
    """The files of a partition's segments, which are gone until `restore`."""

    def __init__(self, cluster, topic, partition=0, replicas=None):
        log = ClientLog(cluster)
        files = [file for segment in replicas_of(cluster, log, topic) for file in segment[:replicas]]
        log.close()
        self._files = {file: file.read() for file in files if f"/{partition}/" in repr(file)}
        assert self._files
        for file in self._files:
            file.write(None)

    def restore(self):
        for file, content in self._files.items():
            file.write(content)


def offsets_of(acquired):
    return {key[1]: [offset for r in ranges for offset in range(r.first, r.end)] for key, ranges in acquired.items()}


def untouched(cluster, partition=0):
    """Whether nothing of the partition was acquired."""
    offers = look(cluster.store, "workers").offers
    [offer] = (offer for key, offer in offers.items() if key[1] == partition)
    return (offer.next_offset, offer.unfinished) == (0, 0)


@also_on_s3
def test_the_next_replica_is_read(three_brokers):
    cluster = three_brokers
    topic = create_topic(cluster, "t", 1, 3, configs=FILES)
    log = ClientLog(cluster)
    for number in range(COUNT):
        append(log, topic, str(number))
    log.close()
    Lost(cluster, topic, replicas=2)
    member = ShareMember(cluster)
    assert offsets_of(member.poll()) == {0: [0, 1, 2, 3]}
    assert list(member.values().values()) == ["0", "1", "2", "3"]


@also_on_s3
def test_nothing_is_acquired_that_cannot_be_read(cluster, log):
    topic = make(cluster, "t", inline_max_bytes="0")
    for number in range(COUNT):
        append(log, topic, str(number))
    lost = Lost(cluster, topic)
    member = ShareMember(cluster)
    for _ in range(2):
        with pytest.raises(SparkLogError):
            member.poll()
        assert untouched(cluster)
    lost.restore()
    [ranges] = member.poll().values()
    assert [(r.first, r.end, r.deliveries) for r in ranges] == [(0, COUNT, 1)]


def test_a_partition_that_cannot_be_read_stops_no_other(cluster, log):
    """Neither their records, nor acknowledgements, also of its own."""
    topic = make(cluster, "t", 3, inline_max_bytes="0")
    member = ShareMember(cluster)
    for partition in range(3):
        append(log, topic, "first", partition=partition)
    acquired = {}
    while len(acquired) < 3:
        acquired |= member.poll()
    for partition in range(3):
        append(log, topic, "second", partition=partition)
    lost = Lost(cluster, topic, partition=1)
    acks = {
        key: [Acknowledgement(r.first, r.end, r.lock, member.member, AcknowledgeType.ACCEPT) for r in ranges]
        for key, ranges in acquired.items()
    }
    result = member._polls.poll("workers", Request(member.member), member.assigned, acks)
    assert list(result.errors.values()) == [None] * 3
    found = {taken.key[1] for taken in result.taken}
    while len(found) < 2:
        found |= offsets_of(member.poll()).keys()
    assert found == {0, 2}
    with pytest.raises(SparkLogError):
        member.poll()
    assert [offer.start_offset for offer in look(cluster.store, "workers").offers.values()] == [1, 1, 1]
    lost.restore()
    assert offsets_of(member.poll()) == {1: [1]}


def test_acknowledgements_count_although_nothing_can_be_read(cluster, log):
    """Their outcome is returned first. The next poll raises the error."""
    topic = make(cluster, "t", inline_max_bytes="0")
    member = ShareMember(cluster)
    append(log, topic, "first")
    [(key, [r])] = member.poll().items()
    append(log, topic, "second")
    Lost(cluster, topic)
    acks = {key: [Acknowledgement(r.first, r.end, r.lock, member.member, AcknowledgeType.ACCEPT)]}
    result = member._polls.poll("workers", Request(member.member), member.assigned, acks, timeout_s=0.05)
    assert (result.errors, result.taken) == ({key: None}, ())
    offer = only_offer(cluster)
    assert (offer.start_offset, offer.unfinished) == (1, 0)
    with pytest.raises(SparkLogError):
        member.poll()


@pytest.mark.on_sqlite
def test_a_consumer_waits_for_storage_that_comes_back(cluster, cluster_address, log, monkeypatch, caplog):
    """As a Consumer, it returns nothing at its time limit."""
    append(log, make(cluster, "t"), "a")
    with ShareConsumer("t", cluster=cluster_address, group_id="workers", retry_backoff_ms=5) as consumer:
        reads = consumer._polling._polls._reads
        readable, failures = reads.readable, iter(range(3))

        def fail(*arguments):
            for _ in failures:
                raise StorageUnavailableError("the mount is gone")
            return readable(*arguments)

        monkeypatch.setattr(reads, "readable", fail)
        assert consumer.poll() == {} and untouched(cluster)
        assert "poll: tried again in 5 ms: the mount is gone" in caplog.text
        [records] = consumer.poll(20_000).values()
        assert next(failures, None) is None
        assert [(record.value, record.delivery_count) for record in records] == [(b"a", 1)]


@pytest.mark.on_sqlite
def test_a_consumer_raises_the_error_of_records_that_are_lost(cluster, cluster_address, log):
    topic = make(cluster, "t", inline_max_bytes="0")
    append(log, topic, "a")
    lost = Lost(cluster, topic)
    with ShareConsumer("t", cluster=cluster_address, group_id="workers") as consumer:
        with pytest.raises(CorruptRecordError):
            consumer.poll(20_000)
        assert untouched(cluster)
        lost.restore()
        assert [len(records) for records in consumer.poll(20_000).values()] == [1]


@pytest.mark.on_sqlite
def test_a_gateway_answers_although_nothing_can_be_read(cluster, cluster_address, log, tmp_path):
    topic = make(cluster, "t", inline_max_bytes="0")
    append(log, topic, "first")
    with GatewayProcess(tmp_path, cluster_address) as gateway, WireConnection(gateway.port) as connection:
        member = WireShareMember(connection, topic)
        member.join()
        assert member.acquire() == [(0, 0, 1)]
        append(log, topic, "second")
        lost = Lost(cluster, topic)
        answer = member.send(member.fetch_request([(0, 0, [1])]))
        [part] = answer.responses[0].partitions
        assert (answer.error_code, part.acknowledge_error_code, part.acquired_records) == (0, 0, [])
        answer = connection.exchange(member.fetch_request(), 2)
        assert answer.error_code != 0
        member.epoch += 1
        lost.restore()
        assert member.acquire() == [(1, 1, 1)]


HOUR_MS = 3_600_000


@pytest.fixture
def by_time(cluster, log, monkeypatch):
    """Topics `good` and `bad`, which have records of two hours ago and of now. Group `workers` begins at those of the
    last hour, but the files of `bad` are lost until the returned object restores them.
    """
    alter_group_configs(cluster.store, "workers", {"share.auto.offset.reset": "by_duration:PT1H"})
    names = ("group.share.min.heartbeat.interval.ms", "group.share.heartbeat.interval.ms")
    alter_settings(cluster, dict.fromkeys(names, "20"))
    monkeypatch.setattr(start_lookups, "_AGAIN_S", 0.05)
    now_ms = cluster.store.now().wall_ms
    for name in ("good", "bad"):
        topic = make(cluster, name, inline_max_bytes="0")
        for since_ms in (2 * HOUR_MS, 0):
            append(log, topic, f"{name} of {since_ms}", timestamp_ms=now_ms - since_ms)
    return Lost(cluster, topic)


def session_end_ms(cluster):
    [member] = cluster.store.read(lambda connection: group_rows.read_members(connection, "workers"))
    return member.until_ms


def polled(consumer):
    return [record.value.decode() for records in consumer.poll(50).values() for record in records]


def test_a_topic_in_which_a_group_cannot_begin_by_time_stops_no_other_topic(cluster_address, by_time, caplog):
    """The group begins there once the files can be read."""
    with ShareConsumer("good", "bad", cluster=cluster_address, group_id="workers") as consumer:
        assert wait_until(lambda: polled(consumer)) == ["good of 0"]
        wait_until(lambda: "share group 'workers' cannot begin to read topic 'bad': " in caplog.text)
        by_time.restore()
        assert wait_until(lambda: polled(consumer)) == ["bad of 0"]


@pytest.mark.on_sqlite
def test_a_session_goes_on_while_the_start_of_its_group_is_looked_up(cluster, cluster_address, by_time, monkeypatch):
    names = ("group.share.min.session.timeout.ms", "group.share.session.timeout.ms")
    alter_settings(cluster, dict.fromkeys(names, "300"))
    find, goes_on, begun = start_lookups.find_starts, threading.Event(), []

    def hanging(*arguments):
        begun.append(arguments[1])
        assert goes_on.wait(LIMIT_S)
        return find(*arguments)

    monkeypatch.setattr(start_lookups, "find_starts", hanging)
    with ShareConsumer("good", cluster=cluster_address, group_id="workers") as consumer:
        assert polled(consumer) == []
        ends_ms = session_end_ms(cluster)
        wait_until(lambda: session_end_ms(cluster) > ends_ms)
        assert begun == ["workers"]
        goes_on.set()
        assert wait_until(lambda: polled(consumer)) == ["good of 0"]


@pytest.mark.on_sqlite
def test_a_member_at_a_gateway_reads_the_topics_in_which_its_group_can_begin(
    cluster, cluster_address, log, by_time, tmp_path
):
    with GatewayProcess(tmp_path, cluster_address) as gateway, WireConnection(gateway.port) as connection:
        member = WireShareMember(connection, log.find_topic("good"))
        member.join(["good", "bad"])
        assert member.acquire() == [(1, 1, 1)]
