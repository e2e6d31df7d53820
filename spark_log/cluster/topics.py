"""Stores topics and their configs. `replication.controller.topic_operations` changes them."""

import difflib
import json
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import topic_folder
from spark_log.cluster.names import collision_key, is_legal
from spark_log.config import TopicConfig, canonical
from spark_log.errors import InvalidConfigurationError, UnknownTopicOrPartitionError, redact
from spark_log.ids import HOME, StoreId, TopicId
from spark_log.metadata import tables as t
from spark_log.metadata.cascade import delete_rows_of_topic
from spark_log.metadata.sql_columns import PARTITION, TOPIC
from spark_log.metadata.store_clock import StoreClock
from spark_log.remembered import Remembered

if TYPE_CHECKING:
    from spark_log.log.columns.topic_columns import TopicColumns

logger = logging.getLogger(__name__)

_NAMES_COMPARED_MAX = 10_000


@dataclass(frozen=True)
class Topic:
    """A topic without its partitions."""

    topic_id: TopicId
    uuid: str
    name: str
    partition_count: int
    replication_factor: int
    configs: str
    """The value of column topic.configs."""
    created_ms: int
    typed_columns: str | None = None
    """The value of column topic.typed_columns."""
    store_id: StoreId = HOME
    """The store that has its partitions."""

    @property
    def columns(self) -> "TopicColumns | None":
        """Return the typed columns of new segment files, None if key.format and value.format are bytes."""
        return None if self.typed_columns is None else _columns(self.typed_columns).decodable

    @property
    def all_columns(self) -> "TopicColumns | None":
        """Return the typed columns that any segment file of the topic has, None if it never had any."""
        return None if self.typed_columns is None else _columns(self.typed_columns)

    @cached_property
    def overrides(self) -> Mapping[str, str]:
        """The configs that are set. Raises InvalidConfigurationError if the column is damaged."""
        return _overrides(self.configs)

    @cached_property
    def config(self) -> TopicConfig:
        """The typed configs. Raises InvalidConfigurationError if the column is damaged."""
        return topic_config(self.configs)

    @property
    def folder(self) -> str:
        """Return the name of the topic's folder in every log dir."""
        return topic_folder(self.name, self.uuid)


@dataclass(frozen=True)
class TopicMove:
    """A move of a topic to another store. `move_id` is unique."""

    move_id: str
    to: StoreId
    began_ms: int


class StatedTopic(NamedTuple):
    """A topic, its state in the store that was asked, and its move, if it is being moved."""

    topic: Topic
    state: str
    move: TopicMove | None = None
    move_epoch: int = 0
    """The number of moves of the topic between stores, also of cancelled ones, up to this copy."""

    @property
    def stores(self) -> set[StoreId]:
        """The stores that may have rows of the topic."""
        return {self.topic.store_id} if self.move is None else {self.topic.store_id, self.move.to}


def topic_config(configs: str) -> TopicConfig:
    """Return the configs of a topic from column topic.configs. Raises InvalidConfigurationError if it is damaged: with
    defaults, retention would delete records.
    """
    return _stored_configs(configs)


def _overrides(configs: str) -> dict[str, str]:
    overrides: Any = None
    with suppress(ValueError):
        overrides = json.loads(configs)
    if not isinstance(overrides, dict) or not all(isinstance(text, str) for text in overrides.values()):
        raise InvalidConfigurationError(f"the configs of a topic in the store are damaged: {configs[:200]!r}")
    return canonical(overrides)


def undamaged_config(configs: str, name: str = "a topic") -> TopicConfig | None:
    """Return the configs of a topic. If the column is damaged, log this and return None."""
    try:
        return topic_config(configs)
    except InvalidConfigurationError as error:
        return _log_once(f"{name} is left out: {redact(str(error))}")


def undamaged(topics: Iterable[Topic]) -> Iterator[Topic]:
    """Yield the topics whose configs can be read. The others are logged, so that they do not stop work on many."""
    return (topic for topic in topics if undamaged_config(topic.configs, f"topic {topic.name}") is not None)


def _from_text(text: str) -> "TopicColumns":
    from spark_log.log.columns.topic_columns import from_text  # imports pyarrow

    return from_text(text)


_stored_configs: Callable[[str], TopicConfig] = Remembered(
    lambda configs: TopicConfig.from_stored(_overrides(configs)), lambda _, configs: 200 + 2 * len(configs), 32 << 20
)
_log_once = lru_cache(maxsize=1_000)(logger.error)
_columns = Remembered(_from_text, lambda _columns, text: 4 * len(text), 128 << 20)


_TOPIC_COLUMNS = tuple(TOPIC[entry.name] for entry in fields(Topic))
_STATED = sa.select(*_TOPIC_COLUMNS, TOPIC.state, TOPIC.move, TOPIC.move_epoch).order_by(TOPIC.topic_id)
LIVE, CREATING, DELETING = "live", "creating", "deleting"
"""States of a topic. Only live ones are found by the functions of clients (`topic_copies`)."""
IS_LIVE: sa.ColumnElement[bool] = sa.literal_column(f"'{LIVE}'") == TOPIC.state
"""The condition in SQL, without a parameter, as prepared statements need it."""


def _topic_of(row: Any) -> Topic:
    return Topic(*row[: len(_TOPIC_COLUMNS)])


def find_topics(
    connection: sa.Connection,
    names: Iterable[str] | None = None,
    *,
    only_live: bool = True,
    lock: bool = False,
    skip_locked: bool = False,
) -> dict[str, Topic]:
    """Return those of these topics that exist, by name, or all topics for None. `lock` locks their rows for update;
    with `skip_locked`, topics that another transaction has locked are left out.

    A topic that has been moved to this store has a complete copy here before it is live: a reader that the home store
    has directed here sets `only_live` to False.
    """
    query = sa.select(*_TOPIC_COLUMNS).order_by(TOPIC.topic_id)
    if only_live:
        query = query.where(IS_LIVE)
    if names is not None:  # no topic has an illegal name, and a database may refuse it (NUL, lone surrogates)
        query = query.where(TOPIC.name.in_([name for name in names if is_legal(name)]))
    if lock:
        query = query.with_for_update(skip_locked=skip_locked)
    return {row.name: _topic_of(row) for row in connection.execute(query)}


def topics_of_ids(connection: sa.Connection, topic_ids: Collection[int]) -> dict[int, Topic]:
    """Return the topics with these ids that still exist, by id."""
    query = sa.select(*_TOPIC_COLUMNS).where(TOPIC.topic_id.in_(topic_ids), IS_LIVE)
    return {row.topic_id: _topic_of(row) for row in connection.execute(query)}


def topics_of_uuids(connection: sa.Connection, uuids: Collection[str]) -> dict[str, Topic]:
    """Return the topics with these uuids (Kafka's topic ids), by uuid."""
    query = sa.select(*_TOPIC_COLUMNS).where(TOPIC.uuid.in_(uuids), IS_LIVE)
    return {row.uuid: _topic_of(row) for row in connection.execute(query)}


def find_topic(connection: sa.Connection, name: str, *, lock: bool = False) -> Topic:
    """Return the topic. Raises UnknownTopicOrPartitionError if it does not exist."""
    topic = find_topics(connection, [name], lock=lock).get(name)
    if topic is None:
        raise unknown_topic(connection, name)
    return topic


def unknown_topic(
    connection: sa.Connection, name: str, advice: str = " (`spark-log topic list` shows those that exist)"
) -> UnknownTopicOrPartitionError:
    """Return the error for an unknown topic. It names an existing topic with a similar name, or else has `advice`."""
    names = connection.scalars(sa.select(TOPIC.name).where(IS_LIVE).limit(_NAMES_COMPARED_MAX)).all()
    similar = difflib.get_close_matches(str(name), names, 1)  # callers may pass anything
    hint = f" (did you mean {similar[0]!r}?)" if similar else advice
    return UnknownTopicOrPartitionError(f"topic {name!r}: unknown topic or partition{hint}")


def list_topics(cluster: Cluster) -> list[Topic]:
    """Return all topics, sorted by name."""
    topics = cluster.store.read(find_topics)
    return [topics[name] for name in sorted(topics)]


def insert_topic_row(
    connection: sa.Connection,
    name: str,
    partition_count: int,
    replication_factor: int,
    overrides: Mapping[str, str],
    now: StoreClock,
    typed_columns: str | None = None,
    store_id: StoreId = HOME,
) -> Topic:
    """Insert the row of a new topic. Its partitions have rows of their own. If `store_id` is a data store, the state
    is creating until that store has the partitions.
    """
    values = {
        "uuid": uuid.uuid4().hex,
        "name": name,
        "collision_key": collision_key(name),
        "partition_count": partition_count,
        "replication_factor": replication_factor,
        "configs": configs_json(overrides),
        "created_ms": now.wall_ms,
        "typed_columns": typed_columns,
        "store_id": store_id,
        "state": LIVE if store_id == HOME else CREATING,
    }
    return _topic_of(connection.execute(t.topic.insert().returning(*_TOPIC_COLUMNS), values).one())


def insert_copy(connection: sa.Connection, topic: Topic, move_epoch: int, move: TopicMove | None = None) -> None:
    """Insert the row of a topic of the home store in the data store that has its partitions, or that gets them by this
    move.
    """
    values = {
        **{column.name: getattr(topic, column.name) for column in _TOPIC_COLUMNS},
        "collision_key": collision_key(topic.name),
        "store_id": topic.store_id if move is None else move.to,
        "state": LIVE if move is None else CREATING,
        "move": _move_json(move),
        "move_epoch": move_epoch,
    }
    connection.execute(t.topic.insert(), values)


def topics_of_store(
    connection: sa.Connection, store_id: StoreId, topic_id: int | None = None
) -> dict[TopicId, StatedTopic]:
    """Return the topics of a store, or one of them, by id, in whichever state they are."""
    query = _STATED.where(TOPIC.store_id == store_id)
    if topic_id is not None:
        query = query.where(TOPIC.topic_id == topic_id)
    return {TopicId(row.topic_id): _stated(row) for row in connection.execute(query)}


def stated_topic(connection: sa.Connection, topic_id: int) -> StatedTopic | None:
    """Return the topic in whichever state it is, None if there is no row."""
    row = connection.execute(_STATED.where(TOPIC.topic_id == topic_id)).one_or_none()
    return None if row is None else _stated(row)


def moving_topics(connection: sa.Connection, *where: sa.ColumnElement[bool]) -> list[tuple[Topic, TopicMove]]:
    """Return the topics that are being moved, even if they are being deleted. The connection is to the home store."""
    topics = [_stated(row) for row in connection.execute(_STATED.where(TOPIC.move.is_not(None), *where))]
    return [(stated.topic, stated.move) for stated in topics if stated.move is not None]


def topics_left(connection: sa.Connection) -> list[TopicId]:
    """Return the topics whose partitions the home store still has, though another store has them and none is moved
    here. The connection is to the home store.
    """
    have = sa.exists().where(PARTITION.topic_id == TOPIC.topic_id)
    query = _STATED.where(TOPIC.store_id != HOME, have)
    rows = [(TopicId(row.topic_id), _stated(row)) for row in connection.execute(query)]
    return [topic_id for topic_id, stated in rows if stated.move is None or stated.move.to != HOME]


def _stated(row: Any) -> StatedTopic:
    move = None if row.move is None else TopicMove(**json.loads(row.move))
    return StatedTopic(_topic_of(row), row.state, move, row.move_epoch)


def _move_json(move: TopicMove | None) -> str | None:
    return None if move is None else json.dumps(vars(move), sort_keys=True)


def set_move(connection: sa.Connection, topic_id: int, move: TopicMove) -> None:
    """Begin the move of a topic. The connection is to the home store, and the topic is locked."""
    _update(connection, topic_id, move=_move_json(move))


def set_store(c: sa.Connection, topic_id: int, store_id: StoreId, epoch: int, move: TopicMove | None = None) -> None:
    """Record the store, the number of moves, and the move of a topic. The connection is to the home store."""
    _update(c, topic_id, store_id=store_id, move=_move_json(move), move_epoch=epoch)


def end_move(connection: sa.Connection, topic_id: int, move: TopicMove) -> bool:
    """Record that the topic is in the store to which it was moved; this decides the move. Returns False if the move has
    been cancelled, or has ended. The connection is to the home store.
    """
    here = (TOPIC.topic_id == topic_id, TOPIC.move == _move_json(move), IS_LIVE)
    ended = t.topic.update().where(*here).values(store_id=move.to, move=None, move_epoch=TOPIC.move_epoch + 1)
    return connection.execute(ended).rowcount == 1


def topics_with_name(connection: sa.Connection, name: str) -> list[TopicId]:
    """Return the ids of the topics with this name, or with one that Kafka counts as the same, in whichever state."""
    query = sa.select(TOPIC.topic_id).where(TOPIC.collision_key == collision_key(name))
    return [TopicId(topic_id) for topic_id in connection.execute(query).scalars()]


def set_live(connection: sa.Connection, topic_id: int) -> bool:
    """End the creation of a topic. Returns whether it was being created."""
    here = (TOPIC.topic_id == topic_id, TOPIC.state == CREATING)
    return connection.execute(t.topic.update().where(*here).values(state=LIVE, move=None)).rowcount == 1


def set_deleting(connection: sa.Connection, topic_id: int, *states: str) -> None:
    """If a topic of a data store is in one of the states, free its name: its rows there are deleted next."""
    name = f"deleting/{topic_id}"  # no legal name of a topic
    here = (TOPIC.topic_id == topic_id, TOPIC.state.in_(states or (LIVE, CREATING, DELETING)))
    connection.execute(t.topic.update().where(*here).values(state=DELETING, name=name, collision_key=name))


def delete_topic_row(connection: sa.Connection, topic_id: int) -> None:
    """Delete the row of a topic that is being deleted. It has no partitions here, and no data store has a copy."""
    connection.execute(t.topic.delete().where(TOPIC.topic_id == topic_id, TOPIC.state == DELETING))


def set_configs(connection: sa.Connection, topic_id: int, configs: str, typed_columns: str | None) -> None:
    """Store the configs that differ from the defaults (`configs_json`), and the typed columns that follow from them."""
    _update(connection, topic_id, configs=configs, typed_columns=typed_columns)


def set_typed_columns(connection: sa.Connection, topic_id: int, typed_columns: str) -> None:
    """Store the typed columns that follow from a change of a schema that the topic uses."""
    _update(connection, topic_id, typed_columns=typed_columns)


def set_partition_count(connection: sa.Connection, topic_id: int, count: int) -> None:
    _update(connection, topic_id, partition_count=count)


def set_replication_factor(connection: sa.Connection, topic_id: int, factor: int) -> None:
    _update(connection, topic_id, replication_factor=factor)


def _update(connection: sa.Connection, topic_id: int, **columns: Any) -> None:
    connection.execute(t.topic.update().where(TOPIC.topic_id == topic_id).values(**columns))


def delete_topic_rows(connection: sa.Connection, topic_id: int) -> None:
    """Delete the rows of the topic in every table."""
    delete_rows_of_topic(connection, topic_id)
    connection.execute(t.topic.delete().where(TOPIC.topic_id == topic_id))


def configs_json(overrides: Mapping[str, str]) -> str:
    return json.dumps(dict(overrides), sort_keys=True)
