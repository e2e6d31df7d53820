"""Iceberg tables of catalogs: a REST catalog and a SQL catalog, which fail, are dropped, or have another table."""

import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config

from spark_log.cluster.lease import unfenced
from spark_log.cluster.log_dir import LogDir
from spark_log.cluster.settings import alter_settings
from spark_log.config import ClusterSettings
from spark_log.errors import InvalidConfigurationError, StorageUnavailableError
from spark_log.facts.metrics.task_runs import TaskRunBuffer
from spark_log.maintenance.coordinator.lease_runner import PeriodicTaskContext
from spark_log.maintenance.coordinator.periodic_tasks import coordinator_tasks
from spark_log.maintenance.task_list import run_tasks
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import alter_configs, delete_topic
from spark_log.tables import publication
from spark_log.tables.checkpoints import try_maintain_logs
from spark_log.tables.iceberg import catalog as catalogs
from spark_log.tables.lag_measurement import describe_tables, topics_behind
from spark_log.tables.publication import publish, try_publish
from spark_log.tables.verification import rebuild, verify
from tests.support.iceberg import (
    CONFIGS,
    NAMESPACE,
    RestCatalog,
    by_duckdb,
    check_catalog,
    folder_of,
    loaded,
    publish_killed_at,
    values_of,
)
from tests.support.replicas import add_brokers, topic_on
from tests.support.stores import change, rows_of
from tests.support.table_checks import assert_delta_is_the_log
from tests.support.topics import append, fill, make, make_older

pytestmark = pytest.mark.delta


@pytest.fixture
def server(tmp_path):
    with RestCatalog(tmp_path / "catalog").running() as running:
        yield running


@pytest.fixture
def kind(cluster, request):
    """The catalogs take the stores in turn: none of them knows the other."""
    on_postgresql = str(cluster.store.address).startswith("postgresql")
    return getattr(request, "param", "sql" if on_postgresql else "rest")


@pytest.fixture(autouse=True)
def configured(cluster, server, kind, monkeypatch, tmp_path):
    """The cluster's tables are in the catalog `lake` of pyiceberg's configuration."""
    catalogs.load_catalog.cache_clear()
    catalogs._silent_until_s.clear()
    uri = server.uri if kind == "rest" else f"sqlite:///{tmp_path}/catalog/catalog.db"
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", kind)
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", uri)
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"file://{tmp_path}/catalog/warehouse")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # it is read at the import
    alter_settings(cluster, {"iceberg.catalog": "lake", "iceberg.namespace": ".".join(NAMESPACE)})
    yield
    catalogs.load_catalog.cache_clear()


@pytest.fixture
def topic(cluster):
    return make(cluster, "t", 1, **CONFIGS)


def test_the_table_of_a_catalog_follows_the_log(cluster, log):
    topic = make(cluster, "t", 2, **CONFIGS, value_format="json", value_schema="a BIGINT")
    publish(cluster, topic)
    assert loaded().scan().to_arrow().num_rows == 0, "a new topic has its table at once"
    append(log, topic, '{"a": 1}', '{"a": 2}')
    append(log, topic, '{"a": 3}', partition=1)
    check_catalog(cluster, topic, ["append"])
    topic = alter_configs(cluster, "t", {"value.schema": "a BIGINT, b STRING"})
    append(log, topic, '{"a": 4, "b": "x"}')
    check_catalog(cluster, topic, ["append"])
    records = loaded().scan(row_filter="record.a > 2").to_arrow()["record"].to_pylist()
    assert sorted(each["a"] for each in records) == [3, 4] and {each["b"] for each in records} == {None, "x"}
    for n in range(8):
        append(log, topic, f'{{"a": {n}}}')
    check_catalog(cluster, topic)
    list(run_tasks(cluster, ["merge"]))
    check_catalog(cluster, topic, ["replace"])
    log_dir, folder = folder_of(cluster, topic)
    assert (
        log_dir.names(f"{folder}/metadata")
        and not Path(log_dir.location(f"{folder}/metadata/version-hint.text")).exists()
    )
    assert [each.difference for each in verify(cluster, topic)] == [None, None]
    topic = alter_configs(cluster, "t", {"iceberg.snapshot.retention.ms": "0"})
    append(log, topic, '{"a": 5}')
    check_catalog(cluster, topic, ["append"])
    assert len(loaded().snapshots()) == 1
    publish(cluster, alter_configs(cluster, "t", {"table.formats": "delta"}))
    assert loaded().scan().to_arrow().num_rows == 0


def test_a_table_in_a_folder_moves_to_the_catalog(cluster, log):
    """It keeps its snapshots; the folder has no table any more that would get old."""
    alter_settings(cluster, {"iceberg.catalog": None})
    topic = make(cluster, "t", 1, **CONFIGS)
    append(log, topic, "a")
    publish(cluster, topic)
    assert by_duckdb(cluster, topic) == {0: ["a"]}
    alter_settings(cluster, {"iceberg.catalog": "lake"})
    check_catalog(cluster, topic, ["append"])
    log_dir, folder = folder_of(cluster, topic)
    assert not [name for name in log_dir.names(f"{folder}/metadata") if name.startswith("v")]
    append(log, topic, "b")
    check_catalog(cluster, topic, ["append"])
    assert len(loaded().snapshots()) == 2
    alter_settings(cluster, {"iceberg.catalog": None})
    publish(cluster, topic)
    assert by_duckdb(cluster, topic) == {0: ["a", "b"]}


def test_foreign_changes_are_undone(cluster, topic, log):
    append(log, topic, "a")
    append(log, topic, "b")
    publish(cluster, topic)
    table = loaded()
    table.delete("base_offset = 0")
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "theirs").commit()
    assert values_of(loaded().scan().to_arrow()) == {0: ["b"]}
    check_catalog(cluster, topic)
    assert loaded().refs().keys() == {"main"}
    with loaded().update_schema() as update:
        update.rename_column("value", "theirs")
    append(log, topic, "c")
    check_catalog(cluster, topic)
    table = loaded()
    table.manage_snapshots().rollback_to_snapshot(table.snapshots()[0].snapshot_id).commit()
    append(log, topic, "d")
    check_catalog(cluster, topic)


@pytest.mark.on_sqlite
@pytest.mark.parametrize(
    "point",
    [
        "iceberg.registered:1",
        "publish.before-commit:2",
        "iceberg.committed:1",
        "publish.committed:2",
        "publish.recorded:2",
    ],
)
def test_a_publisher_that_is_killed_at_any_step_is_replaced(cluster, topic, cluster_address, log, point, monkeypatch):
    """It moves a table from its folder into the catalog, or commits. The Delta table passes the point first."""
    append(log, topic, "before")
    moves = point == "iceberg.registered:1"
    alter_settings(cluster, {"iceberg.catalog": None if moves else "lake"})
    publish(cluster, topic)
    alter_settings(cluster, {"iceberg.catalog": "lake"})
    publish_killed_at(point, cluster_address, log, topic, monkeypatch)
    check_catalog(cluster, topic)
    assert [each.summary.operation.value for each in loaded().snapshots()] == ["append", "append"]
    assert rows_of(cluster, t.publication_intent) == {"publication_intent": []}
    log_dir, folder = folder_of(cluster, topic)
    assert not list(Path(log_dir.location(f"{folder}/metadata")).glob("v*"))


def test_a_dropped_table_is_made_again(cluster, topic, log):
    append(log, topic, "a")
    publish(cluster, topic)
    load_catalog("lake").drop_table((*NAMESPACE, "t"))
    append(log, topic, "b")
    check_catalog(cluster, topic, ["append"])
    assert rebuild(cluster, topic, "iceberg") == 1
    check_catalog(cluster, topic, ["append"])
    alter_settings(cluster, {"iceberg.namespace": "elsewhere"})
    append(log, topic, "c")
    publish(cluster, topic)
    assert values_of(load_catalog("lake").load_table("elsewhere.t").scan().to_arrow()) == {0: ["a", "b", "c"]}


@pytest.mark.on_sqlite
def test_another_topic_of_the_name_has_no_part_in_the_table(cluster, topic, log):
    append(log, topic, "a")
    publish(cluster, topic)
    delete_topic(cluster, "t")
    topic = make(cluster, "t", 1, **CONFIGS)
    append(log, topic, "b")
    check_catalog(cluster, topic, ["append"])


def test_a_table_of_somebody_else_is_not_touched(cluster, log, kind, server, tmp_path):
    lake = server.catalog if kind == "rest" else load_catalog("lake")
    lake.create_namespace(NAMESPACE[:1])
    lake.create_namespace(NAMESPACE)
    topic = make(cluster, "t", 1, **CONFIGS)
    append(log, topic, "a")
    # a copy of a cluster, from a backup, has folders of the same names
    folder = f"file://{tmp_path}/copy/{topic.folder}"
    lake.create_table((*NAMESPACE, "t"), schema=pa.schema([("a", pa.int64())]), location=folder)
    for act in (lambda: publish(cluster, topic), lambda: rebuild(cluster, topic, "iceberg")):
        with pytest.raises(InvalidConfigurationError, match=r"somebody else's: drop or rename it"):
            act()
        assert loaded().schema().column_names == ["a"]


@pytest.mark.on_sqlite
def test_a_catalog_that_is_not_configured_stops_no_other_table(cluster, topic, log):
    append(log, topic, "a")
    alter_settings(cluster, {"iceberg.catalog": "none-such"})
    with pytest.raises((InvalidConfigurationError, StorageUnavailableError), match="none-such"):
        publish(cluster, topic)
    assert try_publish(cluster, [topic])
    assert_delta_is_the_log(cluster)


@pytest.mark.on_sqlite
@pytest.mark.parametrize("kind", ["rest"], indirect=True)
def test_the_catalog_fails_in_every_way(cluster, topic, log, server):
    """It refuses, applies and loses the answer, is slow to apply, or another commit was first: one snapshot each."""
    publish(cluster, topic)
    late = []

    def lost(commit):
        commit()
        return 504

    def applied_later(commit):
        late.append(commit)
        return 503

    def applied_now(commit):
        commit()
        with pytest.raises(Exception, match=r"already exists|has changed|Requirement"):
            late.pop()()

    for number, (fault, fails) in enumerate(
        [(lambda _: 500, True), (lost, False), (lambda _: 409, False), (applied_later, True), (applied_now, False)]
    ):
        server.faults.append(fault)
        append(log, topic, str(number))
        if fails:
            with pytest.raises(StorageUnavailableError, match=r"lake\.logs\.t"):
                publish(cluster, topic)
        else:
            publish(cluster, topic)
            assert not server.faults
            check_catalog(cluster, topic)
    assert sum(int(each.summary["added-data-files"]) for each in loaded().snapshots()) == 5
    server.faults.append(applied_later)
    append(log, topic, "late")
    with pytest.raises(StorageUnavailableError):
        publish(cluster, topic)
    late.pop()()
    check_catalog(cluster, topic, ["append"])
    assert sum(int(each.summary["added-data-files"]) for each in loaded().snapshots()) == 6


def test_a_catalog_has_the_table_of_one_log_dir(cluster, log, tmp_path):
    """It stays where it is while it can, and moves when the log dir is offline or lacks a partition."""
    alter_settings(cluster, {"iceberg.catalog": None})
    add_brokers(cluster, tmp_path, 2, 3, 4)
    topic = topic_on(cluster, "t", [[3, 4], [3, 4]], **CONFIGS)
    fill(log, topic, [1, 1])
    publish(cluster, topic)
    folders = [Path(LogDir(info.uri).location(topic.folder), "metadata") for info in cluster.log_dirs().values()]
    assert [folder.exists() for folder in folders] == [False, False, True, True]
    alter_settings(cluster, {"iceberg.catalog": "lake"})
    check_catalog(cluster, topic)
    assert not [path for folder in folders for path in folder.glob("v*")], "they would get old"

    def log_dir_of_table():
        described = cluster.store.read(lambda c: describe_tables(c, [topic], cluster.log_dirs(), 0))[topic.topic_id]
        [iceberg] = [each for each in described if each.target == "iceberg"]
        assert iceberg.location == "lake.logs.t in catalog lake"
        return iceberg.log_dir_id

    assert log_dir_of_table() == 3
    assert cluster.store.read(lambda c: topics_behind(c, "iceberg")) == set()
    set_offline = t.log_dir.update().where(t.log_dir.c.log_dir_id == 3)
    change(cluster, set_offline.values(online=False))
    assert cluster.store.read(lambda c: topics_behind(c, "iceberg")) == {topic.topic_id}
    check_catalog(cluster, topic)
    assert log_dir_of_table() == 4
    change(cluster, set_offline.values(online=True))
    append(log, topic, "more")
    check_catalog(cluster, topic)
    assert log_dir_of_table() == 3
    change(cluster, t.replica.delete().where(t.replica.c.log_dir_id == 3, t.replica.c.partition == 1))
    append(log, topic, "more")
    check_catalog(cluster, topic)
    assert log_dir_of_table() == 4


@pytest.mark.on_sqlite
def test_a_table_whose_manifests_are_gone_is_made_anew(cluster, topic, log):
    """The catalog was switched off for a while, and clean-up of the table in the folder has deleted them."""
    append(log, topic, "a")
    publish(cluster, topic)
    log_dir, folder = folder_of(cluster, topic)
    for path in Path(log_dir.location(f"{folder}/metadata")).glob("*.avro"):
        path.unlink()
    append(log, topic, "b")
    check_catalog(cluster, topic, ["append"])


@pytest.mark.on_sqlite
@pytest.mark.parametrize("kind", ["sql"], indirect=True)
@pytest.mark.parametrize("torn", [b"", b"{", bytes(9), None])
def test_a_table_whose_metadata_file_was_torn_by_a_power_loss_is_made_anew(cluster, topic, log, torn):
    append(log, topic, "a")
    for act in (lambda: publish(cluster, topic), lambda: rebuild(cluster, topic, "iceberg")):
        publish(cluster, topic)
        file = Path(loaded().metadata_location)
        file.unlink() if torn is None else file.write_bytes(torn)
        act()
        check_catalog(cluster, topic, ["append"])


@pytest.mark.on_sqlite
@pytest.mark.parametrize("kind", ["sql"], indirect=True)
def test_the_metadata_file_of_a_commit_is_forced_to_disk(cluster, topic, log, monkeypatch):
    append(log, topic, "a")
    forced, fsync = set(), os.fsync
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: (forced.add(os.readlink(f"/proc/self/fd/{file}")), fsync(file)))
        publish(cluster, topic)
    assert loaded().current_snapshot() is not None and loaded().metadata_location in forced


@pytest.mark.on_sqlite
def test_metadata_files_stay_few(cluster, topic, log, monkeypatch):
    monkeypatch.setitem(catalogs._PROPERTIES, "write.metadata.previous-versions-max", "2")
    for number in range(6):
        append(log, topic, str(number))
        publish(cluster, topic)
    log_dir, folder = folder_of(cluster, topic)
    metadata = Path(log_dir.location(f"{folder}/metadata"))
    for path in metadata.iterdir():
        os.utime(path, (0, 0))
    list(run_tasks(cluster, ["delta"]))
    assert len(list(metadata.glob("*.json"))) == 3
    append(log, topic, "more")
    check_catalog(cluster, topic, ["append"])


@pytest.mark.on_sqlite
@pytest.mark.parametrize("kind", ["rest"], indirect=True)
def test_a_catalog_that_does_not_answer_delays_nobody(cluster, topic, log, server, monkeypatch):
    publish(cluster, topic)
    with server.silent(), monkeypatch.context() as patch:
        patch.setattr(catalogs, "ANSWER_S", 0.2)
        append(log, topic, "a")  # its Delta table is published
        assert_delta_is_the_log(cluster)
        for _ in range(2):
            with pytest.raises(StorageUnavailableError, match="has not answered"):
                publish(cluster, topic)
        patch.setattr(catalogs, "ANSWER_S", 3600.0)
        with pytest.raises(StorageUnavailableError, match="has not answered"):
            publish(cluster, topic)  # it is not asked again
        patch.setattr(catalogs, "ANSWER_S", 0.2)
        catalogs._silent_until_s.clear()  # a minute later the first call still waits for its answer
        with pytest.raises(StorageUnavailableError, match="has not answered"):
            publish(cluster, topic)
        assert catalogs._silent_until_s, "and the next tables do not wait for it"
    catalogs._silent_until_s.clear()
    check_catalog(cluster, topic, ["append"])


@pytest.mark.on_sqlite
@pytest.mark.parametrize("kind", ["rest"], indirect=True)
def test_only_one_task_of_a_coordinator_waits_for_a_catalog(cluster, log, server, monkeypatch):
    monkeypatch.setattr(log._loop, "appended", lambda _: None)
    tasks = {task.name: task for task in coordinator_tasks()}
    context = PeriodicTaskContext(cluster, ClusterSettings(), unfenced, lambda: False, 1, TaskRunBuffer())
    topic = make(cluster, "t", 1, **{**CONFIGS, "delta_max_lag_ms": "1000", "inline_max_bytes": "100"})
    append(log, topic, "a")
    make_older(cluster, 600_000)
    with server.silent(), monkeypatch.context() as patch:
        patch.setattr(catalogs, "ANSWER_S", 0.2)
        assert tasks["maintenance: seal"].run(context) != [], "its tail"
        assert tasks["maintenance: seal"].run(context) == []
        try_maintain_logs(cluster, topic, catalogs=False)
        assert not catalogs._silent_until_s, "the catalog was not asked"
        assert_delta_is_the_log(cluster)
        tasks["maintenance: publish to the catalog"].run(context)
        assert catalogs._silent_until_s
    catalogs._silent_until_s.clear()
    publication._began_s.clear()  # iceberg.max.lag.ms later
    tasks["maintenance: publish to the catalog"].run(context)
    assert values_of(loaded().scan().to_arrow()) == {0: ["a"]}
