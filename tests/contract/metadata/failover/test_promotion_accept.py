"""After the promotion of a synchronous standby the coordinator accepts the store without a person, if the cluster
setting says so. It refuses every store that may lack acknowledged transactions.
"""

import os
import time
from contextlib import ExitStack

import pytest
import sqlalchemy as sa

from spark_log.cluster import promotion as acceptance
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import unfenced
from spark_log.cluster.settings import alter_settings
from spark_log.cluster.stores import add_store
from spark_log.config import ClusterSettings
from spark_log.errors import StoreChangedError
from spark_log.facts.metrics.cluster_snapshot import read_cluster
from spark_log.log.log import Records
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.coordinator.coordinator import Coordinator
from spark_log.metadata import tables as t
from spark_log.metadata.connections import server_identity
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.postgres import postgres_pair
from tests.support.records import read_all, table
from tests.support.waiting import wait_until

SYNCHRONOUS = {"store.promotion.accept": "synchronous"}
UNNAMED = "0" * 32 + "-1.parquet"


def beat(cluster):
    acceptance.beat(cluster, cluster.store.settings, unfenced)


def beat_while_asynchronous(pair, cluster):
    pair.primary.require_standby(False)
    wait_until(lambda: (beat(cluster), not cluster.store.read(server_identity.last_beat).synchronous)[1])
    pair.primary.require_standby()


def show_a_later_beat(folder):
    """As after the loss of a beat that the old primary had committed."""
    [file] = folder.glob("store-0.beat")
    file.write_text("99")


def be_another_system(cluster):
    cluster.store.transact(lambda c: c.execute(t.cluster.update().values(system_identifier="17")))


@pytest.fixture
def clusters(pair, tmp_path):
    """A cluster of each kind, with the primary's last beat."""
    kinds = ("failover", "manual", *REFUSALS)
    with ExitStack() as stack:
        opened = {}
        for kind in kinds:
            address = pair.address(pair.primary.create_prepared_database())
            opened[kind] = stack.enter_context(Cluster.init(address, log_dir=str(tmp_path / kind)))
            alter_settings(opened[kind], {} if kind == "manual" else SYNCHRONOUS)
            if kind not in ("failover", "asynchronous"):
                beat(opened[kind])
        beat_while_asynchronous(pair, opened["asynchronous"])
        show_a_later_beat(tmp_path / "older copy")
        alter_settings(opened["manual for a while"], {"store.promotion.accept": "manual"})
        acceptance.beat(opened["coordinator with another setting"], ClusterSettings(), unfenced)
        alter_settings(opened["old beat"], {"store.promotion.max.age.ms": "1"})
        be_another_system(opened["another system"])
        yield opened


def unnamed_file(folder, topic, age_s):
    path = folder / topic.folder / "_segments" / "0" / UNNAMED.replace("-1", f"-{age_s}")
    path.write_bytes(b"a segment")
    os.utime(path, (time.time() - age_s,) * 2)
    return path


REFUSALS = {
    "manual for a while": "no beat",
    "coordinator with another setting": "no beat",
    "older copy": "beat 99",
    "old beat": "older than store.promotion.max.age.ms=1",
    "another system": "another system",
    "asynchronous": "not synchronous",
}


@pytest.mark.slow
@pytest.mark.delta
def test_only_a_failover_without_loss_is_accepted(pair, clusters, tmp_path):
    cluster, folder = clusters["failover"], tmp_path / "failover"
    topic = create_topic(cluster, "t", configs={"inline.max.bytes": "0", "retention.ms": "-1"})
    log = ClientLog(cluster)
    log.append(topic, [Records(0, table("before"))])
    with Coordinator(cluster):
        wait_until(lambda: (folder / "store-0.beat").exists())
        pair.primary.kill()
        pair.standby.promote()
        wait_until(lambda: cluster.store.read(server_identity.promoted_at_ms) is not None)
    now = cluster.store.read(server_identity.recorded)
    assert now is not None and now.timeline == 2
    log.append(topic, [Records(0, table("after"))])
    recent, old = (unnamed_file(folder, topic, age_s) for age_s in (6 * 86_400, 8 * 86_400))
    list(run_tasks(cluster, ["delta", "files"]))
    assert recent.exists() and not old.exists(), "files of file.delete.delay.ms before the promotion are kept"
    assert [value for *_, value in read_all(log, topic)] == ["before", "after"]
    log.close()

    alter_settings(clusters["manual for a while"], SYNCHRONOUS)
    for kind, reason in REFUSALS.items():
        with pytest.raises(StoreChangedError, match=reason):
            beat(clusters[kind])
    beat(clusters["manual"])
    for kind in (*REFUSALS, "manual"):
        with pytest.raises(StoreChangedError, match="spark-log store accept"):
            list(run_tasks(clusters[kind], ["files"]))
        columns = sa.select(t.cluster.c.promoted_ms)
        assert clusters[kind].store.read(lambda c, columns=columns: c.execute(columns).scalar_one()) is None


@pytest.fixture
def pairs():
    """The servers of the home store, and those of a data store."""
    with ExitStack() as stack:
        yield [stack.enter_context(postgres_pair()) for _ in range(2)]


def accepted_ms(stores):
    return [store.read(server_identity.promoted_at_ms) or 0 for store in stores]


def timelines(stores):
    return [store.read(server_identity.recorded).timeline for store in stores]


@pytest.mark.slow
def test_each_promotion_of_each_store_is_accepted(pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(acceptance, "BEAT_MS", 200)
    addresses = [pair.address(pair.primary.create_prepared_database()) for pair in pairs]
    with Cluster.init(addresses[0], log_dir=str(tmp_path / "log-dir")) as cluster:
        alter_settings(cluster, {"store.promotion.accept": "synchronous"})
        add_store(cluster, "east", addresses[1])
        stores = [cluster.at(store_id).store for store_id in cluster.store_ids()]
        files = [tmp_path / "log-dir" / f"store-{store_id}.beat" for store_id in cluster.store_ids()]

        def have_beaten(after):
            """Whether each store and its file in the log dir have a later beat, of synchronous replication."""
            beats = [store.read(server_identity.last_beat) for store in stores]
            written = [int(file.read_text()) if file.exists() else 0 for file in files]
            return all(beat.synchronous for beat in beats) and min(written) > after

        with Coordinator(cluster):
            after = 0
            for failover in range(2):
                wait_until(lambda after=after: have_beaten(after))
                assert all(each.synchronous for each in read_cluster(cluster).replication.values())
                before = accepted_ms(stores)
                for pair in pairs:
                    pair.fail_over()
                wait_until(lambda before=before: all(a > b for a, b in zip(accepted_ms(stores), before, strict=True)))
                assert timelines(stores) == [failover + 2] * 2
                after = max(store.read(server_identity.last_beat).number for store in stores)
