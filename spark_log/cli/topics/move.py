"""The commands `spark-log topic move` and `spark-log topic moves`, which move topics between metadata stores."""

from typing import Annotated

import typer

from spark_log.cli.output import print_json, print_rows, say, time_of
from spark_log.cli.shared_options import Cluster_, Json, TopicNames, open_cluster


def move(
    names: TopicNames,
    cluster: Cluster_,
    store: Annotated[
        str | None, typer.Option("--store", metavar="NAME", help="The store to move to (`spark-log store list`).")
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="End moves that are not done: nothing has changed.")] = False,
    as_json: Json = False,
) -> None:
    """Move topics to another metadata store while clients use them. Segment files stay where they are.

    Appends to a topic wait while its rows are copied, about a second for 50,000 segments; producers repeat them.
    Readers go on. The move waits up to 10 seconds for open transactions with records in the topic. After that, their
    commits fail, and their clients abort and repeat them. The same command, or a coordinator, continues an interrupted
    move.

    **Examples**

    - `spark-log topic move clicks views --store east`
    - `spark-log topic move clicks --cancel`
    """
    from spark_log.replication.controller.topic_moves import cancel_move, move_topic

    if (store is None) != cancel:
        raise typer.BadParameter("expected either --store NAME or --cancel", param_hint="--store")
    with open_cluster(cluster) as opened:
        for name in dict.fromkeys(names):
            if store is not None:
                move_topic(opened, name, store)
                text = f"Topic {name} is in store {store}."
            elif cancel_move(opened, name):
                text = f"The move of topic {name} is cancelled."
            else:
                text = f"Topic {name} is not being moved."
            if not as_json:
                say(text)
    if as_json:
        print_json({"topics": names, "store": store, "cancelled": cancel})


def moves(cluster: Cluster_, as_json: Json = False) -> None:
    """List the topics that are being moved between metadata stores."""
    from spark_log.cluster.each_store import store_names
    from spark_log.cluster.topics import IS_LIVE, moving_topics

    with open_cluster(cluster) as opened:
        stores = store_names(opened)
        rows = [
            (topic.name, stores[topic.store_id], stores[move.to], move.began_ms)
            for topic, move in opened.store.read(lambda connection: moving_topics(connection, IS_LIVE))
        ]
    document = [dict(zip(("topic", "from", "to", "began_ms"), row, strict=True)) for row in rows]
    shown = [(*row[:3], time_of(row[3])) for row in rows]
    print_rows(as_json, document, ("topic", "from", "to", "began"), shown, "No topic is being moved.", title="Moves")
