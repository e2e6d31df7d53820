"""Schemas of an external registry become part of a topic's definition when the topic meets their ids."""

import logging
from collections.abc import Iterable, Set
from dataclasses import replace

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic, find_topic, set_value_columns
from spark_log.columns.topic_columns import SubjectSchemas
from spark_log.errors import (
    IncompatibleSchemaError,
    InvalidConfigurationError,
    InvalidSchemaError,
    SchemaNotFoundError,
    UnknownTopicOrPartitionError,
    redact,
)
from spark_log.registry.external import find_id
from spark_log.registry.rows import lock_registry
from spark_log.registry.schemas import column_source
from spark_log.registry.topic_schemas import external_subject, subject_name, value_columns

logger = logging.getLogger(__name__)

_IDS_MAX = 100
"""Unknown ids that are asked for at once: bytes that are no schema ids may look like many."""


def unknown_ids(topic: Topic, ids: Iterable[int]) -> set[int]:
    """Those of the schema ids that are not in the topic's definition and that its external registry may know."""
    columns = topic.columns
    if columns is None or columns.framing != "confluent" or not topic.config.schema_registry_url:
        return set()
    return {number for number in ids if number >= 0} - {*columns.schemas_by_id}


def learn_schemas(cluster: Cluster, topic: Topic, ids: Set[int] = frozenset()) -> Topic:
    """Ask the topic's external registry for the present versions of its subject, and for the schemas of these ids, and
    add them to the topic's definition. Returns the topic as it is then.

    An id that the registry does not know stays unknown. Raises SchemaRegistryUnavailableError.
    """
    config, columns = topic.config, topic.columns
    name = subject_name(config.value_schema)
    if name is None or columns is None or not config.schema_registry_url:
        return topic
    found = SubjectSchemas(columns.schema, {}, follows=name.version is None)
    try:
        found = external_subject(config) or found
    except (InvalidConfigurationError, InvalidSchemaError, SchemaNotFoundError) as error:
        logger.warning("%s: its schema stays as it is: %s", topic.name, redact(str(error)))
    texts = dict(found.by_id)
    for number in sorted(ids - texts.keys())[:_IDS_MAX]:
        try:
            texts[number] = column_source(find_id(config.schema_registry_url, number), name.message)
        except (InvalidSchemaError, SchemaNotFoundError) as error:
            logger.warning("%s: schema id %d: %s", topic.name, number, redact(str(error)))
    found = replace(found, by_id=texts)

    def store(connection: sa.Connection, _attempt: object) -> Topic:
        lock_registry(connection)
        present = find_topic(connection, topic.name, lock=True)
        if present.topic_id != topic.topic_id or present.overrides != topic.overrides:
            return topic  # recreated, or altered, which has asked the registry
        try:
            text = value_columns(connection, config, present.value_columns, found)
        except IncompatibleSchemaError as error:
            logger.warning("%s: its schema stays as it is: %s", topic.name, redact(str(error)))
            assert present.columns is not None
            text = value_columns(
                connection, config, present.value_columns, replace(found, schema=present.columns.schema)
            )
        if text is not None and text != present.value_columns:
            set_value_columns(connection, topic.topic_id, text)
        return find_topic(connection, topic.name)

    try:
        return cluster.store.transact(store)
    except UnknownTopicOrPartitionError:  # deleted meanwhile
        return topic
