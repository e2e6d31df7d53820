"""Coordinators of a cluster with several stores: each store has leases of its own, and home's is followed."""

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Lease
from spark_log.errors import NotControllerError, NotCoordinatorError
from spark_log.log.partitions.partition_rows import read_partition
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.removal.retention import apply_retention
from spark_log.metadata import tables as t
from spark_log.replication.controller.controller import elect_leaders
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.transactions.left_over_parts import find_unresolved, resolve
from tests.support.python_process import killed_at
from tests.support.topics import TRANSACTION, append_to, stored

EAST = 1


@pytest.mark.slow
def test_each_store_refuses_an_old_coordinator(stores):
    """A holder of the leases of a data store was stopped, and another one has taken them meanwhile."""
    topic = create_topic(stores, "t", configs={"retention.ms": "0", "inline.max.bytes": "0"}, store="east")
    append_to(stores, "t", "old")
    killed_at("part.decided", "-c", TRANSACTION, stores.store.address.with_password)
    view: Cluster = stores.at(EAST)
    [part] = find_unresolved(view)
    log = ClientLog(view)
    leases = {name: [Lease(view.store, name, 60_000) for _ in range(2)] for name in ("coordinator", "controller")}
    fences = {}
    for name, (old, new) in leases.items():
        assert old.take_or_renew()
        fences[name] = old.check_of_term()
        ended = t.lease.update().where(t.lease.c.name == name).values(until_ms=0)
        view.store.transact(lambda connection, ended=ended: connection.execute(ended))
        assert new.take_or_renew()
    view.store.transact(lambda connection: connection.execute(t.partition.update().values(leader=None)))
    before = view.store.read(lambda connection: connection.execute(t.segment.select()).all())
    with pytest.raises(NotCoordinatorError):
        resolve(log, part, fences["coordinator"])
    with pytest.raises(NotCoordinatorError):
        apply_retention(view, topic, fences["coordinator"])
    with pytest.raises(NotControllerError):
        elect_leaders(view.store, fences["controller"])
    assert view.store.read(lambda c: read_partition(c, (topic.topic_id, 0))).leader is None
    assert find_unresolved(view) == [part]
    assert view.store.read(lambda connection: connection.execute(t.segment.select()).all()) == before
    [coordinator, controller] = [leases[name][1].check_of_term() for name in ("coordinator", "controller")]
    elect_leaders(view.store, controller)
    apply_retention(view, topic, coordinator)
    resolve(log, part, coordinator)
    assert find_unresolved(view) == []
    assert stored(stores, "t") == {0: ["committed"]}
    log.close()
