"""The start of a streaming query, its checkpoint, and Trigger.AvailableNow while producers append."""

import pytest

from spark_log.errors import DataLossError, InvalidOptionError, UnknownTopicOrPartitionError
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.replication.controller.topic_operations import add_partitions, delete_topic
from tests.support.data_source import StreamQuery, stored_offset, values
from tests.support.topics import append, make

pytestmark = [pytest.mark.on_sqlite]


@pytest.fixture
def query(cluster, log, stream_query):
    """A function that makes a query over topic t, which has the records 0 to 4."""
    make(cluster, "t")
    more(log, *range(5))
    return stream_query


def more(log, *records, partition=0):
    for record in records:
        append(log, "t", f"{record}", partition=partition)


STARTS = [
    {"startingOffsets": "latest"},
    {"startingOffsets": '{"t":{"0":-1,"1":-1}}'},
    {"startingTimestamp": 2**52, "startingOffsetsByTimestampStrategy": "latest"},
]


@pytest.mark.parametrize("options", STARTS)
def test_an_available_now_query_that_starts_at_the_latest_offsets_ends_while_producers_append(
    cluster, log, query, options
):
    reading = query()
    reading.restart(**options)
    reading.reader.prepareForTriggerAvailableNow()
    add_partitions(cluster, "t", 2)
    more(log, 5, 6)
    more(log, "a", partition=1)
    reading.checkpoint = stored_offset(reading.reader.initialOffset())
    more(log, 7)
    assert reading.trigger() == []
    assert reading.checkpoint["t"] == {"0": 7, "1": 1}
    assert reading.plan() == reading.checkpoint, "the query ends"
    reading.restart()
    reading.reader.prepareForTriggerAvailableNow()
    assert values(reading.trigger()) == ["7"], "the next run reads what came since"


def test_an_available_now_query_ends_where_the_log_ended_when_it_began(log, query):
    reading = query()
    reading.reader.prepareForTriggerAvailableNow()
    more(log, 5)
    assert values(reading.trigger()) == ["0", "1", "2", "3", "4"]
    assert reading.plan() == reading.checkpoint


def test_a_checkpoint_whose_first_batch_ends_below_its_start_is_continued(log, query):
    reading = query()
    end = reading.plan() | {"@start": {"t": {"0": 7}}}
    with pytest.raises(DataLossError, match="t-0 offset was changed from 7 to 5"):
        reading.run(end)
    more(log, 5, 6)
    assert reading.run(end) == []
    assert values(reading.trigger()) == ["5", "6"]


def test_a_checkpoint_of_another_cluster_is_data_loss(cluster, log, query):
    reading = query(maxOffsetsPerTrigger=3, group__id="g")
    assert values(reading.trigger()) == ["0", "1", "2"]
    batch_0 = reading.checkpoint
    reading.checkpoint = reading.checkpoint | {"@cluster": "another"}
    with pytest.raises(DataLossError, match="checkpoint is of cluster another, and the query reads cluster"):
        reading.plan()
    with pytest.raises(DataLossError, match="checkpoint is of cluster another"):
        reading.run(batch_0)
    assert committed_offsets(cluster.store, "g") == {}
    reading.restart(failOnDataLoss=False)
    assert values(reading.trigger()) == ["0", "1", "2"], "the topic of this cluster is read from its start"
    assert reading.checkpoint["@cluster"] == cluster.cluster_id
    reading.restart(failOnDataLoss=True)
    assert values(reading.trigger()) == ["3", "4"]
    assert reading.trigger() == []


def test_a_batch_that_was_planned_for_another_cluster_reads_nothing(cluster, log, query):
    reading = query(failOnDataLoss=False)
    begin, end = reading.checkpoint, reading.plan() | {"@cluster": "another"}
    assert reading.run(end) == []
    assert values(reading.trigger()) == ["0", "1", "2", "3", "4"]
    reading.checkpoint = begin
    reading.restart(failOnDataLoss=True)
    with pytest.raises(DataLossError, match="checkpoint is of cluster another"):
        reading.run(end)


def test_a_checkpoint_without_a_cluster_is_continued(log, query):
    reading = query()
    assert len(reading.trigger()) == 5
    del reading.checkpoint["@cluster"]
    more(log, 5)
    assert values(reading.trigger()) == ["5"]


def test_batch_0_is_replayed_though_the_start_does_not_exist_any_more(cluster, log, query):
    reading = query(startingOffsets='{"t":{"0":2}}')
    end = reading.plan()
    add_partitions(cluster, "t", 2)
    for _ in range(2):
        reading.restart()
        reading.checkpoint = stored_offset(reading.reader.initialOffset())
        assert values(reading.run(end)) == ["2", "3", "4"]
    more(log, "a", partition=1)
    assert values(reading.trigger()) == ["a"]
    with pytest.raises(InvalidOptionError, match="Partitions specified for start offsets don't match"):
        StreamQuery(cluster, startingOffsets='{"t":{"0":2}}').plan()
    delete_topic(cluster, "t")
    with pytest.raises(UnknownTopicOrPartitionError, match="topic 't': unknown topic or partition"):
        StreamQuery(cluster).plan()
