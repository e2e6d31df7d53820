"""The log is rewritten between a share group's read of records and their acquisition: members get what the log has
then, byte for byte, and no offset without a record.
"""

import pytest

from spark_log.config import ClusterSettings
from spark_log.groups.share import reading
from spark_log.groups.share.administration import alter_group_configs
from spark_log.groups.share.rules import AcknowledgeType
from spark_log.log.append.write_ids import Writer
from spark_log.maintenance import run_tasks
from spark_log.maintenance.compaction import local_compaction
from spark_log.maintenance.context import MaintenanceContext
from spark_log.maintenance.erase.erase import erase
from tests.support.records import append_keyed, read_all
from tests.support.share_members import ShareMember, offsets_of, only_offer, overtaken_member
from tests.support.topics import make

KEYED = [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), (b"a", b"3"), (b"c", b"2")]


def compact(cluster, log, topic):
    del log, topic
    context = MaintenanceContext(cluster, ClusterSettings(), Writer(cluster.store, "test", 60_000))
    assert list(local_compaction.compact(context, force=True))


def erase_key(cluster, log, topic):
    del log
    erase(cluster, topic.name, [b"a"])


def merge(cluster, log, topic):
    del log, topic
    assert list(run_tasks(cluster, ["merge"]))


def seal(cluster, log, topic):
    del cluster
    log.seal(topic, [0])


REWRITES = {
    "compaction": (compact, {"cleanup_policy": "compact", "inline_max_bytes": "0", "segment_bytes": "14"}, "12345"),
    "erase": (erase_key, {"inline_max_bytes": "0"}, "135"),
    "merge": (merge, {"inline_max_bytes": "0"}, "012345"),
    "seal": (seal, {}, "012345"),
}


@pytest.fixture(params=REWRITES)
def rewritten(request, cluster, log):
    """Topic t with an append for each record of KEYED, and a function that rewrites it."""
    rewrite, configs, _ = REWRITES[request.param]
    topic = make(cluster, "t", **configs)
    alter_group_configs(cluster.store, "workers", {"share.auto.offset.reset": "earliest"})
    for record in KEYED:
        append_keyed(log, topic, record)
    return topic, lambda: rewrite(cluster, log, topic)


def log_has(log, topic):
    return {(partition, offset): value for partition, offset, value in read_all(log, topic)}


def is_finished(cluster):
    offer = only_offer(cluster)
    return (offer.start_offset, offer.next_offset, offer.unfinished) == (len(KEYED), len(KEYED), 0)


def test_new_records_are_as_the_log_has_them(cluster, log, rewritten):
    topic, rewrite = rewritten
    before = log_has(log, topic)
    with overtaken_member(cluster, rewrite) as member:
        acquired = member.poll()
    after = log_has(log, topic)
    assert member.values() == after and set(after.items()) <= set(before.items())
    assert offsets_of(acquired) == [offset for _, offset in after]
    assert set(member.acknowledge(acquired, AcknowledgeType.ACCEPT).errors.values()) == {None}
    assert member.poll() == {} and is_finished(cluster)


@pytest.mark.on_sqlite
def test_released_records_are_as_the_log_has_them(cluster, log, rewritten):
    topic, rewrite = rewritten
    first = ShareMember(cluster, member="m0")
    first.acknowledge(first.poll(), AcknowledgeType.RELEASE)
    with overtaken_member(cluster, rewrite) as member:
        acquired = member.poll()
    after = log_has(log, topic)
    assert member.values() == after
    assert offsets_of(acquired) == [offset for _, offset in after]
    assert {r.deliveries for ranges in acquired.values() for r in ranges} == {2}
    member.acknowledge(acquired, AcknowledgeType.ACCEPT)
    assert member.poll() == {} and is_finished(cluster)


@pytest.mark.on_sqlite
def test_records_that_were_acquired_before_a_rewrite_can_be_acknowledged(cluster, rewritten):
    _, rewrite = rewritten
    member = ShareMember(cluster)
    acquired = member.poll()
    rewrite()
    assert set(member.acknowledge(acquired, AcknowledgeType.ACCEPT).errors.values()) == {None}
    assert member.poll() == {} and is_finished(cluster)


@pytest.mark.on_sqlite
def test_files_of_an_older_plan_may_be_gone(cluster, log, monkeypatch):
    """A process reads on from its plan as the group goes on. Meanwhile the files are merged and deleted."""
    monkeypatch.setattr(reading, "_AHEAD_BYTES", 4_000)
    topic = make(cluster, "t", inline_max_bytes="0", file_delete_delay_ms="0")
    alter_group_configs(cluster.store, "workers", {"share.auto.offset.reset": "earliest"})
    for number in range(6):
        append_keyed(log, topic, (b"k", b"%d" % number * 3_000))  # 3,000 bytes, and few in a file
    member = ShareMember(cluster)
    read = {}
    acquired = member.poll(1)
    read |= member.values()
    merge(cluster, log, topic)
    [report] = run_tasks(cluster, ["files"])
    assert "6 -> 0 files" in str(report)
    while acquired:
        acquired = member.poll(1)
        read |= member.values()
    assert read == log_has(log, topic) and len(read) == 6
