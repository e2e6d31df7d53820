"""The command `spark-log topic producers`, which shows the producers of a topic, with their open transactions."""

from dataclasses import asdict
from typing import Annotated

import typer

from spark_log.cli.output import note, print_rows, time_of
from spark_log.cli.shared_options import Cluster_, Json, TopicName, open_cluster


def producers(
    name: TopicName,
    cluster: Cluster_,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", metavar="N", min=0, help="Only this one; repeatable.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the idempotent producers of a topic with their last sequences, and the producers with an open transaction.

    A partition remembers idempotent producers, and transactional Kafka clients, for a day after their last append. It
    knows transactional producers of spark-log only during a transaction: `spark-log transaction list` shows them all.

    The records of an open transaction have no offsets yet. Its start is the offset that a commit would give them now.
    """
    from spark_log.cluster.topics import find_topic
    from spark_log.facts.transactions import describe_producers
    from spark_log.ids import TopicPartition

    with open_cluster(cluster) as opened:
        topic = opened.store.read(lambda connection: find_topic(connection, name))
        numbers = sorted(set(partition)) if partition else range(topic.partition_count)
        found = describe_producers(opened.of(topic).store, [TopicPartition(name, number) for number in numbers])
    rows = [(tp, producer) for tp, here in found.items() for producer in here]
    print_rows(
        as_json,
        [{**tp._asdict(), **asdict(producer)} for tp, producer in rows],
        ("partition", "producer", "epoch", "transactional id", "last sequence", "last at", "transaction's start"),
        [
            (
                str(tp), producer.producer_id, producer.producer_epoch, producer.transactional_id,
                producer.last_sequence, time_of(producer.last_ms), producer.transaction_start_offset,
            )
            for tp, producer in rows
        ],
        f"No producer of {name} is known.",
    )  # fmt: skip
    if not as_json:
        note(
            "spark-log's transactional producers are here during a transaction only:"
            " `spark-log transaction list` has all."
        )
