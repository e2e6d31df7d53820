"""Between writing a file and appending it the replicas may change: the append reaches the current leader and ISR, or
fails.

The writer is a Spark write without Spark: it plans, its task writes files, and the driver commits all files or none.
"""

import errno
import shutil

import pyarrow as pa
import pytest
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import in_each_store
from spark_log.cluster.files import new_file
from spark_log.cluster.log_dir import LogDir
from spark_log.errors import NotEnoughReplicasError
from spark_log.facts.topics import describe_topics
from spark_log.log.append.rules import Appended
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.replication.replicas.catch_up import catch_up
from spark_log.spark.datasource.options.source_options import WriteOptions
from spark_log.spark.datasource.write import write_commit
from spark_log.spark.datasource.write.task_writer import TaskWriter
from spark_log.spark.datasource.write.write_commit import abort_write, commit_write, plan_write
from tests.support.records import read_all, table
from tests.support.replicas import inspect_and_elect
from tests.support.stores import topics_view
from tests.support.table_checks import assert_replicas_are_whole

pytestmark = pytest.mark.usefixtures("resource_oracle")

FILES = {"inline.max.bytes": "0"}


@pytest.fixture
def cluster(three_brokers):
    return three_brokers


@pytest.fixture
def topic(cluster):
    """A topic with a replica on each broker."""
    return create_topic(cluster, "t", replication_factor=3, configs=FILES)


def partition(cluster):
    return describe_topics(cluster, ["t"])[0].partitions[0]


class Write:
    """A write of one file: planned and written, not committed yet."""

    def __init__(self, address, *values):
        self.address = address
        options = WriteOptions.parse({"cluster": address, "topic": "t"}, streaming=False, environ={})
        plan = plan_write(options, fingerprint=False)
        writer = TaskWriter(plan, f"{plan.write_id}-0", 0)
        writer.write(pa.record_batch({"value": pa.array(values)}))
        self.output = writer.finish()
        (batch,) = self.output.batches
        assert not batch.inline

    def abort(self):
        abort_write(self.address, [self.output], self.output.write_id)

    def commit(self):
        commit_write(self.address, [self.output], self.output.write_id, None)


def lose(tmp_path, broker):
    (tmp_path / f"d{broker}").rename(tmp_path / f"away{broker}")


def values(log, topic):
    return [value for _, _, value in read_all(log, topic)]


def test_the_leader_is_lost_before_the_commit(cluster, topic, cluster_address, log, tmp_path):
    write = Write(cluster_address, "a", "b")
    before = partition(cluster)
    lose(tmp_path, before.leader)
    inspect_and_elect(cluster)
    assert partition(cluster).leader_epoch > before.leader_epoch
    write.commit()
    assert values(log, topic) == ["a", "b"]
    assert partition(cluster).high_watermark == 2
    assert_replicas_are_whole(cluster)


@pytest.mark.on_sqlite
def test_a_replica_whose_folder_could_not_be_forced_is_forced_before_it_counts(
    cluster, topic, log, tmp_path, monkeypatch
):
    """Its file is there, but a power cut could still take the name."""
    forced, refused = [], []

    def fsync(folder):
        if "d2" in folder.parts and not refused and list(folder.glob("*.parquet")):
            refused.append(folder)
            raise OSError(errno.EIO, "Input/output error")
        new_file_fsync(folder)

    def sync(directory, path, **options):
        forced.append((directory.uri[-2:], options))
        log_dir_sync(directory, path, **options)

    new_file_fsync, log_dir_sync = new_file.fsync, LogDir.sync
    monkeypatch.setattr(new_file, "fsync", fsync)
    monkeypatch.setattr(LogDir, "sync", sync)
    [outcome] = log.append(topic, [Records(0, table("a"))])
    assert isinstance(outcome, Appended) and refused
    assert partition(cluster).isr == (1, 2, 3)
    assert forced == [("d2", {"ancestors": True})]


def test_a_log_dir_is_lost_and_not_detected_yet(cluster, topic, cluster_address, log, tmp_path):
    lose(tmp_path, 1)
    lose(tmp_path, 3)
    write = Write(cluster_address, "a", "b")  # into the remaining log dir
    write.commit()
    assert values(log, topic) == ["a", "b"]
    assert partition(cluster).isr == (2,)


def test_a_replica_joins_the_isr_before_the_commit(cluster, topic, cluster_address, log, tmp_path):
    lose(tmp_path, 2)
    inspect_and_elect(cluster)
    assert isinstance(log.append(topic, [Records(0, table("a"))])[0], Appended)
    write = Write(cluster_address, "b")
    (tmp_path / "away2").rename(tmp_path / "d2")
    inspect_and_elect(cluster)
    assert catch_up(cluster.of(topic), topic, 0, 2).in_sync
    write.commit()
    assert partition(cluster).high_watermark == 2
    assert {replica.log_end_offset for replica in partition(cluster).replicas} == {2}
    assert_replicas_are_whole(cluster)


@pytest.mark.parametrize("before", [(), ("a",)], ids=["nothing was there", "something was there"])
def test_a_log_dir_is_replaced_by_an_empty_one_before_the_commit(
    cluster, topic, cluster_address, log, tmp_path, before
):
    """The written file is lost with the old disk: it must not count as a file of the new one."""
    for text in before:
        log.append(topic, [Records(0, table(text))])
    write = Write(cluster_address, "b")
    shutil.rmtree(tmp_path / "d2")
    (tmp_path / "d2").mkdir()
    inspect_and_elect(cluster)
    write.commit()
    assert values(log, topic) == [*before, "b"]
    assert_replicas_are_whole(cluster)


def test_a_member_of_the_isr_lags_after_acks_1(cluster, topic, cluster_address, log, tmp_path):

    def serve(view):  # no process copies in the background
        lease = {"lease_until_ms": 2**62, "lease_clock_epoch": view.store.now().clock_epoch}
        view.store.transact(lambda connection: connection.execute(t.broker.update().values(served=True, **lease)))

    in_each_store(cluster, serve)
    write = Write(cluster_address, "b")
    assert isinstance(log.append(topic, [Records(0, table("a"))], acks=1)[0], Appended)
    assert partition(cluster).high_watermark == 0
    write.commit()
    assert values(log, topic) == ["a", "b"]
    assert {replica.log_end_offset for replica in partition(cluster).replicas} == {2}
    assert_replicas_are_whole(cluster)


def test_nothing_is_appended_if_too_few_replicas_are_left_at_the_commit(
    cluster, cluster_address, log, tmp_path, monkeypatch
):
    monkeypatch.setattr(write_commit, "DEFAULT_TIMEOUT_MS", 300)  # for which it waits for replicas
    topic = create_topic(cluster, "t", replication_factor=3, configs={**FILES, "min.insync.replicas": "2"})
    write = Write(cluster_address, "a")
    lose(tmp_path, 1)
    lose(tmp_path, 2)
    inspect_and_elect(cluster)
    with pytest.raises(NotEnoughReplicasError, match=r"1 replica.*min\.insync\.replicas is 2"):
        write.commit()
    write.abort()  # as Spark does
    assert values(log, topic) == []
    with topics_view(cluster).store.snapshot() as connection:
        assert connection.execute(sa.select(t.segment)).all() == []


def test_sealing_does_not_wait_for_a_failed_log_dir(cluster, log, tmp_path):
    topic = create_topic(cluster, "t", replication_factor=3, configs={"inline.tail.bytes": "2000"})
    lose(tmp_path, 2)
    texts = [f"{number}-{'x' * 500}" for number in range(12)]
    for text in texts:
        assert isinstance(log.append(topic, [Records(0, table(text))])[0], Appended)
    inspect_and_elect(cluster)
    log.seal(topic, [0])
    assert values(log, topic) == texts
    state = partition(cluster)
    assert 2 not in state.isr
    (tmp_path / "away2").rename(tmp_path / "d2")
    inspect_and_elect(cluster)
    assert catch_up(cluster.of(topic), topic, 0, 2).in_sync
    assert_replicas_are_whole(cluster)


def test_two_logs_of_one_process_are_independent(cluster, topic, cluster_address, tmp_path):
    """A second ClientLog has its own cache: it learns of the election when its append is refused."""
    with Cluster.open(cluster_address) as other:
        first, second = ClientLog(cluster), ClientLog(other)
        assert isinstance(first.append(topic, [Records(0, table("a"))])[0], Appended)
        assert isinstance(second.append(topic, [Records(0, table("b"))])[0], Appended)
        shutil.rmtree(tmp_path / "d1")
        (tmp_path / "d1").mkdir()
        assert isinstance(first.append(topic, [Records(0, table("c"))])[0], Appended)
        inspect_and_elect(cluster)
        assert isinstance(second.append(topic, [Records(0, table("d"))])[0], Appended)
        assert values(second, topic) == ["a", "b", "c", "d"]
        first.close()
        second.close()
    assert_replicas_are_whole(cluster)
