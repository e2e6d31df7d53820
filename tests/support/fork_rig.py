"""Forks of a process that uses a cluster: checks that the child's records are at the offsets of their acknowledgements.

`python -m tests.support.fork_rig FOLDER`: for each client and each state a process uses a cluster through the client,
brings it into the state, and forks. The child produces with its own producer, before and after the parent closes
everything. Prints one JSON object per case: the report of the child, and the contents of the files afterwards.
"""

import json
import os
import sqlite3
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas  # noqa: F401 - pyarrow imports it with its first value: here once, not in each process

from spark_log import Cluster, Consumer, Producer, create_topic
from spark_log.maintenance.client_log import ClientLog
from tests.support.records import read_all
from tests.support.waiting import LIMIT_S

CLIENTS = ("Cluster", "Producer", "Consumer")
STATES = ("open", "closed", "in a short transaction", "in a long transaction", "in a transaction of its own")
RECORDS = 20


def main(folder: str) -> None:
    for state in STATES:
        children = [_fork(lambda c=client, s=state: _case(f"{folder}/{s} {c}", c, s)) for client in CLIENTS]  # type: ignore[misc]
        for child in children:
            assert os.waitpid(child, 0)[1] == 0


def _fork(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def _case(address: str, client: str, state: str) -> None:
    with Cluster.init(address) as cluster:
        create_topic(cluster, "t", 1)
    user, cluster = _use(client, address)
    parent_closed, child_began = os.pipe(), os.pipe()
    answers = os.pipe()

    def fork() -> int:
        return _fork(work)

    def work() -> None:
        os.close(parent_closed[1])
        answer = _answer(lambda: _child(address, child_began[1], parent_closed[0]))
        os.write(answers[1], json.dumps(answer).encode())

    end_transaction = threading.Event()
    if state == "closed":
        user.close()
        child = fork()
    elif state == "in a transaction of its own":
        child = cluster.store.transact(lambda _connection: fork())
    elif state.startswith("in a"):
        inside = threading.Event()

        def body(connection: Any) -> None:
            connection.exec_driver_sql("UPDATE cluster SET created_ms = created_ms + 1")
            inside.set()
            end_transaction.wait(0.3 if "short" in state else 60)

        thread = threading.Thread(target=cluster.store.transact, args=(body,))
        thread.start()
        inside.wait()
        child = fork()
        end_transaction.set()
        thread.join()
    else:
        child = fork()
    for end in (child_began[1], answers[1]):
        os.close(end)
    os.read(child_began[0], 1)
    in_parent = _append(address)  # with its own connection, the parent's last one
    locks = _locks(Path(address, "metadata.sqlite"))
    if state != "closed":
        user.close()
    os.write(parent_closed[1], b".")
    assert os.waitpid(child, 0)[1] == 0
    answer = json.loads(os.read(answers[0], 1 << 16))
    found = {
        "client": client,
        "state": state,
        "child": answer,
        "parent": in_parent,
        "child had a lock": child in locks,
        "log": _log(address),
        "integrity": _integrity(Path(address, "metadata.sqlite")),
    }
    os.write(1, json.dumps(found).encode() + b"\n")  # in one write, because other processes write too


def _use(client: str, address: str) -> tuple[Any, Cluster]:
    if client == "Cluster":
        cluster = Cluster.open(address)
        assert cluster.cluster_id
        return cluster, cluster
    if client == "Producer":
        producer = Producer(cluster=address)
        producer.send("t", b"before the fork").get(timeout=LIMIT_S)
        return producer, producer._cluster
    consumer = Consumer("t", cluster=address, group_id="g")
    consumer.poll(10)
    return consumer, consumer.cluster


def _answer(work: Callable[[], list[int]]) -> dict[str, Any]:
    try:
        return {"offsets": work()}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _child(address: str, began: int, parent_closed: int) -> list[int]:
    """Offsets of the acknowledged records; half are sent after the parent has closed its connections."""
    try:
        with Producer(cluster=address) as producer:
            offsets = [_sent(producer, "child") for _ in range(RECORDS)]
            os.write(began, b".")
            os.read(parent_closed, 1)
            return offsets + [_sent(producer, "child") for _ in range(RECORDS)]
    finally:
        os.close(began)


def _append(address: str) -> list[int]:
    with Producer(cluster=address) as producer:
        return [_sent(producer, "parent") for _ in range(RECORDS)]


def _sent(producer: Producer, value: str) -> int:
    return int(producer.send("t", value.encode()).get(timeout=LIMIT_S).offset)


def _log(address: str) -> list[str]:
    """The value at each offset."""
    with Cluster.open(address) as cluster:
        log = ClientLog(cluster)
        topic = log.find_topic("t")
        assert topic is not None
        found = read_all(log, topic)
        log.close()
    assert [offset for _, offset, _ in found] == list(range(len(found)))
    return [value for _, _, value in found]


def _locks(path: Path) -> set[int]:
    """Processes that hold a POSIX lock on the file."""
    inode = f":{path.stat().st_ino}"
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return {int(words[4]) for words in lines if words[1] == "POSIX" and words[5].endswith(inode)}


def _integrity(path: Path) -> str:
    connection = sqlite3.connect(path)
    try:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])
    finally:
        connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
