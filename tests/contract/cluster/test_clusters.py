"""Clusters: creation, addresses, upgrades of their stores, log dirs."""

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from spark_log import Admin, Consumer, Producer
from spark_log.cluster.brokers import add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import LogDir, Marker
from spark_log.cluster.topics import list_topics
from spark_log.errors import (
    ClusterAlreadyExistsError,
    ClusterNotFoundError,
    InvalidConfigurationError,
    LogDirMismatchError,
    MetadataConflictError,
    MetadataStoreUnavailableError,
    UnsupportedVersionError,
)
from spark_log.ids import BrokerId
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import (
    migrations,
)
from spark_log.metadata import tables as t
from spark_log.metadata.address import Address
from spark_log.metadata.store import Store
from spark_log.metadata.store_opening import create_store, open_store
from spark_log.metadata.store_schema import revision_of
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.records import LARGE, SMALL_BLOBS, table
from tests.support.stores import rows_of
from tests.support.topics import find
from tests.support.versions import become_next_version
from tests.support.waiting import wait_until


@pytest.fixture(params=["sqlite", "postgres"])
def cluster_address(request, tmp_path):
    """An empty store: the tests of this file create the tables."""
    if request.param == "sqlite":
        return str(tmp_path / "cluster")
    return request.getfixturevalue("postgres_server").create_database()


def test_a_cluster_is_created_once_and_opened_by_its_address(cluster, cluster_address, tmp_path):
    with Cluster.open(cluster_address) as again:
        assert again.cluster_id == cluster.cluster_id
        (info,) = again.log_dirs().values()
        assert info.broker_id == 1
        assert again.log_dir(info).read_marker().cluster_id == cluster.cluster_id
    create_topic(cluster, "kept", configs=SMALL_BLOBS)
    ClientLog(cluster).append(find(cluster, "kept"), [Records(0, table(LARGE))])
    for log_dir in (None, str(tmp_path / "log-dir"), str(tmp_path / "elsewhere")):
        if log_dir or "://" not in cluster_address:
            with pytest.raises(ClusterAlreadyExistsError):
                Cluster.init(cluster_address, log_dir=log_dir)
    assert [topic.name for topic in list_topics(cluster)] == ["kept"]


def test_two_concurrent_inits_create_one_cluster(cluster_address, tmp_path):
    start = threading.Barrier(2)

    def init(number):
        start.wait(timeout=60)
        log_dir = str(tmp_path / f"dir-{number}") if "://" in cluster_address else None
        try:
            with Cluster.init(cluster_address, log_dir=log_dir) as made:
                return made.cluster_id
        except ClusterAlreadyExistsError:
            return None

    with ThreadPoolExecutor(2) as pool:
        (made,) = filter(None, pool.map(init, range(2)))
    with Cluster.open(cluster_address) as cluster:
        assert cluster.cluster_id == made
        (info,) = cluster.log_dirs().values()
        assert cluster.log_dir(info).read_marker().cluster_id == made, "the loser's marker is not in the winner's place"


def test_a_missing_cluster_is_an_error(cluster_address, tmp_path):
    with pytest.raises(ClusterNotFoundError, match="spark-log init"):
        Cluster.open(cluster_address)
    assert list(tmp_path.iterdir()) == [], "looking for a cluster makes nothing"


def test_a_database_with_tables_but_without_a_cluster_says_how_to_create_one(cluster, cluster_address):
    cluster.store.transact(lambda connection: connection.execute(t.cluster.delete()))
    command = f"spark-log init {cluster.store.address.without_password}"
    if "://" in cluster_address:
        command += " --log-dir FOLDER-OR-URI"
    with pytest.raises(ClusterNotFoundError) as raised:
        Cluster.open(cluster_address)
    assert str(raised.value) == f"no cluster at {cluster.store.address}: create one with `{command}`"


def test_init_opens_an_existing_cluster_if_asked(cluster_address, tmp_path):
    log_dir = str(tmp_path / "log-dir") if "://" in cluster_address else None
    with Cluster.init(cluster_address, log_dir=log_dir, if_not_exists=True) as made:
        create_topic(made, "kept")
        before = rows_of(made)
        with Cluster.init(cluster_address, log_dir=log_dir, if_not_exists=True) as again:
            assert again.cluster_id == made.cluster_id
        assert rows_of(made) == before


@pytest.mark.parametrize(
    ("revision", "message"), [("v99", r"'v99'.*newer"), ("0013", r"before the first release.*spark-log init")]
)
def test_store_of_an_unknown_revision_is_refused_and_left_unchanged(cluster, cluster_address, revision, message):
    def change(connection):
        connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{revision}'")
        connection.exec_driver_sql("UPDATE cluster SET oldest_revision = 99")

    cluster.store.transact(change)
    with cluster.store.fence.lifted():
        before = rows_of(cluster)
        with pytest.raises(UnsupportedVersionError, match=message):
            Cluster.open(cluster_address)
        assert rows_of(cluster) == before


def test_schema_revision_is_the_head_of_the_migrations(cluster):
    assert ScriptDirectory.from_config(migrations._config()).get_heads() == [t.SCHEMA_REVISION]
    with cluster.store.snapshot() as connection:
        assert MigrationContext.configure(connection).get_current_revision() == t.SCHEMA_REVISION


FIRST_RELEASE_LACKS = [
    ("partition", "rewrites"),
    ("producer", "owner"),
    ("group_member", "classic_protocols"),
    ("cluster", "beat"),
    ("cluster", "beat_ms"),
    ("cluster", "synchronous"),
    ("cluster", "promoted_ms"),
    ("retired_file", "fresh"),
    ("cluster", "oldest_revision"),
    ("cluster", "table_oid"),
    ("cluster", "store_id"),
    ("topic", "store_id"),
    ("topic", "state"),
    ("topic", "move"),
    ("topic", "move_epoch"),
    ("partition", "frozen"),
    ("transaction", "part_number"),
    ("transaction", "part_stores"),
]


def test_opening_a_store_of_an_earlier_release_upgrades_it(cluster, cluster_address, tmp_path, monkeypatch):
    topic = create_topic(cluster, "t")
    revision = become_next_version(tmp_path, monkeypatch)
    with Cluster.open(cluster_address) as upgraded:
        assert upgraded.store.read(revision_of) == revision
        assert find(upgraded, "t") == topic
        with upgraded.store.snapshot() as connection:
            assert connection.exec_driver_sql("SELECT zone FROM broker").scalars().all() == ["none"]


def without_targets(connection, name):
    """As the table was before publication had targets; it is empty."""
    before = sa.MetaData()
    columns = [
        sa.Column(
            column.name.replace("table_version", "delta_version"),
            column.type,
            primary_key=column.primary_key,
            nullable=column.nullable,
            server_default=column.server_default.arg if column.server_default else None,
            comment=column.comment,
        )
        for column in t.metadata.tables[name].columns
        if column.name != "target"
    ]
    table = sa.Table(name, before, *columns)
    table.primary_key.name = f"pk_{name}"
    connection.exec_driver_sql(f"DROP TABLE {name}")
    table.create(connection)


def test_store_of_the_first_release_gets_the_columns_of_this_one(cluster, cluster_address):
    def columns():
        inspector = sa.inspect(cluster.store.engine)
        return {
            (table, column["name"]): (str(column["type"]), column["nullable"], column["default"], column.get("comment"))
            for table in t.metadata.tables
            for column in inspector.get_columns(table)
        }

    made = columns()
    with cluster.store.engine.begin() as connection:
        connection.exec_driver_sql('ALTER TABLE "transaction" RENAME COLUMN previous_epoch TO bumped_from')
        connection.exec_driver_sql('ALTER TABLE "transaction" ADD COLUMN number BIGINT')
        connection.exec_driver_sql('ALTER TABLE "transaction" ADD COLUMN numbered BOOLEAN')
        connection.exec_driver_sql("ALTER TABLE group_member ADD COLUMN beat BIGINT")
        for name in ("group", "member"):
            connection.exec_driver_sql(f"ALTER TABLE classic_{name} RENAME TO opaque_{name}")
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql(f"ALTER INDEX pk_classic_{name} RENAME TO pk_opaque_{name}")
        for table in ("publication", "publication_cursor", "publication_intent", "publication_intent_cursor"):
            without_targets(connection, table)
        for table in ("group_config", "share_partition", "share_delayed", "store", "transaction_part", "spark_batch"):
            connection.exec_driver_sql(f"DROP TABLE {table}")
        connection.exec_driver_sql(
            "CREATE TABLE spark_batch (application VARCHAR(512), target VARCHAR(249), version BIGINT,"
            " record_count BIGINT, fingerprint VARCHAR(16), committed_ms BIGINT, newest_topic_id BIGINT,"
            " CONSTRAINT pk_spark_batch PRIMARY KEY (application, target))"
        )
        connection.exec_driver_sql("DROP INDEX ix_partition_frozen")
        for table, column in FIRST_RELEASE_LACKS:
            connection.exec_driver_sql(f'ALTER TABLE "{table}" DROP COLUMN {column}')
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'v1'")
    with Cluster.open(cluster_address):
        assert columns() == made


def test_processes_that_open_an_old_store_at_once_upgrade_it_once(postgres_server, tmp_path, monkeypatch):
    address = Address.parse(postgres_server.create_database())
    create_store(address, "c").close()
    revision = become_next_version(tmp_path, monkeypatch)
    watching = Store(address)
    upgrade = migrations.upgrade

    def upgrade_until_another_waits(connection):
        """Commits only when another thread that opens the store waits for this transaction."""
        upgrade(connection)
        waiting = "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE NOT granted"
        here = " AND datname = current_database()"
        with watching.fence.lifted():
            wait_until(lambda: watching.read(lambda c: c.exec_driver_sql(waiting + here).scalar_one()))

    monkeypatch.setattr(migrations, "upgrade", upgrade_until_another_waits)

    with ThreadPoolExecutor(3) as pool:
        for store in pool.map(open_store, [address] * 3):
            store.close()
    assert watching.read(revision_of) == revision
    watching.close()


def test_a_log_dir_of_an_unknown_broker_is_refused(cluster, tmp_path):
    before = rows_of(cluster)
    with pytest.raises(InvalidConfigurationError, match="no broker 7"):
        cluster.add_log_dir(BrokerId(7), str(tmp_path / "more"))
    assert rows_of(cluster) == before
    assert not (tmp_path / "more").exists()


def test_two_calls_at_once_that_add_a_broker_leave_it_whole(cluster, tmp_path, monkeypatch):
    """The first one fails after the second one has added the log dirs."""
    folders = [str(tmp_path / name) for name in ("d2", "d3")]
    add_log_dir = Cluster.add_log_dir

    def second_call_first(*arguments):
        monkeypatch.setattr(Cluster, "add_log_dir", add_log_dir)
        add_broker(cluster, 2, folders)
        return add_log_dir(*arguments)

    monkeypatch.setattr(Cluster, "add_log_dir", second_call_first)
    with pytest.raises(InvalidConfigurationError, match="which is a log dir already"):
        add_broker(cluster, 2, folders)
    infos = [info for info in cluster.log_dirs().values() if info.broker_id == 2]
    assert [info.uri for info in infos] == [f"file://{folder}" for folder in folders]


def test_two_calls_at_once_that_add_a_log_dir_leave_the_marker_of_its_row(cluster, tmp_path, monkeypatch):
    (tmp_path / "d2").mkdir()
    empty = LogDir.empty

    def second_call_first(log_dir):
        monkeypatch.setattr(LogDir, "empty", empty)
        cluster.add_log_dir(BrokerId(1), str(tmp_path / "d2"))
        return empty(log_dir)

    monkeypatch.setattr(LogDir, "empty", second_call_first)
    with pytest.raises(MetadataConflictError):
        cluster.add_log_dir(BrokerId(1), str(tmp_path / "d2"))
    [info] = [info for info in cluster.log_dirs().values() if info.uri.endswith("/d2")]
    assert cluster.log_dir(info).read_marker().uuid == info.uuid


@pytest.mark.parametrize("change", [{"broker_id": 7}, {"counter": 1}])
def test_a_marker_that_no_addition_to_the_broker_has_left_is_refused(cluster, tmp_path, change):
    marker = Marker(cluster.cluster_id, 1, str(uuid.uuid4()), counter=0)
    LogDir(f"file://{tmp_path / 'd2'}").write_marker(replace(marker, **change))
    with pytest.raises(LogDirMismatchError, match="belongs to a cluster already"):
        cluster.add_log_dir(BrokerId(1), str(tmp_path / "d2"))


PASSWORDS = [
    "postgresql+psycopg://me:hunter2@127.0.0.1:1/db",
    "postgresql+psycopg://me:hunter2:hunter2@127.0.0.1:1/db",
    "postgresql+psycopg://:hunter2@127.0.0.1:1/db",
    "postgresql+psycopg://127.0.0.1:1/db?user=me&password=hunter2",
    "postgresql+psycopg://127.0.0.1:1/db?sslpassword=hunter2&user=me",
    "postgres://me:hunter2@127.0.0.1:1/db",
]


@pytest.mark.parametrize("url", PASSWORDS)
def test_a_password_is_in_no_repr_and_no_error(url):
    store = Store(Address.parse(url))
    with pytest.raises(MetadataStoreUnavailableError) as raised:
        store.read(lambda connection: None, timeout_ms=0)
    shown = [raised.value, store.address, repr(store.address), repr(Cluster(store))]
    assert "hunter2" not in " ".join(map(str, shown))
    with pytest.raises(MetadataStoreUnavailableError) as raised:
        store.transact(lambda connection: None, timeout_ms=0)
    assert "hunter2" not in str(raised.value)


REFUSED = [
    "mysql://me:hunter2@h/db",
    "s3://key:hunter2@bucket/x",
    "sqlite://u:hunter2@/x",
    "postgresql://me:p@hunter2@h/db",
    "postgresql://me:p/hunter2@h/db",
]


@pytest.mark.parametrize("text", REFUSED)
def test_an_address_of_another_kind_is_refused_without_its_password(text):
    with pytest.raises(InvalidConfigurationError) as raised:
        Address.parse(text)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "text", ["localhost:9092", " b1.example.com:9092, b2:9093 ", "SASL_SSL://b:9093", "[::1]:9092"]
)
def test_the_address_of_a_kafka_broker_is_recognised(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidConfigurationError) as raised:
        Address.parse(text)
    assert str(raised.value).startswith(f"cluster: {text.strip()!r} is the address of a Kafka broker.")
    assert "folder" in str(raised.value) and "postgresql+psycopg://" in str(raised.value)


@pytest.mark.parametrize("servers", ["b1:9092", ["b1:9092"], ["b1:9092", "b2:9092"], ("b1:9092", "b2:9092")])
def test_a_client_with_broker_addresses_gets_a_clear_error(servers, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for make in (Producer, Consumer, Admin):
        with pytest.raises(InvalidConfigurationError, match=r"'b1:9092(,b2:9092)?' is the address of a Kafka broker"):
            make(bootstrap_servers=servers)


def test_a_folder_that_is_named_like_a_broker_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "localhost:9092").mkdir()
    Cluster.init("localhost:9092").close()
    assert Cluster.open("localhost:9092").store.address.folder == tmp_path / "localhost:9092"
    for folder in ("./b:9092", "/data/b:9092", "b:port", "a b:9092", "/a:1,/b:2"):
        assert Address.parse(folder).folder is not None


def test_an_address_without_its_password_can_be_repeated():
    assert Address.parse("postgresql://me:x@h/db").without_password == "postgresql+psycopg://me@h/db"
    assert Address.parse("postgresql+psycopg://me@h/db").without_password == "postgresql+psycopg://me@h/db"
    assert Address.parse("/a:***@b").without_password == "/a:***@b"


def test_a_log_dir_of_another_cluster_is_refused(cluster, postgres_server, tmp_path):
    (info,) = cluster.log_dirs().values()
    marker = cluster.log_dir(info).read_marker()
    for take in (
        lambda: Cluster.init(str(tmp_path / "other"), log_dir=info.uri),
        lambda: Cluster.init(postgres_server.create_database(), log_dir=info.uri),
    ):
        with pytest.raises(LogDirMismatchError, match=marker.cluster_id):
            take()
    assert cluster.log_dir(info).read_marker() == marker
