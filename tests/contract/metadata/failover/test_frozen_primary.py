"""The primary freezes, its standby is promoted, and the old primary resumes: no acknowledged record is lost or stored
twice, clients continue, and the old primary neither acknowledges an append nor lets clean-up delete a file.
"""

import subprocess

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.settings import alter_settings
from spark_log.errors import MetadataStoreUnavailableError
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.child_programs import producer_value
from tests.support.failover_load import ProducerProcess
from tests.support.python_process import PythonProcess
from tests.support.records import read_all, table
from tests.support.waiting import wait_until

LIMIT_MS = 2_000


def files_in(folder):
    return {path for path in folder.rglob("*.parquet") if "_segments" in path.parts}


@pytest.mark.slow
def test_a_frozen_primary_is_replaced_and_acknowledges_nothing_when_it_resumes(pair, tmp_path):
    url = pair.primary.create_database()
    address, log_dir = pair.address(url), tmp_path / "log-dir"
    with Cluster.init(address, log_dir=str(log_dir)) as cluster:
        alter_settings(cluster, {"store.answer.timeout.ms": str(LIMIT_MS)})
        create_topic(cluster, "t", 2)
        files = create_topic(cluster, "files", configs={"inline.max.bytes": "0"})
        log = ClientLog(cluster)
        log.append(files, [Records(0, table("before"))])
        producing = ProducerProcess(address, "t", "p")
        acknowledged = producing.acknowledged
        acknowledged.wait_for_more()
        at_the_old_one = Cluster.open(url)
        old_log = ClientLog(at_the_old_one)
        old_topic = old_log.find_topic("t")
        command = ("-m", "tests.support.child_programs", "maintenance", url, "files")
        maintaining = PythonProcess(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert maintaining.stdout.readline()  # it has connected

        pair.primary.freeze()
        pair.standby.promote()
        acknowledged.wait_for_more()
        log.append(files, [Records(0, table("after"))])
        log.close()  # gives the write id back: the old primary knows neither it nor the file
        new_files = files_in(log_dir)
        assert len(new_files) >= 2

        pair.primary.resume()
        maintenance_waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query ~ 'COMMIT'"
        wait_until(lambda: pair.primary.query(maintenance_waits) != "0")
        with pytest.raises(MetadataStoreUnavailableError):
            old_log.append(old_topic, [Records(0, table("old"))], timeout_ms=1_000)
        assert files_in(log_dir) >= new_files, "no file that the new primary names is deleted"
        acknowledged.wait_for_more()
        pair.primary.kill()
        producing.end()
        maintaining.kill()
        maintaining.wait(timeout=60)
        old_log.close()
        at_the_old_one.close()

        with Cluster.open(pair.standby.url(url.rpartition("/")[2])) as promoted:
            log = ClientLog(promoted)
            stored = {}
            for partition, offset, text in read_all(log, log.find_topic("t")):
                stored.setdefault(text.encode(), []).append((partition, offset))
            lost = [n for n, place in acknowledged.places.items() if stored.get(producer_value("p", n)) != [place]]
            assert not lost and not acknowledged.failed
            assert all(len(places) == 1 for places in stored.values()), "none is stored twice"
            assert [text for *_, text in read_all(log, log.find_topic("files"))] == ["before", "after"]
            log.close()
