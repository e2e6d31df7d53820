"""One cluster per test module of this folder and per store: every test uses its own names."""

from uuid import uuid4

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.replication.controller.topic_operations import create_topic
from tests.contract.transactions.transaction_state import NUMBERS
from tests.support.stores import STORES, TWO_STORES, put_topics_in_a_data_store


@pytest.fixture(scope="module", params=STORES)
def cluster_address(request, tmp_path_factory):
    if request.param not in ("postgres", "two_stores"):
        return str(tmp_path_factory.mktemp(f"transactions-on-{request.param}") / "cluster")
    return request.getfixturevalue("postgres_server").create_prepared_database()


@pytest.fixture(scope="module")
def cluster(cluster_address, tmp_path_factory, request):
    """With SPARK_LOG_TEST_STORES=two, its topics are in a data store."""
    log_dir = str(tmp_path_factory.mktemp("log-dir")) if "://" in cluster_address else None
    if "on-s3" in cluster_address:
        log_dir = request.getfixturevalue("s3_server").uri(uuid4().hex)
    with Cluster.init(cluster_address, log_dir=log_dir) as cluster:
        if TWO_STORES:
            put_topics_in_a_data_store(cluster, request.getfixturevalue("postgres_server"))
        yield cluster


@pytest.fixture
def topic(cluster):
    """A function that creates topics and returns their names."""

    def make(partitions=1, **configs):
        name = f"t{next(NUMBERS)}"
        create_topic(
            cluster, name, partitions, configs={key.replace("_", "."): value for key, value in configs.items()}
        )
        return name

    return make


@pytest.fixture
def begin(produce):
    """A function that creates a transactional producer with an open transaction."""

    def make(transactional_id=None, **settings):
        name = transactional_id or f"id{next(NUMBERS)}"
        producer = produce(transactional_id=name, **{"retry_backoff_ms": 1, **settings})
        producer.init_transactions()
        producer.begin_transaction()
        return producer

    return make
