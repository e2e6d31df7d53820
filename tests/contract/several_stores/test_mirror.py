"""A mirror copies topics of several stores to topics of several stores: each step is a transaction of one store."""

from functools import partial

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.stores import add_store
from spark_log.cluster.topics import find_topic
from spark_log.errors import CorruptRecordError, MetadataStoreUnavailableError, SparkLogError
from spark_log.groups.committed_offsets import commit_offsets, committed_offsets
from spark_log.ids import TopicPartition
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_moves import move_topic
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.spark.datasource.options.topic_choice import SubscribePattern, SubscribeTopics
from spark_log.spark.mirror.mirror import Mirror
from spark_log.spark.mirror.mirror_topics import MirrorSettings
from tests.support.mirroring import mirror_all, without_spark
from tests.support.records import table
from tests.support.topics import append_to, stored

STORES = {"a": (None, "west"), "b": ("east", None), "c": ("east", "west")}


@pytest.fixture
def target(stores, postgres_server, tmp_path):
    """A cluster of two stores; the topics are created here and in the source."""
    with Cluster.init(postgres_server.create_prepared_database(), log_dir=str(tmp_path / "target")) as target:
        add_store(target, "west", postgres_server.create_prepared_database())
        for name, (there, here) in STORES.items():
            create_topic(stores, name, store=there)
            create_topic(target, name, store=here)
        yield target


def test_each_topic_is_copied_between_the_stores_that_have_it(stores, target):
    log = ClientLog(stores)
    mirror = Mirror(stores, target, MirrorSettings(SubscribeTopics(tuple(STORES))))
    for round_ in range(2):
        for name in STORES:
            log.append(log.find_topic(name), [Records(0, table(f"{name}{round_}", "x"))])
        assert len(mirror_all(mirror)) == 2, "one for each store of the target"
        for name in STORES:
            assert stored(target, name) == stored(stores, name)
    mirror.close()
    log.close()


def test_a_topic_that_fails_keeps_no_other_store_waiting(stores, target):
    def run(transfers):
        if any(transfer.target.topic_id == b.topic_id for transfer in transfers):
            raise CorruptRecordError("damaged")
        return without_spark(transfers)

    b = target.store.read(lambda connection: find_topic(connection, "b"))
    for name, count in (("a", 1), ("b", 9), ("c", 1)):
        append_to(stores, name, *("x" * count))
    mirror = Mirror(stores, target, MirrorSettings(SubscribePattern("^[abc]$")))
    assert mirror.step(run).records == 2, "although the store of b is the one most behind"
    assert mirror.step(run) is None
    assert list(mirror.topics.failed) == ["b"]
    mirror.close()


@pytest.fixture
def all_topics(stores, target):
    """A mirror of all topics, by their pattern, with one record in each."""
    for name in STORES:
        append_to(stores, name, "0")
    mirror = Mirror(stores, target, MirrorSettings(SubscribePattern("^[abc]$")))
    yield mirror
    mirror.close()


class Outage:
    """A data store that does not answer from `begin` to `end`."""

    def __init__(self, view):
        self._view, self._patch = view, pytest.MonkeyPatch()

    def begin(self):
        def fail(*_, **_options):
            raise MetadataStoreUnavailableError("no answer")

        for name in ("read", "transact"):
            self._patch.setattr(self._view.store, name, fail)

    def end(self):
        self._patch.undo()
        self._view.home.failures.clear()  # else it is not asked again for some seconds


@pytest.fixture(params=["source", "target"])
def outage(request, stores, target):
    """One of the data store of the source, or of that of the target, with the topics that need it."""
    outage = Outage(stores.at(1) if request.param == "source" else target.at(1))
    yield outage, {"source": {"b", "c"}, "target": {"a", "c"}}[request.param]
    outage.end()


@pytest.mark.parametrize("begins", ["before the step", "during the step"])
def test_a_data_store_that_does_not_answer_leaves_out_its_topics_only(
    stores, target, all_topics, outage, begins, caplog
):
    away, topics = outage
    for name in STORES:
        commit_offsets(stores.store, "g", {TopicPartition(name, 0): 1})

    def run(transfers):
        if begins == "during the step":
            away.begin()
        return without_spark(transfers)

    if begins == "before the step":
        away.begin()
    assert sum(step.records for step in iter(partial(all_topics.step, run), None)) == 1
    assert set(all_topics.topics.failed) == topics
    all_topics.copy_groups()
    assert len([message for message in caplog.messages if "store 1 does not answer" in message]) == 1
    [left] = STORES.keys() - topics
    assert committed_offsets(target.store, "g") == {TopicPartition(left, 0): 1}
    away.end()
    append_to(stores, left, "1")
    assert sum(step.records for step in mirror_all(all_topics)) == 3
    assert all_topics.topics.failed == {}
    for name in STORES:
        assert stored(target, name) == stored(stores, name)


@pytest.mark.parametrize("named", [True, False])
def test_a_data_store_that_fails_before_the_groups_are_copied(stores, target, monkeypatch, named):
    """Its topics are left out, or end the mirror, as in a step."""
    for name in STORES:
        append_to(stores, name, "0")
        commit_offsets(stores.store, "g", {TopicPartition(name, 0): 1})
    topics = SubscribeTopics(tuple(STORES)) if named else SubscribePattern("^[abc]$")
    mirror = Mirror(stores, target, MirrorSettings(topics))
    mirror_all(mirror)
    look_up, away = mirror.topics.pairs, Outage(target.at(1))

    def pairs():
        looked_up = look_up()
        away.begin()
        return looked_up

    monkeypatch.setattr(mirror.topics, "pairs", pairs)
    if named:
        with pytest.raises(MetadataStoreUnavailableError):
            mirror.copy_groups()
    else:
        mirror.copy_groups()
        assert committed_offsets(target.store, "g") == {TopicPartition("b", 0): 1}
        assert set(mirror.topics.failed) == {"a", "c"}
    away.end()
    mirror.close()


def test_a_data_store_that_does_not_answer_ends_a_mirror_of_named_topics(stores, target, outage):
    outage[0].begin()
    mirror = Mirror(stores, target, MirrorSettings(SubscribeTopics(tuple(STORES))))
    with pytest.raises(MetadataStoreUnavailableError):
        mirror.step(without_spark)
    mirror.close()


def test_a_mirror_can_be_closed_while_data_stores_do_not_answer(stores, target, caplog):
    """The logs of the other stores are closed all the same."""
    append_to(stores, "c", "0")
    mirror = Mirror(stores, target, MirrorSettings(SubscribePattern("[bc]")))
    mirror_all(mirror)
    for log in (mirror._source_log, mirror._target_log):
        for store_id in (0, 1):
            log.at(store_id)._writer.file_name()  # it has a write id, as after it sealed a tail
    outages = [Outage(stores.at(1)), Outage(target.at(1))]
    for each in outages:
        each.begin()
    mirror.close()
    for each in outages:
        each.end()
    assert caplog.messages.count("after the mirror: no answer") == 2
    assert stored(target, "c") == {0: ["0"]}
    ids = [view.store.read(lambda c: c.execute(t.write_id.select()).all()) for view in (stores, target)]
    assert ids == [[], []]


def test_a_log_closes_every_store_although_one_does_not_answer(stores, log):
    for store_id in (0, 1):
        log.at(store_id)._writer.file_name()
    outage = Outage(stores)
    outage.begin()
    with pytest.raises(MetadataStoreUnavailableError):
        log.close()
    outage.end()
    assert stores.at(1).store.read(lambda c: c.execute(t.write_id.select()).all()) == []


def test_a_mirror_ends_if_no_store_of_its_topics_answers(stores, target, all_topics):
    outages = [Outage(stores.at(1)), Outage(target.at(1))]
    for each in outages:
        each.begin()
    with pytest.raises(SparkLogError, match=r"'a' is not mirrored: no answer; topic 'b' .* topic 'c' "):
        all_topics.step(without_spark)
    for each in outages:
        each.end()


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(("side", "moved", "to"), [("source", "c", "home"), ("target", "b", "west")])
@pytest.mark.parametrize("when", ["after it is looked up", "during the copy"])
def test_a_topic_that_moves_to_another_store_during_a_step_is_mirrored(
    stores, target, monkeypatch, caplog, named, side, moved, to, when
):
    names = {moved} if named else STORES.keys()
    for name in names:
        append_to(stores, name, "0")
    mirror = Mirror(stores, target, MirrorSettings(SubscribeTopics((moved,)) if named else SubscribePattern("^[abc]$")))
    move = partial(move_topic, stores if side == "source" else target, moved, to)
    its_copy = target.store.read(lambda connection: find_topic(connection, moved)).topic_id
    look_up, done = mirror.topics.pairs, []

    def pairs():
        looked_up = look_up()
        if not done and when == "after it is looked up":
            done.append(move())
        return looked_up

    def run(transfers):
        copied = without_spark(transfers)
        if not done and any(transfer.target.topic_id == its_copy for transfer in transfers):
            done.append(move())
        return copied

    monkeypatch.setattr(mirror.topics, "pairs", pairs)
    assert sum(step.records for step in iter(partial(mirror.step, run), None)) == len(names)
    assert [record for record in caplog.messages if "is not mirrored" in record] == []
    for name in names:
        assert stored(target, name) == stored(stores, name)
    mirror.close()
