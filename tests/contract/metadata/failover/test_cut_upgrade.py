"""An upgrade ends the session of an older version while its commit waits for the standby: the older version still finds
out that its transaction is committed.
"""

import threading

from spark_log.cluster.cluster import Cluster
from spark_log.log.append.rules import Appended
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.records import read_all, table
from tests.support.versions import become_next_version
from tests.support.waiting import wait_until

WAITING = "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'spark-log'"


def test_a_commit_that_an_upgrade_cuts_off_is_acknowledged_if_it_is_committed(pair, tmp_path, monkeypatch):
    address = pair.primary.create_database()
    outcomes = []
    with Cluster.init(address, log_dir=str(tmp_path / "log-dir")) as cluster:
        topic = create_topic(cluster, "t")
        log = ClientLog(cluster)
        pair.standby.freeze()
        try:
            append = threading.Thread(target=lambda: outcomes.extend(log.append(topic, [Records(0, table("a"))])))
            append.start()
            wait_until(lambda: pair.primary.query(f"SELECT count(*) {WAITING}") == "1", "the commit")
            cut = pair.primary.query(f"SELECT pid {WAITING}")
            become_next_version(tmp_path, monkeypatch)
            upgrade = threading.Thread(target=lambda: Cluster.open(address).close())
            upgrade.start()
            running = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {cut}"
            wait_until(lambda: pair.primary.query(running) == "0", "the end of the session")
            assert not outcomes
        finally:
            pair.standby.resume()
        append.join(timeout=60)
        upgrade.join(timeout=60)
        assert outcomes == [Appended(0, 1)]
        with Cluster.open(address) as upgraded:
            assert read_all(ClientLog(upgraded), topic) == [(0, 0, "a")]
        log.close()
