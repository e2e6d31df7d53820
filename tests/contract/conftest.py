"""Fixtures of the contract suites: what every store and every kind of log dir must keep."""

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.log.log import Log


@pytest.fixture
def cluster(cluster_address, tmp_path):
    """A cluster with one broker and nothing in it, its log dir a local folder; once on SQLite, once on PostgreSQL."""
    log_dir = str(tmp_path / "log-dir") if "://" in cluster_address else None
    with Cluster.init(cluster_address, log_dir=log_dir) as cluster:
        yield cluster


@pytest.fixture
def log(cluster):
    log = Log(cluster)
    yield log
    log.close()
