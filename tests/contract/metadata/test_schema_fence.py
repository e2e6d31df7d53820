"""A process that runs while a newer version upgrades the store: it goes on if it knows the new tables, else it is
refused, and nothing that it does is read or written in them.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory

from spark_log import Consumer, Producer
from spark_log.cluster.cluster import Cluster
from spark_log.errors import MetadataStoreError, UnsupportedVersionError
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.coordinator.coordinator import Coordinator
from spark_log.metadata import migrations
from spark_log.metadata import tables as t
from spark_log.metadata.connections.schema_fence import number_of
from spark_log.metadata.store_schema import revision_of
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.records import read_all, table
from tests.support.versions import become_next_version
from tests.support.waiting import wait_until

REFUSED = "was upgraded to revision 'v.*' by a newer spark-log .*: install the newer spark-log here"


def test_oldest_revision_is_that_before_the_last_additive_migrations():
    scripts = ScriptDirectory.from_config(migrations._config()).walk_revisions()
    closed = [number_of(each.revision) for each in scripts if not getattr(each.module, "additive", False)]
    assert max(closed) == number_of(t.OLDEST_REVISION)


def test_an_older_process_is_refused_in_its_next_transaction(cluster, cluster_address, tmp_path, monkeypatch):
    topic = create_topic(cluster, "t")
    log = ClientLog(cluster)
    log.append(topic, [Records(0, table("before"))])
    become_next_version(tmp_path, monkeypatch)
    with Cluster.open(cluster_address) as upgraded:
        with pytest.raises(UnsupportedVersionError, match=REFUSED):
            log.append(topic, [Records(0, table("after"))])
        with pytest.raises(UnsupportedVersionError, match=REFUSED):
            cluster.store.read(lambda connection: connection.execute(sa.select(t.topic.c.name)).all())
        with pytest.raises(UnsupportedVersionError, match=REFUSED):
            cluster.store.fence.raise_refusal()
        assert [value for _, _, value in read_all(ClientLog(upgraded), topic)] == ["before"]
    log.close()


def test_after_an_additive_migration_older_processes_go_on_and_can_be_started(
    cluster, cluster_address, tmp_path, monkeypatch
):
    topic = create_topic(cluster, "t")
    log = ClientLog(cluster)
    with monkeypatch.context() as newer:
        revision = become_next_version(tmp_path, newer, additive=True)
        upgraded = Cluster.open(cluster_address)
    with upgraded, Cluster.open(cluster_address) as older:
        for number, each in enumerate((cluster, upgraded, older)):
            ClientLog(each).append(topic, [Records(0, table(str(number)))])
            assert each.store.read(revision_of) == revision
        assert [value for _, _, value in read_all(log, topic)] == ["0", "1", "2"]
    log.close()


COUNT_RECORDS = """
    op.execute("CREATE TABLE seen AS SELECT sum(log_end_offset) AS records FROM partition")
"""


def test_no_transaction_of_an_older_version_comes_after_the_upgrade(cluster, cluster_address, tmp_path, monkeypatch):
    threads_count = 3
    topic = create_topic(cluster, "t", partitions=threads_count)
    appended = [0] * threads_count

    def append_until_refused(number):
        log = ClientLog(cluster)
        while True:
            log.append(topic, [Records(number, table("r"))])
            appended[number] += 1

    with ThreadPoolExecutor(threads_count) as pool:
        appending = [pool.submit(append_until_refused, number) for number in range(threads_count)]
        wait_until(lambda: all(count >= 20 for count in appended), "appends")
        become_next_version(tmp_path, monkeypatch, upgrade=COUNT_RECORDS)
        upgraded = Cluster.open(cluster_address)
    assert [type(each.exception()) for each in appending] == [UnsupportedVersionError] * threads_count
    with upgraded:
        at_upgrade = upgraded.store.read(lambda c: c.exec_driver_sql("SELECT records FROM seen").scalar_one())
        now = upgraded.store.read(lambda c: c.exec_driver_sql("SELECT sum(log_end_offset) FROM partition").scalar_one())
        assert at_upgrade == now == sum(appended)


def test_clients_and_coordinators_of_an_older_version_end_with_the_error(
    cluster, cluster_address, tmp_path, monkeypatch
):
    create_topic(cluster, "t")
    producer = Producer(cluster=cluster_address)
    consumer = Consumer("t", cluster=cluster_address, group_id="g", auto_offset_reset="earliest")
    producer.send("t", b"before").get(timeout=60)
    wait_until(lambda: consumer.poll(timeout_ms=200), "a record")
    with Coordinator(cluster) as coordinator:
        wait_until(lambda: coordinator.acting, "the lease")
        assert coordinator.health() is None
        become_next_version(tmp_path, monkeypatch)
        with Cluster.open(cluster_address):
            with pytest.raises(UnsupportedVersionError, match=REFUSED):
                producer.send("t", b"after").get(timeout=60)
            with pytest.raises(UnsupportedVersionError, match=REFUSED):
                wait_until(lambda: consumer.poll(timeout_ms=200), "an error")
            wait_until(lambda: coordinator.health() is not None, "the end of the coordinator")
    for client in (consumer, producer):
        client.close()


def test_upgrade_says_which_sessions_it_may_not_end(postgres_server, tmp_path, monkeypatch):
    address = sa.make_url(postgres_server.create_database())
    role = f"owner_of_{address.database}"
    postgres_server.execute(f"CREATE ROLE {role} LOGIN; ALTER DATABASE {address.database} OWNER TO {role}")
    as_owner = address.set(username=role).render_as_string(hide_password=False)
    Cluster.init(as_owner, log_dir=str(tmp_path / "log-dir")).close()
    with Cluster.open(str(address)) as cluster:
        become_next_version(tmp_path, monkeypatch)
        with pytest.raises(MetadataStoreError, match=rf"pid \d+ of {address.username} from .*GRANT pg_signal_backend"):
            Cluster.open(as_owner)
        assert cluster.store.read(revision_of) != t.SCHEMA_REVISION
