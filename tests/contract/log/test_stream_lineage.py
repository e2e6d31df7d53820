"""A streaming source whose topic is recreated, or whose log is truncated by an unclean election."""

import pytest

from spark_log.errors import DataLossError, InvalidOptionError
from spark_log.groups.committed_offsets import Commit, commit_offsets, committed, committed_offsets
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.maintenance.removal.retention import delete_records
from spark_log.replication.controller.topic_operations import delete_topic
from spark_log.spark.datasource.options.source_options import ReadOptions
from spark_log.spark.datasource.read.read_planner import ReadPlanner
from tests.support.data_source import StreamQuery, address_of, values
from tests.support.replicas import truncate
from tests.support.topics import append, make

pytestmark = [pytest.mark.on_sqlite, pytest.mark.on_data_store]

T0 = TopicPartition("t", 0)


@pytest.fixture
def query(cluster, log, stream_query):
    """A function that starts a query, which has read records 0 to 4 of topic t, one segment each."""

    def start(**options):
        reading = stream_query(**options)
        assert values(reading.trigger()) == ["0", "1", "2", "3", "4"]
        return reading

    make(cluster, "t", delta_max_lag_ms="-1")
    more(log, *range(5))
    return start


def more(log, *records):
    for record in records:
        append(log, "t", f"{record}")


def recreate(cluster, log, *records):
    delete_topic(cluster, "t")
    make(cluster, "t", delta_max_lag_ms="-1")
    more(log, *records)


NEW = [f"new {number}" for number in range(7)]


def test_no_offset_of_a_deleted_topic_is_committed_for_the_group(cluster, log, query):
    reading = query(group__id="g")
    more(log, 5)
    assert values(reading.trigger()) == ["5"]
    assert committed_offsets(cluster.store, "g") == {T0: 5}
    recreate(cluster, log, *NEW)
    for restart in (False, True):
        if restart:
            reading.restart()
        with pytest.raises(DataLossError, match="t-0 offset was changed from 6 to 7"):
            reading.trigger()
        assert committed_offsets(cluster.store, "g") == {}
    reading.restart(failOnDataLoss=False)
    assert values(reading.trigger()) == NEW
    reading.trigger()
    assert committed_offsets(cluster.store, "g") == {T0: 7}


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("triggers", [(), (0,), (1,), (2,), (0, 1, 2)])
def test_a_recreated_topic_is_read_from_its_start_with_triggers_at_any_moment(cluster, log, query, triggers, restarted):
    reading = query(failOnDataLoss=False)
    read = []

    def moment(number):
        if number in triggers:
            read.extend(values(reading.trigger()))
            if restarted:
                reading.restart()

    delete_topic(cluster, "t")
    moment(0)
    make(cluster, "t")
    moment(1)
    more(log, *NEW[:3])
    moment(2)
    more(log, *NEW[3:])
    read.extend(values(reading.trigger()))
    assert read == NEW
    assert reading.trigger() == []


def test_a_topic_recreated_between_planning_and_running_a_batch(cluster, log, query):
    reading = query(failOnDataLoss=False)
    more(log, 5, 6, 7)
    end = reading.plan()
    recreate(cluster, log, *NEW)
    assert reading.run(end) == []
    assert values(reading.trigger()) == NEW


def test_a_recreated_topic_is_read_from_its_log_start(cluster, log, query):
    reading = query(failOnDataLoss=False)
    reading.restart(maxOffsetsPerTrigger=2)
    recreate(cluster, log, *NEW)
    delete_records(cluster, {T0: 3})
    assert values(reading.trigger() + reading.trigger() + reading.trigger()) == NEW[3:]


def test_an_available_now_query_ends_before_records_of_a_recreated_topic(cluster, log, query):
    reading = query(failOnDataLoss=False)
    reading.reader.prepareForTriggerAvailableNow()
    recreate(cluster, log, *NEW)
    read = values(reading.trigger() + reading.trigger())
    assert reading.plan() == reading.checkpoint, "the query ends"
    reading.restart()
    assert read + values(reading.trigger()) == NEW


REGROWN = [(), ("new",), ("new", "new"), ("new", "new", "new", "new")]
"""Records appended after the truncation: none; fewer than were truncated; as many; more."""


@pytest.mark.parametrize("regrown", REGROWN)
def test_a_log_truncated_below_the_read_position(cluster, log, query, regrown):
    reading = query(group__id="g")
    truncate(cluster, "t", 3)
    more(log, *regrown)
    for restart in (False, True):
        if restart:
            reading.restart()
        with pytest.raises(DataLossError, match=r"t-0 offset was changed from 5 to 3: .* unclean leader election"):
            reading.trigger()
        assert committed_offsets(cluster.store, "g") == {}, (
            "no commit for the truncated log without failOnDataLoss=false"
        )
    reading.restart(failOnDataLoss=False)
    assert values(reading.trigger()) == list(regrown)
    more(log, "later")
    assert values(reading.trigger()) == ["later"]
    assert reading.trigger() == []
    assert committed_offsets(cluster.store, "g") == {T0: 4 + len(regrown)}
    assert committed(cluster.store, "g")[T0].leader_epoch > 0


def test_a_log_truncated_above_the_read_position(cluster, log, query):
    reading = query()
    more(log, 5, 6)
    truncate(cluster, "t", 5)
    more(log, *NEW)
    assert values(reading.trigger()) == NEW


@pytest.mark.parametrize("regrown", REGROWN)
def test_a_log_truncated_between_planning_and_running_a_batch(cluster, log, query, regrown):
    reading = query(failOnDataLoss=False)
    more(log, 5, 6, 7)
    end = reading.plan()
    truncate(cluster, "t", 6)
    more(log, *regrown)
    assert values(reading.run(end)) == ["5"], "records from before and after the truncation are not mixed"
    assert values(reading.trigger()) == list(regrown)
    reading.restart(failOnDataLoss=True)
    more(log, 9)
    assert values(reading.trigger()) == ["9"], "the loss is reported once"


def test_a_log_truncated_while_a_batch_is_planned(cluster, log, query, monkeypatch):
    reading = query(failOnDataLoss=False)
    more(log, 5, 6, 7)
    end = reading.plan()
    planner = reading.reader._planner
    tasks = planner.tasks

    def truncate_meanwhile(*arguments):
        monkeypatch.setattr(planner, "tasks", tasks)
        truncate(cluster, "t", 6)
        more(log, *NEW)
        return tasks(*arguments)

    monkeypatch.setattr(planner, "tasks", truncate_meanwhile)
    assert values(reading.run(end)) == ["5"]
    assert values(reading.trigger()) == NEW


def test_a_checkpoint_without_epochs_is_continued(cluster, log, query):
    reading = query()
    for gone in ("@epochs", "@start-epochs"):
        del reading.checkpoint[gone]
    assert set(reading.checkpoint) == {"t", "@topics", "@cluster", "@start", "@start-topics"}
    reading.restart()
    assert reading.trigger() == []
    more(log, 5)
    assert values(reading.trigger()) == ["5"]
    assert reading.checkpoint["t"] == {"0": 6}
    truncate(cluster, "t", 4)
    more(log, *NEW)
    with pytest.raises(DataLossError, match="t-0 offset was changed from 6 to 4"):
        reading.trigger()


@pytest.mark.parametrize(("epoch", "read"), [(0, ["new", "new", "5"]), (-1, ["5"])], ids=["known", "unknown"])
def test_a_query_that_starts_at_offsets_committed_before_a_truncation(cluster, log, query, epoch, read):
    commit_offsets(cluster.store, "g", {T0: Commit(5, "", epoch)})
    truncate(cluster, "t", 3)
    more(log, "new", "new", "5")
    given = {"group__id": "g", "startingOffsets": "committed"}
    if epoch == 0:
        with pytest.raises(DataLossError, match="t-0 offset was changed from 5 to 3"):
            StreamQuery(cluster, **given).trigger()
    starting = StreamQuery(cluster, failOnDataLoss=False, **given)
    assert values(starting.trigger()) == read
    options = {"cluster": address_of(cluster), "subscribe": "t", "group.id": "g", "startingOffsets": "committed"}
    for fail in ("true", "false"):
        parsed = ReadOptions.parse({**options, "failOnDataLoss": fail}, streaming=False, environ={})
        planner = ReadPlanner(parsed)
        if fail == "true" and epoch == 0:
            with pytest.raises(DataLossError, match="t-0 offset was changed from 5 to 3"):
                planner.batch_ranges()
        else:
            assert planner.batch_ranges()[1] == {T0: OffsetRange(6 - len(read), 6)}
        planner.close()


@pytest.mark.parametrize(("epoch", "read"), [(0, OffsetRange(3, 4)), (-1, OffsetRange(4, 4))], ids=["known", "unknown"])
def test_a_batch_from_offsets_committed_beyond_the_end_of_a_truncated_log(cluster, log, query, epoch, read):
    query()
    commit_offsets(cluster.store, "g", {T0: Commit(5, "", epoch)})
    truncate(cluster, "t", 3)
    more(log, "new")

    def ranges(**options):
        given = {"cluster": address_of(cluster), "subscribe": "t", "group.id": "g", "startingOffsets": "committed"}
        planner = ReadPlanner(ReadOptions.parse({**given, **options}, streaming=False, environ={}))
        try:
            return planner.batch_ranges()[1]
        finally:
            planner.close()

    with pytest.raises(DataLossError, match=f"t-0 offset was changed from 5 to {read.start}"):
        ranges()
    assert ranges(failOnDataLoss="false") == {T0: read}
    with pytest.raises(InvalidOptionError, match="is greater than the resolved end offset 2"):
        ranges(failOnDataLoss="false", endingOffsets='{"t": {"0": 2}}')
