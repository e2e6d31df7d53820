"""TaskWriter against a real log dir: partitions, order and memory of the written rows."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.files import new_file
from spark_log.cluster.topics import Topic
from spark_log.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTopicError,
    PolicyViolationError,
    StorageUnavailableError,
    UnknownTopicOrPartitionError,
)
from spark_log.log.append.append_transaction import AppendRequest
from spark_log.log.append.partitioner import partition_of_key
from spark_log.log.records.schema import HEADERS
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.spark.datasource.options.source_options import PendingWrite, WriteOptions
from spark_log.spark.datasource.write import task_writer
from spark_log.spark.datasource.write.task_writer import TaskWriter
from spark_log.spark.datasource.write.write_commit import (
    abort_write,
    append_whole,
    commit_log,
    commit_write,
    plan_write,
    register_write,
)
from spark_log.spark.datasource.write.write_plan import TaskOutput, WritePlan
from spark_log.transactions.transaction_rows import read_pending
from spark_log.transactions.transaction_store import commit_transaction_hook, init_producer
from tests.support.records import read_all

KIB = 1024


def make(cluster: Cluster, name: str = "t", partitions: int = 3, **configs: str) -> Topic:
    found = {key.replace("_", "."): value for key, value in configs.items()}
    topic = create_topic(cluster, name, partitions, configs=found)
    assert topic is not None
    return topic


def plan(cluster: Cluster, topic: str | None = "t", *, fingerprint: bool = False) -> WritePlan:
    return plan_write(WriteOptions(str(cluster.store.address), topic), fingerprint=fingerprint)


def rows(values: Sequence[Any], **columns: Any) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary()), **columns})


def write(plan: WritePlan, *batches: pa.RecordBatch, attempt: int = 0) -> TaskOutput:
    writer = TaskWriter(plan, f"{plan.write_id}-{attempt}", attempt)
    for batch in batches:
        writer.write(batch)
    return writer.finish()


def commit(cluster: Cluster, plan: WritePlan, *outputs: TaskOutput) -> None:
    commit_write(str(cluster.store.address), outputs, plan.write_id, None)


def files(cluster: Cluster) -> list[Path]:
    [info] = cluster.log_dirs().values()
    return sorted(Path(info.uri.removeprefix("file://")).glob("*/_segments/*/*"))


def by_partition(log: ClientLog, topic: Topic) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for partition, _, value in read_all(log, topic):
        found.setdefault(partition, []).append(value)
    return found


# --- routing --------------------------------------------------------------------------------------------------------


def test_keys_are_hashed_as_in_kafka_clients(cluster: Cluster, log: ClientLog) -> None:
    topic, this = make(cluster, partitions=5), plan(cluster)
    keys = [f"key-{n % 40}".encode() for n in range(400)]
    values = [f"{key.decode()}/{n}" for n, key in enumerate(keys)]
    commit(cluster, this, write(this, *(rows(values[i : i + 37], key=keys[i : i + 37]) for i in range(0, 400, 37))))
    found = by_partition(log, topic)
    expected: dict[int, list[str]] = {}
    for key, value in zip(keys, values, strict=True):
        expected.setdefault(partition_of_key(key, 5), []).append(value)
    assert found == expected


def test_explicit_partition_overrides_the_key_unless_it_is_null(cluster: Cluster, log: ClientLog) -> None:
    topic, this = make(cluster, partitions=4), plan(cluster)
    by_key = partition_of_key(b"k", 4)
    other = (by_key + 1) % 4
    batch = rows(["to-other", "by-key"], key=[b"k", b"k"], partition=pa.array([other, None], pa.int32()))
    commit(cluster, this, write(this, batch))
    assert by_partition(log, topic) == {other: ["to-other"], by_key: ["by-key"]}


def test_null_keys_spread_evenly_also_for_small_tasks(cluster: Cluster, log: ClientLog) -> None:
    topic, this = make(cluster, partitions=3), plan(cluster)
    batch = rows([str(n) for n in range(30_000)])
    small = [write(this, rows([f"small {task}"]), attempt=task) for task in range(3)]
    commit(cluster, this, write(this, batch, attempt=3), *small)
    found = by_partition(log, topic)
    assert [len(found[p]) for p in range(3)] == [10_001] * 3
    for values in found.values():  # rows keep their order within the partition
        numbers = [int(value) for value in values if not value.startswith("small")]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    ("topic", "error", "message"),
    [
        (None, InvalidRecordError, "null topic present in the data. Use the topic option for setting a default topic."),
        ("nowhere", UnknownTopicOrPartitionError, "'nowhere': unknown topic or partition"),
        ("__consumer_offsets", PolicyViolationError, "internal"),
        ("../x", InvalidTopicError, "not a legal topic name"),
        ("", InvalidTopicError, "not a legal topic name"),
        ("t\n", InvalidTopicError, "not a legal topic name"),
    ],
)
@pytest.mark.parametrize("fingerprint", [False, True])
def test_invalid_topic_in_a_row_is_refused(
    cluster: Cluster, topic: str | None, error: type[Exception], message: str, fingerprint: bool
) -> None:
    make(cluster)
    with pytest.raises(error, match=message):
        write(plan(cluster, None, fingerprint=fingerprint), rows(["ok", "bad"], topic=["t", topic]))


# --- what is stored -------------------------------------------------------------------------------------------------


def test_small_outputs_become_blobs_and_large_ones_files(cluster: Cluster, log: ClientLog) -> None:
    topic, this = make(cluster, inline_max_bytes=str(10 * KIB), compression_type="none"), plan(cluster)
    batch = rows(["small", "x" * 20 * KIB, "y"], partition=pa.array([0, 1, 2], pa.int32()))
    output = write(this, batch)
    assert sorted((b.partition, b.inline) for b in output.batches) == [(0, True), (1, False), (2, True)]
    assert len(output.blobs) == 2 and len(files(cluster)) == 1
    commit(cluster, this, output)
    assert by_partition(log, topic) == {0: ["small"], 1: ["x" * 20 * KIB], 2: ["y"]}


def test_blobs_of_a_task_are_limited(cluster: Cluster, log: ClientLog) -> None:
    topic, whole = make(cluster, partitions=20, compression_type="none"), plan(cluster)
    this = replace(whole, inline_bytes_max=10 * KIB)
    values = [f"{p}" * KIB for p in range(20)]
    output = write(this, rows(values, partition=pa.array(range(20), pa.int32())))
    assert sum(map(len, output.blobs.values())) < 10 * KIB + 64 * KIB
    assert 0 < sum(batch.inline for batch in output.batches) < 20
    commit(cluster, this, output)
    assert by_partition(log, topic) == {p: [value] for p, value in enumerate(values)}


def test_segments_are_limited_by_segment_bytes(cluster: Cluster, log: ClientLog) -> None:
    configs = {"segment_bytes": str(KIB * KIB), "inline_max_bytes": "0", "compression_type": "none"}
    topic, this = make(cluster, partitions=1, **configs), plan(cluster)
    random = np.random.default_rng(1)
    values = [random.bytes(50).hex() for _ in range(100_000)]
    output = write(this, *(rows(values[i : i + 10_000]) for i in range(0, 100_000, 10_000)))
    assert len(output.batches) > 1
    commit(cluster, this, output)
    assert by_partition(log, topic) == {0: values}


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({"value": [b"x"], "headers": pa.array([[(None, b"")]], HEADERS)}, InvalidRecordError, "headers: null key"),
        (
            {"value": [b"x"], "timestamp": pa.array([-1_000], pa.timestamp("us", "UTC"))},
            InvalidTimestampError,
            "outside",
        ),
        (
            {"value": [b"x"], "timestamp": pa.array([253_402_300_799_000_000], pa.timestamp("us", "UTC"))},
            InvalidTimestampError,
            "message.timestamp.after.max.ms",
        ),
    ],
)
def test_record_against_the_topic_config_is_refused(
    cluster: Cluster, columns: dict[str, Any], error: type[Exception], message: str
) -> None:
    make(cluster)
    with pytest.raises(error, match=message):
        write(plan(cluster), pa.record_batch(columns))


def test_compacted_topic_refuses_null_keys(cluster: Cluster) -> None:
    make(cluster, cleanup_policy="compact")
    with pytest.raises(InvalidRecordError, match="key: null in row 0"):
        write(plan(cluster), rows(["a"]))


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_timestamp_of_a_row_is_its_encoding_time(
    cluster: Cluster, log: ClientLog, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of the plan would be wrong: stages before the write may take hours. Another host counts from its task's
    start.
    """
    make(cluster, partitions=1, message_timestamp_type=kind)
    here = plan(cluster)
    elsewhere = replace(here, boot_id="of another host", boot_ms=-(10**12))
    passed_ms = 0
    real_boot_ms = clock.boot_ms
    monkeypatch.setattr(clock, "boot_ms", lambda: real_boot_ms() + passed_ms)

    def stamped_after_ms(plan: WritePlan) -> list[float]:
        nonlocal passed_ms
        passed_ms += 3_600_000
        writer = TaskWriter(plan, f"{plan.write_id}-{passed_ms}", 0)
        for _ in range(2):
            writer.write(rows([b"x"]))
            passed_ms += 60_000
        [batch] = writer.finish().batches
        return [round((ms - plan.now_ms) / 60_000) for ms in (batch.min_timestamp_ms, batch.max_timestamp_ms)]

    assert stamped_after_ms(here) == [60, 61]
    assert stamped_after_ms(elsewhere) == [0, 1]


def test_fingerprint_is_independent_of_input_batches(cluster: Cluster) -> None:
    make(cluster)
    this = plan(cluster, fingerprint=True)
    values = [str(n) for n in range(100)]
    one = write(this, rows(values))
    other = write(this, *(rows(values[i : i + 7]) for i in range(98, -1, -7)))
    third = write(this, rows([*values[:-1], "other"]))
    assert one.fingerprint == other.fingerprint != third.fingerprint


# --- memory, files and failures -------------------------------------------------------------------------------------


def watched(writer: TaskWriter, batches: Iterator[pa.RecordBatch]) -> tuple[int, int, int]:
    """Write all. Returns maxima: buffered bytes by the writer's own count, bytes held by Arrow, files open at the same
    time.
    """
    before = pa.total_allocated_bytes()
    waiting = held = opened = 0
    for batch in batches:
        writer.write(batch)
        del batch
        waiting = max(waiting, writer._waiting_bytes)
        held = max(held, pa.total_allocated_bytes() - before)
        opened = max(opened, len(writer._open))
    return waiting, held, opened


def test_memory_is_bounded_for_hundreds_of_partitions(
    cluster: Cluster, log: ClientLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 128 * KIB
    monkeypatch.setattr(task_writer, "WAITING_BYTES_MAX", limit)
    monkeypatch.setattr(task_writer, "OPEN_FILES_MAX", 10)
    topic, this = make(cluster, partitions=200, inline_max_bytes=str(KIB)), plan(cluster)
    random = np.random.default_rng(7)

    def batches() -> Iterator[pa.RecordBatch]:
        for n in range(10):
            partitions = random.integers(0, 200, 1_000)
            values = [f"{n * 1_000 + i}:{'x' * 100}" for i in range(1_000)]
            yield rows(values, partition=pa.array(partitions, pa.int32()))

    writer = TaskWriter(this, f"{this.write_id}-0", 0)
    waiting, _, opened = watched(writer, batches())
    assert waiting <= limit and opened <= 10
    assert not any(part.files is not None for key, part in writer._parts.items() if key not in writer._open)
    commit(cluster, this, writer.finish())
    found = by_partition(log, topic)
    assert len(found) == 200
    numbers = {p: [int(value.partition(":")[0]) for value in values] for p, values in found.items()}
    assert sorted(n for values in numbers.values() for n in values) == list(range(10_000))
    assert all(values == sorted(values) for values in numbers.values())


@pytest.mark.parametrize("inline", [0, 64 * KIB])
def test_few_buffered_rows_do_not_keep_their_source_batches(
    cluster: Cluster, log: ClientLog, monkeypatch: pytest.MonkeyPatch, inline: int
) -> None:
    """One row in a thousand goes to a partition of its own: its slices must not keep whole batches in memory."""
    limit = 2 * KIB * KIB
    monkeypatch.setattr(task_writer, "WAITING_BYTES_MAX", limit)
    configs = {"inline_max_bytes": str(inline), "segment_bytes": str(KIB * KIB)}
    topic, this = make(cluster, partitions=2, **configs), plan(cluster)
    partitions = pa.array([0] * 500 + [1] + [0] * 499, pa.int32())

    def batches() -> Iterator[pa.RecordBatch]:
        for n in range(100):
            yield rows([f"{n:03}{'x' * 1_000}" for _ in range(1_000)], partition=partitions)

    writer = TaskWriter(this, f"{this.write_id}-0", 0)
    waiting, held, _ = watched(writer, batches())
    assert waiting <= limit
    assert held <= 6 * limit, f"{held} bytes held for {waiting} that wait"  # 100 MB were written
    commit(cluster, this, writer.finish())
    found = by_partition(log, topic)
    assert [len(found[0]), [value[:3] for value in found[1]]] == [99_900, [f"{n:03}" for n in range(100)]]


def test_abort_removes_open_and_finished_files(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_writer, "OPEN_FILES_MAX", 2)
    monkeypatch.setattr(new_file, "_WRITE_BYTES", 1)  # files are created with their first bytes
    make(cluster, partitions=5, inline_max_bytes="0")
    this = plan(cluster)
    writer = TaskWriter(this, f"{this.write_id}-0", 0)
    writer.write(rows(["a"] * 5, partition=pa.array(range(5), pa.int32())))
    assert len(files(cluster)) == 5  # three finished, two unfinished
    writer.abort()
    assert files(cluster) == []


def test_aborted_job_leaves_no_files(cluster: Cluster, log: ClientLog) -> None:
    topic, this = make(cluster, inline_max_bytes="0"), plan(cluster)
    output = write(this, rows(["a", "b"]))
    assert files(cluster)
    abort_write(str(cluster.store.address), [output], this.write_id)
    assert files(cluster) == [] and by_partition(log, topic) == {}


def test_abort_after_the_commit_deletes_nothing(cluster: Cluster, log: ClientLog) -> None:
    """A commit whose answer was lost: Spark calls abort although the files are in the log."""
    topic, this = make(cluster, partitions=1, inline_max_bytes="0"), plan(cluster)
    output = write(this, rows(["a", "b"]))
    commit(cluster, this, output)
    abort_write(str(cluster.store.address), [output], this.write_id)
    assert by_partition(log, topic) == {0: ["a", "b"]}


def test_two_attempts_of_a_task_use_different_files(cluster: Cluster, log: ClientLog) -> None:
    topic, this = make(cluster, partitions=1, inline_max_bytes="0"), plan(cluster)
    first, second = write(this, rows(["a"]), attempt=0), write(this, rows(["a"]), attempt=1)
    assert len(files(cluster)) == 2
    commit(cluster, this, second)
    assert by_partition(log, topic) == {0: ["a"]}
    assert first.batches[0].name != second.batches[0].name


def test_error_names_the_missing_log_dir(cluster: Cluster) -> None:
    make(cluster, inline_max_bytes="0")
    this = plan(cluster)
    gone = {key: replace(info, uri="file:///nonexistent/log-dir") for key, info in this.log_dirs.items()}
    with pytest.raises(Exception, match="nonexistent/log-dir") as raised:
        write(replace(this, log_dirs=gone), rows(["a"]))
    assert isinstance(raised.value, StorageUnavailableError) or "LogDirMismatch" in type(raised.value).__name__


def test_commit_reads_only_the_topics_that_it_writes_to(cluster: Cluster) -> None:
    make(cluster)
    this = plan(cluster)
    output = write(this, rows(["a"]))
    statements: list[str] = []
    sa.event.listen(cluster.store.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    with commit_log(cluster) as log:
        append_whole(log, AppendRequest(output.batches, output.blobs, atomic=True))
    of_topics = [each for each in statements if "FROM topic" in each]
    assert of_topics
    assert [each for each in of_topics if "WHERE" not in each] == []


# --- pending --------------------------------------------------------------------------------------------------------


def test_writes_of_a_transaction_follow_its_order(cluster: Cluster, log: ClientLog) -> None:
    """The later write runs first; the rows of the earlier one still come first."""
    topic = make(cluster, partitions=1, inline_max_bytes="1500", compression_type="none")
    ref = init_producer(cluster, "t", 60_000).ref
    for order in (1, 0):
        this = plan(cluster)
        outputs = [write(this, rows([f"{order}/{task} " + "x" * 2_000 * task]), attempt=task) for task in range(2)]
        register_write(str(cluster.store.address), outputs, this.write_id, PendingWrite(ref, order))
        abort_write(str(cluster.store.address), outputs, this.write_id)  # as after a lost answer
    assert by_partition(log, topic) == {}
    assert len(files(cluster)) == 2
    stored = cluster.store.read(lambda connection: read_pending(connection, ref.producer_id))
    batches = [each.batch for each in stored]
    append_whole(log, AppendRequest(batches, atomic=True, hooks=[commit_transaction_hook(ref, len(batches))]))
    assert [value.split(" ")[0] for value in by_partition(log, topic)[0]] == ["0/0", "0/1", "1/0", "1/1"]
