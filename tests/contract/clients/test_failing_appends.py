"""A producer whose log dir or metadata store does not answer says so while it tries again."""

import logging
import subprocess

import pytest

from spark_log import Producer
from spark_log.clients.produce import failing_appends
from spark_log.cluster.cluster import Cluster
from spark_log.metadata import outage
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.disk_faults import mounted, needs_root
from tests.support.waiting import LIMIT_S, wait_until


@needs_root
@pytest.mark.parametrize("warn_after_s", [0.0, 60.0])
def test_a_read_only_log_dir_is_warned_of_once_in_an_outage(tmp_path, monkeypatch, caplog, warn_after_s):
    monkeypatch.setattr(failing_appends, "WARN_AFTER_S", warn_after_s)
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounted(disk, "4m"), Cluster.init(str(tmp_path / "c"), log_dir=str(disk / "d")) as cluster:
        create_topic(cluster, "t", configs={"inline.max.bytes": "0"})
        with Producer(cluster=str(tmp_path / "c"), retry_backoff_ms=20, delivery_timeout_ms=60_000) as producer:
            producer.send("t", b"1").get(LIMIT_S)
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
            sent = producer.send("t", b"2")
            with caplog.at_level(logging.WARNING):
                while producer.metrics()["producer-metrics"]["record-retry-total"] < 3:
                    assert not sent.is_done
            subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
            sent.get(LIMIT_S)
    warned = warnings_of(caplog, failing_appends)
    if warn_after_s:
        assert warned == []
    else:
        [text] = warned
        assert text.startswith("t-0: ")
        assert "Read-only file system" in text and "spark-log doctor" in text


def test_a_server_that_is_stopped_is_warned_of_once(own_postgres_server, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(outage, "WARN_AFTER_S", 0.1)
    with Cluster.init(own_postgres_server.create_database(), log_dir=str(tmp_path / "d")) as cluster:
        create_topic(cluster, "t")
        with Producer(cluster=cluster.store.address.with_password) as producer:
            producer.send("t", b"1").get(LIMIT_S)
            own_postgres_server.kill()
            sent = producer.send("t", b"2")
            wait_until(lambda: warnings_of(caplog, outage))
            assert not sent.is_done
            own_postgres_server.start()
            sent.get(LIMIT_S)
    [text] = warnings_of(caplog, outage)
    assert "transactions wait and are tried again" in text and "spark-log doctor" in text


def warnings_of(caplog, module):
    return [record.getMessage() for record in caplog.records if record.name == module.__name__]
