"""Typed columns are the decoded keys and values after any sequence of steps, and never change the log itself.

Two replicas; appends of one batch, of files, and in transactions; every task that writes files, also killed at its
failpoints; damaged files; schema changes; erasing; a mirror.
"""

import signal
from itertools import count

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from spark_log import Producer
from spark_log.cluster.brokers import add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.log.append.rules import Appended
from spark_log.log.log import Records
from spark_log.log.records.schema import normalise
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.erase.erase import erase
from spark_log.replication.controller.topic_operations import alter_configs, create_topic
from spark_log.spark.datasource.options.topic_choice import SubscribeTopics
from spark_log.spark.mirror.mirror import Mirror
from spark_log.spark.mirror.mirror_topics import MirrorSettings
from tests.support.disk_faults import DAMAGES, replicas_of
from tests.support.mirroring import mirror_all
from tests.support.python_process import run_process
from tests.support.records import NOON_MS
from tests.support.replicas import add_brokers
from tests.support.schemas import KEYS, SCHEMA, WIDER, check_columns, document, files
from tests.support.table_checks import assert_delta_is_the_log

pytestmark = pytest.mark.delta

BAD = [document(3, n=2**63), document(4, price="4"), "{", "null", "[1]", '{"n": 1.5}', ""]
VALUES = st.sampled_from([None, document(1), document(2, note="x"), *BAD])
KILLED = {
    "seal": ["file.renamed", "seal.file-written", "seal.committed"],
    "merge": ["merge.file-written", "merge.committed", "publish.before-commit"],
    "columns": ["columns.file-written", "columns.committed", "publish.committed"],
    "compact": ["compact.file-written", "compact.swapped"],
}
KEY_SCHEMAS = [
    {"key.format": "json", "key.schema": text} for text in ("n BIGINT", KEYS["key_schema"] + ", note STRING")
]
SENT_KEYS = [document(1), document(2, note="k"), document(3, n="3"), "[", "k"]
STEP = st.one_of(
    st.tuples(st.just("append"), st.lists(VALUES, min_size=1, max_size=4), st.sampled_from(["tail", "file", "table"])),
    st.tuples(st.just("transaction"), st.lists(VALUES, min_size=1, max_size=3), st.booleans()),
    st.tuples(st.just("run"), st.sampled_from(["seal", "merge", "columns", "delta", "compact", "files"])),
    st.tuples(st.just("killed"), st.sampled_from([(task, at) for task, points in KILLED.items() for at in points])),
    st.tuples(st.just("schema"), st.sampled_from([SCHEMA, WIDER, "item STRING"])),
    st.tuples(st.just("format"), st.sampled_from(["json", "bytes"])),
    st.tuples(st.just("keys"), st.sampled_from([{"key.format": "bytes"}, {"key.format": "json"}, *KEY_SCHEMAS])),
    st.tuples(st.just("policy"), st.sampled_from(["compact", "delete"])),
    st.tuples(st.just("damage"), st.sampled_from(sorted(DAMAGES))),
    st.tuples(st.just("erase")),
    st.tuples(st.just("mirror")),
)
CONFIGS = {
    "key.format": "json",
    "key.schema": KEYS["key_schema"],
    "value.format": "json",
    "value.schema": SCHEMA,
    "retention.ms": "-1",
    "min.cleanable.dirty.ratio": "0",
    "segment.bytes": "3000",
}
TASK = """
import sys
from spark_log.maintenance import run_tasks
list(run_tasks(sys.argv[1], [sys.argv[2]], topics=[sys.argv[3]], now=True))
"""


def coded(value):
    return None if value is None else value.encode()


class TypedTopic:
    """A topic, and what has been appended to it: `appended[offset]` is (key, value)."""

    def __init__(self, cluster, name, mirror):
        self.cluster, self.name, self.log, self.mirror = cluster, name, ClientLog(cluster), mirror
        self.appended, self.erased, self.compacted = [], set(), False
        create_topic(cluster, name, 1, 2, CONFIGS)

    def step(self, kind, *given_):
        getattr(self, f"_{kind}")(*given_)

    def _append(self, values, how):
        self._alter({"inline.max.bytes": None if how == "tail" else "0"})
        key = self._key()
        rows = self._rows(key, values)
        if how == "table":
            with Producer(cluster=str(self.cluster.store.address)) as producer:
                producer.send_table(self.name, rows).get()
        else:
            [outcome] = self.log.append(self.log.find_topic(self.name), [Records(0, rows)])
            assert isinstance(outcome, Appended), outcome
        self.appended += [(key, coded(value)) for value in values]

    def _transaction(self, values, commits):
        with Producer(cluster=str(self.cluster.store.address), transactional_id=self.name) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            key = self._key()
            for value in values:
                producer.send(self.name, key=key, value=coded(value))
            (producer.commit_transaction if commits else producer.abort_transaction)()
        if commits:
            self.appended += [(key, coded(value)) for value in values]

    def _key(self):
        return SENT_KEYS[len(self.appended) % len(SENT_KEYS)].encode()

    def _rows(self, key, values):
        rows = pa.table({"key": [key] * len(values), "value": pa.array(map(coded, values), pa.binary())})
        return normalise(rows, timestamp_ms=NOON_MS)

    def _run(self, task):
        list(run_tasks(self.cluster, [task], topics=[self.name], now=True))
        self.compacted |= task == "compact"

    def _killed(self, task_and_point):
        task, point = task_and_point
        done = run_process("-c", TASK, self.cluster.store.address, task, self.name, failpoint=point)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr[-4000:]
        self.compacted |= task == "compact"

    def _schema(self, text):
        self._alter({"value.schema": text})

    def _format(self, name):
        self._alter({"value.format": name})

    def _keys(self, configs):
        self._alter(configs)

    def _policy(self, policy):
        self._alter({"cleanup.policy": policy})

    def _alter(self, configs):
        alter_configs(self.cluster, self.name, configs)

    def _damage(self, kind):
        topic = self.log.find_topic(self.name)
        for copies in replicas_of(self.cluster, self.log, topic):
            if len(copies) == 2:
                copies[0].damage(kind)
                self._format("json")
                self.check()  # the reader that meets the damage repairs it, with the columns
                return

    def _erase(self):
        keys = {key for key, _ in self.appended[::3]}
        if keys:
            erase(self.cluster, self.name, keys)
            self.erased |= {offset for offset, (key, _) in enumerate(self.appended) if key in keys}

    def _mirror(self):
        self._format("json")  # the configs are copied when the target's topic is created
        mirror = Mirror(self.cluster, self.mirror, MirrorSettings(SubscribeTopics((self.name,)), create=True))
        mirror_all(mirror)
        mirror.close()

    def check(self):
        """The records are those that were appended, except erased and compacted ones."""
        read = check_columns(self.cluster, self.log, self.name)
        last = {key: offset for offset, (key, _) in enumerate(self.appended)}
        for offset, (key, value) in enumerate(self.appended):
            if offset in read:
                assert read[offset] == value and offset not in self.erased
            else:
                tombstone = value is None
                assert offset in self.erased or (self.compacted and (tombstone or last[key] != offset))
        assert read.keys() <= set(range(len(self.appended)))
        return read


_numbers = count()


@pytest.fixture
def replicated(cluster, tmp_path):
    """Two brokers: new topics have two replicas."""
    add_brokers(cluster, tmp_path, 2)
    return cluster


@pytest.fixture
def target(tmp_path):
    with Cluster.init(str(tmp_path / "target")) as target:
        add_broker(target, 2, [str(tmp_path / "target-2")])
        yield target


@pytest.mark.on_sqlite
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(STEP, min_size=4, max_size=12))
@example(
    steps=[("append", [document(1)], "table"), ("schema", "item STRING"), ("killed", ("columns", "columns.committed"))]
)
def test_columns_are_the_decoded_keys_and_values_after_any_sequence_of_steps(replicated, target, steps):
    topic = TypedTopic(replicated, f"orders-{next(_numbers)}", target)
    for step in steps:
        topic.step(*step)
    topic.step("format", "json")
    read = topic.check()
    topic.step("run", "seal")
    topic.step("run", "columns")
    assert topic.check() == read
    version = topic.log.find_topic(topic.name).columns.version
    assert {found for found, _ in files(replicated, topic.log.find_topic(topic.name))} <= {version}
    topic.step("run", "delta")  # a process that was killed may have left the table behind, and no other work was due
    assert_delta_is_the_log(replicated)
    topic.step("mirror")
    copy = ClientLog(target)
    copied = check_columns(target, copy, topic.name)
    assert read.items() <= copied.items()  # what was erased or compacted after the mirror has read it is there too
    assert all(topic.appended[offset][1] == value for offset, value in copied.items())
    copy.close()
    topic.log.close()
