"""Members and share consumers of group `workers`."""

import pytest

from spark_log import ShareConsumer
from spark_log.groups.share import rows
from spark_log.groups.share.administration import alter_group_configs
from tests.support.share_members import ShareMember
from tests.support.topics import fill, make


@pytest.fixture
def member(cluster, log):
    """A member of a group that reads topic t from its start: 10 records in partition 0, none in partition 1."""
    make(cluster, "t", 2)
    alter_group_configs(cluster.store, "workers", {"share.auto.offset.reset": "earliest"})
    fill(log, "t", [10])
    return ShareMember(cluster)


@pytest.fixture
def configure(cluster):
    """Set configs of group `workers`."""

    def set_configs(**configs):
        named = {name.replace("_", "."): str(value) for name, value in configs.items()}
        cluster.store.transact(lambda connection: rows.save_configs(connection, "workers", named))

    set_configs(share_auto_offset_reset="earliest")
    return lambda **configs: set_configs(share_auto_offset_reset="earliest", **configs)


@pytest.fixture
def worker(cluster, cluster_address, configure):
    """A function that makes share consumers of topic `jobs`; they are closed at the end."""
    made = []

    def make(*topics, **settings):
        settings = {"group_id": "workers", **settings}
        made.append(ShareConsumer(*(topics or ("jobs",)), cluster=cluster_address, **settings))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()
