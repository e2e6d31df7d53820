"""The topic of the tests of reads, with three replicas in folders or in object storage."""

from uuid import uuid4

import pytest

from tests.support.replicas import ThreeReplicas


@pytest.fixture
def cluster_address(request, tmp_path):
    """On SQLite, unless a test is `on_both_stores`: damage and repair are in log dirs, the metadata is only read."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return str(tmp_path / "cluster")
    return request.getfixturevalue("postgres_server").create_prepared_database()


@pytest.fixture
def folders(tmp_path):
    return {broker_id: tmp_path / "log-dirs" / f"broker-{broker_id}" for broker_id in (1, 2, 3)}


@pytest.fixture
def local(cluster_address, folders):
    """The topic with its log dirs in three folders."""
    made = ThreeReplicas(cluster_address, {broker_id: str(folder) for broker_id, folder in folders.items()})
    yield made
    made.close()


@pytest.fixture(params=["local", "s3"])
def stored(request, cluster_address, folders):
    """The topic with its log dirs in three folders, and in three locations of object storage."""
    uris = {broker_id: str(folder) for broker_id, folder in folders.items()}
    if request.param == "s3":
        server, prefix = request.getfixturevalue("s3_server"), uuid4().hex
        uris = {broker_id: server.uri(f"{prefix}/broker-{broker_id}") for broker_id in (1, 2, 3)}
    made = ThreeReplicas(cluster_address, uris)
    yield made
    made.close()
