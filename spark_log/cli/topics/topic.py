"""The commands `spark-log topic …`, which create, show, change and delete topics."""

from typing import Annotated

import typer

from spark_log.cli import completion
from spark_log.cli.output import count_of, print_result
from spark_log.cli.shared_options import Cluster_, Json, TopicName, TopicNames, open_cluster, parse_before
from spark_log.cli.topics import topic_output as show
from spark_log.cli.topics.bad_records import bad_records
from spark_log.cli.topics.erase import erase
from spark_log.cli.topics.move import move, moves
from spark_log.cli.topics.schema_argument import parse_configs
from spark_log.cli.topics.topic_producers import producers

app = typer.Typer(no_args_is_help=True, help="Create, show, change and delete topics.")

Config = Annotated[
    list[str] | None,
    typer.Option(
        "--config", "-c", metavar="NAME=VALUE", help="A topic config; repeatable. See `topic configs`.",
        autocompletion=completion.topic_configs,
    ),
]  # fmt: skip
NewTopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", show_default=False)]


@app.command()
def create(
    name: NewTopicName,
    cluster: Cluster_,
    partitions: Annotated[int, typer.Option("--partitions", "-p", help="Number of partitions.")] = 1,
    replication_factor: Annotated[int, typer.Option("--replication-factor", "-r", help="Replicas of each.")] = 1,
    config: Config = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="An existing topic is no error.")] = False,
    store: Annotated[
        str | None, typer.Option("--store", metavar="NAME", help="Store of its partitions (`spark-log store list`).")
    ] = None,
    validate_only: Annotated[bool, typer.Option("--validate-only", help="Check only; create nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Create a topic.

    **Examples**

    - `spark-log topic create events --partitions 4`
    - `spark-log topic create users -p 8 -c cleanup.policy=compact -c min.cleanable.dirty.ratio=0.2`
    - `spark-log topic create orders -c value.format=protobuf -c value.schema=@shop.desc#shop.Order`
    """
    from spark_log.cluster.topics import find_topics
    from spark_log.replication.controller.topic_operations import check_new_topic, create_topic

    configs = parse_configs(config or (), "--config")
    with open_cluster(cluster) as opened:
        existing = opened.store.read(lambda connection: find_topics(connection, [name])) if if_not_exists else {}
        made = None
        if not existing:
            operation = check_new_topic if validate_only else create_topic
            made = operation(opened, name, partitions, replication_factor, configs, store=store)
    if existing:
        line = f"Topic {name} exists already with {count_of(existing[name].partition_count, 'partition')}."
    elif made is None:
        line = f"Topic {name} can be created."
    else:
        line = f"Created topic {name} with {count_of(partitions, 'partition')}."
    document = {"topic": name, "created": made is not None, "topic_id": made.uuid if made else None}
    print_result(as_json, document, line)


@app.command("list")
def list_(cluster: Cluster_, as_json: Json = False) -> None:
    """List the topics with their partitions, records, stored bytes, and configs that differ from the defaults."""
    show.topics(show.load_topics(cluster), as_json)


@app.command()
def describe(
    names: TopicNames,
    cluster: Cluster_,
    as_json: Json = False,
) -> None:
    """Show the partitions of topics with their leader, in-sync replicas, offsets, records and stored bytes."""
    show.descriptions(show.load_descriptions(cluster, names), as_json)


@app.command()
def alter(
    name: TopicName,
    cluster: Cluster_,
    config: Config = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option(
            "--delete-config",
            "-d",
            metavar="NAME",
            help="Reset a config to its default; repeatable.",
            autocompletion=completion.topic_configs,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Change the configs of a topic. No restart is needed.

    **Example:** `spark-log topic alter events -c retention.ms=-1 -d compression.type`
    """
    from spark_log.replication.controller.topic_operations import alter_configs

    changes: dict[str, str | None] = dict(parse_configs(config or (), "--config"))
    for config_name in delete_config or ():
        if config_name in changes:
            raise typer.BadParameter(f"{config_name!r} is also given with --config", param_hint="--delete-config")
        changes[config_name] = None
    if not changes:
        raise typer.BadParameter("expected at least one --config or --delete-config")
    with open_cluster(cluster) as opened:
        overrides = dict(alter_configs(opened, name, changes).overrides)
    line = f"Configs of {name} now: {show.configs_of(overrides) or 'the defaults'}."
    print_result(as_json, {"topic": name, "configs": overrides}, line)


@app.command()
def add_partitions(
    name: TopicName,
    total: Annotated[int, typer.Argument(help="The new number of partitions.", show_default=False)],
    cluster: Cluster_,
    as_json: Json = False,
) -> None:
    """Raise the number of partitions to TOTAL. As in Kafka, keys then go to other partitions than before."""
    from spark_log.replication.controller.topic_operations import add_partitions as add

    with open_cluster(cluster) as opened:
        count = add(opened, name, total).partition_count
    line = f"Topic {name} now has {count_of(count, 'partition')}."
    print_result(as_json, {"topic": name, "partitions": count}, line)


@app.command()
def delete(
    names: TopicNames,
    cluster: Cluster_,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Delete topics with all their records."""
    from spark_log.facts.topics import describe_topics
    from spark_log.replication.controller.topic_operations import delete_topic

    with open_cluster(cluster) as opened:
        describe_topics(opened, names)  # raises if one does not exist: then none is deleted
        if not yes:
            typer.confirm(f"Delete {', '.join(names)} with all records?", abort=True, err=True)
        for name in dict.fromkeys(names):
            delete_topic(opened, name)
    print_result(as_json, {"deleted": names}, f"Deleted {', '.join(names)}.")


@app.command()
def delete_records(
    name: TopicName,
    cluster: Cluster_,
    before: Annotated[
        list[str],
        typer.Option(
            metavar="[PARTITION=]OFFSET",
            help="Delete records before this offset, of one partition or of all; -1 is the end. Repeatable.",
            show_default=False,
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Delete a topic's oldest records by moving the log start offset.

    **Example:** `spark-log topic delete-records events --before 0=1000 --before 1=-1`
    """
    from spark_log.cluster.topics import find_topic
    from spark_log.ids import TopicPartition
    from spark_log.maintenance.removal.retention import delete_records as delete_before

    with open_cluster(cluster) as opened:
        topic = opened.store.read(lambda connection: find_topic(connection, name))
        offsets = parse_before(before, topic.partition_count, "--before")
        if not yes:
            typer.confirm(f"Delete the oldest records of {name}?", abort=True, err=True)
        low = delete_before(opened, {TopicPartition(name, number): offset for number, offset in offsets.items()})
    starts = {str(topic_partition.partition): offset for topic_partition, offset in sorted(low.items())}
    lines = (f"{name}-{number} now starts at offset {offset:,}." for number, offset in starts.items())
    print_result(as_json, {"topic": name, "log_start_offsets": starts}, *lines)


app.command()(erase)
app.command()(bad_records)
app.command()(producers)
app.command()(move)
app.command()(moves)


@app.command()
def configs(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG...]", help="Only these.", show_default=False, autocompletion=completion.topic_configs
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the topic configs with their defaults, valid values and meanings. This command needs no cluster."""
    show.config_definitions(names or [], as_json)
