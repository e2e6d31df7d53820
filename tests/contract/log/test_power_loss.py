"""The power fails before each fsync and each commit: acknowledged records survive, and log and Delta table continue."""

import os
import shutil
from dataclasses import replace

import pytest

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.errors import ClusterNotFoundError, UnknownTopicOrPartitionError
from spark_log.groups.share.administration import alter_group_configs
from spark_log.groups.share.rules import AcknowledgeType
from spark_log.log.append.rules import Appended
from spark_log.log.log import Records
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.tables import unopened_publication
from spark_log.tables.current import open_current
from spark_log.tables.publication import publish
from spark_log.tables.verification import verify
from tests.support.disk_faults import Recorder
from tests.support.records import keyed, read_all, table
from tests.support.share_members import ShareMember
from tests.support.table_checks import assert_delta_is_the_log

pytestmark = pytest.mark.delta

TOPICS = {
    "forced": {"inline.max.bytes": "1500"},
    "unforced": {"inline.max.bytes": "0", "flush.messages": "1000"},
}


def work(address, told):
    """Appends, seals and merges; adds the acknowledged records to `told`."""
    with Cluster.init(address) as cluster:
        told.append("cluster")
        topics = {name: create_topic(cluster, name, configs=configs) for name, configs in TOPICS.items()}
        told.append("topics")
        log = ClientLog(cluster)
        large = os.urandom(1_000).hex()
        pairs = [("forced", "a"), ("unforced", "b"), ("forced", large), ("unforced", "c"), ("forced", "d")]
        for name, value in [*pairs, ("forced", large)]:
            [outcome] = log.append(topics[name], [Records(0, table(value))])
            if name == "forced":
                told.append((name, outcome.base_offset, value))
        log.seal(topics["forced"], [0])
        list(run_tasks(cluster, ["merge", "delta"]))
        log.close()


def check(left):
    address = str(left.folder / "cluster")
    try:
        cluster = Cluster.open(address)
    except ClusterNotFoundError:
        assert not left.told
        return
    with cluster:
        log = ClientLog(cluster)
        for name in TOPICS:
            try:
                topic = log.find_topic(name)
            except UnknownTopicOrPartitionError:
                assert "topics" not in left.told
                continue
            found = read_all(log, topic)
            acknowledged = [(0, offset, value) for each, offset, value in left.told[2:] if each == name]
            assert found[: len(acknowledged)] == acknowledged
            publish(cluster, topic)
            end = len(found)
            assert log.append(topic, [Records(0, table("next"))]) == [Appended(end, end + 1)]
            assert read_all(log, topic) == [*found, (0, end, "next")]
        log.close()
        assert_delta_is_the_log(cluster)


TABLES = {
    "inline.max.bytes": "0",
    "retention.ms": "-1",
    "delta.max.lag.ms": "-1",
    "table.formats": "delta,iceberg",
    "table.current": "delta",
}


def publish_tables(address, told):
    """Publishes a topic to tables of all formats, twice."""
    with Cluster.init(address) as cluster:
        topic = create_topic(cluster, "tables", configs=TABLES)
        told.append("topics")
        log = ClientLog(cluster)
        for number in range(2):
            log.append(topic, [Records(0, keyed([(b"a", b"%d" % number), (b"b", b"%d" % number)]))])
            publish(cluster, topic)
        log.close()


def check_tables(left):
    unopened_publication.opened.clear()  # it is another process
    open_current._opened.clear()
    try:
        cluster = Cluster.open(str(left.folder / "cluster"))
    except ClusterNotFoundError:
        assert not left.told
        return
    with cluster:
        log = ClientLog(cluster)
        try:
            topic = log.find_topic("tables")
        except UnknownTopicOrPartitionError:
            assert not left.told
            return
        for _ in range(2):
            log.append(topic, [Records(0, keyed([(b"a", b"next")]))])
            assert {each.target: each.difference for each in verify(cluster, topic)} == dict.fromkeys(
                ("current", "delta", "iceberg")
            )
        log.close()


SHARED = 12


def share(address, told):
    """Acquires and acknowledges records of a share group, two at once; adds the acknowledged offsets to `told`."""
    with Cluster.init(address) as cluster:
        topic = create_topic(cluster, "jobs")
        alter_group_configs(cluster.store, "workers", {"share.auto.offset.reset": "earliest"})
        log = ClientLog(cluster)
        log.append(topic, [Records(0, table(*map(str, range(SHARED))))])
        member = ShareMember(cluster, ["jobs"])
        told.append("records")
        for kind in [AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.ACCEPT] * 2:
            acquired = member.poll(2)
            result = member.acknowledge(acquired, kind)
            assert set(result.errors.values()) == {None}
            if kind == AcknowledgeType.ACCEPT:
                told += [offset for [r] in acquired.values() for offset in range(r.first, r.end)]
        member.poll(2)
        log.close()


def check_share(left):
    """Records that were not accepted are delivered once their locks have ended. No accepted one is."""
    try:
        cluster = Cluster.open(str(left.folder / "cluster"))
    except ClusterNotFoundError:
        assert not left.told
        return
    with cluster, pytest.MonkeyPatch.context() as patch:
        if "records" not in left.told:
            return
        patch.setattr(clock, "boot_id", lambda: "after the power loss")
        member = ShareMember(cluster, ["jobs"])
        delivered = []
        while acquired := member.poll():
            delivered += [offset for ranges in acquired.values() for r in ranges for offset in range(r.first, r.end)]
            assert set(member.acknowledge(acquired, AcknowledgeType.ACCEPT).errors.values()) == {None}
        acknowledged = set(left.told[1:])
        assert len(delivered) == len(set(delivered)) and not acknowledged & set(delivered)
        # The last two acknowledgements may be on disk, and not answered yet.
        assert len(set(range(SHARED)) - acknowledged - set(delivered)) in (0, 2)


EVERY = 5
"""A run checks each fifth of some hundred states, of all steps and fates in turn; `make test-long` checks them all."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "check", "every"),
    [
        pytest.param(work, check, EVERY, id="records"),
        pytest.param(work, check, 1, id="records-all", marks=pytest.mark.long),
        pytest.param(publish_tables, check_tables, EVERY, id="tables"),
        pytest.param(publish_tables, check_tables, 1, id="tables-all", marks=pytest.mark.long),
        pytest.param(share, check_share, 1, id="share groups"),
    ],
)
def test_power_loss_between_any_two_steps(tmp_path, work, check, every):
    recorder = Recorder(tmp_path / "disk", tmp_path / "left")
    recorder.folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        recorder.watch(patch)
        work(str(recorder.folder / "cluster"), recorder.told)
        recorder.cut_the_power("the end")
    assert len(recorder.left) > 40
    failures, checked = [], recorder.left[::every]
    disk = recorder.folder
    disk.rename(tmp_path / "worked")
    for left in checked:
        if disk.exists():
            shutil.rmtree(disk)
        left.folder.rename(disk)  # Iceberg's metadata have whole paths
        try:
            check(replace(left, folder=disk))
        except Exception as error:
            failures.append(f"before {left.step} ({left.fate}): {type(error).__name__}: {str(error)[:300]}")
    assert not failures, f"{len(failures)} of {len(checked)}:\n" + "\n".join(failures[:20])
