"""Followers catch up: they copy whole segments in order and verify them; no LEO ever covers a missing segment."""

import logging
import os
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from spark_log.cluster.brokers import BrokerSession, add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import COORDINATOR, Lease, unfenced
from spark_log.cluster.log_dir import LogDir
from spark_log.config.values import LEASE_MS_MAX
from spark_log.errors import (
    CorruptRecordError,
    NotLeaderForPartitionError,
    StorageUnavailableError,
    UnknownTopicOrPartitionError,
)
from spark_log.facts.topics import describe_topics
from spark_log.log.log import Records
from spark_log.log.segments.segment_copy import is_whole
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import SEGMENT
from spark_log.replication.controller.controller import elect_leaders
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from spark_log.replication.replicas import catch_up as catch_up_module
from spark_log.replication.replicas import followers as followers_module
from spark_log.replication.replicas.catch_up import ReplicaCopy, catch_up
from spark_log.replication.replicas.followers import COPIES_MAX, OUT_OF_SYNC_COPIES_MAX, Followers
from spark_log.replication.replicas.replicas_to_copy import find_lagging_replicas
from spark_log.replication.replicas.throttle import Throttle
from tests.support.python_process import forkserver, killed_at
from tests.support.records import read_all, table
from tests.support.replicas import add_brokers, copied_segments
from tests.support.table_checks import assert_delta_is_the_log, assert_replicas_are_whole
from tests.support.topics import append, append_to
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = [pytest.mark.delta, pytest.mark.on_sqlite]

CONFIGS = {"inline.max.bytes": "1500", "delta.max.lag.ms": "-1"}
"""Values of `large` are written to files, short values into the tail, which only the tests seal."""


def large(text):
    return text + os.urandom(2_000).hex()


class Replicated:
    """A topic with replicas on brokers 1, 2 and 3; broker 1 leads every partition.

    Brokers 2 and 3 are served brokers without a process: they catch up when the test calls `catch_up`.
    """

    def __init__(self, cluster, log, folder, partitions=1):
        add_brokers(cluster, folder, 2, 3)
        for broker in (2, 3):
            BrokerSession(cluster.store, broker, LEASE_MS_MAX).register()
        self.cluster, self.log, self.folder = cluster, log, folder
        self.topic = create_topic(cluster, "t", partitions, 3, CONFIGS)
        self.sql(t.partition.update().values(leader=1))
        self.sql(t.replica.update().where(t.replica.c.broker_id == 1).values(preference=-1))
        self.values = []
        self.segments_copied = 0  # by the last call of `catch_up`

    def sql(self, *statements):
        self.cluster.store.transact(lambda connection: [connection.execute(each) for each in statements])

    def append(self, *values, acks=1, partition=0):
        append(self.log, self.topic, *values, partition=partition, acks=acks)
        self.values += values

    def leave(self, *brokers):
        """Take the brokers out of the ISR, as after a long lag."""
        gone = t.replica.c.broker_id.in_(brokers)
        self.sql(
            t.replica.update().where(gone).values(in_sync=False),
            t.partition.update().values(partition_epoch=t.partition.c.partition_epoch + 1),
        )

    def catch_up(self, broker, partition=0):
        with copied_segments() as copied:
            replica = catch_up(self.cluster, self.topic, partition, broker)
        self.segments_copied = len(copied)
        return replica

    def copying(self, broker, **options):
        return ReplicaCopy(self.cluster, self.topic, 0, broker, **options)

    def partition(self, number=0):
        [described] = describe_topics(self.cluster, ["t"])
        return described.partitions[number]

    def ends(self, number=0):
        return {replica.broker_id: replica.log_end_offset for replica in self.partition(number).replicas}

    def isr(self):
        return sorted(self.partition().isr)

    def files(self, broker):
        """Paths of the topic's files in the log dir of a broker, by offset; they need not exist."""
        [info] = [info for info in self.cluster.log_dirs().values() if info.broker_id == broker]
        query = sa.select(SEGMENT.name).where(~SEGMENT.inline).order_by(SEGMENT.base_offset)
        names = self.cluster.store.read(lambda connection: connection.execute(query).scalars().all())
        folder = Path(info.uri.removeprefix("file://"), self.topic.folder, "_segments", "0")
        return [folder / name for name in names]

    def embed(self):
        self.sql(t.broker.update().values(served=False, lease_until_ms=None, lease_clock_epoch=None))

    def is_whole(self):
        assert_replicas_are_whole(self.cluster)
        assert_delta_is_the_log(self.cluster)
        position = self.log.positions(self.topic)
        for tp, limits in position.items():
            assert limits.high_watermark == min(
                r.log_end_offset for r in self.partition(tp.partition).replicas if r.in_sync
            )


@pytest.fixture
def replicated(cluster, log, tmp_path):
    return Replicated(cluster, log, tmp_path)


def damage(path, *, same_size=True):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content) if same_size else bytes(content[:-7]))


def test_followers_copy_records_of_acks_1_and_the_high_watermark_advances(replicated):
    replicated.append(large("a"), large("b"))
    replicated.append(large("c"))
    assert replicated.ends() == {1: 3, 2: 0, 3: 0}
    assert replicated.partition().high_watermark == 0
    done = replicated.catch_up(2)
    assert (done.log_end_offset, done.in_sync, replicated.segments_copied) == (3, True, 2)
    assert replicated.partition().high_watermark == 0, "broker 3 has nothing yet, and is in sync"
    replicated.is_whole()
    replicated.catch_up(3)
    assert replicated.ends() == {1: 3, 2: 3, 3: 3}
    assert replicated.partition().high_watermark == 3
    replicated.is_whole()
    assert [value for _, _, value in read_all(replicated.log, replicated.topic)] == replicated.values
    assert (replicated.catch_up(3).log_end_offset, replicated.segments_copied) == (3, 0)
    replicated.append(large("d"), acks="all")


def test_a_replica_joins_the_isr_only_when_it_has_every_segment(replicated, monkeypatch):
    replicated.leave(2, 3)
    for letter in "abc":
        replicated.append(large(letter))
    assert replicated.partition().high_watermark == 3
    monkeypatch.setattr(catch_up_module, "RUN_FILES_MAX", 1)
    epoch = replicated.partition()
    step = replicated.copying(3)
    state, replica, pieces = step.plan()
    assert len(pieces) == 1
    assert step.copy(replica, pieces).error is None
    after = step.commit(state, replica, pieces)
    assert (after.replica(3).log_end_offset, after.replica(3).in_sync) == (1, False)
    done = replicated.catch_up(3)
    assert (done.log_end_offset, done.in_sync, replicated.segments_copied) == (3, True, 2)
    assert replicated.isr() == [1, 3]
    assert replicated.partition().leader_epoch == epoch.leader_epoch
    replicated.is_whole()
    replicated.append(large("d"), acks="all")
    assert replicated.ends() == {1: 4, 2: 0, 3: 4}


def test_blobs_need_no_copy_but_wait_for_the_files_before_them(replicated):
    replicated.append("blob")
    replicated.append(large("file"))
    replicated.append("blob", "blob")
    replicated.append(large("file"))
    replicated.append("blob")
    assert replicated.ends() == {1: 6, 2: 1, 3: 1}
    done = replicated.catch_up(2)
    assert (done.log_end_offset, replicated.segments_copied, done.in_sync) == (6, 2, True)
    for path in replicated.files(1)[1:]:
        damage(path)
    replicated.files(2)[1].unlink()
    with pytest.raises(CorruptRecordError):
        replicated.catch_up(3)
    assert replicated.ends()[3] == 4, "up to the file that no replica has"


def test_a_damaged_source_is_skipped(replicated):
    replicated.append(large("a"))
    replicated.append(large("b"))
    replicated.catch_up(2)
    damage(replicated.files(1)[0])
    replicated.files(1)[1].unlink()
    done = replicated.catch_up(3)
    assert (done.log_end_offset, done.in_sync) == (2, True)
    assert [p.read_bytes() for p in replicated.files(3)] == [p.read_bytes() for p in replicated.files(2)]


@pytest.mark.parametrize("same_size", [True, False])
def test_nothing_is_copied_if_every_source_is_damaged(replicated, same_size):
    replicated.append(large("a"))
    replicated.append(large("b"))
    replicated.catch_up(2)
    for broker in (1, 2):
        damage(replicated.files(broker)[1], same_size=same_size)
    with pytest.raises(
        CorruptRecordError, match=r"it whole: .* not what was written .*broker-2.* not what was written "
    ):
        replicated.catch_up(3)
    assert replicated.ends()[3] == 1, "what came before it is kept"
    assert replicated.isr() == [1, 2, 3]
    first, second = replicated.files(3)
    assert first.exists() and not second.exists()
    assert [path.name for path in second.parent.iterdir()] == [first.name], "no half-copied file stays"


@pytest.mark.parametrize("wrong", ["bytes", "size"])
def test_an_existing_wrong_file_is_replaced_and_a_right_one_verified(replicated, wrong):
    replicated.append(large("a"))
    replicated.append(large("b"))
    for source, target in zip(replicated.files(1), replicated.files(3), strict=True):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    damage(replicated.files(3)[0], same_size=wrong == "bytes")
    done = replicated.catch_up(3)
    assert (replicated.segments_copied, done.log_end_offset) == (1, 2)
    assert_replicas_are_whole(replicated.cluster)


def test_an_existing_file_that_cannot_be_read_is_replaced(replicated, monkeypatch):
    replicated.append(large("a"))
    [source], [target] = replicated.files(1), replicated.files(3)
    target.parent.mkdir(parents=True)
    target.write_bytes(source.read_bytes())
    read_blocks = LogDir.read_blocks

    def bad_sector(self, relative):
        if "broker-3" in self.uri:
            raise StorageUnavailableError("input/output error")
        return read_blocks(self, relative)

    monkeypatch.setattr(LogDir, "read_blocks", bad_sector)
    replicated.catch_up(3)
    assert replicated.segments_copied == 1


def test_a_log_dir_that_cannot_be_written_stops_the_copy_with_its_error(replicated):
    replicated.append(large("a"))
    folder = replicated.files(3)[0].parent
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_bytes(b"a file where the partition's folder is to be")
    with pytest.raises(StorageUnavailableError, match="broker-3"):
        replicated.catch_up(3)
    assert replicated.ends()[3] == 0
    folder.unlink()
    assert replicated.catch_up(3).in_sync


def test_a_replica_in_an_offline_log_dir_catches_up_but_does_not_join(replicated):
    replicated.leave(3)
    replicated.append(large("a"))
    replicated.sql(t.log_dir.update().where(t.log_dir.c.broker_id == 3).values(online=False))
    done = replicated.catch_up(3)
    assert (done.log_end_offset, done.in_sync) == (1, False)
    replicated.sql(t.log_dir.update().values(online=True))
    assert replicated.catch_up(3).in_sync


def test_offsets_deleted_by_retention_are_skipped(replicated):
    replicated.leave(3)
    for letter in "abcd":
        replicated.append(large(letter))
    replicated.sql(t.segment.delete().where(SEGMENT.base_offset < 2), t.partition.update().values(log_start_offset=2))
    done = replicated.catch_up(3)
    assert (done.log_end_offset, replicated.segments_copied, done.in_sync) == (4, 2, True)
    replicated.leave(3)
    replicated.sql(
        t.replica.update().where(t.replica.c.broker_id == 3).values(log_end_offset=0),
        t.segment.delete(),
        t.partition.update().values(log_start_offset=4),
    )
    done = replicated.catch_up(3)
    assert (done.log_end_offset, replicated.segments_copied, done.in_sync) == (4, 0, True)


# Changes between the copy and its transaction


def copied(step):
    state, replica, pieces = step.plan()
    assert step.copy(replica, pieces).error is None
    return state, replica, pieces


def overtaken(step, *run):
    before = describe_topics(step.cluster, ["t"])
    with pytest.raises(NotLeaderForPartitionError):
        step.commit(*run)
    assert describe_topics(step.cluster, ["t"]) == before, "nothing has moved"


def test_an_election_during_the_copy_advances_no_leo(replicated):
    replicated.append(large("a"))
    step = replicated.copying(3)
    run = copied(step)
    replicated.sql(t.log_dir.update().where(t.log_dir.c.broker_id == 1).values(online=False))
    elections = elect_leaders(replicated.cluster.store, unfenced)
    assert [truncation.start_offset for _, truncation in elections.truncations] == [0], (
        "broker 2 leads, and has nothing"
    )
    overtaken(step, *run)
    assert replicated.ends() == {1: 0, 2: 0, 3: 0}
    assert replicated.catch_up(3).log_end_offset == 0
    replicated.sql(t.log_dir.update().values(online=True))
    replicated.append(large("b"))
    assert replicated.catch_up(3).log_end_offset == 1
    assert_replicas_are_whole(replicated.cluster)


def test_an_election_that_loses_no_record_advances_no_leo_either(replicated):
    replicated.append(large("a"))
    replicated.catch_up(2)
    step = replicated.copying(3)
    run = copied(step)
    replicated.sql(t.log_dir.update().where(t.log_dir.c.broker_id == 1).values(online=False))
    elections = elect_leaders(replicated.cluster.store, unfenced)
    assert elections.elected and not elections.truncations
    overtaken(step, *run)
    assert (replicated.catch_up(3).log_end_offset, replicated.segments_copied) == (1, 0)


def test_a_seal_during_the_copy_advances_no_leo_and_the_next_plan_includes_it(replicated):
    replicated.append(large("a"))
    replicated.append("blob", "blob")
    replicated.append(large("b"))
    replicated.catch_up(2)
    replicated.leave(3)
    replicated.catch_up(2)
    replicated.append(large("c"))  # ISR {1, 2}: the watermark is at 4
    replicated.catch_up(2)
    step = replicated.copying(3)
    run = copied(step)
    assert replicated.log.seal(replicated.topic, [0]) == 1
    overtaken(step, *run)
    done = replicated.catch_up(3)
    assert (done.log_end_offset, done.in_sync, replicated.segments_copied) == (5, True, 1)
    replicated.is_whole()


def test_a_move_to_another_log_dir_during_the_copy_advances_no_leo(replicated, tmp_path):
    replicated.append(large("a"))
    step = replicated.copying(3)
    run = copied(step)
    other = replicated.cluster.add_log_dir(3, str(tmp_path / "other"))
    replicated.sql(t.replica.update().where(t.replica.c.broker_id == 3).values(log_dir_id=other))
    overtaken(step, *run)
    replicated.catch_up(3)
    assert replicated.segments_copied == 1
    assert_replicas_are_whole(replicated.cluster)


def test_a_concurrent_copy_costs_one_wasted_copy_at_most(replicated):
    replicated.append(large("a"))
    slow = replicated.copying(3)
    run = copied(slow)
    assert (replicated.catch_up(3).log_end_offset, replicated.segments_copied) == (1, 0)
    overtaken(slow, *run)
    with copied_segments() as copied_again:
        slow.run()
    assert not copied_again


def test_a_deleted_partition_is_not_caught_up(replicated):
    replicated.append(large("a"))
    step = replicated.copying(3)
    run = copied(step)
    with pytest.raises(UnknownTopicOrPartitionError, match="t-0: broker 7"):
        replicated.catch_up(7)
    delete_topic(replicated.cluster, "t")
    with pytest.raises(UnknownTopicOrPartitionError):
        step.commit(*run)
    with pytest.raises(UnknownTopicOrPartitionError):
        replicated.catch_up(3)


def test_a_stopped_copy_keeps_the_copied_segments(replicated):
    for letter in "abc":
        replicated.append(large(letter))
    stop, blocks = threading.Event(), []

    class StopsAtThirdBlock(Throttle):
        def take(self, size):
            blocks.append(size)
            if len(blocks) == 3:
                stop.set()
            return 0.0

    with copied_segments() as copied:
        done = replicated.copying(3, throttle=StopsAtThirdBlock(1), stop=stop).run()
    assert done.log_end_offset in (1, 2) and len(copied) == done.log_end_offset
    assert replicated.catch_up(3).log_end_offset == 3
    assert_replicas_are_whole(replicated.cluster)


class FakeTime(threading.Event):
    """A stop event that is never set; each wait advances the fake time."""

    now_s = 0.0

    def wait(self, timeout=None):
        self.now_s += timeout
        return False


def test_a_throttled_copy_keeps_to_its_rate(replicated):
    for letter in "abcdef":
        replicated.append(large(letter))
    time, sent = FakeTime(), []
    total = 0

    class Watched(Throttle):
        def take(self, size):
            nonlocal total
            wait_s = super().take(size)
            total += size
            sent.append((time.now_s + wait_s, total))
            return wait_s

    throttle = Watched(1_000, now_s=lambda: time.now_s)
    for broker in (2, 3):  # they share the rate
        replicated.copying(broker, throttle=throttle, stop=time).run()
    assert total == 2 * sum(path.stat().st_size for path in replicated.files(1)) > 10_000
    assert all(so_far <= 1_000 * (at_s + 1) + 1e-3 for at_s, so_far in sent)
    assert time.now_s <= total / 1_000, "and is no slower than it must be"


def test_a_replica_in_object_storage_catches_up(cluster, log, s3_uri):
    add_broker(cluster, 2, [s3_uri])
    BrokerSession(cluster.store, 2, LEASE_MS_MAX).register()
    topic = create_topic(cluster, "t", 1, 2, CONFIGS)
    cluster.store.transact(lambda connection: connection.execute(t.partition.update().values(leader=1)))
    for letter in "ab":
        log.append(topic, [Records(0, table(large(letter)))], acks=1)
    step = ReplicaCopy(cluster, topic, 0, 2)
    _, replica, pieces = step.plan()
    directory = LogDir(s3_uri)
    wrong = directory.create(pieces[0].file.path)
    wrong.write(b"?" * pieces[0].file.bytes)
    wrong.commit()
    aborted = directory.replace(pieces[1].file.path)
    aborted.write(b"half")
    aborted.abort()
    assert directory.sizes([piece.file.path for piece in pieces]) == [pieces[0].file.bytes, None]
    with copied_segments() as copied:
        step.copy(replica, pieces)
    assert len(copied) == 2
    assert [is_whole(directory, piece.file) for piece in pieces] == [True, True]
    aborted = directory.replace(pieces[1].file.path)
    aborted.write(b"half")
    aborted.abort()
    assert is_whole(directory, pieces[1].file), "what another process has put there stays"
    with copied_segments() as copied:
        done = catch_up(cluster, topic, 0, 2)
    assert (done.log_end_offset, len(copied), done.in_sync) == (2, 0, True)
    assert_replicas_are_whole(cluster)
    assert_delta_is_the_log(cluster)


# Processes

PROGRAM = """
import sys
from spark_log.cluster.cluster import Cluster
from spark_log.replication.replicas.catch_up import catch_up
from spark_log.maintenance.client_log import ClientLog
cluster = Cluster.open(sys.argv[1])
catch_up(cluster, ClientLog(cluster).find_topic("t"), 0, 3)
"""


@pytest.mark.parametrize(
    "failpoint",
    ["copy.file-written", "copy.file-written:2", "copy.committed", "file.temporary-written", "publish.committed"],
)
def test_the_next_process_completes_a_copy_that_was_killed(replicated, cluster_address, failpoint):
    for letter in "abc":
        replicated.append(large(letter))
    replicated.leave(3)
    replicated.catch_up(2)
    killed_at(failpoint, "-c", PROGRAM, cluster_address)
    assert replicated.ends()[3] == (3 if failpoint in ("copy.committed", "publish.committed") else 0)
    assert_replicas_are_whole(replicated.cluster)
    done = replicated.catch_up(3)
    assert (done.log_end_offset, done.in_sync) == (3, True)
    expected = {"copy.file-written": 2, "copy.file-written:2": 1, "file.temporary-written": 3}
    assert replicated.segments_copied == expected.get(failpoint, 0)
    replicated.append(large("d"))
    replicated.catch_up(3)
    replicated.catch_up(2)
    replicated.is_whole()


def catch_up_in_a_process(address, start, runs):
    with Cluster.open(address) as cluster:
        topic = ClientLog(cluster).find_topic("t")
        start.wait(timeout=60)
        for _ in range(runs):
            catch_up(cluster, topic, 0, 3)


@pytest.mark.slow
def test_three_processes_copy_the_same_replica_without_harm(replicated, cluster_address):
    for _ in range(20):
        replicated.append(large("x"))
    start = forkserver.Barrier(4)
    crowd = [forkserver.Process(target=catch_up_in_a_process, args=(cluster_address, start, 20)) for _ in range(3)]
    for process in crowd:
        process.start()
    start.wait(timeout=60)
    for _ in range(15):
        replicated.append(large("y"))
    for process in crowd:
        process.join(timeout=60)
        assert process.exitcode == 0
    replicated.catch_up(3)
    assert replicated.ends() == {1: 35, 2: 0, 3: 35}
    replicated.catch_up(2)
    replicated.is_whole()
    assert [value for _, _, value in read_all(replicated.log, replicated.topic)] == replicated.values
    assert not list(replicated.folder.rglob("*.tmp"))


# In the background


def behind(cluster, broker=None):
    with cluster.store.snapshot() as connection:
        found = find_lagging_replicas(connection, cluster.store.clock(connection), broker)
    return [(one.partition, one.broker_id, one.behind, one.in_sync, one.throttle_bytes_per_s) for one in found]


def test_lagging_replicas_are_found(cluster, log, tmp_path):
    replicated = Replicated(cluster, log, tmp_path, partitions=2)
    assert behind(cluster, 2) == behind(cluster, 3) == []
    replicated.append(large("a"), large("b"), partition=1)
    assert behind(cluster) == [], "no embedded broker's"
    assert behind(cluster, 3) == [(1, 3, 2, True, None)]
    replicated.leave(3)
    values = {"target": "[1, 3]", "original": "[1, 2, 3]", "throttle_bytes_per_s": 5, "began_ms": 0}
    replicated.sql(t.reassignment.insert().values(topic_id=replicated.topic.topic_id, partition=1, **values))
    replicated.sql(t.broker.update().where(t.broker.c.broker_id == 2).values(lease_until_ms=0))
    assert behind(cluster, 2) == [], "its process is dead"
    replicated.embed()
    assert behind(cluster) == [(0, 3, 0, False, None), (1, 2, 2, True, None), (1, 3, 2, False, 5)]
    assert behind(cluster, 2) == [(1, 2, 2, True, None)]
    replicated.sql(t.log_dir.update().where(t.log_dir.c.broker_id == 3).values(online=False))
    assert behind(cluster) == [(1, 2, 2, True, None)]
    replicated.sql(t.topic.update().where(t.topic.c.topic_id == replicated.topic.topic_id).values(state="deleting"))
    assert behind(cluster) == []


@pytest.fixture
def followers(cluster):
    """Followers of broker 3."""
    followers = Followers(cluster, broker_id=3)
    yield followers
    followers.close(30)
    assert not [thread for thread in threading.enumerate() if thread.name == "spark-log-followers-3"]


def test_the_background_worker_catches_up_its_broker(cluster, log, tmp_path, followers):
    replicated = Replicated(cluster, log, tmp_path, partitions=6)
    assert followers.drain(60)
    for number in range(30):
        replicated.append(large("x"), partition=number % 6)
        followers.wake()
    assert followers.drain(60)
    assert behind(cluster, 3) == []
    assert [replicated.ends(number) for number in range(6)] == [{1: 5, 2: 0, 3: 5}] * 6
    assert_delta_is_the_log(cluster)
    assert_replicas_are_whole(cluster)


def test_followers_without_a_broker_id_serve_all_embedded_brokers(cluster, log, tmp_path):
    replicated = Replicated(cluster, log, tmp_path, partitions=3)
    for number in range(12):
        replicated.append(large("x"), partition=number % 3)
    replicated.embed()
    all_brokers = Followers(cluster)
    assert all_brokers.drain(60)
    all_brokers.close(30)
    assert [replicated.ends(number) for number in range(3)] == [{1: 4, 2: 4, 3: 4}] * 3
    replicated.is_whole()


def test_processes_that_append_leave_the_copies_to_a_living_coordinator(cluster, log, tmp_path):
    replicated = Replicated(cluster, log, tmp_path)
    replicated.embed()
    coordinator = Lease(cluster.store, COORDINATOR, LEASE_MS_MAX)
    assert coordinator.take_or_renew()
    append_to(cluster, replicated.topic, large("a"), acks=1)
    lagging = behind(cluster)
    coordinator.give_back()
    append_to(cluster, replicated.topic, large("b"), acks=1)
    assert (lagging, behind(cluster)) == ([(0, 2, 1, True, None), (0, 3, 1, True, None)], [])


def test_a_process_that_appends_looks_seldom_whether_a_coordinator_lives(cluster, monkeypatch):
    polls, read_lease = [], followers_module.read_lease

    def counted(*given):
        polls.append(given)
        return read_lease(*given)

    monkeypatch.setattr(followers_module, "read_lease", counted)
    monkeypatch.setattr(followers_module, "_STAND_IN_PAUSE_S", 3_600.0)
    assert Lease(cluster.store, COORDINATOR, LEASE_MS_MAX).take_or_renew()
    stands_in = Followers(cluster, stands_in=True)
    assert stands_in.drain(60) and len(polls) == 1
    stands_in.wake()
    with stands_in._changed:
        assert not stands_in._changed.wait_for(lambda: len(polls) > 1, 0.2)
    assert stands_in.drain(60) and len(polls) == 2
    stands_in.close(30)


def test_a_failing_replica_does_not_delay_the_others_and_is_logged_once(cluster, log, tmp_path, followers, caplog):
    replicated = Replicated(cluster, log, tmp_path, partitions=3)
    folder = tmp_path / "broker-3" / replicated.topic.folder / "_segments" / "1"
    folder.parent.mkdir(parents=True)
    folder.write_bytes(b"in the way")
    with caplog.at_level(logging.WARNING):
        for partition in range(3):
            replicated.append(large("x"), partition=partition)
        assert not followers.drain(0.3)
        for partition in range(3):
            replicated.append(large("x"), partition=partition)
        wait_until(lambda: behind(cluster, 3) == [(1, 3, 2, True, None)])
        assert not followers.drain(0.3)
    assert [record for record in caplog.records if "t-1 on broker 3 does not catch up" in record.getMessage()]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == len(set(told)), "each error once"
    folder.unlink()
    assert followers.drain(60)
    assert behind(cluster, 3) == []


def test_replicas_catch_up_one_after_the_other_while_a_poll_takes_long(cluster, log, tmp_path, followers, monkeypatch):
    replicated = Replicated(cluster, log, tmp_path, partitions=8)
    replicated.leave(3)
    find, polls, answers = followers_module.find_lagging_replicas, [], threading.Event()

    def slow_after_the_first(*given):
        polls.append(given)
        if len(polls) > 1:
            answers.wait()
        return find(*given)

    monkeypatch.setattr(followers_module, "find_lagging_replicas", slow_after_the_first)
    followers.wake()
    try:
        wait_until(lambda: behind(cluster, 3) == [])
    finally:
        answers.set()
    assert followers.drain(60)


def test_copies_that_fail_at_once_wait_for_the_next_poll_and_it_for_none_of_them(
    cluster, log, tmp_path, followers, monkeypatch
):
    replicated = Replicated(cluster, log, tmp_path, partitions=3 * COPIES_MAX)
    replicated.leave(3)
    find, polls, tried = followers_module.find_lagging_replicas, [], []

    def found(*given):
        polls.append(given)
        return find(*given)

    def fail(copying):
        tried.append(copying.partition)
        raise StorageUnavailableError("no answer")

    monkeypatch.setattr(followers_module, "find_lagging_replicas", found)
    monkeypatch.setattr(followers_module, "ready_pause_s", lambda _: 3_600.0)
    with monkeypatch.context() as patch:
        patch.setattr(ReplicaCopy, "run", fail)
        followers.wake()
        wait_until(lambda: len(set(tried)) == 3 * COPIES_MAX)
        copies = len(tried)
        assert copies <= OUT_OF_SYNC_COPIES_MAX * len(polls)


def test_copies_wait_while_many_topics_are_published(cluster, log, tmp_path, followers, monkeypatch):
    replicated = Replicated(cluster, log, tmp_path)
    topics = [create_topic(cluster, f"t-{number}", 1, 3, CONFIGS) for number in range(3 * COPIES_MAX)]
    replicated.sql(t.partition.update().values(leader=1))
    replicated.sql(t.replica.update().where(t.replica.c.broker_id == 1).values(preference=-1))
    for topic in topics:
        append(log, topic, large("x"), acks=1)
    answers, publish = threading.Event(), followers_module.try_publish

    def slow(*given):
        assert answers.wait(LIMIT_S)
        publish(*given)

    monkeypatch.setattr(followers_module, "try_publish", slow)
    followers.wake()

    def all_publish():
        with followers._changed:
            return not followers._under_way and len(followers._publishing) >= COPIES_MAX

    try:
        wait_until(all_publish)
        assert len(followers._copies) < 2 * COPIES_MAX
    finally:
        answers.set()
    assert followers.drain(60)
    assert behind(cluster, 3) == []


def test_copies_and_rounds_wait_for_threads_at_their_limit(cluster, log, tmp_path, followers, monkeypatch):
    replicated = Replicated(cluster, log, tmp_path, partitions=2)
    for partition in range(2):
        replicated.append(large("x"), partition=partition)
    refused = [True, False, True, True]  # the loop's thread once, and the first two copies
    start = followers_module.start_thread
    monkeypatch.setattr(
        followers_module, "start_thread", lambda *given: None if refused and refused.pop(0) else start(*given)
    )
    assert not followers.drain(60)
    assert followers.drain(60) and not refused
    assert behind(cluster, 3) == []


def test_closing_stops_a_throttled_copy(cluster, log, tmp_path, monkeypatch):
    replicated = Replicated(cluster, log, tmp_path)
    replicated.leave(3)
    replicated.append(large("a"), large("b"), acks=1)
    values = {"target": "[1, 3]", "original": "[1, 2, 3]", "throttle_bytes_per_s": 1, "began_ms": 0}
    replicated.sql(t.reassignment.insert().values(topic_id=replicated.topic.topic_id, partition=0, **values))
    begun = threading.Event()

    class Watched(Throttle):
        def take(self, size):
            begun.set()
            return super().take(size)

    monkeypatch.setattr(followers_module, "Throttle", Watched)
    slow = Followers(cluster, broker_id=3)
    slow.wake()
    assert begun.wait(60)
    outcomes = []
    draining = threading.Thread(target=lambda: outcomes.append(slow.drain(120)))
    draining.start()
    slow.close(60)
    draining.join(60)
    assert replicated.ends()[3] == 0 and outcomes == [False]
    assert not list((tmp_path / "broker-3").rglob("*.tmp"))
