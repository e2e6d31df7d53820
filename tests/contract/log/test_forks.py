"""Processes that fork while they use a cluster: SQLite's locks and PostgreSQL's sessions stay with the parent."""

import contextlib
import json
import os
import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.files.new_file import LocalFile
from spark_log.cluster.log_dir import LogDir
from spark_log.errors import SparkLogError
from spark_log.log.append.rules import Appended
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.tables import table_work
from spark_log.tables.iceberg import catalog
from spark_log.tables.publication import publish
from tests.support.fork_rig import CLIENTS, RECORDS, STATES
from tests.support.python_process import output_of
from tests.support.records import table
from tests.support.table_checks import assert_delta_is_the_log

RIG = "import sys; from tests.support.fork_rig import main; main(sys.argv[1])"


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    lines = output_of(RIG, tmp_path_factory.mktemp("forks")).splitlines()
    found = [json.loads(line) for line in lines]
    return {(case["client"], case["state"]): case for case in found}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("state", STATES)
def test_every_acknowledged_record_is_in_the_log_after_a_fork(client, state, cases):
    case = cases[client, state]
    assert case["integrity"] == "ok"
    log, child = case["log"], case["child"]
    assert [log[offset] for offset in case["parent"]] == ["parent"] * RECORDS
    if state in ("in a long transaction", "in a transaction of its own"):
        assert "was in use when this process was forked" in child["error"], "it cannot take locks of its own"
        assert "child" not in log
    else:
        assert "error" not in child
        assert case["child had a lock"]
        assert [log[offset] for offset in child["offsets"]] == ["child"] * 2 * RECORDS


def in_child(work):
    """The exit code of a forked child in which `work` returns 0 or a number of its own; 99 for an error."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = work() or 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_forked_inside_a_transaction_cannot_end_it(cluster):
    change = "UPDATE cluster SET created_ms = 4711"

    def change_store(connection):
        for statement in (change, "COMMIT", "ROLLBACK"):
            with contextlib.suppress(SparkLogError, sa.exc.SQLAlchemyError):
                connection.exec_driver_sql(statement)
                return 1
        return 0

    def body(connection):
        connection.exec_driver_sql(change)
        assert in_child(lambda: change_store(connection)) == 0
        return connection.exec_driver_sql("SELECT created_ms FROM cluster").scalar_one()

    assert cluster.store.transact(body) == 4711
    assert cluster.store.read(lambda c: c.exec_driver_sql("SELECT created_ms FROM cluster").scalar_one()) == 4711


def test_a_child_uses_the_cluster_of_its_parent(cluster):
    """Parent and child see each other's commits."""
    changes = cluster.store.changes
    rename = "UPDATE cluster SET created_ms = created_ms + 1"
    cluster.store.transact(lambda connection: connection.exec_driver_sql(rename), announce=True)
    seen = changes.current()

    def work():
        seen = changes.current()
        cluster.store.transact(lambda connection: connection.exec_driver_sql(rename), announce=True)
        cluster.close()
        return 0 if seen is not None else 1

    assert in_child(work) == 0
    assert changes.wait(seen, 10)


def test_a_child_leaves_the_unfinished_files_of_its_parent_alone(tmp_path):
    file = LocalFile(tmp_path / "a", tmp_path)
    content = os.urandom(5 * 2**20)  # more than it gathers before it creates the file
    file.write(content)
    assert in_child(lambda: file._file.close()) == 0  # as at the end of its interpreter
    file.commit()
    assert (tmp_path / "a").read_bytes() == content


@pytest.mark.delta
def test_a_child_appends_and_leaves_publication_to_others(cluster, cluster_address, log):
    """deltalake does not work in a child of a process that has used it: other processes publish the child's records."""
    topic = create_topic(cluster, "t", configs={"inline.max.bytes": "0"})
    log.append(topic, [Records(0, table("a"))])

    def work():
        with Cluster.open(cluster_address) as own:
            return ClientLog(own).append(topic, [Records(0, table("b"))]) != [Appended(1, 2)]

    assert in_child(work) == 0
    publish(cluster, topic)
    assert_delta_is_the_log(cluster)


def test_a_child_holds_no_lock_of_threads_of_its_parent():
    with catalog._locks["warehouse"], table_work._lock:
        assert in_child(lambda: catalog._locks["warehouse"].locked() or table_work._lock.locked()) == 0


def test_a_child_opens_its_own_connections_to_object_storage():
    ports = []
    with EmptyBucket(ports) as server:
        directory = LogDir(server.uri)
        directory.entries()
        directory.entries()
        [of_parent] = set(ports)  # the connection is kept for the next request
        assert in_child(lambda: len(directory.entries())) == 0
        assert ports[-1] != of_parent
        directory.entries()
        assert ports[-1] == of_parent


class EmptyBucket(ThreadingHTTPServer):
    """Empty object storage that keeps connections open and records the client's port of each request."""

    def __init__(self, ports):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                ports.append(self.client_address[1])
                body = b"<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>"
                self.send_response(200)
                self.send_header("Content-Type", "application/xml")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.daemon_threads = True
        self.uri = (
            f"s3://key:secret@bucket/a?region=us-east-1&scheme=http&endpoint_override=127.0.0.1%3A{self.server_port}"
        )
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()
