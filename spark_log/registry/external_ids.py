"""Adds schemas of an external registry to the definition of a topic when records with their ids arrive."""

import logging
import random
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from types import MappingProxyType

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic, find_topic, set_typed_columns
from spark_log.config import TopicConfig
from spark_log.errors import (
    IncompatibleSchemaError,
    InvalidConfigurationError,
    InvalidSchemaError,
    SchemaNotFoundError,
    UnknownTopicOrPartitionError,
    redact,
)
from spark_log.ids import TopicId
from spark_log.log.columns.decoded import ColumnsDefinition
from spark_log.log.columns.definitions import SubjectSchemas
from spark_log.registry.bounded_requests import time_limit
from spark_log.registry.external import find_id
from spark_log.registry.rows import lock_registry
from spark_log.registry.schema_types import column_source
from spark_log.registry.topic_schemas import (
    TYPED_COLUMNS_CHARACTERS_MAX,
    SubjectName,
    external_subjects,
    subject_name,
    typed_columns,
)
from spark_log.text import some_of

logger = logging.getLogger(__name__)

_IDS_MAX = 100
"""The maximum number of unknown ids that one call requests. Bytes that are no schema ids may look like many ids."""


def unknown_ids(topic: Topic, ids: Mapping[str, Iterable[int]]) -> dict[str, set[int]]:
    """Return those of `ids` that are not in the topic's definitions, but that its external registry may know.

    Argument and result have the schema ids by part ("key", "value"). Parts without unknown ids are left out.
    """
    columns, found = topic.columns, {}
    for part, definition in columns.parts if columns is not None and topic.config.schema_registry_url else ():
        unknown = {number for number in ids.get(part.source, ()) if number >= 0} - {*definition.schemas_by_id}
        if definition.framing == "confluent" and unknown:
            found[part.source] = unknown
    return found


def learn_schemas(cluster: Cluster, topic: Topic, ids: Mapping[str, Set[int]] = MappingProxyType({})) -> Topic:
    """Read the present versions of the topic's subjects, and the schemas of `ids` by part ("key", "value"), from its
    external registry, and add them to the topic's definitions. Return the topic as it is then.

    An id that the registry does not know remains unknown. A new version that does not fit the topic's columns is
    logged, and the topic keeps its schema. Raises SchemaRegistryUnavailableError, and SchemaRegistryError if the
    registry refuses a request.
    """
    config, columns = topic.config, topic.columns
    if columns is None or not config.schema_registry_url:
        return topic
    learnt = {}
    with time_limit():
        for part in config.parts:
            definition, name = columns.of(part.source), subject_name(part)
            if definition is not None and name is not None:
                asked = ids.get(part.source, frozenset())
                learnt[part.source] = _schemas_of(topic, part.source, definition, name, asked)
    try:  # parsing may take long, so it is done before the transaction, for which other writers wait
        fitting = cluster.store.read(lambda c: _fitting(c, find_topic(c, topic.name), config, learnt))
    except UnknownTopicOrPartitionError:  # deleted meanwhile
        return topic
    if not fitting:
        return topic

    def store(connection: sa.Connection) -> Topic:
        lock_registry(connection)
        present = find_topic(connection, topic.name, lock=True)
        if present.topic_id != topic.topic_id or present.overrides != topic.overrides:
            return topic  # the topic was recreated, or altered: an alteration reads the registry itself
        text = present.typed_columns
        try:
            for source, schemas in fitting.items():
                text = typed_columns(connection, config, text, {source: schemas}, [source])
        except (IncompatibleSchemaError, InvalidSchemaError):
            return present  # its columns were changed meanwhile: the next call learns the schemas
        if text is not None and text != present.typed_columns:
            set_typed_columns(connection, topic.topic_id, text)
        return find_topic(connection, topic.name)

    try:
        return cluster.store.transact(store)
    except UnknownTopicOrPartitionError:  # deleted meanwhile
        return topic


class SchemaLookups:
    """Learns the schemas that partitions need. Each id of a topic is requested once, even if several partitions have
    it. Safe to share between threads.
    """

    def __init__(self) -> None:
        self._locks: defaultdict[TopicId, threading.Lock] = defaultdict(threading.Lock)
        self._asked: defaultdict[TopicId, set[tuple[str, int]]] = defaultdict(set)
        self._learnt: dict[TopicId, Topic] = {}

    def learn(self, cluster: Cluster, topic: Topic, ids: Mapping[str, Set[int]]) -> Topic:
        """Call `learn_schemas` for the ids that were not requested yet. Return the topic as it is then."""
        with self._locks[topic.topic_id]:
            asked = self._asked[topic.topic_id]
            new = {source: {each for each in numbers if (source, each) not in asked} for source, numbers in ids.items()}
            if any(new.values()):
                self._learnt[topic.topic_id] = learn_schemas(cluster, topic, new)
                asked.update(
                    (source, each) for source, numbers in new.items() if len(numbers) <= _IDS_MAX for each in numbers
                )  # of more, only some were requested
            return self._learnt[topic.topic_id]


def _fitting(
    connection: sa.Connection, present: Topic, config: TopicConfig, learnt: Mapping[str, SubjectSchemas]
) -> dict[str, SubjectSchemas]:
    """Return the schemas of `learnt` that the topic can have, by part. A part keeps its own schema if the new one does
    not fit the topic's columns. A part whose schemas are too long is left out.
    """
    text, fitting = present.typed_columns, {}
    for source, schemas in learnt.items():
        known = None if present.columns is None else present.columns.of(source)
        own = [] if known is None else [replace(schemas, schema=known.schema)]
        for candidate in (schemas, *own):
            try:
                text = typed_columns(connection, config, text, {source: candidate}, [source])
            except (IncompatibleSchemaError, InvalidSchemaError) as error:
                logger.warning("%s: the schema of its %ss stays as it is: %s", present.name, source, redact(str(error)))
            else:
                fitting[source] = candidate
                break
    return fitting


def _schemas_of(
    topic: Topic, source: str, definition: ColumnsDefinition, name: SubjectName, ids: Set[int]
) -> SubjectSchemas:
    """Return the present versions of the subject of the keys or values, and the schemas of `ids`."""
    schemas = SubjectSchemas(definition.schema, (), follows=name.version is None)
    try:
        schemas = external_subjects(topic.config, [source])[source]
    except (InvalidConfigurationError, InvalidSchemaError, SchemaNotFoundError) as error:
        logger.warning("%s: the schema of its %ss stays as it is: %s", topic.name, source, redact(str(error)))
    texts = dict(schemas.by_id)
    characters = sum(map(len, texts.values()))
    unknown = sorted(ids - texts.keys())
    missing: list[str] = []
    # a random choice, so that ids that no schema has cannot hide the others for ever
    for number in random.sample(unknown, min(len(unknown), _IDS_MAX)):
        try:
            text = column_source(find_id(topic.config.schema_registry_url, number), name.message)
        except SchemaNotFoundError:
            missing.append(str(number))
            continue
        except InvalidSchemaError as error:
            logger.warning("%s: schema id %d: %s", topic.name, number, redact(str(error)))
            continue
        characters += len(text)
        if characters > TYPED_COLUMNS_CHARACTERS_MAX:
            logger.warning("%s: schema id %d: the schemas of its %ss are too long together", topic.name, number, source)
            break
        texts[number] = text
    if missing:  # bytes that are no schema ids, or those of another registry
        logger.warning("%s: the registry has no schemas with ids %s of %ss", topic.name, some_of(missing), source)
    return replace(schemas, by_id=tuple(texts.items()))
