"""Fixtures of the tests of a cluster with several stores."""

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.stores import add_store


@pytest.fixture
def stores(postgres_server, tmp_path):
    """A cluster whose home store and data store `east` are two databases."""
    with Cluster.init(postgres_server.create_database(), log_dir=str(tmp_path / "log-dir")) as cluster:
        add_store(cluster, "east", postgres_server.create_database())
        yield cluster
