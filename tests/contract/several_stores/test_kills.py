"""Processes are killed between two stores: a coordinator ends what they began, and a repeated call works."""

from functools import partial

import pytest

from spark_log.cluster.store_directory import find_stores
from spark_log.cluster.stores import add_store, remove_store
from spark_log.cluster.topics import moving_topics, topics_of_store
from spark_log.errors import InvalidConfigurationError
from spark_log.ids import HOME
from spark_log.maintenance.coordinator.coordinator import Coordinator
from spark_log.replication.controller.topic_copies import follow_all
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from tests.support.python_process import killed_at
from tests.support.topics import append_to, stored
from tests.support.waiting import wait_until

EAST = 1
PROGRAM = """
import sys
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.stores import add_store
from spark_log.replication.controller.topic_moves import move_topic
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
step, address, *rest = sys.argv[1:]
with Cluster.open(address) as cluster:
    if step == "create":
        create_topic(cluster, "t", 2, store="east")
    elif step == "delete":
        delete_topic(cluster, "t")
    elif step == "move":
        move_topic(cluster, "moved", "east")
    else:
        add_store(cluster, *rest)
"""


def killed(stores, point, *arguments):
    killed_at(point, "-c", PROGRAM, arguments[0], stores.store.address.with_password, *arguments[1:])


def topics_of_both(stores):
    """The topics of the data store, as home and as the data store have them."""
    home, data = stores, stores.at(EAST)
    return [store.read(lambda c: topics_of_store(c, EAST)) for store in (home.store, data.store)]


@pytest.mark.parametrize("point", ["topic.created-at-home", "topic.copied"])
def test_a_creation_is_completed(stores, point):
    killed(stores, point, "create")
    at_home, _ = topics_of_both(stores)
    assert [each.state for each in at_home.values()] == ["creating"]
    follow_all(stores)
    at_home, there = topics_of_both(stores)
    assert at_home == there
    assert [(each.topic.name, each.state) for each in there.values()] == [("t", "live")]
    assert stored(stores, "t") == {}


@pytest.mark.parametrize("point", ["topic.deleted-at-home", "topic.copy-deleted"])
def test_a_deletion_is_completed(stores, point):
    create_topic(stores, "t", 2, store="east")
    killed(stores, point, "delete")
    create_topic(stores, "t", store="east")  # the name is free at once
    follow_all(stores)
    at_home, there = topics_of_both(stores)
    assert at_home == there
    assert [each.topic.partition_count for each in there.values()] == [1]


@pytest.mark.parametrize("point", ["store.reserved", "store.created"])
def test_an_addition_is_completed_by_the_same_call(stores, postgres_server, point):
    address = postgres_server.create_database()
    killed(stores, point, "add", "west", address)
    with pytest.raises(InvalidConfigurationError, match="takes no new topics"):
        create_topic(stores, "t", store="west")
    assert stores.store_ids() == [0, EAST]
    with pytest.raises(InvalidConfigurationError, match="already"):
        add_store(stores, "west", postgres_server.create_prepared_database())
    assert add_store(stores, "west", address).store_id == 2
    create_topic(stores, "t", store="west")
    with pytest.raises(InvalidConfigurationError, match="it has topics, for example 't'"):
        remove_store(stores, "west")
    delete_topic(stores, "t")
    remove_store(stores, "west")
    assert [each.name for each in stores.store.read(find_stores)] == ["east"]


def states(stores):
    return {
        stated.topic.name: (stated.topic.store_id, stated.state)
        for store_id in (HOME, EAST)
        for stated in stores.store.read(partial(topics_of_store, store_id=store_id)).values()
        if not stated.topic.name.startswith("__")
    }


@pytest.mark.slow
def test_a_coordinator_ends_what_killed_processes_began(stores):
    create_topic(stores, "moved")
    append_to(stores, "moved", "a")
    killed(stores, "topic.created-at-home", "create")
    killed(stores, "move.frozen", "move")
    assert states(stores) == {"moved": (HOME, "live"), "t": (EAST, "creating")}
    with Coordinator(stores.store.address.with_password):
        wait_until(lambda: states(stores) == {"moved": (EAST, "live"), "t": (EAST, "live")})
    assert stores.store.read(moving_topics) == []
    append_to(stores, "moved", "b")
    assert stored(stores, "moved") == {0: ["a", "b"]}
