"""Patroni fails the store over under load: no acknowledged record is lost or stored twice, each is at its offset, and
all clients, clean-up and publication continue without a person.
"""

import os
import statistics
import sys
import time
from collections import defaultdict
from contextlib import ExitStack

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.settings import alter_settings
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.coordinator.coordinator import Coordinator
from spark_log.metadata.connections import server_identity
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.child_programs import producer_value
from tests.support.failover_load import COPIERS, COPY, READERS, TOPIC, FailoverLoad
from tests.support.patroni_cluster import PatroniNotInstalledError, patroni_cluster, shuffled
from tests.support.records import SMALL_TAILS
from tests.support.table_checks import assert_delta_is_the_log
from tests.support.topics import contents
from tests.support.waiting import wait_until

PARTITIONS = 2
KILLED, SWITCHED, DEAD, FROZEN = "server killed", "switchover", "machine dead", "primary frozen"
UNNAMED = "0" * 32 + "-1.parquet"


@pytest.fixture
def patroni(tmp_path):
    try:
        with patroni_cluster(tmp_path) as cluster:
            yield cluster
    except PatroniNotInstalledError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


def fail_over(patroni, load, kind):
    """Let the primary of three healthy nodes fail; returns the gap of acknowledgements."""
    patroni.wait_until_healthy()
    primary = patroni.primary()
    begin_s = time.monotonic()
    if kind == SWITCHED:
        patroni.switch_over()
    else:
        {KILLED: primary.kill_server, DEAD: primary.kill, FROZEN: primary.freeze}[kind]()
    patroni.wait_for_another_primary(primary)
    load.wait_for_more()
    gap_s = max(acknowledged.gap_s(begin_s) for acknowledged in load.acknowledged.values())
    if kind == DEAD:
        primary.start()
    elif kind == FROZEN:
        primary.resume()
    return gap_s


def check_records(log, load):
    """Each acknowledged record is stored once, at its offset; the copy equals the topic; the group has read it all."""
    topic = contents(log, TOPIC)
    places = defaultdict(list)
    for partition, values in topic.items():
        for offset, text in enumerate(values):
            places[text].append((partition, offset))
    assert all(len(found) == 1 for found in places.values()), "none is stored twice"
    for name, acknowledged in load.acknowledged.items():
        assert not acknowledged.failed
        lost = [n for n, place in acknowledged.places.items() if places.get(producer_value(name, n)) != [place]]
        assert not lost, f"{name}: {len(lost)} of {len(acknowledged.places)} are not at their offsets"
    assert contents(log, COPY) == topic
    assert load.read == {(partition, n): text for partition, texts in topic.items() for n, text in enumerate(texts)}


def report(gaps_s, load, reinitialised):
    records = sum(len(acknowledged.places) for acknowledged in load.acknowledged.values())
    lines = [f"{sum(map(len, gaps_s.values()))} failovers, {records} acknowledged records, 0 lost, 0 twice"]
    lines.append(f"  standbys that a person had to copy: {len(reinitialised)} {' '.join(reinitialised)}")
    for kind, gaps in gaps_s.items():
        times = " ".join(f"{gap:.1f}" for gap in gaps)
        lines.append(f"  {kind}: gap of acknowledgements {times} s, median {statistics.median(gaps):.1f} s")
    return "\n".join(lines)


THREE = pytest.param([KILLED, SWITCHED, DEAD], id="three", marks=pytest.mark.timeout(600))
TWENTY = pytest.param(
    shuffled([KILLED, SWITCHED, DEAD, FROZEN], 20, seed=1),
    id="twenty",
    marks=[pytest.mark.long, pytest.mark.timeout(3_500)],
)


@pytest.mark.slow
@pytest.mark.delta
@pytest.mark.parametrize("kinds", [THREE, TWENTY])
def test_no_acknowledged_record_is_lost_or_stored_twice(patroni, kinds, tmp_path, capfd):
    folder = tmp_path / "log-dir"
    gaps_s = defaultdict(list)
    with Cluster.init(patroni.address, log_dir=str(folder)) as cluster, ExitStack() as stack:
        alter_settings(cluster, {"store.promotion.accept": "synchronous"})
        coordinator = stack.enter_context(ExitStack())
        coordinator.enter_context(Coordinator(cluster))
        topic = create_topic(cluster, TOPIC, PARTITIONS, configs=SMALL_TAILS | {"retention.ms": "-1"})
        create_topic(cluster, COPY, PARTITIONS, configs=SMALL_TAILS | {"retention.ms": "-1"})
        log = ClientLog(cluster)
        stack.callback(log.close)
        with FailoverLoad(patroni.address, tmp_path) as load:
            load.wait_for_more()
            wait_until(lambda: (folder / "store-0.beat").exists())
            for kind in kinds:
                gaps_s[kind].append(fail_over(patroni, load, kind))
                wait_until(lambda: is_accepted(cluster))
                with capfd.disabled():
                    print(f"{kind}: no acknowledgement for {gaps_s[kind][-1]:.1f} s", file=sys.stderr, flush=True)
            patroni.wait_until_healthy()
            patroni.stop_etcd()
            load.wait_for_more()
            patroni.start_etcd()

            def is_complete():
                ends = {partition: end for partition, (_, end) in log.positions(topic).items()}
                return all(committed_offsets(cluster.store, group) == ends for group in (COPIERS, READERS))

            load.finish(is_complete)
            patroni.wait_until_healthy()
            check_records(log, load)
            coordinator.close()  # it may seal tails between the reads of the check
            check_maintenance(cluster, folder, topic)
            with capfd.disabled():
                print(f"\n{report(gaps_s, load, patroni.reinitialised)}", file=sys.stderr)


def is_accepted(cluster):
    return cluster.store.read(lambda c: server_identity.recorded(c) == server_identity.of_server(c))


def check_maintenance(cluster, folder, topic):
    """Clean-up deletes an old file that nothing names, and the Delta tables have the sealed records."""
    unnamed = folder / topic.folder / "_segments" / "0" / UNNAMED
    unnamed.write_bytes(b"a segment")
    os.utime(unnamed, (time.time() - 15 * 86_400,) * 2)  # those of 7 days before a promotion are kept for 7 days
    list(run_tasks(cluster, ["delta", "files"]))
    assert not unnamed.exists()
    assert_delta_is_the_log(cluster)
