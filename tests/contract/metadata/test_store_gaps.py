"""The log changes between any two accesses of a call to the metadata store: the result is right or the error is
documented.

Every call runs repeatedly on copies of one small cluster. Before its k-th access, for every k, a topic is deleted,
recreated, shortened, compacted, extended or erased from. The result must be that of the log before or after the change,
or one that the call's `between` accepts; an error must be named in the call's docstring (for commands: be one of our
classes).
"""

import contextlib
import inspect
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import TopicPartition as KafkaPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.admin._partitions import OffsetTimestamp
from kafka.structs import OffsetAndMetadata
from typer.testing import CliRunner

from spark_log import Admin, Consumer
from spark_log.cli.main import app
from spark_log.cluster.cluster import Cluster
from spark_log.errors import SparkLogError
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.append.rules import Appended
from spark_log.log.log import Records
from spark_log.log.records.schema import read_schema
from spark_log.log.segments.fetcher import Fetcher
from spark_log.maintenance.client_log import ClientLog
from spark_log.spark.datasource.options.source_options import ReadOptions
from spark_log.spark.datasource.read import read_topic
from spark_log.spark.datasource.read.read_planner import ReadPlanner
from spark_log.spark.streams.live_table import Table
from spark_log.spark.streams.table_version import plan_at, read_version
from tests.support.records import NOON_MS, table
from tests.support.store_gaps import BESIDE_WRITES, DISTURBANCES, LOSSES, Call, Matrix, Open, StoreGaps

T0 = TopicPartition("t", 0)


@contextlib.contextmanager
def _consumer(opened: Open, **settings: Any) -> Iterator[Consumer]:
    with Consumer(cluster=opened.address, enable_auto_commit=False, **settings) as consumer:
        yield consumer


def _plan_all(opened: Open) -> list[Any]:
    topic = opened.log.find_topic("t")
    ranges = {tp: OffsetRange(*limits) for tp, limits in opened.log.positions(topic).items()}
    return _read(opened.log.plan(ranges, topics={"t": topic}))


def _read(plan: Any) -> list[Any]:
    """(partition, offset, value) of the plan's records."""
    batches = Fetcher(plan.log_dirs).read(plan.slices, read_schema(columns=["partition", "offset", "value"]))
    return sorted((row["partition"], row["offset"], row["value"]) for batch in batches for row in batch.to_pylist())


def _spark_read(**options: str) -> Callable[[Open], Any]:
    def run(opened: Open) -> list[Any]:
        planner = ReadPlanner(_options(opened, **options))
        try:
            return sorted(record for task in planner.tasks(*planner.batch_ranges()) for record in _read(task))
        finally:
            planner.close()

    return run


def _options(opened: Open, **options: str) -> ReadOptions:
    named = {"cluster": opened.address, **{name.replace("__", "."): text for name, text in options.items()}}
    if not {"assign", "subscribePattern"} & options.keys():
        named["subscribe"] = "t,u"
    return ReadOptions.parse(named, streaming=False, environ={})


def _command(*arguments: str) -> Callable[[Open], Any]:
    def run(opened: Open) -> Any:
        result = CliRunner().invoke(app, [*arguments, "--cluster", opened.address], env={"TERM": "dumb"})
        if isinstance(result.exception, SystemExit) and isinstance(result.exception.__cause__, SparkLogError):
            raise result.exception.__cause__
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.stdout

    return run


def _native(opened: Open) -> list[Any]:
    """`read_topic` up to the plan that it passes to Spark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_topic, "read_plan", lambda _spark, _topic, plan, **_: plan)
        with Cluster.open(opened.address) as cluster:
            return _read(read_topic.read_topic(None, cluster, "t"))  # type: ignore[arg-type]


def _append(opened: Open) -> Any:
    """The outcome of the partition, an error of ours among them."""
    [outcome] = opened.log.append(opened.log.find_topic("t"), [Records(0, table("late", key=b"l"))])
    if not isinstance(outcome, Appended):
        raise outcome.error


def _table_version(opened: Open) -> Any:
    """A table updated to its current version, as a micro-batch does."""
    version = read_version(opened.log, "t")
    ranges = {number: OffsetRange(each.start, each.end) for number, each in version.partitions.items()}
    plan = plan_at(opened.log, "t", version, ranges)
    return None if plan is None else _read(plan)


def _polled(opened: Open, **settings: Any) -> Any:
    """All records from the beginning, by partition."""
    records: dict[Any, list[Any]] = {}
    with _consumer(opened, auto_offset_reset="earliest", **settings) as consumer:
        consumer.assign([K0, K1])
        for _ in range(4):
            for partition, found in consumer.poll(0).items():
                records.setdefault(partition, []).extend((record.offset, record.value) for record in found)
    return records


def _with_consumer(ask: Callable[[Consumer], Any], **settings: Any) -> Callable[[Open], Any]:
    def run(opened: Open) -> Any:
        with _consumer(opened, **settings) as consumer:
            return ask(consumer)

    return run


def _assigned(ask: Callable[[Consumer], Any], **settings: Any) -> Callable[[Open], Any]:
    def assigned(consumer: Consumer) -> Any:
        consumer.assign([K0, K1])
        return ask(consumer)

    return _with_consumer(assigned, **settings)


def _topic_facts(rows: list[dict[str, Any]]) -> Any:
    return [{name: value for name, value in row.items() if name != "topic_id"} for row in rows]


def _log_dir_facts(brokers: list[dict[str, Any]]) -> Any:
    return [[log_dir["topics"] for log_dir in broker["log_dirs"]] for broker in brokers]


def _any(_result: Any, _before: Any, _after: Any) -> bool:
    """For calls that read the store several times on purpose: other tests check their results."""
    return True


def _of_either(result: Any, before: Any, after: Any) -> bool:
    """Records of the one log or the other, or of both."""
    known = [*(before if isinstance(before, list) else ()), *(after if isinstance(after, list) else ())]
    return all(record in known for record in result)


K0, K1, U0 = KafkaPartition("t", 0), KafkaPartition("t", 1), KafkaPartition("u", 0)
TIMES = {K0: NOON_MS + 1, K1: NOON_MS, U0: NOON_MS}
SPECS = {K0: OffsetSpec.MAX_TIMESTAMP, K1: OffsetSpec.LATEST, U0: OffsetSpec.EARLIEST}
TOPIC = ConfigResource(ConfigResourceType.TOPIC, "t")

PLANNING = (ReadPlanner.batch_ranges, ReadPlanner.tasks)

CALLS: dict[str, Call] = {
    "Consumer.beginning_offsets": Call(
        _with_consumer(lambda c: c.beginning_offsets([K0, K1])), Consumer.beginning_offsets
    ),
    "Consumer.end_offsets": Call(_with_consumer(lambda c: c.end_offsets([K0, K1])), Consumer.end_offsets),
    "Consumer.offsets_for_times": Call(
        _with_consumer(lambda c: c.offsets_for_times(TIMES)), Consumer.offsets_for_times
    ),
    "Consumer.committed": Call(_with_consumer(lambda c: c.committed(K0), group_id="g"), Consumer.committed),
    "Consumer.topics": Call(_with_consumer(lambda c: c.topics()), Consumer.topics),
    "Consumer.partitions_for_topic": Call(
        _with_consumer(lambda c: c.partitions_for_topic("t")), Consumer.partitions_for_topic
    ),
    "Consumer.position": Call(
        _assigned(lambda c: c.position(K0), group_id="g"),
        Consumer.position,
        lambda result, _before, _after: result is None,
    ),
    "Consumer.commit": Call(
        _assigned(lambda c: (c.position(K0), c.commit()), group_id="g"), Consumer.commit, writes=True
    ),
    "Consumer.poll": Call(_polled, Consumer.poll, between=_any),
    "Log.find_topic": Call(lambda o: o.log.find_topic("t").partition_count, ClientLog.find_topic),
    "Log.plan": Call(_plan_all, ClientLog.plan),
    "Log.read": Call(
        lambda o: [row["value"] for batch in o.log.read({T0: OffsetRange(1, 4)}) for row in batch.to_pylist()],
        ClientLog.read,
    ),
    "Log.offsets_for_times": Call(
        lambda o: o.log.offsets_for_times(o.log.find_topic("t"), {0: NOON_MS + 1, 1: NOON_MS}),
        ClientLog.offsets_for_times,
    ),
    "Log.targets": Call(lambda o: sorted(o.log.targets(o.log.find_topic("t"), [0, 1])), ClientLog.targets),
    "Log.append": Call(_append, ClientLog.append, writes=True),
    "Log.seal": Call(
        lambda o: o.log.seal(o.log.find_topic("t"), [0, 1]), (ClientLog.find_topic, ClientLog.seal), writes=True
    ),
    "read_topic": Call(_native, read_topic.read_topic),
    "Table": Call(_table_version, Table, lambda result, _before, _after: result is None),
    "read": Call(_spark_read(), PLANNING),
    "read, losses allowed": Call(
        _spark_read(failOnDataLoss="false"),
        PLANNING,
        _of_either,
        bears_loss=True,
    ),
    "read by timestamp": Call(
        _spark_read(startingTimestamp=str(NOON_MS + 1), startingOffsetsByTimestampStrategy="latest"),
        PLANNING,
    ),
    "read by timestamp, losses allowed": Call(
        _spark_read(
            startingTimestamp=str(NOON_MS + 1),
            startingOffsetsByTimestampStrategy="latest",
            failOnDataLoss="false",
        ),
        PLANNING,
        _of_either,
        bears_loss=True,
    ),
    "read by offsets": Call(
        _spark_read(assign=json.dumps({"t": [0, 1]}), startingOffsets=json.dumps({"t": {"0": 2, "1": -2}})),
        PLANNING,
    ),
    "read from the committed offsets": Call(
        _spark_read(group__id="g", startingOffsets="committed", failOnDataLoss="false"),
        PLANNING,
        _of_either,
        bears_loss=True,
    ),
    "read what the group has not read": Call(
        _spark_read(group__id="g", assign=json.dumps({"t": [0]}), startingOffsets="committed"), PLANNING
    ),
    "read by pattern": Call(
        _spark_read(subscribePattern=".*", failOnDataLoss="false"),
        PLANNING,
        _of_either,
        bears_loss=True,
    ),
    "Admin.list_topics": Call(lambda o: o.admin.list_topics(), Admin.list_topics),
    "Admin.describe_topics": Call(lambda o: _topic_facts(o.admin.describe_topics(["t"])), Admin.describe_topics),
    "Admin.list_partition_offsets": Call(lambda o: o.admin.list_partition_offsets(SPECS), Admin.list_partition_offsets),
    "Admin.list_partition_offsets by time": Call(
        lambda o: o.admin.list_partition_offsets(TIMES), Admin.list_partition_offsets
    ),
    "Admin.delete_records": Call(lambda o: o.admin.delete_records({K0: 2}), Admin.delete_records, writes=True),
    "Admin.create_partitions": Call(
        lambda o: o.admin.create_partitions({"t": 4}), Admin.create_partitions, writes=True
    ),
    "Admin.delete_topics": Call(lambda o: o.admin.delete_topics(["t"]), Admin.delete_topics, writes=True),
    "Admin.describe_configs": Call(lambda o: o.admin.describe_configs([TOPIC]), Admin.describe_configs),
    "Admin.alter_configs": Call(
        lambda o: o.admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, "t", {"retention.ms": "1000000"})]),
        Admin.alter_configs,
        writes=True,
    ),
    "Admin.reset_configs": Call(lambda o: o.admin.reset_configs([TOPIC]), Admin.reset_configs, writes=True),
    "Admin.describe_log_dirs": Call(
        lambda o: _log_dir_facts(o.admin.describe_log_dirs(["t"])), Admin.describe_log_dirs
    ),
    "Admin.elect_leaders": Call(
        lambda o: str(o.admin.elect_leaders(0, ["t"], raise_errors=False)), Admin.elect_leaders, writes=True
    ),
    "Admin.alter_partition_reassignments": Call(
        lambda o: o.admin.alter_partition_reassignments({K0: [1]}), Admin.alter_partition_reassignments, writes=True
    ),
    "Admin.describe_producers": Call(lambda o: str(o.admin.describe_producers([K0])), Admin.describe_producers),
    "Admin.describe_groups": Call(lambda o: o.admin.describe_groups(["g"]), Admin.describe_groups),
    "Admin.list_group_offsets": Call(lambda o: o.admin.list_group_offsets("g"), Admin.list_group_offsets),
    "Admin.reset_group_offsets": Call(
        lambda o: o.admin.reset_group_offsets("g", {K0: OffsetSpec.MAX_TIMESTAMP, K1: OffsetTimestamp(NOON_MS)}),
        Admin.reset_group_offsets,
        writes=True,
    ),
    "Admin.alter_group_offsets": Call(
        lambda o: o.admin.alter_group_offsets("g", {K0: OffsetAndMetadata(1, "", -1)}),
        Admin.alter_group_offsets,
        writes=True,
    ),
    "Admin.delete_group_offsets": Call(
        lambda o: o.admin.delete_group_offsets("g", [K0]), Admin.delete_group_offsets, writes=True
    ),
    "topic list": Call(_command("topic", "list"), SparkLogError),
    "topic describe": Call(_command("topic", "describe", "t"), SparkLogError),
    "status": Call(_command("status"), SparkLogError, between=_any),
    "consume": Call(_command("consume", "t", "--values"), SparkLogError, between=_any),
    "consume from a time": Call(
        _command("consume", "t", "--values", "--from", f"@{NOON_MS + 1}"), SparkLogError, between=_any
    ),
    "group list": Call(_command("group", "list"), SparkLogError),
    "group describe": Call(_command("group", "describe", "g"), SparkLogError),
    "group reset, dry run": Call(
        _command("group", "reset", "g", "--to", f"@{NOON_MS}", "--topic", "t"),
        SparkLogError,
        between=lambda result, _before, _after: result == "",  # refused: the topic was recreated
    ),
    "group reset": Call(
        _command("group", "reset", "g", "--to", f"@{NOON_MS}", "--topic", "t", "--execute"), SparkLogError, writes=True
    ),
    "topic balance": Call(_command("partition", "balance"), SparkLogError, between=_any),
}


# The matrix ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def matrix() -> Iterator[Matrix]:
    """In a memory file system if there is one: hundreds of clusters are written, and none must survive."""
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        yield Matrix(Path(folder), StoreGaps(patch))


@pytest.mark.parametrize("name", CALLS)
def test_a_change_between_two_store_accesses_of_a_call_gives_a_right_result_or_a_documented_error(
    name: str, matrix: Matrix
) -> None:
    call = CALLS[name]
    documented = call.documented if isinstance(call.documented, tuple) else (call.documented,)
    known = "".join(inspect.getdoc(each) or "" for each in documented)
    before = matrix.alone(call, "undisturbed")
    assert before.error is None
    wrong = []
    for what in DISTURBANCES:
        after = matrix.alone(call, what)
        if not _documented(after.error, known):
            wrong.append(f"{what} first: {after.error!r}")
        between = not call.writes or what in BESIDE_WRITES
        for number in range(2, before.accesses + 1 if between else 0):
            found = matrix.disturbed(call, what, number)
            if found.error is not None:
                right = _documented(found.error, known) and (
                    after.error is not None or (what in LOSSES and not call.bears_loss)
                )
            else:
                right = call.writes or found.value in (before.value, after.value)
                right = right or call.between(found.value, before.value, after.value)
            if not right:
                wrong.append(f"{what} before access {number}: {found.error or found.value!r}")
    assert not wrong, "\n".join(wrong)


def _documented(error: Exception | None, documentation: str) -> bool:
    if error is None:
        return True
    return isinstance(error, SparkLogError) and (
        type(error).__name__ in documentation or documentation == inspect.getdoc(SparkLogError)
    )
