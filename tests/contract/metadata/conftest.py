"""Fixtures of the tests of the metadata store."""

import pytest

from spark_log.cluster.cluster import Cluster


@pytest.fixture
def postgres_cluster(postgres_url, tmp_path):
    """An empty cluster on PostgreSQL."""
    with Cluster.init(postgres_url, log_dir=str(tmp_path / "log-dir")) as cluster:
        yield cluster
