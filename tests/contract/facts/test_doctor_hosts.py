"""The doctor on a store with several hosts: it asks each of them, also as a role that does not see the standbys."""

from spark_log.cluster.cluster import Cluster
from spark_log.facts.doctor.examination import examine
from spark_log.facts.doctor.findings import Severity
from tests.support.ports import free_port
from tests.support.postgres_pair import postgres_pair

ROLE = "log_owner"


def findings_of(address, check):
    return [(each.severity, each.seen) for each in examine(address) if each.check == check]


def test_the_doctor_asks_each_host(tmp_path):
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

        pair.standby.execute("SELECT pg_promote()")
        [(severity, seen)] = findings_of(address, "hosts")
        assert severity is Severity.ERROR
        assert f"{hosts[0]} (timeline 2), {hosts[1]} (timeline 1) both take writes" in seen
