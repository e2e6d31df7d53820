"""Shows all topics, creates and deletes topics, and adds partitions (page `/topics`)."""

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace

from spark_log.cluster.names import is_internal
from spark_log.cluster.usage import Usage
from spark_log.console.listing import Listing, listing
from spark_log.console.paths import url
from spark_log.console.routes import Allow, Call, Change, Done, Forbidden, NotFound, Preference, View
from spark_log.errors import InvalidConfigurationError, TopicAlreadyExistsError
from spark_log.facts.metrics.cluster_snapshot import ClusterSnapshot, PartitionFacts
from spark_log.replication.controller.topic_operations import add_partitions, create_topic, delete_topic

FAVOURITES_COOKIE = "spark-log-favourites"
_FAVOURITES_CHARACTERS_MAX = 3_000


@dataclass(frozen=True)
class TopicRow:
    """A topic.

    `store` is None in a cluster with one store. A topic is not `available` while its store does not answer: the numbers
    that only the store has are None then.

    `rate` is the number of records appended per second, or None if it is not measured. `lag` is the number of records
    that a Delta table of the topic lacks. `lag_s` is the age of the oldest of them, or 0 if there are none.
    """

    topic: str
    internal: bool
    favourite: bool
    store: str | None
    available: bool
    partitions: int
    replicas: int
    rate: float | None
    records: int | None = None
    bytes: int | None = None
    segments: int | None = None
    small_files: int | None = None
    lag: int | None = None
    lag_s: float | None = None
    under_replicated: int | None = None
    offline: int | None = None


@dataclass(frozen=True)
class Topics:
    """The topics of the page. `internal` is whether internal topics are listed too."""

    listing: Listing[TopicRow]
    internal: bool


COLUMNS = tuple(field.name for field in fields(TopicRow))


def topic_rows(
    snapshot: ClusterSnapshot,
    sizes: Mapping[int, Usage],
    rates: Mapping[str, float] | None,
    favourites: Collection[str],
    internal: bool,
) -> list[TopicRow]:
    """Return a row for each topic of the snapshot. Internal topics are included only with `internal`. Pure."""
    of_topic: dict[int, list[PartitionFacts]] = defaultdict(list)
    for partition in snapshot.partitions:
        of_topic[partition.topic_id].append(partition)
    lags: dict[int, tuple[int, float]] = {}
    for (of, _), behind in snapshot.delta_lags.items():
        records, age_s = lags.get(of, (0, 0.0))
        lags[of] = max(records, behind.records), max(age_s, (snapshot.now_ms - behind.oldest_ms) / 1000)
    rows = []
    for topic_id, topic in snapshot.topics.items():
        if is_internal(topic.name) and not internal:
            continue
        row = TopicRow(
            topic.name,
            is_internal(topic.name),
            topic.name in favourites,
            snapshot.stores.get(topic.store_id),
            snapshot.is_available(topic),
            topic.partition_count,
            topic.replication_factor,
            None if rates is None else rates.get(topic.name, 0.0),
        )
        if row.available:
            parts, size = of_topic[topic_id], sizes.get(topic_id, Usage())
            lag, lag_s = lags.get(topic_id, (0, 0.0))
            row = replace(
                row,
                **size._asdict(),
                lag=lag,
                lag_s=lag_s,
                under_replicated=sum(part.is_under_replicated for part in parts),
                offline=sum(part.is_offline for part in parts),
            )
        rows.append(row)
    return rows


def _facts(call: Call) -> Topics:
    internal = call.query.get("internal") == "1"
    rows = topic_rows(
        call.snapshot(), call.snapshots.sizes.get(), call.snapshots.rates.get(), favourites(call), internal
    )
    found = listing(
        rows, call.query, columns=COLUMNS, sort="topic", name=lambda row: row.topic, first=lambda row: row.favourite
    )
    return Topics(found, internal)


# Favourites ----------------------------------------------------------------------------------------------------------


def favourites(call: Call) -> frozenset[str]:
    """Return the topics that the user's browser lists first."""
    return frozenset(filter(None, call.cookies.get(FAVOURITES_COOKIE, "").split(",")))


def _toggle_favourite(call: Call) -> Done:
    name = call.path["topic"]
    if not call.sees(name):
        raise NotFound(f"there is no topic {name!r}")
    chosen = favourites(call) ^ {name}
    text = ",".join(sorted(chosen))
    if len(text) > _FAVOURITES_CHARACTERS_MAX:
        raise InvalidConfigurationError("there are too many favourites: remove some first")
    back = "/topics" if call.form.get("from") == "topics" else url("/topics/{topic}", topic=name)
    done = f"{name} is a favourite now." if name in chosen else f"{name} is no favourite any more."
    return Done(back, done, {"favourites": sorted(chosen)}, {FAVOURITES_COOKIE: text})


# Changes -------------------------------------------------------------------------------------------------------------


def parse_configs(text: str) -> dict[str, str]:
    """Return the configs from lines NAME=VALUE, or from a JSON object. Raises InvalidConfigurationError."""
    if text.lstrip().startswith("{"):
        try:
            found = json.loads(text)
        except ValueError as error:
            raise InvalidConfigurationError(f"configs: not JSON: {error}") from error
        return {str(name): value if isinstance(value, str) else json.dumps(value) for name, value in found.items()}
    configs = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, separator, value = line.partition("=")
        if not separator:
            raise InvalidConfigurationError(f"configs: expected NAME=VALUE in each line, got {line!r}")
        configs[name.strip()] = value.strip()
    return configs


def whole_number(call: Call, name: str, default: int | None = None) -> int:
    """Return the number in a field of the form. Raises InvalidConfigurationError."""
    text = call.form.get(name, "").strip() or ("" if default is None else str(default))
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise InvalidConfigurationError(f"{name}: expected a whole number, got {text!r}")
    return int(text)


def _create(call: Call) -> Done:
    name = call.form.get("topic", "").strip()
    if not call.sees(name):
        raise Forbidden(f"Your role does not show topics of the name {name!r}, so that you cannot create one.")
    partitions, replicas = whole_number(call, "partitions", 1), whole_number(call, "replication_factor", 1)
    try:
        topic = create_topic(call.cluster, name, partitions, replicas, parse_configs(call.form.get("configs", "")))
    except TopicAlreadyExistsError as error:
        if call.role.sees_all:
            raise
        raise InvalidConfigurationError(f"topic: the name {name} is taken") from error  # it may be hidden
    assert topic is not None
    facts = {"topic": name, "topic_id": topic.uuid, "partitions": topic.partition_count}
    return Done(url("/topics/{topic}", topic=name), f"Created topic {name}.", facts)


def _delete(call: Call) -> Done:
    topic = call.topic(call.path["topic"])
    if call.form.get("confirm") != topic.name:
        raise InvalidConfigurationError(f"confirm: to delete topic {topic.name} with all records, give its name")
    delete_topic(call.cluster, topic.name, topic_id=topic.topic_id)
    return Done("/topics", f"Deleted topic {topic.name}.", {"deleted": topic.name})


def _add_partitions(call: Call) -> Done:
    topic = call.topic(call.path["topic"])
    changed = add_partitions(call.cluster, topic.name, whole_number(call, "total"))
    facts = {"topic": topic.name, "partitions": changed.partition_count}
    text = f"Topic {topic.name} has {changed.partition_count:,} partitions now."
    return Done(url("/topics/{topic}", topic=topic.name), text, facts)


VIEWS = (View("/topics", "topics.html", _facts, title="Topics"),)
CHANGES = (
    Change("/topics", Allow.TOPICS, _create),
    Change("/topics/{topic}/delete", Allow.TOPICS, _delete),
    Change("/topics/{topic}/partitions", Allow.TOPICS, _add_partitions),
)
PREFERENCES = (Preference("/topics/{topic}/favourite", _toggle_favourite),)
