"""The connection of each transaction of a call is cut, one after the other: the call has the same result as without."""

from itertools import count

import pyarrow as pa
import pytest

from spark_log import Consumer, Producer
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import unfenced
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.controller import elect_leaders
from spark_log.spark.datasource.options.source_options import WriteOptions
from spark_log.spark.datasource.write.task_writer import TaskWriter
from spark_log.spark.datasource.write.write_commit import abort_write, commit_write, plan_write
from spark_log.spark.streams.table_version import read_version
from spark_log.tables.publication import publish
from tests.support.postgres_proxy import PostgresProxy
from tests.support.records import read_all
from tests.support.topics import append, make

pytestmark = pytest.mark.delta


class Calls:
    """Each takes a cluster with one topic "t", and checks its result through `seen`, whose connections are not cut."""

    def __init__(self, seen):
        self.seen = seen

    def append(self, cluster, log, topic):
        before = len(read_all(self.seen, topic))
        append(log, topic, "a")
        assert len(read_all(self.seen, topic)) == before + 1

    def seal(self, cluster, log, topic):
        append(log, topic, "a")
        assert log.seal(topic, [0]) == 1

    def merge(self, cluster, log, topic):
        for value in "ab":
            append(self.seen, topic, value)
            self.seen.seal(topic, [0])
        list(run_tasks(cluster, ["merge"]))

    def publish(self, cluster, log, topic):
        append(self.seen, topic, "a")
        log.seal(topic, [0])
        publish(cluster, topic)

    def read(self, cluster, log, topic):
        append(self.seen, topic, "a")
        assert read_all(log, topic) == read_all(self.seen, topic)
        assert log.offsets_for_times(topic, {0: 0}) == {0: 0}

    def compact(self, cluster, log, topic):
        append(log, topic, "a", "b", key=b"k")
        list(run_tasks(cluster, ["compact"]))

    def other_maintenance(self, cluster, log, topic):
        list(run_tasks(cluster, ["transactions", "retention", "expire"]))

    def elections(self, cluster, log, topic):
        assert elect_leaders(cluster.store, unfenced).elected == []

    def table_version(self, cluster, log, topic):
        version = read_version(log, "t")
        assert read_version(log, "t", version) == version

    def spark_write(self, cluster, log, topic):
        before = len(read_all(self.seen, topic))
        for end in (commit_write, abort_write):
            plan = plan_write(WriteOptions(str(cluster.store.address), "t"), fingerprint=False)
            task = TaskWriter(plan, f"{plan.write_id}-0", 0)
            task.write(pa.record_batch({"value": [b"a"]}))
            more = (None,) if end is commit_write else ()
            end(str(cluster.store.address), [task.finish()], plan.write_id, *more)
        assert len(read_all(self.seen, topic)) == before + 1

    def producer(self, cluster, log, topic):
        before = len(read_all(self.seen, topic))
        with Producer(cluster=str(cluster.store.address), transactional_id="t") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"a")
            producer.commit_transaction()
        assert len(read_all(self.seen, topic)) == before + 1

    def consumer(self, cluster, log, topic):
        append(log, topic, "a")
        settings = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False}
        with Consumer("t", cluster=str(cluster.store.address), **settings) as consumer:
            while not (found := consumer.poll(timeout_ms=10_000)):
                pass
            [records] = found.values()
            assert records[-1].value == b"a"
            consumer.commit()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in vars(Calls) if not name.startswith("_")])
def test_a_call_succeeds_whichever_transaction_loses_its_connection(postgres_server, postgres_url, tmp_path, name):
    with (
        Cluster.init(postgres_url, log_dir=str(tmp_path / "log-dir")) as direct,
        PostgresProxy(postgres_server.port) as proxy,
        Cluster.open(proxy.address(postgres_url)) as cluster,
    ):
        policy = "compact" if name == "compact" else "delete"
        topic = make(direct, "t", cleanup_policy=policy, delta_max_lag_ms="-1")  # no append seals the tail
        calls, log = Calls(ClientLog(direct)), ClientLog(cluster)
        for number in count():
            cut = proxy.cut("before", "", passed=number)
            getattr(calls, name)(cluster, log, topic)
            if not cut.done.is_set():
                break
        assert number > 0
        log.close()
