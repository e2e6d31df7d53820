"""Fixtures of the contract suites: what every store and every kind of log dir must keep."""

import pytest

from spark_log import Producer
from spark_log.cluster.brokers import add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.log.log import Log
from tests.support.postgres import PostgresServer


@pytest.fixture
def cluster(cluster_address, tmp_path):
    """A cluster with one broker and nothing in it, its log dir a local folder; once on SQLite, once on PostgreSQL."""
    log_dir = str(tmp_path / "log-dir") if "://" in cluster_address else None
    with Cluster.init(cluster_address, log_dir=log_dir) as cluster:
        yield cluster


@pytest.fixture
def three_brokers(cluster_address, tmp_path):
    """A cluster of three embedded brokers, each in a rack of its own with its log dir `<tmp>/d<id>`."""
    with Cluster.init(cluster_address, log_dir=str(tmp_path / "d1")) as cluster:
        for broker in (2, 3):
            add_broker(cluster, broker, [str(tmp_path / f"d{broker}")], rack=f"r{broker}")
        yield cluster


@pytest.fixture
def log(cluster):
    log = Log(cluster)
    yield log
    log.close()


@pytest.fixture
def produce(cluster, cluster_address):
    """Makes producers of the cluster; they are closed at the end."""
    made = []

    def make(**settings):
        made.append(Producer(cluster=cluster_address, **settings))
        return made[-1]

    yield make
    for producer in made:
        producer.close(timeout=10)


@pytest.fixture
def own_postgres_server():
    """A PostgreSQL of this test alone, to be killed and started again."""
    server = PostgresServer()
    server.start()
    yield server
    server.kill()
    server.remove()
