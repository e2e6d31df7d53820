"""PostgreSQL crashes repeatedly under several clients, with commits that wait for their flush."""

import threading
from itertools import count

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.log.append.rules import Appended
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.records import read_all, table

CLIENTS, CRASHES, ACKNOWLEDGED = 12, 12, 40
DELAYED = {"commit_delay": 30_000, "commit_siblings": 0, "wal_writer_delay": "10s"}
"""A commit waits 30 ms for others before the flush, and nothing else flushes: a crash loses many commits."""


@pytest.mark.slow
def test_every_acknowledged_record_survives_crashes_that_lose_unflushed_commits(own_postgres_server, tmp_path):
    server = own_postgres_server
    address = server.create_database()
    with Cluster.init(address, log_dir=str(tmp_path / "log-dir")) as cluster:
        topic = create_topic(cluster, "t", CLIENTS)
    server.stop()
    server.start(**DELAYED)
    acknowledged: list[tuple[int, int, str]] = []
    failures: list[Exception] = []
    stop, more = threading.Event(), threading.Condition()

    def append(partition):
        with Cluster.open(address) as cluster:
            log = ClientLog(cluster)
            for number in count():
                if stop.is_set():
                    break
                value = f"{partition}-{number}"
                try:
                    [outcome] = log.append(topic, [Records(partition, table(value))])
                except Exception as error:
                    failures.append(error)
                    break
                assert isinstance(outcome, Appended), outcome
                with more:
                    acknowledged.append((partition, outcome.base_offset, value))
                    more.notify_all()
            log.close()

    clients = [threading.Thread(target=append, args=[partition]) for partition in range(CLIENTS)]
    for client in clients:
        client.start()
    for number in range(CRASHES):
        with more:
            wanted = (number + 1) * ACKNOWLEDGED
            assert more.wait_for(lambda wanted=wanted: failures or len(acknowledged) >= wanted, timeout=60)
        server.kill()
        server.start(**DELAYED)
    stop.set()
    for client in clients:
        client.join(timeout=60)
    assert failures == []
    with Cluster.open(address) as cluster:
        stored = read_all(ClientLog(cluster), topic)
    assert sorted(stored) == sorted(acknowledged)
