"""A PostgreSQL that was restored from a backup is older than the log dirs: nothing is deleted or removed from a Delta
table until an operator has accepted the restored store.
"""

import json
import logging
import shutil
from pathlib import Path

import pytest
import sqlalchemy as sa
from deltalake import DeltaTable
from typer.testing import CliRunner

from spark_log import Producer
from spark_log.cli.main import app
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import unfenced
from spark_log.errors import InvalidProducerIdMappingError, StoreChangedError
from spark_log.facts.metrics.cluster_snapshot import read_cluster
from spark_log.log.append.rules import Appended
from spark_log.log.partitions.retired_replicas import delete_retired_replicas
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.removal.cleanable_log_dirs import CleanableLogDirs
from spark_log.metadata import tables as t
from spark_log.metadata.connections import server_identity
from spark_log.replication.controller.store_acceptance import accept_store
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.tables import publication_resets
from spark_log.tables.publication import delta_tables, publish
from spark_log.tables.topic_tables import tables_of_topic
from spark_log.transactions.transaction_store import init_producer
from tests.support.pages import blocks
from tests.support.python_process import run_process
from tests.support.records import read_all
from tests.support.topics import append_to
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.delta

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "backup.md"
FILES = {"inline.max.bytes": "0"}


def in_delta(cluster, topic):
    [location] = delta_tables(cluster, topic).values()
    return sorted(value.decode() for value in DeltaTable(location).to_pyarrow_table()["value"].to_pylist())


def store_command(name, url, *options):
    """Exit code and JSON of `spark-log store …`."""
    done = CliRunner().invoke(app, ["store", name, "--cluster", url, "--json", *options])
    return done.exit_code, json.loads(done.stdout)


def test_a_restored_server_stops_publication_and_clean_up_until_it_is_accepted(own_postgres_server, tmp_path, caplog):
    server = own_postgres_server
    url = server.create_database()
    with Cluster.init(url, log_dir=str(tmp_path / "log-dir")) as cluster:
        topic = create_topic(cluster, "t", configs=FILES)
        append_to(cluster, topic, "before the backup")
        server.stop()
        server.back_up()
        server.start()
        assert append_to(cluster, topic, "after the backup") == Appended(1, 2), (
            "a server that was started again is the same"
        )
        assert in_delta(cluster, topic) == ["after the backup", "before the backup"]
        server.stop()
        server.restore()

        with pytest.raises(StoreChangedError, match=r"timeline 1.*is .*timeline 2.*spark-log store accept"):
            publish(cluster, topic)
        with pytest.raises(StoreChangedError):
            delete_retired_replicas(cluster, unfenced)
        with caplog.at_level(logging.WARNING):
            assert append_to(cluster, topic, "new") == Appended(1, 2), "appends go on"
        assert "spark-log store accept" in caplog.text, "and say what has stopped"
        log = ClientLog(cluster)
        assert [value for _, _, value in read_all(log, topic)] == ["before the backup", "new"], "so do reads"
        log.close()
        assert in_delta(cluster, topic) == ["after the backup", "before the backup"], "nothing was taken out"
    with Cluster.open(url) as cluster:  # another process
        with pytest.raises(StoreChangedError):
            publish(cluster, topic)
        assert read_cluster(cluster).unaccepted == {"home": True}
        code, status = store_command("status", url)
        assert code == 1 and "timeline 1" in status["recorded"] and "timeline 2" in status["identity"]
        shown = CliRunner().invoke(app, ["status", "--cluster", url])
        assert shown.exit_code == 1 and "then allow both with `spark-log store accept`" in shown.output
        assert [(each["folder"], each["files"]) for each in status["unnamed"]] == [(topic.folder, 1)]
        code, accepted = store_command("accept", url, "--yes")
        assert code == 0 and "timeline 1" in accepted["before"] and "timeline 2" in accepted["now"]
        code, status = store_command("status", url)
        assert read_cluster(cluster).unaccepted == {"home": False}
        assert code == 0 and "timeline 2" in status["recorded"] and status["accepted"] and not status["problem"]
        publish(cluster, topic)
        assert in_delta(cluster, topic) == ["before the backup", "new"]
        delete_retired_replicas(cluster, unfenced)


def test_another_server_is_distinguished_from_another_timeline(postgres_cluster):
    store = postgres_cluster.store
    store.transact(lambda c: c.execute(t.cluster.update().values(system_identifier="17", table_oid=None)))
    other = r"is on another server .*: it was system 17, timeline 1, and is system"
    with pytest.raises(StoreChangedError, match=other):
        store.read(server_identity.check_identity)
    with pytest.raises(StoreChangedError):  # of clean-up too, if that happens while it runs
        CleanableLogDirs(postgres_cluster, {}).decide(lambda connection: "delete")


def test_a_dump_that_was_restored_on_the_same_server_is_detected(postgres_server, postgres_url, tmp_path):
    with Cluster.init(postgres_url, log_dir=str(tmp_path / "log-dir")) as cluster:
        cluster.store.read(server_identity.check_identity)
    copy = postgres_server.create_copy(postgres_url)
    with Cluster.open(copy) as cluster:
        with pytest.raises(StoreChangedError, match=r"in another database: it was .* database .*, and is .*"):
            cluster.store.read(server_identity.check_identity)
        assert store_command("accept", copy, "--yes")[0] == 0
    with Cluster.open(copy) as cluster:
        cluster.store.read(server_identity.check_identity)


def test_a_dump_that_was_restored_over_its_own_database_is_detected(postgres_cluster):
    """pg_restore --clean makes the tables anew. VACUUM FULL, which writes them anew, is no restore."""
    store = postgres_cluster.store
    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM FULL cluster")
    for _ in range(10):  # so often that the server has prepared the query
        store.read(server_identity.check_identity)

    def restore(connection):
        connection.exec_driver_sql("ALTER TABLE cluster RENAME TO dumped")
        connection.exec_driver_sql("CREATE TABLE cluster (LIKE dumped INCLUDING ALL)")
        connection.exec_driver_sql("INSERT INTO cluster SELECT * FROM dumped")

    store.transact(restore)
    with pytest.raises(StoreChangedError, match=r"is restored from a dump: it was .* table .*, and is .* table .*"):
        store.read(server_identity.check_identity)  # with the connections of before
    with Cluster.open(store.address.with_password) as restored:
        with pytest.raises(StoreChangedError, match="is restored from a dump"):
            restored.store.read(server_identity.check_identity)
        accept_store(restored)
        restored.store.read(server_identity.check_identity)
    store.read(server_identity.check_identity)


def test_a_record_of_an_earlier_release_names_no_database(postgres_cluster):
    store = postgres_cluster.store
    now = store.read(server_identity.of_server)
    earlier = {"system_identifier": now.system_identifier, "table_oid": None}
    store.transact(lambda c: c.execute(t.cluster.update().values(**earlier)))
    recorded = store.read(server_identity.recorded)
    assert (recorded.database, recorded.table) == (None, None)
    store.read(server_identity.check_identity)


def test_a_server_that_hides_its_identity_is_used_with_a_warning(postgres_server, tmp_path, caplog):
    url = postgres_server.create_database()
    database = url.rpartition("/")[2]
    postgres_server.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM public", database)
    postgres_server.execute(
        f"CREATE ROLE {database}_user LOGIN; GRANT ALL ON SCHEMA public TO {database}_user", database
    )
    with (
        caplog.at_level(logging.WARNING),
        Cluster.init(url.replace("spark_log@", f"{database}_user@"), log_dir=str(tmp_path / "log-dir")) as cluster,
    ):
        topic = create_topic(cluster, "t", configs=FILES)
        append_to(cluster, topic, "a")
        publish(cluster, topic)
        assert in_delta(cluster, topic) == ["a"]
        assert cluster.store.read(server_identity.recorded) is None
    assert caplog.text.count("GRANT EXECUTE ON FUNCTION pg_control_system()") == 1


def test_an_older_copy_of_the_store_removes_nothing(tmp_path):
    """On SQLite only the log dirs can reveal it; a PostgreSQL of the same timeline is detected in the same way."""
    address, backup = tmp_path / "cluster", tmp_path / "backup.sqlite"
    with Cluster.init(str(address)) as cluster:
        cluster.store.read(server_identity.check_identity)
        topic, untouched = (create_topic(cluster, name, configs=FILES) for name in ("t", "untouched"))
        append_to(cluster, topic, "before the backup")
        append_to(cluster, untouched, "a")
    shutil.copy(address / "metadata.sqlite", backup)
    with Cluster.open(str(address)) as cluster:
        append_to(cluster, topic, "after the backup")
    shutil.copy(backup, address / "metadata.sqlite")
    with Cluster.open(str(address)) as cluster:
        append_to(cluster, topic, "new")
        append_to(cluster, untouched, "b")
        assert in_delta(cluster, topic) == ["after the backup", "before the backup"]
        assert in_delta(cluster, untouched) == ["a", "b"]
        with pytest.raises(StoreChangedError, match=r"topic t .* 1 segments .*spark-log store accept"):
            publish(cluster, topic)
        files = sorted(path.name for path in address.rglob("_segments/*/*.parquet"))
        [report] = run_tasks(cluster, ["files"], topics=["t"])
        assert any("orphans stay" in note for note in report.notes)
        assert sorted(path.name for path in address.rglob("_segments/*/*.parquet")) == files
        code, status = store_command("status", str(address))
        assert (code, status["store"], status["identity"]) == (0, "SQLite", None)
        assert [(each["folder"], each["files"]) for each in status["unnamed"]] == [(topic.folder, 1)]
        refused = CliRunner().invoke(app, ["store", "accept", "--cluster", str(address)], input="n\n")
        assert refused.exit_code == 1 and "removed from the Delta tables" in refused.output
        with pytest.raises(StoreChangedError):
            publish(cluster, topic)
        assert store_command("accept", str(address), "--yes") == (0, {"before": None, "now": None})
        publish(cluster, topic)
        assert in_delta(cluster, topic) == ["before the backup", "new"]
        append_to(cluster, topic, "more")
        assert in_delta(cluster, topic) == ["before the backup", "more", "new"]
        list(run_tasks(cluster, ["files"], topics=["t"]))
        assert store_command("status", str(address))[1]["unnamed"], "kept for file.delete.delay.ms"
        accept_long_ago(cluster, topic)
        list(run_tasks(cluster, ["files"], topics=["t"]))
        assert store_command("status", str(address))[1]["unnamed"] == []


@pytest.mark.parametrize("published_before", [True, False])
def test_an_acceptance_counts_whatever_the_clocks_say(tmp_path, published_before):
    """The clock of the host that wrote the table was ahead, and that of the acceptance before the backup too."""
    address, backup = tmp_path / "cluster", tmp_path / "backup.sqlite"
    with Cluster.init(str(address)) as cluster:
        accept_store(cluster)
        later = t.cluster.c.accepted_ms + 86_400_000
        cluster.store.transact(lambda c: c.execute(t.cluster.update().values(accepted_ms=later)))
        topic = create_topic(cluster, "t", configs=FILES)
        if published_before:
            append_to(cluster, topic, "before the backup")
    shutil.copy(address / "metadata.sqlite", backup)
    with Cluster.open(str(address)) as cluster:
        append_to(cluster, topic, "after the backup")
        [location] = delta_tables(cluster, topic).values()
        last = max(Path(location).glob("_delta_log/*.json"))
        last.write_text(last.read_text().replace('"timestamp":1', '"timestamp":9'))
    shutil.copy(backup, address / "metadata.sqlite")
    with Cluster.open(str(address)) as cluster:
        kept = ["before the backup"] if published_before else []
        with pytest.raises(StoreChangedError):
            publish(cluster, topic)
        accept_store(cluster)
        publish(cluster, topic)
        assert in_delta(cluster, topic) == kept
        append_to(cluster, topic, "new")
        assert in_delta(cluster, topic) == [*kept, "new"]
    shutil.copy(backup, address / "metadata.sqlite")
    with Cluster.open(str(address)) as cluster, pytest.raises(StoreChangedError):
        publish(cluster, topic)


def test_a_transactional_producer_that_outlived_a_restore_is_refused(cluster, cluster_address):
    """Its epoch, which the restored store does not know, is not given to its successor."""
    topic = create_topic(cluster, "t")
    init_producer(cluster, "x", 60_000)
    with Producer(cluster=cluster_address, transactional_id="x") as old:
        old.init_transactions()
        cluster.store.transact(lambda c: c.execute(t.producer.update().values(epoch=0)))  # as before it began
        accept_store(cluster)
        with Producer(cluster=cluster_address, transactional_id="x") as new:
            new.init_transactions()
            new.begin_transaction()
            new.send("t", b"new").get(LIMIT_S)
            with pytest.raises(InvalidProducerIdMappingError):
                old.begin_transaction()
            new.commit_transaction()
    log = ClientLog(cluster)
    assert [value for _, _, value in read_all(log, topic)] == ["new"]
    log.close()


def test_a_table_that_is_published_during_an_acceptance_skips_versions_too(cluster, monkeypatch):
    topic = create_topic(cluster, "t", configs=FILES)
    append_to(cluster, topic, "a")
    publish(cluster, topic)
    [key] = cluster.store.read(lambda connection: tables_of_topic(connection, topic))
    monkeypatch.setattr(publication_resets, "_unpublished", lambda connection: [key])  # as it was read before
    accept_store(cluster)
    version = sa.select(t.publication.c.transaction_version)
    assert cluster.store.read(lambda c: c.execute(version).scalar_one()) > publication_resets.VERSIONS_SKIPPED


def accept_long_ago(cluster, topic):
    """As if the store had been accepted file.delete.delay.ms ago."""
    earlier = t.cluster.c.accepted_ms - topic.config.file_delete_delay_ms
    cluster.store.transact(lambda c: c.execute(t.cluster.update().values(accepted_ms=earlier)))


@pytest.mark.slow
def test_lost_records_are_sent_again_from_unnamed_files(tmp_path):
    """As the guide says: list the files, and run its script. The dry run of clean-up refuses as the run does."""
    address, backup = str(tmp_path / "cluster"), tmp_path / "backup.sqlite"
    with Cluster.init(address) as cluster:
        topic = create_topic(cluster, "t", configs={**FILES, "retention.ms": "-1"})
        append_to(cluster, topic, "a")
        append_to(cluster, topic, "b")
    shutil.copy(tmp_path / "cluster" / "metadata.sqlite", backup)
    with Cluster.open(address) as cluster:
        append_to(cluster, topic, "lost")
        append_to(cluster, topic, "lost too")
        list(run_tasks(cluster, ["merge"]))
    shutil.copy(backup, tmp_path / "cluster" / "metadata.sqlite")
    with Cluster.open(address) as cluster:
        [planned], [run] = (list(run_tasks(cluster, ["files"], topics=["t"], dry_run=dry)) for dry in (True, False))
        assert planned.before == run.before and planned.notes == run.notes
        assert "orphans stay" in run.notes[0]
        assert store_command("accept", address, "--yes")[0] == 0
        list(run_tasks(cluster, ["delta", "files"], topics=["t"]))

    listed = CliRunner().invoke(app, ["store", "unnamed-files", "--topic", "t", "--cluster", address])
    assert len(listed.stdout.splitlines()) >= 2
    script = next(block for block in blocks(GUIDE.read_text()) if block.title == "send_again.py")
    program = script.code.replace("consumer_timeout_ms=5000", "consumer_timeout_ms=2000")
    assert program != script.code
    for sent in (2, 0):
        done = run_process("-c", program, address, "t", given=listed.stdout)
        assert (done.returncode, done.stdout) == (0, f"{sent} records sent again\n"), done.stderr
    with Cluster.open(address) as cluster:
        log = ClientLog(cluster)
        assert sorted(value for *_, value in read_all(log, topic)) == ["a", "b", "lost", "lost too"]
        log.close()
