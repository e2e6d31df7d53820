"""A writer may be killed at any point: each acknowledged record is in the log once, and the next writer continues."""

import signal
from pathlib import Path

import pytest
import sqlalchemy as sa
from deltalake import DeltaTable

from spark_log.cluster.cluster import Cluster
from spark_log.failpoints import POINTS
from spark_log.log.append.rules import Appended
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import PARTITION, SEGMENT
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.tables.publication import delta_tables, publish
from tests.support.child_programs import writer_value
from tests.support.python_process import killed_at, run_process
from tests.support.records import SMALL_TAILS, read_all, table
from tests.support.table_checks import assert_delta_is_the_log

pytestmark = pytest.mark.delta

RECORDS = 12


def write(address, writer, failpoint=None):
    """Run a writer. Returns its exit code, the numbers that it began to send, and {number: offset} of the acks."""
    command = ("-m", "tests.support.child_programs", "numbered_writer", address, "t", writer, RECORDS)
    done = run_process(*command, failpoint=failpoint)
    words = [line.split() for line in done.stdout.splitlines()]
    sent = [int(number) for kind, number, *_ in words if kind == "sent"]
    acked = {int(number): int(offset[0]) for kind, number, *offset in words if kind == "acked"}
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode, sent, acked


def sealed_files(cluster):
    """Paths, relative to the topic's table, of the files that the metadata names below the high watermark."""
    query = (
        sa.select(SEGMENT.partition, SEGMENT.name)
        .join(t.partition, (PARTITION.topic_id == SEGMENT.topic_id) & (PARTITION.partition == SEGMENT.partition))
        .where(~SEGMENT.inline, SEGMENT.end_offset <= PARTITION.high_watermark)
    )
    return {f"_segments/{number}/{file}" for number, file in cluster.store.read(lambda c: c.execute(query).all())}


def active_files(cluster, topic):
    (location,) = delta_tables(cluster, topic).values()
    return {path.as_py() for path in DeltaTable(location).get_add_actions().column("path")}


def files_on_disk(cluster, topic):
    (location,) = delta_tables(cluster, topic).values()
    return {str(path.relative_to(location)) for path in Path(location, "_segments").rglob("*") if path.is_file()}


WRITE_POINTS = [point for point in POINTS if point.startswith(("file.", "append.", "seal.", "publish."))]
FIRST_TIMES = ["append.decided", "publish.before-commit", "publish.committed"]
"""Failpoints of the first append and publication: no record or no Delta table exists yet."""


@pytest.mark.parametrize("failpoint", [*(f"{point}:2" for point in WRITE_POINTS), *FIRST_TIMES])
def test_a_killed_writer_loses_nothing(failpoint, tmp_path):
    address = str(tmp_path / "cluster")
    with Cluster.init(address) as cluster:
        topic = create_topic(cluster, "t", configs=SMALL_TAILS)
        code, sent, acked = write(address, "w", failpoint)
        assert code == -signal.SIGKILL, f"the writer never came to {failpoint}"

        log = ClientLog(cluster)
        survived = read_all(log, topic)
        assert [offset for _, offset, _ in survived] == list(range(len(survived))), "dense offsets"
        values = [text for _, _, text in survived]
        assert values == [writer_value("w", number) for number in range(len(values))], "each once, in order, whole"
        assert set(acked) <= set(range(len(values))), "what was acknowledged is there"
        assert {number: number for number in acked} == acked, "at the offset that was told"
        assert len(values) <= len(acked) + 1
        assert len(values) <= len(sent)

        publish(cluster, topic)
        wanted = sealed_files(cluster)
        assert active_files(cluster, topic) == wanted, "orphans are not in the Delta table, everything sealed is"
        assert wanted <= files_on_disk(cluster, topic)

        more = [writer_value("next", number) for number in range(6)]
        for offset, text in enumerate(more, start=len(values)):
            assert log.append(topic, [Records(0, table(text))]) == [Appended(offset, offset + 1)], "the next goes on"
        assert [text for _, _, text in read_all(log, topic)] == values + more
        log.seal(topic, [0])
        assert_delta_is_the_log(cluster)
        log.close()


@pytest.mark.parametrize("point", ["file.temporary-written", "file.renamed"])
def test_a_killed_init_can_be_repeated(point, tmp_path):
    address = str(tmp_path / "cluster")
    program = "import sys; from spark_log.cluster.cluster import Cluster; Cluster.init(sys.argv[1])"
    killed_at(point, "-c", program, address)
    with Cluster.init(address) as cluster:
        topic = create_topic(cluster, "t", configs=SMALL_TAILS)
        log = ClientLog(cluster)
        log.append(topic, [Records(0, table(writer_value("w", 2)))])
        assert read_all(log, topic) == [(0, 0, writer_value("w", 2))]
        log.close()
