"""A topic moves to another store with what the primary of its store has. A server that may have been replaced by a
promoted standby is not believed.
"""

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.settings import alter_settings
from spark_log.cluster.stores import add_store
from spark_log.cluster.topics import find_topic
from spark_log.errors import MetadataStoreUnavailableError
from spark_log.ids import HOME, HOME_NAME
from spark_log.replication.controller import topic_moves
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.topics import append_to, stored

EAST = 1


@pytest.fixture
def cluster(postgres_server, pair, tmp_path):
    """A cluster whose data store `east` is on the pair, and gets all new topics."""
    with Cluster.init(postgres_server.create_prepared_database(), log_dir=str(tmp_path / "log-dir")) as opened:
        add_store(opened, "east", pair.address(pair.primary.create_database()))
        alter_settings(opened, {"topic.default.store": "east", "store.answer.timeout.ms": "2000"})
        yield opened


def place(cluster):
    return cluster.home.store.read(lambda connection: find_topic(connection, "t")).store_id


@pytest.mark.slow
def test_a_server_without_its_standby_is_not_copied(cluster, pair, monkeypatch):
    """It answers reads, as an old primary does after the promotion of its standby."""
    append_to(cluster, create_topic(cluster, "t"), "a")
    freeze = topic_moves._freeze

    def freeze_and_lose_standby(*arguments):
        frozen = freeze(*arguments)
        pair.standby.kill()
        return frozen

    with monkeypatch.context() as losing:
        losing.setattr(topic_moves, "_freeze", freeze_and_lose_standby)
        with pytest.raises(MetadataStoreUnavailableError):
            topic_moves.move_topic(cluster, "t", HOME_NAME)
    assert place(cluster) == EAST

    pair.standby.start()
    topic_moves.move_topic(cluster, "t", HOME_NAME)
    assert place(cluster) == HOME
    assert stored(cluster, "t") == {0: ["a"]}
