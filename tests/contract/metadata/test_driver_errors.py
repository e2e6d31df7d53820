"""Each class of error of the database, in each phase of a transaction: a retry, or one of our errors."""

import threading
from contextlib import closing
from functools import partial

import pytest
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.errors import (
    DiskFullError,
    InvalidConfigurationError,
    MetadataConflictError,
    MetadataStoreError,
    MetadataStoreUnavailableError,
    SparkLogError,
    StorageUnavailableError,
)
from spark_log.metadata import tables as t
from spark_log.metadata.address import SQLITE_FILE, Address
from spark_log.metadata.store import Store
from tests.support.postgres import USER
from tests.support.postgres_proxy import PostgresProxy
from tests.support.server_processes import free_port

RETRIED = {
    "connection failure": "08006",
    "read only, in a failover": "25006",
    "idle in transaction": "25P03",
    "transaction timeout": "25P04",
    "serialization failure": "40001",
    "deadlock": "40P01",
    "out of resources": "53000",
    "out of memory": "53200",
    "too many connections": "53300",
    "object in use": "55006",
    "lock timeout": "55P03",
    "statement timeout": "57014",
    "shutdown": "57P01",
    "crash": "57P02",
    "starting up": "57P03",
}
RAISED = {
    "bad text": ("22021", MetadataStoreError),
    "out of range": ("22003", MetadataStoreError),
    "unique key": ("23505", MetadataConflictError),
    "aborted transaction": ("25P02", MetadataStoreError),
    "no privilege": ("42501", MetadataStoreError),
    "no table": ("42P01", MetadataStoreError),
    "disk full": ("53100", DiskFullError),
    "I/O error": ("58030", StorageUnavailableError),
    "internal": ("XX000", MetadataStoreError),
    "corrupted": ("XX001", MetadataStoreError),
}


@pytest.fixture
def postgres(postgres_cluster):
    return postgres_cluster.store


def add_write_id(connection, name):
    connection.execute(t.write_id.insert(), {"write_id": name, "holder": "a test", "until_ms": 0, "clock_epoch": ""})


def write_ids(store):
    return store.read(lambda connection: connection.execute(sa.select(t.write_id.c.write_id)).scalars().all())


def raise_once(store, moment):
    """Creates a trigger that raises an error once. The returned function sets the SQLSTATE of the next error.

    PostgreSQL does not roll a sequence back, so it counts over transactions.
    """
    store.transact(
        lambda connection: connection.exec_driver_sql(
            "CREATE TABLE failure (state text);"
            "CREATE SEQUENCE tries;"
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE wanted text; BEGIN"
            " SELECT state INTO wanted FROM failure;"
            " IF wanted IS NOT NULL AND nextval('tries') = 1 THEN RAISE EXCEPTION 'no' USING ERRCODE = wanted; END IF;"
            f" RETURN NEW; END $$; CREATE {moment} EXECUTE FUNCTION fail()"
        )
    )

    def arm(state):
        def body(connection):
            connection.exec_driver_sql("DELETE FROM failure; ALTER SEQUENCE tries RESTART")
            connection.execute(sa.text("INSERT INTO failure VALUES (:state)"), {"state": state})

        store.transact(body)

    return arm


MOMENTS = {
    "body": "TRIGGER failing AFTER INSERT ON write_id FOR EACH ROW",
    "commit": "CONSTRAINT TRIGGER failing AFTER INSERT ON write_id DEFERRABLE INITIALLY DEFERRED FOR EACH ROW",
}


@pytest.mark.parametrize("phase", MOMENTS)
def test_errors_in_the_body_and_in_the_commit(postgres, phase):
    arm = raise_once(postgres, MOMENTS[phase])
    for case, state in RETRIED.items():
        arm(state)
        attempts = []

        def body(connection, case=case, attempts=attempts):
            attempts.append(case)
            add_write_id(connection, case)

        postgres.transact(body)
        assert attempts == [case, case]
        arm(state)
        with pytest.raises(MetadataStoreUnavailableError):
            postgres.transact(lambda connection: add_write_id(connection, "never"), timeout_ms=0)
    for case, (state, error) in RAISED.items():
        arm(state)
        with pytest.raises(SparkLogError) as raised:
            postgres.transact(lambda connection: add_write_id(connection, "never"))
        assert type(raised.value) is error, case
    assert sorted(write_ids(postgres)) == sorted(RETRIED)


def test_errors_in_a_read(postgres):
    def read(state, timeout_ms=10_000):
        tries = []

        def body(connection):
            tries.append(state)
            if len(tries) == 1:
                connection.exec_driver_sql(f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END $$")
            return len(tries)

        return postgres.read(body, timeout_ms=timeout_ms)

    for case, state in RETRIED.items():
        assert read(state) == 2, case
        with pytest.raises(MetadataStoreUnavailableError):
            read(state, timeout_ms=0)
    for case, (state, error) in RAISED.items():
        with pytest.raises(SparkLogError) as raised:
            read(state)
        assert type(raised.value) is error, case


def test_errors_in_the_query_for_the_outcome_of_a_lost_commit(postgres, postgres_server):
    """While the outcome is unknown, the call neither returns nor repeats the transaction."""
    arm = raise_once(postgres, "TRIGGER failing BEFORE INSERT ON commit_token FOR EACH ROW WHEN (NOT NEW.committed)")
    retried = {**RETRIED, "disk full": "53100", "I/O error": "58030"}
    with PostgresProxy(postgres_server.port) as proxy, Cluster.open(proxy.address(postgres.address.url)) as cluster:
        for case, state in retried.items():
            arm(state)
            cut = proxy.cut("after", "INSERT INTO write_id")
            cluster.store.transact(lambda connection, case=case: add_write_id(connection, case))
            assert cut.done.is_set()
        for case, (state, _) in RAISED.items():
            if case not in retried:
                arm(state)
                proxy.cut("before", "INSERT INTO write_id")
                with pytest.raises(MetadataStoreError):
                    cluster.store.transact(lambda connection: add_write_id(connection, "never"))
    assert sorted(write_ids(postgres)) == sorted(retried)


def test_errors_of_a_new_connection(postgres, postgres_server):
    with PostgresProxy(postgres_server.port) as proxy:
        for state in [*RETRIED.values(), *(state for state, _ in RAISED.values()), "28P01", "3D000"]:
            proxy.refuse(1, state)
            with Cluster.open(proxy.address(postgres.address.url)) as cluster:
                proxy.refuse(1, state)
                cluster.store.engine.dispose()
                cluster.store.transact(lambda connection, state=state: add_write_id(connection, state))
                cluster.store.engine.dispose()
                proxy.refuse(1, state)
                with pytest.raises(MetadataStoreUnavailableError, match=state):
                    cluster.store.transact(lambda *_: None, timeout_ms=0)


def test_a_pool_without_a_free_connection_is_a_retriable_error(postgres):
    postgres.engine.pool._timeout = 0.01
    held = [postgres.engine.connect() for _ in range(15)]
    try:
        with pytest.raises(MetadataStoreUnavailableError, match="QueuePool"):
            postgres.read(lambda _: None, timeout_ms=0)
        with pytest.raises(MetadataStoreUnavailableError, match="QueuePool"):
            postgres.transact(lambda *_: None, timeout_ms=0)
    finally:
        for connection in held:
            connection.close()


def test_connections_are_renewed_when_the_server_has_become_read_only(postgres):
    """As behind a proxy that routes new connections to the new primary."""
    postgres.transact(lambda connection: add_write_id(connection, "before"))
    with postgres.engine.connect() as connection:
        pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        connection.exec_driver_sql("SET default_transaction_read_only = on")
        connection.commit()
    attempts = []

    def body(connection):
        attempts.append(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())
        add_write_id(connection, "after")

    postgres.transact(body)
    assert attempts[0] == pid and len(attempts) == 2 and attempts[1] != pid


def test_a_server_in_recovery_is_waited_for_until_it_is_promoted(own_postgres_server, tmp_path):
    server = own_postgres_server
    address = server.create_database()
    with Cluster.init(address, log_dir=str(tmp_path / "log-dir")) as cluster:
        server.demote()
        with pytest.raises(MetadataStoreUnavailableError, match="standby in recovery"):
            cluster.store.transact(lambda connection: add_write_id(connection, "early"), timeout_ms=500)
        with pytest.raises(MetadataStoreUnavailableError, match="standby in recovery"):
            cluster.store.read(lambda _: None, timeout_ms=0)
        waiting = threading.Thread(
            target=lambda: cluster.store.transact(lambda connection: add_write_id(connection, "late"))
        )
        waiting.start()
        server.query("SELECT pg_promote()")
        waiting.join(timeout=60)
        assert write_ids(cluster.store) == ["late"]


@pytest.mark.parametrize("damage", ["not a database", "no table", "read only"])
def test_a_damaged_sqlite_file(tmp_path, damage):
    folder = str(tmp_path / "cluster")
    Cluster.init(folder).close()
    with Cluster.open(folder) as cluster:
        store = cluster.store
        if damage == "not a database":
            store.engine.dispose()
            (tmp_path / "cluster" / SQLITE_FILE).write_bytes(b"x" * 100_000)
        elif damage == "no table":
            store.transact(t.write_id.drop)
        else:
            store.engine.dispose()
            with store.engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA query_only = on")
        with pytest.raises(SparkLogError):
            store.transact(lambda connection: add_write_id(connection, "w"), timeout_ms=100)
    if damage == "not a database":
        with pytest.raises(SparkLogError):
            Cluster.open(folder)


@pytest.mark.parametrize("wrong", [{"database": "nowhere"}, {"username": "nobody"}])
def test_an_address_that_the_server_refuses_is_an_error_at_once(postgres_server, wrong):
    address = sa.engine.make_url(postgres_server.create_database()).set(**wrong).render_as_string(hide_password=False)
    for call in (Cluster.open, partial(Cluster.init, log_dir="unused")):
        with pytest.raises(InvalidConfigurationError, match=r"^metadata store at .*FATAL: .*does not exist$"):
            call(address)


def test_an_address_is_wrong_if_all_its_hosts_say_so(postgres_server, own_postgres_server):
    """While a primary is replaced, a standby that is behind may not know the database yet."""

    def read(*ports):
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        with closing(Store(Address.parse(f"postgresql+psycopg://{USER}@{hosts}/nowhere"))) as store:
            store.read(lambda _: None, timeout_ms=0)

    with pytest.raises(InvalidConfigurationError, match="does not exist"):
        read(postgres_server.port, own_postgres_server.port)
    with pytest.raises(MetadataStoreUnavailableError, match="does not exist"):
        read(free_port(), own_postgres_server.port)
