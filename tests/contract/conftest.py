"""Fixtures of the contract suites, which every store and every kind of log dir must pass."""

import contextlib
import itertools
from uuid import uuid4

import pytest

from spark_log import Consumer, Producer
from spark_log.cluster.brokers import add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.groups.share import looks as share_looks
from spark_log.maintenance import client_log
from spark_log.maintenance.rewrite.table_loop import TableLoop
from tests.support.data_source import StreamQuery
from tests.support.gateway_wire import WireConnection
from tests.support.postgres import PostgresServer
from tests.support.resources import bounded_resources
from tests.support.server_processes import GatewayProcess
from tests.support.stores import put_topics_in_a_data_store
from tests.support.waiting import LIMIT_S


@pytest.fixture(autouse=True)
def delta_tables_only_where_marked(request, monkeypatch):
    """Publishes no Delta tables, which takes most of the time of an append of files, unless the test has the mark
    `delta`. The processes that a test starts publish them in any case.
    """
    if request.node.get_closest_marker("delta") is None:
        monkeypatch.setattr("spark_log.tables.publication._tables", lambda *_: ([], {}))


@pytest.fixture(autouse=True)
def patient_last_rounds(monkeypatch):
    """Logs that close seal all tails also on a slow machine, where that may take longer than they have."""
    close = TableLoop.close

    def close_patiently(loop, timeout_s, **options):
        close(loop, LIMIT_S if timeout_s == client_log._DRAIN_S else timeout_s, **options)

    monkeypatch.setattr(TableLoop, "close", close_patiently)


@pytest.fixture
def on_s3(request):
    """Whether the log dirs of this test are in object storage (`also_on_s3`)."""
    return request.node.callspec.params["cluster_address"] == "s3"


@pytest.fixture
def cluster(request, cluster_address, tmp_path, on_s3):
    """An empty cluster with one broker: once on SQLite and once on PostgreSQL with a local folder as log dir; with
    `also_on_s3` also on SQLite with its log dir in object storage.
    """
    log_dir = str(tmp_path / "log-dir") if "://" in cluster_address else None
    with Cluster.init(cluster_address, log_dir=request.getfixturevalue("s3_uri") if on_s3 else log_dir) as cluster:
        _use_two_stores(request, cluster)
        yield cluster


def _use_two_stores(request: pytest.FixtureRequest, cluster: Cluster) -> None:
    """Add a data store if the test asks for two stores."""
    if request.node.callspec.params["cluster_address"] == "two_stores":
        put_topics_in_a_data_store(cluster, request.getfixturevalue("postgres_server"))


@pytest.fixture
def three_brokers(request, cluster_address, tmp_path, on_s3):
    """Three embedded brokers, each in its own rack with its log dir `<tmp>/d<id>`, or in object storage."""
    server, prefix = request.getfixturevalue("s3_server") if on_s3 else None, uuid4().hex
    first, *others = [server.uri(f"{prefix}/d{n}") if server else str(tmp_path / f"d{n}") for n in (1, 2, 3)]
    with Cluster.init(cluster_address, log_dir=first) as cluster:
        _use_two_stores(request, cluster)
        for broker, log_dir in enumerate(others, 2):
            add_broker(cluster, broker, [log_dir], rack=f"r{broker}")
        yield cluster


@pytest.fixture
def resource_oracle(cluster):
    """After the test has closed its producers and logs, checks that no unnamed file and no memory is left."""
    with bounded_resources(cluster):
        yield


@pytest.fixture
def produce(cluster, cluster_address):
    """A function that creates producers of the cluster; they are closed at the end."""
    made = []

    def make(**settings):
        made.append(Producer(cluster=cluster_address, **settings))
        return made[-1]

    yield make
    for producer in made:
        producer.close(timeout=10)


@pytest.fixture
def consume(cluster_address, cluster):
    """A function that creates consumers of group `g`, which read from the start and do not commit by themselves; they
    are closed at the end.
    """
    made = []

    def make(*topics, **settings):
        given = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False, **settings}
        made.append(Consumer(*topics, cluster=cluster_address, **given))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close(autocommit=False)


@pytest.fixture
def gateway(cluster, cluster_address, tmp_path):
    """A gateway of the cluster, without options."""
    with GatewayProcess(tmp_path, cluster_address) as running:
        yield running


@pytest.fixture
def gateways(cluster, cluster_address, tmp_path):
    """Two gateways of the cluster, without options."""
    with GatewayProcess(tmp_path, cluster_address) as one, GatewayProcess(tmp_path, cluster_address) as two:
        yield one, two


@pytest.fixture
def connect(gateways):
    """A new connection to one of the two gateways, in turn; or to the one that is asked for."""
    with contextlib.ExitStack() as stack:
        turns = itertools.cycle(gateways)

        def connect(number=None):
            gateway = next(turns) if number is None else gateways[number]
            return stack.enter_context(WireConnection(gateway.port))

        yield connect


@pytest.fixture
def gateway_with(tmp_path):
    """A function that starts a gateway with these configs, of the cluster in folder `<tmp>/cluster`."""
    with contextlib.ExitStack() as stack:

        def start(*configs):
            options = [option for config in configs for option in ("--config", config)]
            return stack.enter_context(GatewayProcess(tmp_path, str(tmp_path / "cluster"), *options))

        yield start


@pytest.fixture
def stream_query(cluster):
    """A function that makes streaming queries over topic t; they are stopped at the end."""
    made = []

    def start(**options):
        made.append(StreamQuery(cluster, **options))
        return made[-1]

    yield start
    for query in made:
        query.reader.stop()


@pytest.fixture
def looks(monkeypatch):
    """The looks of share groups at the store: the length of the list is their number."""
    made, look = [], share_looks.look
    monkeypatch.setattr(share_looks, "look", lambda *arguments: made.append(1) or look(*arguments))
    return made


@pytest.fixture
def own_postgres_server():
    """A PostgreSQL for this test only, which may kill and restart it."""
    server = PostgresServer()
    server.start()
    yield server
    server.kill()
    server.remove()
