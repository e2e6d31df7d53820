"""Fixtures of the tests of a cluster with several stores."""

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.stores import add_store
from spark_log.maintenance.client_log import ClientLog


@pytest.fixture
def stores(postgres_server, tmp_path):
    """A cluster whose home store and data store `east` are two databases."""
    with Cluster.init(postgres_server.create_prepared_database(), log_dir=str(tmp_path / "log-dir")) as cluster:
        add_store(cluster, "east", postgres_server.create_prepared_database())
        yield cluster


@pytest.fixture
def log(stores):
    log = ClientLog(stores)
    yield log
    log.close()


@pytest.fixture
def address(stores):
    return stores.store.address.with_password


@pytest.fixture(params=[("home", "east"), ("east", "home")], ids="-".join)
def way(request):
    """The names of the stores between which the topic is moved."""
    return request.param
