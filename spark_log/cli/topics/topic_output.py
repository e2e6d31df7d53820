"""Prints the output of `spark-log topic`, as tables or as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from spark_log.cli.output import bytes_of, count_of, print_json, print_rows, print_table, say
from spark_log.cli.shared_options import open_cluster
from spark_log.ids import HOME_NAME
from spark_log.text import is_unlimited

_SHOWN_CHARACTERS = 100
"""The maximum number of characters that a line shows of a config value."""

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from spark_log.cluster.cluster import Cluster


def load_topics(address: str) -> list[dict[str, Any]]:
    """Return the facts of all topics, sorted by name. If the store of a topic does not answer, its usage is None."""
    from spark_log.cluster.topics import undamaged
    from spark_log.cluster.usage import Usage, by_topic, cluster_usage

    with open_cluster(address) as cluster:
        usage = cluster_usage(cluster)
    totals = by_topic(usage.used.items())
    unknown = dict.fromkeys(Usage._fields)
    return [
        {
            "topic": topic.name,
            "partitions": topic.partition_count,
            "replication_factor": topic.replication_factor,
            **(totals.get(topic.topic_id, Usage())._asdict() if usage.is_available(topic) else unknown),
            "configs": dict(topic.overrides),
            "store": usage.store_of(topic),
            "available": usage.is_available(topic),
        }
        for topic in undamaged(sorted(usage.topics.values(), key=lambda topic: topic.name))
    ]


def topics(rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    several = any(row["store"] != HOME_NAME for row in rows)
    names = ("topic", *(("store",) if several else ()), "partitions", "replicas", "records", "bytes", "configs")
    shown = [
        (
            row["topic"],
            *((row["store"],) if several else ()),
            row["partitions"],
            row["replication_factor"],
            row["records"] if row["available"] else "unavailable",
            bytes_of(row["bytes"]) if row["available"] else "",
            configs_of(row["configs"]),
        )
        for row in rows
    ]
    print_rows(as_json, rows, names, shown, "There is no topic. Create one: spark-log topic create NAME --partitions 4")


def load_descriptions(address: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the facts of these topics and of each of their partitions, in the order of the names."""
    from spark_log.cluster.each_store import ask_stores, by_store, store_names
    from spark_log.cluster.topics import Topic, find_topic
    from spark_log.cluster.usage import Usage, usage
    from spark_log.facts.topics import TopicDescription, describe
    from spark_log.tables.lag_measurement import TableInfo, describe_tables

    used: dict[tuple[int, int], Usage] = {}
    tables: dict[int, list[TableInfo]] = {}
    described: dict[int, TopicDescription] = {}
    with open_cluster(address) as cluster:
        log_dirs = cluster.log_dirs()

        def read(connection: "Connection", view: "Cluster", there: Sequence[Topic]) -> None:
            now = view.store.clock(connection)
            described.update({each.topic.topic_id: each for each in describe(connection, there, now)})
            used.update(usage(connection, [topic.topic_id for topic in there]))
            tables.update(describe_tables(connection, there, log_dirs, now.wall_ms))

        def read_home(connection: "Connection") -> list[Topic]:
            named_topics = [find_topic(connection, name) for name in names]
            read(connection, cluster, [topic for topic in named_topics if topic.store_id == cluster.store_id])
            return named_topics

        topics = cluster.store.read(read_home)
        elsewhere = by_store(topic for topic in topics if topic.store_id != cluster.store_id)
        answers = ask_stores(
            cluster, lambda data: data.store.read(lambda c: read(c, data, elsewhere[data.store_id])), elsewhere
        )
        stores = store_names(cluster)
    descriptions = [described.get(topic.topic_id, TopicDescription(topic, ())) for topic in topics]
    return [
        {
            "topic": topic.name,
            "topic_id": topic.uuid,
            "folder": topic.folder,
            "created_ms": topic.created_ms,
            "replication_factor": topic.replication_factor,
            "configs": dict(topic.overrides),
            "store": stores.get(topic.store_id, str(topic.store_id)),
            "available": not answers.unavailable(topic),
            "tables": [asdict(table) for table in tables.get(topic.topic_id, ())],
            "partitions": [
                {
                    "partition": part.partition,
                    "leader": part.leader,
                    "leader_epoch": part.leader_epoch,
                    "preferred_leader": part.preferred_leader,
                    "offline": part.offline,
                    "replicas": [replica.broker_id for replica in part.replicas],
                    "isr": list(part.isr),
                    "osr": list(part.osr),
                    "dead": list(part.dead),
                    "lag": {str(replica.broker_id): replica.lag for replica in part.replicas},
                    "log_start_offset": part.log_start_offset,
                    "high_watermark": part.high_watermark,
                    "log_end_offset": part.log_end_offset,
                    **used.get((topic.topic_id, part.partition), Usage())._asdict(),
                }
                for part in parts
            ],
        }
        for topic, parts in ((description.topic, description.partitions) for description in descriptions)
    ]


def descriptions(rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    names = ("partition", "leader", "leader_epoch", "replicas", "isr", "osr", "lag", "log_start_offset",
             "high_watermark", "log_end_offset", "records", "bytes", "segments")  # fmt: skip
    for row in rows:
        say(f"{row['topic']}  id {row['topic_id']}  configs: {configs_of(row['configs']) or 'the defaults'}")
        if not row["available"]:
            say(f"UNAVAILABLE, store {row['store']} does not answer")
            continue
        offline = [part["partition"] for part in row["partitions"] if part["offline"]]
        if offline:
            say(f"OFFLINE, no in-sync replica is alive: {_cell('partitions', offline)}")
        print_table(
            None,
            [name.replace("_", " ") for name in names],
            [
                [_leader(part) if name == "leader" else _cell(name, part[name]) for name in names]
                for part in row["partitions"]
            ],
        )
        for table in row["tables"]:
            say(f"{table['target'].capitalize()} table {table['location']}: {table_state(table)}")


def config_definitions(names: Sequence[str], as_json: bool) -> None:
    """Print the documented configs. Raises InvalidConfigurationError for an unknown name."""
    from spark_log.config import definitions
    from spark_log.errors import InvalidConfigurationError

    known = {definition.name: definition for definition in definitions()}
    for name in names:
        if name not in known:
            raise InvalidConfigurationError(f"Unknown topic config {name!r}. Known are {', '.join(known)}")
    chosen = [known[name] for name in names] or list(known.values())
    if as_json:
        print_json([asdict(definition) for definition in chosen])
        return
    for definition in chosen:
        unit = f" {definition.unit}" if definition.unit else ""
        unit = " (unlimited)" if is_unlimited(definition.default) else unit
        say(f"{definition.name} = {definition.default}{unit}  ({definition.kind}: {definition.valid})")
        say(f"    {definition.doc}")
        if definition.kafka_default is not None:
            say(f"    Kafka's default: {definition.kafka_default}")


def configs_of(overrides: Mapping[str, str]) -> str:
    """Return the configs as one line. Long values, such as schemas, are shortened."""
    return ", ".join(f"{name}={_short(value)}" for name, value in sorted(overrides.items()))


def _short(value: str) -> str:
    if is_unlimited(value):
        return f"{value} (unlimited)"
    return value if len(value) <= _SHOWN_CHARACTERS else f"{value[: _SHOWN_CHARACTERS - 1]}…"


def table_state(table: Mapping[str, Any]) -> str:
    if table["lag_records"]:
        return f"{count_of(table['lag_records'], 'record')} behind, for {table['lag_ms'] / 1000:.1f} s"
    return "up to date" if table["version"] is not None else "not made yet: there are no records"


def _leader(part: Mapping[str, Any]) -> Any:
    """Return the leader, and the preferred leader if it is another broker."""
    if part["offline"]:
        return "OFFLINE"
    if part["leader"] == part["preferred_leader"]:
        return part["leader"]
    return f"{part['leader']} (preferred {part['preferred_leader']})"


def _cell(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, Mapping):  # lagging brokers with the number of missing records
        return " ".join(f"{broker}:{lag}" for broker, lag in value.items() if lag)
    return bytes_of(value) if name == "bytes" else value
