"""Admin calls for transactions and producers: kafka-python's calls, results and errors; aborts by an operator."""

import inspect

import kafka.errors
import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import AbortTransactionSpec, TransactionListing, TransactionState

import spark_log.errors
from spark_log import Admin
from spark_log.facts.transactions import describe_transactions, list_transactions
from spark_log.metadata import tables as t
from spark_log.transactions import transaction_store
from tests.support.stores import change
from tests.support.topics import contents


@pytest.fixture
def admin(cluster, cluster_address):
    with Admin(cluster=cluster_address) as admin:
        admin.create_topics({"a": {"num_partitions": 2}, "files": {"configs": {"inline.max.bytes": "0"}}})
        yield admin


@pytest.fixture
def begin(produce):
    """A function that creates a producer with this transactional id and an open transaction."""

    def begun(name, **settings):
        producer = produce(transactional_id=name, **settings)
        producer.init_transactions()
        producer.begin_transaction()
        return producer

    return begun


def send(producer, topic, *values, partition=0):
    """Send the values and wait until they are registered."""
    for value in values:
        producer.send(topic, value, partition=partition)
    producer.flush()


def listed(admin, **filters):
    [(coordinator, listings)] = admin.list_transactions(**filters).items()
    assert coordinator == -1, "no broker coordinates them"
    return {each.transactional_id: each for each in listings}


def test_arguments_are_those_of_kafka_python():
    for name in (
        "abort_transaction", "describe_producers", "describe_transactions", "find_hanging_transactions",
        "list_transactions",
    ):  # fmt: skip
        ours, theirs = (inspect.signature(getattr(admin, name)).parameters for admin in (Admin, KafkaAdminClient))
        assert [(p.name, p.default) for p in ours.values()] == [(p.name, p.default) for p in theirs.values()]


def test_transactions_are_listed_and_described(admin, produce, begin, cluster):
    assert listed(admin) == {}
    idle = produce(transactional_id="idle", transaction_timeout_ms=1234)
    idle.init_transactions()
    done = begin("done")
    send(done, "a", b"x")
    done.commit_transaction()
    gone = begin("gone")
    send(gone, "a", b"x")
    gone.abort_transaction()
    begin("nothing sent")
    opened = begin("open", transaction_timeout_ms=50_000)
    send(opened, "a", b"x", b"y", partition=1)
    send(opened, "files", b"z")

    found = listed(admin)
    assert {name: each.state for name, each in found.items()} == {
        "idle": TransactionState.EMPTY,
        "done": TransactionState.COMPLETE_COMMIT,
        "gone": TransactionState.COMPLETE_ABORT,
        "nothing sent": TransactionState.EMPTY,
        "open": TransactionState.ONGOING,
    }
    assert isinstance(found["open"], TransactionListing)
    assert set(listed(admin, state_filters=["Ongoing", TransactionState.COMPLETE_COMMIT])) == {"open", "done"}
    assert set(listed(admin, state_filters=["PrepareCommit"])) == set(), "a state that there is not here"
    assert set(listed(admin, producer_id_filters=[found["gone"].producer_id])) == {"gone"}
    assert set(listed(admin, transactional_id_pattern="o.*n")) == {"open"}
    assert set(listed(admin, duration_filter_ms=-1)) == {"open"}, "the others are not open"
    assert set(listed(admin, duration_filter_ms=10**9)) == set()
    with pytest.raises(ValueError, match="Sleeping"):
        admin.list_transactions(state_filters=["Sleeping"])
    with pytest.raises(spark_log.errors.IllegalArgumentError, match=r"transactional_id_pattern: '\('"):
        admin.list_transactions(transactional_id_pattern="(")

    described = admin.describe_transactions(["open", "idle", "done"])
    assert list(described) == ["open", "idle", "done"]
    one = described["open"]
    assert (one.coordinator_id, one.state, one.producer_epoch) == (-1, TransactionState.ONGOING, 0)
    assert (one.producer_id, one.transaction_timeout_ms) == (found["open"].producer_id, 50_000)
    assert one.topic_partitions == {TopicPartition("a", 1), TopicPartition("files", 0)}
    now_ms = cluster.store.now().wall_ms
    assert now_ms - 600_000 < one.transaction_start_time_ms <= now_ms
    assert (described["idle"].transaction_start_time_ms, described["idle"].transaction_timeout_ms) == (-1, 1234)
    assert described["done"].topic_partitions == set()
    assert admin.describe_transactions([]) == {}
    for name in ("nobody", "\0", "\ud800"):
        with pytest.raises(kafka.errors.TransactionalIdNotFoundError):
            admin.describe_transactions(["open", name])

    # registered during the deletion of the topic: the only case of a pending batch without its topic
    change(cluster, t.topic.delete().where(t.topic.c.name == "files"))
    assert admin.describe_transactions(["open"])["open"].topic_partitions == {TopicPartition("a", 1)}


def test_hanging_transactions_are_found(admin, begin, cluster):
    late, fresh = begin("late"), begin("fresh")
    done = begin("done")
    for producer in (done, late, fresh):
        send(producer, "a", b"x")
    done.commit_transaction()
    assert admin.find_hanging_transactions() == []
    found = listed(admin)
    here = t.transaction.c.producer_id != found["fresh"].producer_id
    change(cluster, t.transaction.update().where(here).values(until_ms=0))
    overdue = {each.transactional_id: each.overdue for each in list_transactions(cluster)}
    assert overdue == {"done": False, "fresh": False, "late": True}
    [one] = admin.find_hanging_transactions()
    assert one.pop("age_ms") >= 0
    assert one == {
        "transactional_id": "late",
        "producer_id": found["late"].producer_id,
        "producer_epoch": 0,
        "state": "Ongoing",
        "coordinator_id": -1,
        "topic_partitions": [TopicPartition("a", 0)],
    }
    here = t.transaction.c.producer_id == found["fresh"].producer_id
    hours_ago = cluster.store.now().wall_ms - 7_200_000
    change(cluster, t.transaction.update().where(here).values(began_ms=hours_ago))
    both = admin.find_hanging_transactions()
    assert [each["transactional_id"] for each in both] == ["fresh", "late"], "the oldest first"
    assert 7_200_000 <= both[0]["age_ms"] < 7_800_000
    only = admin.find_hanging_transactions(max_transaction_timeout_ms=10**9)
    assert [each["transactional_id"] for each in only] == ["late"]


def test_an_operator_aborts_a_transaction(admin, begin, tmp_path, log):
    producer, other = begin("mine"), begin("other")
    send(producer, "a", b"dropped", partition=1)
    send(producer, "files", b"dropped too")
    send(other, "a", b"stays")
    [file] = tmp_path.rglob("_segments/0/*.parquet")
    described = admin.describe_transactions(["mine"])["mine"]
    spec = AbortTransactionSpec(TopicPartition("a", 1), described.producer_id, described.producer_epoch)
    for wrong, error in (
        (spec._replace(topic_partition=TopicPartition("a", 0)), kafka.errors.InvalidTxnStateError),
        (spec._replace(topic_partition=TopicPartition("a", 2)), kafka.errors.UnknownTopicOrPartitionError),
        (spec._replace(topic_partition=TopicPartition("b", 0)), kafka.errors.UnknownTopicOrPartitionError),
        (spec._replace(producer_id=4711), kafka.errors.InvalidProducerIdMappingError),
        (spec._replace(producer_epoch=1), kafka.errors.ProducerFencedError),
    ):
        with pytest.raises(error):
            admin.abort_transaction(wrong)
    assert listed(admin)["mine"].state == "Ongoing"

    admin.abort_transaction(spec)
    assert {name: each.state.value for name, each in listed(admin).items()} == {
        "mine": "CompleteAbort",
        "other": "Ongoing",
    }
    assert not file.exists()
    with pytest.raises(kafka.errors.ProducerFencedError):
        admin.abort_transaction(spec)
    with pytest.raises(kafka.errors.InvalidTxnStateError):
        admin.abort_transaction(spec._replace(producer_epoch=1))
    with pytest.raises(kafka.errors.TransactionAbortableError):
        producer.commit_transaction()
    producer.abort_transaction()
    producer.begin_transaction()
    send(producer, "a", b"next", partition=1)
    producer.commit_transaction()
    other.commit_transaction()
    assert contents(log, "a") == {0: [b"stays"], 1: [b"next"]}
    assert contents(log, "files") == {}


def test_abort_ends_only_the_transaction_that_was_described(admin, begin, cluster, log):
    producer = begin("mine")
    send(producer, "a", b"first")
    [shown] = describe_transactions(cluster, ["mine"])
    producer.commit_transaction()
    with pytest.raises(spark_log.errors.InvalidTxnStateError):
        transaction_store.abort(cluster, shown.transaction.ref)
    producer.begin_transaction()
    send(producer, "a", b"second")
    with pytest.raises(spark_log.errors.ProducerFencedError):
        transaction_store.abort(cluster, shown.transaction.ref)
    producer.commit_transaction()
    assert contents(log, "a") == {0: [b"first", b"second"]}


def test_producers_of_partitions_are_described(admin, produce, begin, cluster):
    plain = produce()
    send(plain, "a", b"x", b"y", b"z")
    send(plain, "a", b"w")
    opened = begin("mine")
    send(opened, "a", b"v")
    zero, one = TopicPartition("a", 0), TopicPartition("a", 1)
    found = admin.describe_producers([zero, one])
    assert list(found) == [zero, one]
    assert found[one].active_producers == []
    idempotent, transactional = found[zero].active_producers
    assert (idempotent.last_sequence, idempotent.current_transaction_start_offset) == (3, -1)
    end = admin.list_partition_offsets({zero: -1})[zero].offset
    assert (transactional.last_sequence, transactional.current_transaction_start_offset) == (-1, end)
    now_ms = cluster.store.now().wall_ms
    for each in (idempotent, transactional):
        assert (each.producer_epoch, each.coordinator_epoch) == (0, -1)
        assert now_ms - 600_000 < each.last_timestamp <= now_ms
    described = admin.describe_transactions(["mine"])["mine"]
    assert transactional.producer_id == described.producer_id

    opened.commit_transaction()
    assert admin.describe_producers([zero])[zero].active_producers == [idempotent], "only open transactions are known"
    for missing in (TopicPartition("a", 2), TopicPartition("b", 0)):
        with pytest.raises(kafka.errors.UnknownTopicOrPartitionError, match=missing.topic):
            admin.describe_producers([zero, missing])
    assert admin.describe_producers([]) == {}
