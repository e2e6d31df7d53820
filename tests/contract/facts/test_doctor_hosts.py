"""The doctor on stores that may fail over: it asks each host, also as a role that does not see the standbys, and names
asynchronous replication.
"""

from dataclasses import replace

import pytest

from spark_log.cluster import promotion as acceptance
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import unfenced
from spark_log.cluster.settings import alter_settings
from spark_log.cluster.stores import add_store
from spark_log.facts.doctor.examination import examine
from spark_log.facts.doctor.findings import Severity
from tests.support.postgres import postgres_pair
from tests.support.server_processes import free_port

ROLE = "log_owner"


def findings_of(address, check):
    return [(each.severity, each.seen) for each in examine(address) if each.check == check]


@pytest.mark.slow
def test_the_doctor_asks_each_host_of_each_store(tmp_path, monkeypatch):
    with postgres_pair() as pair:
        pair.primary.execute(f"CREATE ROLE {ROLE} LOGIN")
        pair.primary.execute(f"CREATE DATABASE log OWNER {ROLE}")
        hosts = [f"127.0.0.1:{server.port}" for server in (pair.standby, pair.primary)]
        address = f"postgresql+psycopg://{ROLE}@{','.join(hosts)}/log"
        Cluster.init(address, log_dir=str(tmp_path / "log-dir")).close()

        [(severity, seen)] = [each for each in findings_of(address, "store") if "standby" in each[1]]
        assert (severity, "does not see" in seen) == (Severity.NOTE, True), seen
        pair.primary.execute(f"GRANT pg_monitor TO {ROLE}")
        assert not [each for each in findings_of(address, "store") if "standby" in each[1]]
        assert findings_of(address, "hosts") == [(Severity.OK, f"all 2 hosts answer, {hosts[1]} is the primary")]

        away = f"127.0.0.1:{free_port()}"
        [(severity, seen)] = findings_of(address.replace(hosts[0], away), "hosts")
        assert severity is Severity.WARNING
        assert seen.startswith(f"{away} does not answer: connection failed") and "Connection refused;" in seen

        pair.primary.execute(f"CREATE DATABASE east OWNER {ROLE}")
        east = f"{address.removesuffix('log')}east"
        with Cluster.open(address) as cluster:
            add_store(cluster, "east", east)
        all_well = f"all 2 hosts answer, {hosts[1]} is the primary"
        assert findings_of(address, "hosts") == [(Severity.OK, all_well), (Severity.OK, f"store east: {all_well}")]
        monkeypatch.setenv("SPARK_LOG_STORE_EAST", east.replace(hosts[0], away))
        [_, (severity, seen)] = findings_of(address, "hosts")
        assert severity is Severity.WARNING and seen.startswith(f"store east: {away} does not answer")

        pair.primary.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC", database="log")
        assert {severity for severity, _ in findings_of(address, "hosts")[:1]} == {Severity.NOTE}
        pair.primary.execute("REVOKE EXECUTE ON FUNCTION pg_current_wal_lsn() FROM PUBLIC", database="log")
        assert {severity for severity, _ in findings_of(address, "store")} == {Severity.NOTE}, "autovacuum is off"
        for function in ("pg_control_system", "pg_current_wal_lsn"):
            pair.primary.execute(f"GRANT EXECUTE ON FUNCTION {function}() TO PUBLIC", database="log")
        pair.standby.execute("SELECT pg_promote()")
        [(severity, seen), *_] = findings_of(address, "hosts")
        assert severity is Severity.ERROR
        assert f"{hosts[0]} (timeline 2), {hosts[1]} (timeline 1) both take writes" in seen
        [(severity, seen), *others] = findings_of(address, "store")
        assert severity is Severity.ERROR and "the metadata store is restored or promoted" in seen
        assert any("no synchronous standby is connected" in seen for _, seen in others), "it is examined all the same"


def test_promotions_that_will_not_be_accepted(postgres_server, tmp_path):
    """Because replication is not synchronous. Also of a coordinator that has the setting for itself."""
    address = postgres_server.create_database()

    def warnings():
        return [seen for severity, seen in findings_of(address, "store") if severity is Severity.WARNING]

    with Cluster.init(address, log_dir=str(tmp_path / "log-dir")) as cluster:
        assert warnings() == []
        settings = cluster.store.settings
        acceptance.beat(cluster, replace(settings, store_promotion_accept="synchronous"), unfenced)
        [seen] = warnings()
        assert "store.promotion.accept is synchronous, but replication is not" in seen
        alter_settings(cluster, {"store.promotion.max.age.ms": "1"})
        assert warnings() == [], "that coordinator has stopped"
        alter_settings(cluster, {"store.promotion.accept": "synchronous"})
        assert warnings() == [seen]
