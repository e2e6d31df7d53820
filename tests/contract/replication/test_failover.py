"""Log dirs that fail and return, on both stores: leaders, the ISR, and what a returning log dir still has."""

import shutil
from pathlib import Path

import pytest
import sqlalchemy as sa

from spark_log.cluster.brokers import add_broker, list_brokers
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import unfenced
from spark_log.cluster.log_dir_failures import report_failure
from spark_log.errors import (
    NotEnoughReplicasError,
)
from spark_log.facts.topics import describe_topics
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.append.rules import (
    Appended,
    Rejected,
)
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.replication.controller.controller import elect_leaders
from spark_log.replication.controller.log_dir_inspection import inspect_log_dirs
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.replication.replicas.catch_up import catch_up
from tests.support.disk_faults import fill_disk, mounted, needs_root
from tests.support.records import read_all, table
from tests.support.replicas import copied_segments
from tests.support.table_checks import assert_replicas_are_whole

FILES = {"inline.max.bytes": "0"}
"""Every append is a file."""


@pytest.fixture
def cluster(three_brokers):
    return three_brokers


@pytest.fixture
def topic(cluster):
    """A topic with a replica on each broker."""
    return create_topic(cluster, "t", replication_factor=3, configs=FILES)


def partition(cluster, topic, number=0):
    return describe_topics(cluster, [topic.name])[0].partitions[number]


def inspect_and_elect(cluster):
    inspect_log_dirs(cluster, unfenced)
    return elect_leaders(cluster.store, unfenced)


def append(log, topic, *values, acks="all"):
    (outcome,) = log.append(topic, [Records(0, table(*values))], acks=acks)
    return outcome


def lose(cluster, broker, tmp_path) -> Path:
    gone = tmp_path / f"away{broker}"
    (tmp_path / f"d{broker}").rename(gone)
    return gone


def test_acks_all_puts_a_file_in_every_log_dir_and_moves_every_replica(cluster, topic, log, tmp_path):
    assert append(log, topic, "a", "b") == Appended(0, 2)
    state = partition(cluster, topic)
    assert [replica.log_end_offset for replica in state.replicas] == [2, 2, 2]
    assert state.high_watermark == 2
    files = [sorted(p.read_bytes() for p in (tmp_path / f"d{n}").rglob("*.parquet")) for n in (1, 2, 3)]
    assert len(files[0]) == 1 and files[0] == files[1] == files[2]


@pytest.mark.parametrize("broker", [1, 2, 3])
def test_a_writer_survives_the_loss_of_a_log_dir_without_a_coordinator(cluster, log, tmp_path, broker):
    topic = create_topic(cluster, "t", 3, replication_factor=3, configs=FILES)
    append(log, topic, "a")
    lose(cluster, broker, tmp_path)
    for value in "bcd":
        assert isinstance(append(log, topic, value), Appended)
    assert [value for _, _, value in read_all(log, topic)] == list("abcd")
    for number in range(3):
        state = partition(cluster, topic, number)
        assert broker not in state.isr and len(state.isr) == 2 and state.leader in state.isr
    (lost,) = [status for status in list_brokers(cluster) if not status.alive]
    assert lost.broker_id == broker and "has no spark_log_dir.json" in (lost.log_dirs[0].failure or "")


def test_a_topic_of_factor_3_survives_the_loss_of_any_two_log_dirs(cluster, topic, log, tmp_path):
    append(log, topic, "a")
    lose(cluster, 1, tmp_path)
    append(log, topic, "b")
    lose(cluster, 3, tmp_path)
    append(log, topic, "c")
    assert [value for _, _, value in read_all(log, topic)] == ["a", "b", "c"]
    assert partition(cluster, topic).isr == (2,)


def test_with_min_insync_replicas_2_writers_are_refused_until_a_second_replica_is_back(cluster, log, tmp_path):
    topic = create_topic(cluster, "t", replication_factor=3, configs={**FILES, "min.insync.replicas": "2"})
    append(log, topic, "a")
    first, second = lose(cluster, 1, tmp_path), lose(cluster, 2, tmp_path)
    outcome = append(log, topic, "refused")
    assert isinstance(outcome, Rejected) and isinstance(outcome.error, NotEnoughReplicasError)
    assert "min.insync.replicas is 2" in str(outcome.error)
    assert isinstance(append(log, topic, "b", acks=1), Appended), "acks=1 does not ask"
    assert [value for _, _, value in read_all(log, topic)] == ["a", "b"]
    second.rename(tmp_path / "d2")
    inspect_and_elect(cluster)
    catch_up(cluster, topic, 0, 2)
    assert isinstance(append(log, topic, "c"), Appended)
    assert [value for _, _, value in read_all(log, topic)] == ["a", "b", "c"]
    assert first.exists()


def test_a_log_dir_that_returns_unchanged_catches_up_and_joins(cluster, topic, log, tmp_path):
    append(log, topic, "a")
    away = lose(cluster, 2, tmp_path)
    append(log, topic, "b")
    away.rename(tmp_path / "d2")
    inspect_and_elect(cluster)
    state = partition(cluster, topic)
    assert 2 not in state.isr and state.replicas[[r.broker_id for r in state.replicas].index(2)].log_end_offset == 1
    assert catch_up(cluster, topic, 0, 2).in_sync
    assert set(partition(cluster, topic).isr) == {1, 2, 3}


def test_a_log_dir_that_returns_empty_is_not_trusted(cluster, topic, log, tmp_path):
    append(log, topic, "a", "b")
    append(log, topic, "c")
    before = cluster.log_dirs()
    shutil.rmtree(tmp_path / "d1")
    (tmp_path / "d1").mkdir()
    inspect_and_elect(cluster)
    state = partition(cluster, topic)
    assert state.leader in (2, 3) and set(state.isr) == {2, 3}
    assert min(replica.log_end_offset for replica in state.replicas) == 0
    changed = [i for i, info in cluster.log_dirs().items() if info.uuid != before[i].uuid]
    assert len(changed) == 1, "it is another log dir now"
    with copied_segments() as copied:
        catch_up(cluster, topic, 0, 1)
    assert len(copied) == 2
    assert set(partition(cluster, topic).isr) == {1, 2, 3}
    shutil.rmtree(tmp_path / "d2")
    shutil.rmtree(tmp_path / "d3")
    assert [value for _, _, value in read_all(log, topic)] == ["a", "b", "c"]


def test_a_log_dir_that_returns_in_an_older_state_is_listed(cluster, topic, log, tmp_path):
    append(log, topic, "a")
    shutil.copytree(tmp_path / "d2", tmp_path / "snapshot")
    away = lose(cluster, 2, tmp_path)
    inspect_and_elect(cluster)
    away.rename(tmp_path / "d2")
    inspect_and_elect(cluster)  # its counter grows
    append(log, topic, "b")
    catch_up(cluster, topic, 0, 2)
    append(log, topic, "c")
    shutil.rmtree(tmp_path / "d2")
    (tmp_path / "snapshot").rename(tmp_path / "d2")
    inspect_and_elect(cluster)
    state = partition(cluster, topic)
    assert {r.broker_id: r.log_end_offset for r in state.replicas} == {1: 3, 2: 1, 3: 3}
    assert set(state.isr) == {1, 3}
    with cluster.store.snapshot() as connection:
        counters = dict(connection.execute(sa.select(t.log_dir.c.broker_id, t.log_dir.c.counter)).all())
    assert counters[2] > counters[1]


def test_a_log_dir_that_returns_with_half_a_file_lacks_its_segment(cluster, topic, log, tmp_path):
    for value in "abc":
        append(log, topic, value)
    away = lose(cluster, 2, tmp_path)
    inspect_and_elect(cluster)
    second = log.plan({TopicPartition("t", 0): OffsetRange(1, 2)}).slices[0]
    (file,) = away.rglob(second.name)
    file.write_bytes(file.read_bytes()[:-10])
    away.rename(tmp_path / "d2")
    inspect_and_elect(cluster)
    state = partition(cluster, topic)
    assert {r.broker_id: r.log_end_offset for r in state.replicas} == {1: 3, 2: 1, 3: 3}
    with copied_segments() as copied:
        catch_up(cluster, topic, 0, 2)
    assert len(copied) == 1, "the third is there, and is only verified"


def test_the_old_disk_may_replace_the_new_one_again(cluster, topic, log, tmp_path):
    append(log, topic, "a")
    old = lose(cluster, 2, tmp_path)
    (tmp_path / "d2").mkdir()
    inspect_and_elect(cluster)
    catch_up(cluster, topic, 0, 2)
    append(log, topic, "b")
    shutil.rmtree(tmp_path / "d2")
    old.rename(tmp_path / "d2")  # with the former id of the log dir
    inspect_and_elect(cluster)
    state = partition(cluster, topic)
    assert {r.broker_id: r.log_end_offset for r in state.replicas} == {1: 2, 2: 1, 3: 2}
    with copied_segments() as copied:
        catch_up(cluster, topic, 0, 2)
    assert len(copied) == 1
    assert set(partition(cluster, topic).isr) == {1, 2, 3}
    assert_replicas_are_whole(cluster)


def test_a_log_dir_that_shows_the_id_of_another_stays_offline(cluster, topic, log, tmp_path):
    append(log, topic, "a")
    lose(cluster, 2, tmp_path)
    shutil.copytree(tmp_path / "d3", tmp_path / "d2")
    inspect_and_elect(cluster)
    (lost,) = [status for status in list_brokers(cluster) if not status.alive]
    assert lost.broker_id == 2 and "swapped?" in (lost.log_dirs[0].failure or "")
    assert isinstance(append(log, topic, "b"), Appended)


def test_no_log_dir_is_marked_failed_by_a_host_where_none_answers(cluster, topic, log, tmp_path):
    append(log, topic, "a")
    for broker in (1, 2, 3):
        lose(cluster, broker, tmp_path)
    assert not inspect_and_elect(cluster)
    assert all(status.alive for status in list_brokers(cluster))


def test_a_full_log_dir_leaves_the_isr_although_its_marker_answers(cluster, topic, log, tmp_path):
    append(log, topic, "a")
    infos = {info.broker_id: log_dir_id for log_dir_id, info in cluster.log_dirs().items()}
    report_failure(cluster.store, infos[2], 1)
    inspect_and_elect(cluster)
    assert set(partition(cluster, topic).isr) == {1, 2, 3}, "the controller could write there"
    with cluster.store.snapshot() as connection:
        assert connection.execute(sa.select(t.log_dir.c.suspect_bytes)).scalars().all() == [None] * 3


@needs_root
def test_a_full_disk_leaves_the_isr_and_returns_when_there_is_room(cluster_address, tmp_path):
    (tmp_path / "d2").mkdir()
    with mounted(tmp_path / "d2", "3m"), Cluster.init(cluster_address, log_dir=str(tmp_path / "d1")) as cluster:
        (tmp_path / "d2" / "log").mkdir()
        add_broker(cluster, 2, [str(tmp_path / "d2" / "log")])
        topic = create_topic(cluster, "t", replication_factor=2, configs={**FILES, "compression.type": "none"})
        log = ClientLog(cluster)
        large = [str(number) * 300_000 for number in range(4)]
        append(log, topic, large[0])
        filler = fill_disk(tmp_path / "d2")
        assert isinstance(append(log, topic, large[1]), Appended), "it is written to the other one"
        (full,) = [status for status in list_brokers(cluster) if not status.alive]
        assert full.broker_id == 2 and "No space left" in (full.log_dirs[0].failure or "")
        assert not list((tmp_path / "d2").rglob(".*tmp")), "no room is wasted on what was not finished"
        inspect_and_elect(cluster)
        assert partition(cluster, topic).isr == (1,), "there is still no room"
        filler.unlink()
        inspect_and_elect(cluster)
        catch_up(cluster, topic, 0, 2)
        assert set(partition(cluster, topic).isr) == {1, 2}
        append(log, topic, large[2])
        shutil.rmtree(tmp_path / "d1")
        assert [value for _, _, value in read_all(log, topic)] == large[:3]
        log.close()


def test_only_the_replicas_of_the_failed_log_dir_leave_the_isr(cluster_address, tmp_path):
    with Cluster.init(cluster_address, log_dir=str(tmp_path / "d1")) as cluster:
        add_broker(cluster, 2, [str(tmp_path / "d2"), str(tmp_path / "d3")])
        log = ClientLog(cluster)
        topic = create_topic(cluster, "t", 4, replication_factor=2, configs=FILES)
        for number in range(4):
            log.append(topic, [Records(number, table("a"))])
        dirs = {n: {r.broker_id: r.log_dir_id for r in partition(cluster, topic, n).replicas}[2] for n in range(4)}
        assert len(set(dirs.values())) == 2
        lose(cluster, 3, tmp_path)
        inspect_and_elect(cluster)
        (gone,) = [i for i, info in cluster.log_dirs().items() if info.uri.endswith("d3")]
        for number in range(4):
            expected = {1} if dirs[number] == gone else {1, 2}
            assert set(partition(cluster, topic, number).isr) == expected
        log.close()
