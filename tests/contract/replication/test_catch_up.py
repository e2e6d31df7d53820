"""Followers catch up: they copy whole segments in order and verify them; no LEO ever covers a missing segment."""

import os

import pytest

from spark_log.cluster.brokers import BrokerSession, add_broker
from spark_log.cluster.log_dir import LogDir
from spark_log.config.values import LEASE_MS_MAX
from spark_log.errors import (
    CorruptRecordError,
    StorageUnavailableError,
)
from spark_log.log.log import Records
from spark_log.log.segments.segment_copy import is_whole
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import SEGMENT
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.replication.replicas import catch_up as catch_up_module
from spark_log.replication.replicas.catch_up import ReplicaCopy, catch_up
from tests.support.records import read_all, table
from tests.support.replicas import CONFIGS, Replicated, copied_segments
from tests.support.table_checks import assert_delta_is_the_log, assert_replicas_are_whole

pytestmark = [pytest.mark.delta, pytest.mark.on_sqlite]


def large(text):
    return text + os.urandom(2_000).hex()


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
