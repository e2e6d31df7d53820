"""Plans of a read query while the log changes."""

import pytest

from spark_log.errors import DataLossError
from spark_log.ids import TopicPartition
from spark_log.maintenance.removal.retention import delete_records
from spark_log.spark.datasource.options.source_options import ReadOptions
from spark_log.spark.datasource.read.read_planner import ReadPlanner
from tests.support.topics import fill, make

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def planner_of(cluster, log):
    """A planner with options, over a topic with 6 and 4 records."""
    fill(log, make(cluster, "t", 2), [6, 4])
    address = cluster.store.address
    named = {"cluster": address.url if address.folder is None else str(address.folder), "subscribe": "t"}
    made = []

    def make_planner(**options):
        made.append(ReadPlanner(ReadOptions.parse({**named, **options}, streaming=False, environ={})))
        return made[-1]

    yield make_planner
    for planner in made:
        planner.close()


def test_records_deleted_between_resolving_and_planning_are_skipped_if_data_loss_is_allowed(cluster, planner_of):
    planner = planner_of(failOnDataLoss="false")
    available, ranges = planner.batch_ranges()
    delete_records(cluster, {T0: 4})
    slices = [piece for task in planner.tasks(available, ranges) for piece in task.slices]
    offsets = [(piece.topic_partition, offset) for piece in slices for offset in range(piece.start, piece.end)]
    assert sorted(offsets) == [*((T0, offset) for offset in (4, 5)), *((T1, offset) for offset in range(4))]


def test_records_deleted_between_resolving_and_planning_are_data_loss_otherwise(cluster, planner_of):
    planner = planner_of()
    available, ranges = planner.batch_ranges()
    delete_records(cluster, {T0: 4})
    with pytest.raises(DataLossError, match=r"offset \[0, 4\) for topic partition t-0"):
        planner.tasks(available, ranges)
