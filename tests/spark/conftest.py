"""Fixtures of the Spark tests: a small cluster for each test."""

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.maintenance.client_log import ClientLog


@pytest.fixture
def cluster(tmp_path):
    with Cluster.init(str(tmp_path / "cluster")) as cluster:
        yield cluster


@pytest.fixture
def log(cluster):
    log = ClientLog(cluster)
    yield log
    log.close()
