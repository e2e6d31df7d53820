"""The start of a streaming query, its checkpoint, and Trigger.AvailableNow while producers append."""

import pytest

from spark_log.replication.controller.topic_operations import add_partitions
from tests.support.stream_source import StreamQuery, stored
from tests.support.topics import append, make

pytestmark = [pytest.mark.on_sqlite]


@pytest.fixture
def query(cluster, log):
    """A function that makes a query over topic t, which has the records 0 to 4."""
    made = []

    def start(**options):
        made.append(StreamQuery(cluster, **options))
        return made[-1]

    make(cluster, "t")
    more(log, *range(5))
    yield start
    for each in made:
        each.reader.stop()


def more(log, *records, partition=0):
    for record in records:
        append(log, "t", f"{record}", partition=partition)


def values(rows):
    return [value.decode() for _, value in rows]


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
    reading.checkpoint = stored(reading.reader.initialOffset())
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
    with pytest.raises(Exception, match="t-0 offset was changed from 7 to 5"):
        reading.run(end)
    more(log, 5, 6)
    assert reading.run(end) == []
    assert values(reading.trigger()) == ["5", "6"]
