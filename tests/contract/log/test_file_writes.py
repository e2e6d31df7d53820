"""Writes of files: refused by a full disk, and forced to disk in the right order."""

import contextlib
import os
import random
import resource
from pathlib import Path

import pytest
from kafka.errors import KafkaStorageError

from spark_log import Producer
from spark_log.clients.produce import failing_appends
from spark_log.cluster.cluster import Cluster
from spark_log.errors import (
    DiskFullError,
    StorageUnavailableError,
)
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.append.rules import Appended
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.tables.publication import publish
from tests.support.disk_faults import fill_disk, mounted, needs_root
from tests.support.records import read_all, table

FILES = {"inline.max.bytes": "0"}
"""Every append is a segment file."""


def big(number, size=5_000):
    return f"{number}-{random.Random(number).randbytes(size // 2).hex()}"


@pytest.fixture
def local(tmp_path):
    """A cluster on SQLite in an empty folder, and the path of its log dir."""
    with Cluster.init(str(tmp_path / "cluster")) as cluster:
        yield cluster, tmp_path / "cluster" / "broker-1"


def segment_files(folder):
    return sorted(path for path in Path(folder).rglob("*.parquet") if "_segments" in path.parts)


# Full disks


@contextlib.contextmanager
def files_may_not_grow_beyond(size):
    """Limits file sizes without root: the kernel refuses further writes (EFBIG)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_kernel_refuses_a_segment(local):
    cluster, folder = local
    topic = create_topic(cluster, "t", configs=FILES)
    log = ClientLog(cluster)
    log.append(topic, [Records(0, table("a"))])
    large = [big(number, 1_000_000) for number in range(2)]
    with files_may_not_grow_beyond(800_000):  # the store's own files stay below
        for _ in range(2):
            with pytest.raises(StorageUnavailableError, match=r"too large.*nothing was appended"):
                log.append(topic, [Records(0, table(*large))])
        log.append(topic, [Records(0, table("b"))])
    log.append(topic, [Records(0, table(*large))])
    assert read_all(log, topic) == [(0, 0, "a"), (0, 1, "b"), (0, 2, large[0]), (0, 3, large[1])]
    assert len(segment_files(folder)) == 3
    log.close()


def test_the_kernel_refuses_a_commit(local):
    cluster, _ = local
    topic = create_topic(cluster, "t", configs={"inline.max.bytes": "1000000"})
    log = ClientLog(cluster)
    log.append(topic, [Records(0, table("a"))])
    with files_may_not_grow_beyond(200_000):
        for _ in range(2):
            with pytest.raises(StorageUnavailableError, match="nothing was appended"):
                log.append(topic, [Records(0, table(big(1, 600_000)))])
        assert read_all(log, topic) == [(0, 0, "a")]
    assert log.append(topic, [Records(0, table(big(1, 600_000)))]) == [Appended(1, 2)]
    assert read_all(log, topic) == [(0, 0, "a"), (0, 1, big(1, 600_000))]
    log.close()


@pytest.mark.delta
@needs_root
def test_the_disk_of_a_log_dir_is_full(tmp_path):
    (tmp_path / "small").mkdir()
    with (
        mounted(tmp_path / "small", "3m"),
        Cluster.init(str(tmp_path / "c"), log_dir=str(tmp_path / "small")) as cluster,
    ):
        topic = create_topic(cluster, "t", configs={"inline.max.bytes": "1000", "inline.tail.bytes": "3000"})
        log = ClientLog(cluster)
        acked = []

        def send(text):
            (outcome,) = log.append(topic, [Records(0, table(text))])
            acked.append((0, outcome.base_offset, text))

        send(big(0, 50_000))
        filler = fill_disk(tmp_path / "small")
        for _ in range(2):
            with pytest.raises(StorageUnavailableError, match=r"No space left.*nothing was appended"):
                log.append(topic, [Records(0, table(big(1, 50_000)))])
        assert not list((tmp_path / "small").rglob("*.tmp")), "no room is wasted on what was not finished"
        for number in range(10):  # blobs go to the store; a failed seal of their tail is no error of the append
            send(big(number, 300))
        assert read_all(log, topic) == acked
        filler.unlink()
        send(big(2, 50_000))
        send(big(3, 300))
        assert read_all(log, topic) == acked
        slices = log.plan({TopicPartition("t", 0): OffsetRange(0, 13)}).slices
        assert [piece.data is None for piece in slices] == [True, True, True, False], "sealed once there was room"
        publish(cluster, topic)
        log.close()


@needs_root
def test_a_producer_reports_a_full_disk_with_its_remedy_before_the_delivery_timeout(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(failing_appends, "FULL_DISK_RETRY_S", 0.5)
    (tmp_path / "small").mkdir()
    with mounted(tmp_path / "small", "3m"):
        Cluster.init(str(tmp_path / "c"), log_dir=str(tmp_path / "small")).close()
        with Cluster.open(str(tmp_path / "c")) as cluster:
            create_topic(cluster, "t", configs=FILES)
        with Producer(cluster=str(tmp_path / "c")) as producer:
            filler = fill_disk(tmp_path / "small")
            for _ in range(2):
                future = producer.send("t", big(0, 100_000).encode())
                with pytest.raises(KafkaStorageError) as raised:
                    future.get(timeout=60)
                assert isinstance(raised.value, DiskFullError)
                assert "No space left" in str(raised.value)
                assert "and shorten their file.delete.delay.ms" in str(raised.value)
            [warning] = [text for text in caplog.messages if "trying again for" in text]
            assert "No space left" in warning
            filler.unlink()
            assert producer.send("t", big(0, 100_000).encode()).get(timeout=60).offset == 0


@needs_root
def test_the_disk_of_the_metadata_store_is_full(tmp_path):
    (tmp_path / "small").mkdir()
    with mounted(tmp_path / "small", "4m"):
        with Cluster.init(str(tmp_path / "small" / "c"), log_dir=str(tmp_path / "room")) as cluster:
            topic = create_topic(cluster, "t", configs={"inline.max.bytes": "100000"})
            log = ClientLog(cluster)
            acked = []
            filler = None
            for number in range(40):
                if number == 10:
                    filler = fill_disk(tmp_path / "small")
                try:
                    (outcome,) = log.append(topic, [Records(0, table(big(number, 30_000)))])
                except StorageUnavailableError as error:
                    assert isinstance(error, DiskFullError) or "I/O" in str(error)
                    break
                acked.append((0, outcome.base_offset, big(number, 30_000)))
            assert 10 <= len(acked) < 40
            assert read_all(log, topic) == acked, "readers go on"
            filler.unlink()
            (outcome,) = log.append(topic, [Records(0, table("room"))])
            acked.append((0, outcome.base_offset, "room"))
            assert read_all(log, topic) == acked
            log.close()
        with Cluster.open(str(tmp_path / "small" / "c")) as cluster:
            log = ClientLog(cluster)
            assert read_all(log, log.find_topic("t")) == acked
            log.close()


# Durability


def test_a_file_is_forced_to_disk_before_its_name_and_its_name_before_the_append(local, monkeypatch):
    """fsync of every folder above -> temporary file -> fsync -> rename -> fsync of its folder -> COMMIT.

    Each process forces the folders above once: another writer may have created them and been killed before it forced
    them.
    """
    cluster, folder = local
    steps, opened = [], {}
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(descriptor):
        steps.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))
        real_fsync(descriptor)

    def rename(source, target):
        steps.append(("rename", str(target)))
        opened[str(target)] = str(source)
        real_rename(source, target)

    topic = create_topic(cluster, "t", configs=FILES)
    log = ClientLog(cluster)
    # as by another writer, killed before it forced them
    Path(folder, topic.folder, "_segments", "0").mkdir(parents=True)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    commit = cluster.store.engine.dialect.do_commit

    def do_commit(connection):
        steps.append(("commit", ""))
        commit(connection)

    monkeypatch.setattr(cluster.store.engine.dialect, "do_commit", do_commit)
    for first in (True, False):
        steps.clear()
        log.append(topic, [Records(0, table("a"))])
        (target,) = opened
        segments = f"{folder}/{topic.folder}/_segments"
        begin = steps.index(("rename", target))
        above = [("fsync", path) for path in (segments, f"{folder}/{topic.folder}", str(folder))]
        assert steps[: begin - 1].count(above[0]) == first
        assert [step for step in steps[: begin - 1] if step in above] == (above if first else [])
        assert steps[begin - 1] == ("fsync", opened.pop(target))
        assert steps[begin + 1] == ("fsync", f"{segments}/0")
        assert steps[begin + 2] == ("commit", "")
    log.close()


@pytest.mark.delta
def test_a_delta_commit_is_forced_to_disk_too(local, monkeypatch):
    cluster, folder = local
    synced = []
    real_fsync = os.fsync

    def fsync(descriptor):
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), folder))
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    topic = create_topic(cluster, "t", configs=FILES)
    log = ClientLog(cluster)
    log.append(topic, [Records(0, table("a"))])
    for version in (0, 1):
        assert f"{topic.folder}/_delta_log/{version:020d}.json" in synced
    assert f"{topic.folder}/_delta_log" in synced
    log.close()
