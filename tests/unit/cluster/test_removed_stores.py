"""A process closes the data stores that were removed from the cluster."""

import gc
import os
import threading
import weakref
from types import SimpleNamespace

import pytest

from spark_log.cluster import cluster as cluster_module
from spark_log.cluster.cluster import Cluster
from spark_log.ids import StoreId
from tests.support.waiting import wait_until

EAST = StoreId(1)
FOLLOWER = "spark-log removed stores"


class Store:
    """A metadata store that does nothing. `removed`: the home store has no data stores any more."""

    def __init__(self):
        self.read_timeout_ms = 0
        self.removed = False
        self.calls = []

    def read(self, body):
        if body is cluster_module.find_stores:
            return [] if self.removed else [SimpleNamespace(store_id=EAST)]
        return "id" if self.calls else SimpleNamespace(address_to_open=lambda: "/folder")

    def include(self, data):
        self.calls.append(("include", data))

    def exclude(self, data):
        self.calls.append(("exclude", data))

    def close(self):
        self.calls.append("close")


class User:
    """Keeps something open for data stores, and cannot close it."""

    def __init__(self):
        self.closed = []

    def close_at(self, store_id):
        self.closed.append(store_id)
        raise OSError("cannot be closed")


@pytest.fixture
def opened(monkeypatch):
    """Opens a cluster and its data store."""

    def open_cluster():
        cluster = Cluster(Store())
        cluster.__dict__["cluster_id"] = "id"
        cluster.at(EAST)
        return cluster

    monkeypatch.setattr(cluster_module, "_FOLLOW_S", 0.01)
    monkeypatch.setattr(cluster_module, "open_store", lambda *_, **__: Store())
    return open_cluster


def test_a_user_that_cannot_close_does_not_keep_the_others_open(opened):
    cluster, users = opened(), [User(), User()]
    for user in users:
        cluster.tell_of_removals(user)
    data = cluster.at(EAST).store
    cluster.store.removed = True
    wait_until(lambda: "close" in data.calls)
    assert [user.closed for user in users] == [[EAST], [EAST]]
    assert cluster.store.calls == [("include", data), ("exclude", data)]
    cluster.close()


def test_a_cluster_that_was_not_closed_can_be_freed(opened):
    cluster = opened()
    thread, reference = cluster._follower, weakref.ref(cluster)
    del cluster
    wait_until(lambda: gc.collect() >= 0 and reference() is None)
    thread.join()


def test_a_forked_child_closes_them_too(opened):
    cluster = opened()
    child = os.fork()
    if child == 0:
        try:
            data = cluster.at(EAST).store
            if any(each.name == FOLLOWER for each in threading.enumerate()):
                cluster.store.removed = True
                wait_until(lambda: "close" in data.calls)
                os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    cluster.close()
    assert os.waitstatus_to_exitcode(status) == 0
