"""The group of option group.id keeps the offsets of a query that reads a topic without new records for long."""

import pytest

from spark_log.groups import committed_offsets
from spark_log.ids import TopicPartition
from spark_log.metadata import tables as t
from tests.support.data_source import StreamQuery
from tests.support.topics import append, make


@pytest.mark.parametrize("cluster_address", ["sqlite"], indirect=True)
@pytest.mark.parametrize("again", [True, False])
def test_equal_offsets_are_committed_again_after_an_hour(cluster, log, monkeypatch, again):
    if again:
        monkeypatch.setattr(committed_offsets, "AGAIN_S", 0.0)
    make(cluster, "t", 1)
    append(log, "t", "a")
    query = StreamQuery(cluster, group__id="g")
    assert query.trigger() == [(0, b"a")]
    assert query.trigger() == []
    committed = {TopicPartition("t", 0): 1}
    assert committed_offsets.committed_offsets(cluster.store, "g") == committed
    cluster.store.transact(lambda connection: connection.execute(t.group_offset.delete()))  # they have expired
    assert query.trigger() == []
    assert committed_offsets.committed_offsets(cluster.store, "g") == (committed if again else {})
    query.reader.stop()
