"""A mirror of a pattern leaves out a topic that cannot be mirrored, and copies the others."""

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import find_topic, find_topics, set_configs
from spark_log.errors import (
    CorruptRecordError,
    DataLossError,
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidTopicError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
    SourceUnavailableError,
    SparkLogError,
    StorageUnavailableError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from spark_log.groups.committed_offsets import commit_offsets, committed_offsets
from spark_log.ids import TopicPartition
from spark_log.maintenance.removal.retention import delete_records
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import alter_configs, create_topic, delete_topic
from spark_log.spark.datasource.options.topic_choice import SubscribePattern, SubscribeTopics
from spark_log.spark.jobs import mirror as mirror_job
from spark_log.spark.mirror.mirror import Mirror
from spark_log.spark.mirror.mirror_topics import MirrorSettings
from tests.support.mirroring import mirror_all, without_spark
from tests.support.records import topic_values
from tests.support.replicas import add_brokers, bring_back, folder_of, inspect_and_elect, take_away, topic_on, truncate
from tests.support.stores import refuse_first_reads
from tests.support.topics import append_to

pytestmark = pytest.mark.on_sqlite

NAMES = ("a", "b", "c")


@pytest.fixture
def source(tmp_path):
    """Topics a, b and c with one record each."""
    with Cluster.init(str(tmp_path / "source")) as source:
        for name in NAMES:
            create_topic(source, name)
            append_to(source, name, "0")
        yield source


@pytest.fixture
def target(tmp_path):
    with Cluster.init(str(tmp_path / "target")) as target:
        yield target


@pytest.fixture
def mirrors(source, target):
    """A function that creates mirrors of all topics; they are closed at the end."""
    made = []

    def make(topics=None, **settings):
        chosen = topics or SubscribePattern(".")
        made.append(Mirror(source, target, MirrorSettings(chosen, **{"create": True, **settings})))
        return made[-1]

    yield make
    for mirror in made:
        mirror.close()


@pytest.fixture
def mirror(mirrors):
    """A mirror that has copied everything."""
    mirror = mirrors()
    mirror_all(mirror)
    return mirror


def recreate(cluster, name):
    delete_topic(cluster, name)
    create_topic(cluster, name)


def append_everywhere(source, value):
    for name in NAMES:
        append_to(source, name, value)


def kinds(mirror):
    """The kinds of the errors of the topics that were left out."""
    return {name: type(error) for name, error in mirror.topics.failed.items()}


def warnings(caplog):
    """The topic, and the text that follows it, of each warning."""
    return [tuple(text.split("'", 2)[1:]) for text in caplog.messages]


class Runs:
    """Runs transfers in this process. Those of a topic in `errors` fail; `topics` has the topics of each run."""

    def __init__(self, target, **errors):
        self.errors, self.topics, self._target = errors, [], target

    def __call__(self, transfers):
        names = {topic.topic_id: name for name, topic in self._target.store.read(find_topics).items()}
        self.topics.append("".join(sorted({names[transfer.target.topic_id] for transfer in transfers})))
        for name in self.topics[-1]:
            if name in self.errors:
                raise self.errors[name]
        return without_spark(transfers)


def test_topics_that_fail_are_left_out_also_after_a_restart(source, target, mirror, mirrors, caplog):
    recreate(source, "b")
    append_to(target, "c", "foreign")
    for running in (mirror, mirrors()):
        caplog.clear()
        for _ in range(2):
            append_to(source, "a", "more")
            assert running.step(without_spark).records == 1
            assert running.step(without_spark) is None
            assert kinds(running) == {"b": DataLossError, "c": OffsetOutOfRangeError}
        assert [name for name, _ in warnings(caplog)] == ["b", "c"], "once for each mirror"
    assert topic_values(target, "a") == topic_values(source, "a")
    for name, error in (("b", DataLossError), ("c", OffsetOutOfRangeError)):
        with pytest.raises(error):  # topics that are named
            mirrors(SubscribeTopics(("a", name))).step(without_spark)


def other_partition_count(source, target):
    create_topic(target, "b", 2)


def colliding_name(source, target):
    for cluster in (source, target):
        create_topic(cluster, "x.b" if cluster is source else "x_b")


def illegal_name(source, target):
    create_topic(source, "b" * 249)


def unknown_config(source, target):
    with source.store.engine.begin() as connection:  # as a newer version of spark-log sets it
        topic = find_topic(connection, "b")
        set_configs(connection, topic.topic_id, '{"new.config": "1"}', None)


@pytest.mark.parametrize(
    ("spoil", "prefix", "failed"),
    [
        (other_partition_count, "", {"b": InvalidPartitionsError}),
        (colliding_name, "", {"x.b": TopicAlreadyExistsError}),
        (illegal_name, "p", {"b" * 249: InvalidTopicError}),
        (unknown_config, "", {"b": InvalidConfigurationError}),
    ],
)
def test_a_topic_that_the_target_cannot_have_is_left_out(source, target, mirrors, spoil, prefix, failed):
    spoil(source, target)
    mirror = mirrors(prefix=prefix)
    mirror_all(mirror)
    assert kinds(mirror) == failed
    assert topic_values(target, prefix + "a") == topic_values(target, prefix + "c") == [b"0"]


def test_topics_that_are_not_to_be_created_are_left_out(target, mirrors):
    create_topic(target, "a")
    mirror = mirrors(create=False)
    mirror_all(mirror)
    assert kinds(mirror) == dict.fromkeys("bc", UnknownTopicOrPartitionError)
    assert topic_values(target, "a") == [b"0"]


def test_truncated_and_deleted_records_leave_out_their_topic(source, target, mirror):
    append_everywhere(source, "1")
    delete_records(source, {TopicPartition("b", 0): 2})
    truncate(source, "c", 0)
    assert mirror.step(without_spark).records == 1
    assert kinds(mirror) == dict.fromkeys("bc", DataLossError)
    assert topic_values(target, "a") == [b"0", b"1"]


def test_a_recreated_topic_is_mirrored_again_once_its_copy_is_deleted(source, target, mirror, caplog):
    recreate(source, "b")
    append_to(source, "b", "new")
    for _ in range(2):
        assert mirror.step(without_spark) is None
    assert "the source's topic was deleted and created again" not in str(mirror.topics.failed["b"]), "the first reason"
    delete_topic(target, "b")
    for _ in range(2):  # the copy is another topic, and then it is mirrored
        mirror.step(without_spark)
    assert kinds(mirror) == {}
    assert topic_values(target, "b") == [b"new"]
    assert [text for _, text in warnings(caplog)][1:] == [" is mirrored again"]
    recreate(source, "b")
    mirror.step(without_spark)
    assert len(caplog.messages) == 3, "a failure after that is logged again"
    delete_topic(source, "b")
    mirror.step(without_spark)
    assert kinds(mirror) == {}, "it matches no longer"


@pytest.mark.parametrize("deleted", ["the topic", "its records"])
def test_deletions_in_the_source_during_a_step_leave_out_their_topic(source, target, mirror, monkeypatch, deleted):
    transfers = mirror._transfers

    def after_deletion(*arguments):
        if deleted == "its records":
            delete_records(source, {TopicPartition("b", 0): 2})
        elif "b" in source.store.read(find_topics):
            delete_topic(source, "b")
        return transfers(*arguments)

    append_everywhere(source, "1")
    monkeypatch.setattr(mirror, "_transfers", after_deletion)
    assert mirror.step(without_spark).records == 2
    assert kinds(mirror) == {"b": DataLossError}
    assert topic_values(target, "a") == topic_values(target, "c") == [b"0", b"1"]


def test_an_append_by_another_writer_during_a_step_leaves_out_its_topic(source, target, mirror):
    def slow(transfers):
        done = without_spark(transfers)
        if topic_values(target, "b") == [b"0"]:
            append_to(target, "b", "foreign")
        return done

    append_everywhere(source, "1")
    assert mirror.step(slow).records == 2
    assert kinds(mirror) == {"b": OffsetOutOfRangeError}
    assert topic_values(target, "a") == topic_values(target, "c") == [b"0", b"1"]
    with target.store.snapshot() as connection:
        assert "mirror" not in connection.execute(t.write_id.select().with_only_columns(t.write_id.c.holder)).scalars()


def test_a_topic_whose_transfer_fails_is_tried_again_alone_after_the_others(source, target, mirror):
    run = Runs(target, b=CorruptRecordError("damaged"))
    append_everywhere(source, "1")
    assert mirror.step(run).records == 2
    assert run.topics == ["abc", "a", "bc", "b", "c"]
    run.topics.clear()
    append_everywhere(source, "2")
    assert mirror.step(run).records == 2
    assert mirror.step(run) is None
    assert run.topics == ["ac", "b", "b"]
    run.topics.clear()
    run.errors.clear()
    assert mirror.step(run).records == 2
    assert kinds(mirror) == {}
    append_everywhere(source, "3")
    mirror.step(run)
    assert run.topics == ["b", "abc"]
    for name in NAMES:
        assert topic_values(target, name) == [b"0", b"1", b"2", b"3"]


@pytest.fixture
def mirror_to_two_brokers(target, mirrors, tmp_path):
    """A mirror that has copied everything: of b to broker 2 only, and of c to both brokers of the target."""
    add_brokers(target, tmp_path, 2)
    topic_on(target, "b", [[2]])
    topic_on(target, "c", [[1, 2]], min_insync_replicas="2")
    mirror = mirrors()
    mirror_all(mirror)
    return mirror


def test_topics_that_the_target_cannot_append_to_are_left_out_before_the_copy(
    source, target, mirror_to_two_brokers, caplog
):
    mirror, run = mirror_to_two_brokers, Runs(target)
    append_everywhere(source, "1")
    take_away(target, 2)
    assert mirror.step(run).records == 1
    assert mirror.step(run) is None
    assert kinds(mirror) == {"b": NotLeaderForPartitionError, "c": NotEnoughReplicasError}
    bring_back(target, 2)
    inspect_and_elect(target)
    alter_configs(target, "c", {"min.insync.replicas": "1"})
    append_to(source, "a", "2")
    assert mirror.step(run).records == 3
    assert run.topics == ["a", "abc"]
    assert kinds(mirror) == {}
    assert sum("is mirrored again" in text for text in caplog.messages) == 2


@pytest.mark.parametrize("broker_is_lost", [True, False])
def test_a_step_that_a_target_broker_interrupts_is_made_once_more(
    source, target, mirror_to_two_brokers, broker_is_lost
):
    mirror, runs = mirror_to_two_brokers, Runs(target, b=NotLeaderForPartitionError("another broker leads"))
    append_everywhere(source, "1")

    def run(transfers):
        try:
            return runs(transfers)
        finally:
            if len(runs.topics) == 1 and broker_is_lost:
                take_away(target, 2)
            runs.errors.clear()

    assert mirror.step(run).records == (1 if broker_is_lost else 3)
    assert runs.topics == (["abc", "a"] if broker_is_lost else ["abc", "abc"])
    assert kinds(mirror).keys() == ({"b", "c"} if broker_is_lost else set())


def test_an_error_of_target_brokers_whose_topics_look_available_is_raised(source, target, mirror):
    run = Runs(target, b=NotEnoughReplicasError("the controller has not noticed it yet"))
    append_everywhere(source, "1")
    with pytest.raises(NotEnoughReplicasError):
        mirror.step(run)
    assert run.topics == ["abc", "abc"]
    assert kinds(mirror) == {}


def test_a_topic_that_fails_takes_no_share_of_the_limit(source, target, mirrors):
    append_to(source, "b", *map(str, range(1, 100)))
    mirror = mirrors(offsets_per_step_max=10)
    run = Runs(target, b=CorruptRecordError("damaged"))
    mirror.step(run)
    append_to(source, "a", *map(str, range(1, 10)))
    assert mirror.step(run).records == 9


def test_a_mirror_ends_if_all_topics_fail(source, target, mirror):
    append_everywhere(source, "1")
    run = Runs(target, **{name: CorruptRecordError(f"{name} is damaged") for name in NAMES})
    with pytest.raises(SparkLogError, match=r"'a' is not mirrored: a is damaged; .* b is damaged; .* c is damaged$"):
        mirror.step(run)
    del run.errors["c"]
    assert mirror.step(run).records == 1


def test_a_topic_whose_log_dir_in_the_source_is_gone_is_left_out(source, mirror, tmp_path):
    add_brokers(source, tmp_path, 2)
    append_to(source, topic_on(source, "poor", [[2]], inline_max_bytes="0"), "0")
    folder_of(source, 2).rename(tmp_path / "away")
    append_everywhere(source, "1")
    assert mirror.step(without_spark).records == 3
    assert kinds(mirror) == {"poor": SourceUnavailableError}
    (tmp_path / "away").rename(folder_of(source, 2))
    assert mirror.step(without_spark).records == 1
    assert kinds(mirror) == {}


def test_errors_of_a_store_are_raised(source, target, mirror):
    append_everywhere(source, "1")
    with pytest.raises(StorageUnavailableError):
        mirror.step(Runs(target, b=StorageUnavailableError("no answer")))
    assert topic_values(target, "a") == [b"0"]
    assert kinds(mirror) == {}


def test_idle_steps_write_nothing(source, target, mirror, monkeypatch):
    append_to(target, "c", "foreign")
    written = []
    monkeypatch.setattr(target.store, "transact", lambda *arguments, **_: written.append(arguments))
    assert mirror.step(without_spark) is None
    assert kinds(mirror) == {"c": OffsetOutOfRangeError}
    assert written == []


def test_the_job_names_all_topics_that_it_left_out(source, target, mirror, tmp_path, capsys):
    """It needs no Spark, as there are no new records of the other topics."""
    for name in NAMES:
        commit_offsets(source.store, "g", {TopicPartition(name, 0): 1})
    recreate(source, "b")
    append_to(target, "c", "foreign")
    arguments = ["--cluster", str(tmp_path / "source"), "--to-cluster", str(tmp_path / "target"), "--groups"]
    assert mirror_job.main([*arguments, "--subscribe-pattern", "."]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("mirror: 0 records")
    [line] = printed.err.splitlines()
    assert line.startswith("mirror: topic 'b' is not mirrored: b-0: the source's topic was deleted and created again")
    assert "; topic 'c' is not mirrored: c-0: something else has written the offsets [1, 2)" in line
    assert committed_offsets(target.store, "g") == {TopicPartition("a", 0): 1}, "only of topics that are mirrored"
    assert mirror_job.main([*arguments, "--subscribe-pattern", "a"]) == 0


def test_a_failover_does_not_end_the_job(source, target, mirror, tmp_path, monkeypatch, capsys):
    """It needs no Spark, as there are no new records."""
    monkeypatch.setitem(Cluster.open.__func__.__kwdefaults__, "read_timeout_ms", 0)
    begin = Mirror.__post_init__

    def begin_before_a_failover(mirror):
        begin(mirror)
        refuse_first_reads(monkeypatch)

    monkeypatch.setattr(Mirror, "__post_init__", begin_before_a_failover)
    arguments = ["--cluster", str(tmp_path / "source"), "--to-cluster", str(tmp_path / "target"), "--groups"]
    assert mirror_job.main([*arguments, "--subscribe-pattern", "."]) == 0
    assert capsys.readouterr().out.startswith("mirror: 0 records")
