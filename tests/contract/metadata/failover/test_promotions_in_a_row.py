"""The coordinator accepts each of several promotions in a row, of the home store and of a data store."""

from contextlib import ExitStack

import pytest

from spark_log.cluster import promotion as acceptance
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.settings import alter_settings
from spark_log.cluster.stores import add_store
from spark_log.facts.metrics.cluster_snapshot import read_cluster
from spark_log.maintenance.coordinator.coordinator import Coordinator
from spark_log.metadata.connections import server_identity
from tests.support.postgres import postgres_pair
from tests.support.waiting import wait_until


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
