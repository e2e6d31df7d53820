"""A bank whose branches are in three stores: each transfer is a transaction over all of them, while the PostgreSQL
servers and the clients are killed.
"""

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.settings import alter_settings
from spark_log.cluster.stores import add_store
from spark_log.maintenance.coordinator.coordinator import Coordinator
from spark_log.maintenance.task_list import run_tasks
from tests.support.bank import BRANCHES, audit, open_bank
from tests.support.children import Child
from tests.support.postgres import PostgresServer
from tests.support.waiting import wait_until

COUNT = 20
KILLS_OF_SERVERS = 4
LIVES = {
    "a": ["part.prepared", "transaction.committed", "kill", "on"],
    "b": ["part.registered:2", "part.decided", "kill", "on"],
    "c": ["on"],
}


@pytest.fixture
def servers():
    """Two PostgreSQL servers of this test only."""
    servers = [PostgresServer(), PostgresServer()]
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.kill()
            server.remove()


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1], ids=["home", "data stores"])
def test_transfers_are_whole_after_kills_of_servers_and_clients(servers, tmp_path, killed):
    near, far = servers
    address = near.create_database()
    with Cluster.init(address, log_dir=str(tmp_path / "log-dir")) as cluster:
        for name in ("east", "west"):
            add_store(cluster, name, far.create_database())
        alter_settings(cluster, {"transaction.cross.store": "allow", "transaction.abort.interval.ms": "200"})
        open_bank(cluster, address, stores=dict(zip(BRANCHES, ("home", "east", "west"), strict=True)))
        clients = [
            Child("tests.support.transaction_programs", "bank_client", address, name, COUNT, -1, *lives)
            for name, lives in LIVES.items()
        ]
        try:
            with Coordinator(cluster):
                for _ in range(KILLS_OF_SERVERS):
                    before = done(clients)
                    wait_until(lambda: done(clients) > before or all(client.ended for client in clients))  # noqa: B023
                    servers[killed].kill()
                    servers[killed].start()
                for client in clients:
                    client.finish()
        finally:
            for client in clients:
                client.kill()
        list(run_tasks(cluster, ["transactions"]))
        statement = audit(cluster, list(LIVES))
        statement.check()
        assert statement.following == dict.fromkeys(LIVES, COUNT)
        assert done(clients) <= set(statement.legs)


def done(clients):
    """The acknowledged transfers."""
    return {line[1] for client in clients for line in list(client.lines) if line[0] == "done"}
