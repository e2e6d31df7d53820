"""Many concurrent processes: dense offsets, each record once, no starvation, no error."""

import contextlib
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.errors import RetriableError
from spark_log.log.append.rules import Appended
from spark_log.log.append.sequence_rules import ProducerSequence
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from spark_log.tables.publication import publish
from tests.support.child_programs import writer_value
from tests.support.python_process import forkserver
from tests.support.records import read_all, table
from tests.support.waiting import wait_until

pytestmark = pytest.mark.delta

WRITERS = 8
FLUSHES = 10
PARTITIONS = 3
CONFIGS = {"inline.max.bytes": "1000", "inline.tail.bytes": "20000"}


def work(address, writer, producer_id, flushes, start, progress, outcomes):
    """One writer: flushes one record to each partition, in its own order; an idempotent producer repeats some."""
    log = ClientLog(Cluster.open(address))
    topic = log.find_topic("t")
    order = [(writer + shift) % PARTITIONS for shift in range(PARTITIONS)]
    acked = []
    start.wait(timeout=60)
    for number in range(flushes):
        sequence = ProducerSequence(producer_id, 0, number) if producer_id else None
        flush = [
            Records(partition, table(writer_value(f"{writer}-{partition}", number)), sequence) for partition in order
        ]
        told = log.append(topic, flush)
        if sequence and number % 5 == 0:
            assert [(o.base_offset, o.duplicate) for o in log.append(topic, flush)] == [
                (o.base_offset, True) for o in told
            ]
        acked += [(partition, outcome.base_offset) for partition, outcome in zip(order, told, strict=True)]
        progress[writer] += 1
    log.close()
    outcomes.put((writer, acked, list(progress)))


def maintenance(address, start, done):
    """Seals and publishes repeatedly until all writers are done."""
    log = ClientLog(Cluster.open(address))
    topic = log.find_topic("t")
    start.wait(timeout=60)
    while not done.is_set():
        with contextlib.suppress(RetriableError):
            log.seal(topic, range(PARTITIONS))
            publish(log.cluster, topic)
    log.close()


def producers(cluster, count):
    values = {"transactional_id": None, "epoch": 0, "last_used_ms": 0, "transaction_timeout_ms": 0}
    insert = t.producer.insert().returning(t.producer.c.producer_id).values(values)
    return [cluster.store.transact(lambda c: c.execute(insert).scalar_one()) for _ in range(count)]


def run(cluster, address, writers=WRITERS, flushes=FLUSHES, meanwhile=lambda progress: None):
    """Run the writers beside two maintenance processes; returns the outcomes that each writer reported."""
    ids = [producer if n % 2 == 0 else None for n, producer in enumerate(producers(cluster, writers))]
    start, done, outcomes = forkserver.Barrier(writers + 3), forkserver.Event(), forkserver.Queue()
    progress = forkserver.Array("i", writers, lock=False)
    crowd = [
        forkserver.Process(target=work, args=(address, n, ids[n], flushes, start, progress, outcomes))
        for n in range(writers)
    ]
    helpers = [forkserver.Process(target=maintenance, args=(address, start, done)) for _ in range(2)]
    for process in crowd + helpers:
        process.start()
    try:
        start.wait(timeout=60)
        meanwhile(progress)
        told = [outcomes.get(timeout=120) for _ in crowd]
        done.set()
        for process in crowd + helpers:
            process.join(timeout=60)
            assert process.exitcode == 0
    finally:
        for process in crowd + helpers:
            process.kill()
    return told


def check(cluster, told, flushes=FLUSHES):
    """Each record is in the log once, at the reported offset; offsets are dense; the Delta table is up to date."""
    log = ClientLog(cluster)
    topic = log.find_topic("t")
    found = read_all(log, topic)
    expected = {
        writer_value(f"{writer}-{p}", n) for writer, *_ in told for p in range(PARTITIONS) for n in range(flushes)
    }
    counts = Counter(text for _, _, text in found)
    assert set(counts) == expected
    assert set(counts.values()) == {1}
    for partition in range(PARTITIONS):
        assert [o for p, o, _ in found if p == partition] == list(range(len(told) * flushes))
    at = {(partition, offset): text for partition, offset, text in found}
    for writer, acked, *_ in told:
        for position, (partition, offset) in enumerate(acked):
            assert at[partition, offset] == writer_value(f"{writer}-{partition}", position // PARTITIONS)
    log.close()


@pytest.mark.slow
def test_eight_processes_append_at_once(cluster, cluster_address):
    create_topic(cluster, "t", PARTITIONS, configs=CONFIGS)
    told = run(cluster, cluster_address)
    check(cluster, told)
    _, _, when_the_first_was_done = told[0]
    assert min(when_the_first_was_done) >= FLUSHES // 10, f"a writer starved: {when_the_first_was_done}"


@pytest.mark.slow
def test_appends_survive_crashes_of_postgresql_under_load(own_postgres_server, tmp_path):
    """Two crashes and recoveries only delay the appends."""
    address = own_postgres_server.create_database()
    with Cluster.init(address, log_dir=str(tmp_path / "log-dir")) as cluster:
        create_topic(cluster, "t", PARTITIONS, configs=CONFIGS)

        def crash(progress):
            for share in (0.2, 0.5):
                wait_until(lambda share=share: sum(progress) >= share * 4 * FLUSHES)
                own_postgres_server.kill()
                own_postgres_server.start()

        told = run(cluster, address, writers=4, meanwhile=crash)
        check(cluster, told)


def test_appends_during_the_deletion_of_their_topic(cluster, cluster_address):
    """In either order, an append is in the deleted topic or is refused, and leaves no row in the metadata."""
    log = ClientLog(cluster)
    for _ in range(5):
        topic = create_topic(cluster, "t", PARTITIONS, configs=CONFIGS)
        results = []

        def write(topic=topic, results=results):
            while not any(not isinstance(outcome, Appended) for outcome in results):
                results.extend(log.append(topic, [Records(p, table("x")) for p in range(PARTITIONS)]))

        with ThreadPoolExecutor(3) as pool:
            writing = [pool.submit(write) for _ in range(3)]
            while len(results) < 30:
                time.sleep(0.001)
            delete_topic(cluster, "t")
        assert [each.result() for each in writing] == [None] * 3
        with cluster.store.snapshot() as connection:
            for found in (
                t.segment,
                t.blob,
                t.partition,
                t.replica,
                t.publication,
                t.publication_cursor,
                t.publication_intent,
            ):
                assert connection.execute(sa.select(sa.func.count()).select_from(found)).scalar_one() == 0, found.name
    log.close()
