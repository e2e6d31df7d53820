"""A reader prefers the replica in its rack, and reads failed log dirs and replicas outside of the ISR last."""

import kafka
import pytest

from spark_log import Consumer
from spark_log.log.log import Records
from spark_log.metadata import tables as t
from tests.support.records import NOON_MS, table
from tests.support.replicas import RACKS, RECORDS, SEGMENTS
from tests.support.stores import change

on_both_stores = pytest.mark.parametrize("cluster_address", ["sqlite", "postgres"], indirect=True)


# Choice of the replica


def only_in(stored, broker_id):
    """Only one broker's log dir keeps the topic's files: a reader of another log dir would repair it."""
    missing = [file for file in stored.files(1, 2, 3) if file.broker_id != broker_id]
    for file in missing:
        file.damage("missing")
    return missing


def untouched(files):
    return [file.read() for file in files] == [None] * len(files)


@pytest.mark.parametrize(
    ("cluster_address", "stored"), [("sqlite", "local"), ("postgres", "local"), ("sqlite", "s3")], indirect=True
)
@pytest.mark.parametrize("broker_id", RACKS)
def test_a_reader_opens_the_replica_in_its_rack_and_no_other(stored, broker_id):
    rack = RACKS[broker_id]
    missing = only_in(stored, broker_id)
    assert stored.read(rack) == stored.consume(rack) == stored.expected
    found = {at: stored.log.offsets_for_times(stored.topic, {0: NOON_MS + at}, rack)[0] for at in range(SEGMENTS)}
    assert found == {at: at * RECORDS for at in range(SEGMENTS)}
    consumer = Consumer(cluster=stored.address, client_rack=rack)
    tp = kafka.TopicPartition("t", 0)
    assert consumer.offsets_for_times({tp: NOON_MS + 1})[tp].offset == RECORDS
    consumer.close()
    assert untouched(missing)
    stored.put_last(broker_id)
    assert stored.read("nowhere") == stored.expected
    assert not untouched(missing), "without a replica in its rack a reader takes any"


@on_both_stores
def test_readers_without_a_rack_spread_over_the_log_dirs(local):
    for number in range(30):
        local.log.append(local.topic, [Records(0, table(f"{number}"))])
    first = [files[0].broker_id for files in local.replicas()]
    assert len(set(first)) > 1, "names are random; how evenly they spread is for test_replica_selector"
    assert first == [files[0].broker_id for files in local.replicas()], "each segment is read from one place"


@on_both_stores
def test_a_failed_log_dir_is_read_last(local):
    change(local.cluster, t.log_dir.update().where(t.log_dir.c.broker_id == 2).values(online=False))
    gone = local.files(2)
    for file in gone:
        file.damage("missing")
    assert local.read("near") == local.consume("near") == local.expected
    assert untouched(gone), "it was not even opened"
    local.read()
    change(local.cluster, t.log_dir.update().where(t.log_dir.c.broker_id == 2).values(online=True))
    assert local.read("near") == local.expected
    assert not untouched(gone)
    change(local.cluster, t.log_dir.update().where(t.log_dir.c.broker_id == 2).values(online=False))
    for file in local.files(1, 3):
        file.damage("missing")
    assert local.read() == local.expected
    local.assert_whole()


@on_both_stores
def test_replicas_outside_the_isr_are_read_last_and_shorter_ones_never(local):
    local.put_last(1)
    assert {files[2].broker_id for files in local.replicas()} == {1}
    assert {files[0].broker_id for files in local.replicas("near")} == {2}
    change(local.cluster, t.replica.update().where(t.replica.c.broker_id == 1).values(log_end_offset=RECORDS))
    assert [sorted(file.broker_id for file in files) for files in local.replicas()] == [[1, 2, 3], [2, 3], [2, 3]]
    missing = [file for file in local.files(1) if file.name != local.replicas()[0][0].name]
    for file in missing:
        file.damage("missing")
    assert local.read() == local.expected
    assert untouched(missing), "what a replica does not claim to have is not copied by readers"
