"""Typed columns of mirrored topics that follow a subject of the source's schema registry.

The target's registry does not have the subject, and its ids are of other schemas. So the target's topic gets the
definition of its source, with the text of the schema as value.schema.
"""

from collections.abc import Mapping
from dataclasses import replace

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic, find_topic, set_overrides
from spark_log.columns.topic_columns import to_text
from spark_log.registry.topic_schemas import subject_name

_COLUMN_CONFIGS = ("value.columns", "value.format", "value.framing", "value.schema")


def configs_for_target(source: Topic) -> Mapping[str, str]:
    """The configs with which the target's topic is created; `copy_columns` adds the others."""
    if not _follows_own_registry(source):
        return source.overrides
    return {name: value for name, value in source.overrides.items() if name not in _COLUMN_CONFIGS}


def copy_columns(cluster: Cluster, source: Topic, target: Topic, *, missing: bool) -> Topic:
    """Give the target's topic the present definition of its source, if it has an earlier one; with `missing` also if it
    has no columns. A topic with columns of its own keeps them.
    """
    wanted, copied = source.columns, (missing and target.columns is None) or _is_copied(target)
    if wanted is None or not _follows_own_registry(source) or not copied:
        return target
    if target.columns is not None:
        if replace(target.columns, version=wanted.version) == wanted:
            return target
        wanted = replace(wanted, version=max(wanted.version, target.columns.version + 1))
    configs = {name: source.overrides[name] for name in _COLUMN_CONFIGS if name in source.overrides}
    configs["value.schema"] = wanted.schema

    def copy(connection: sa.Connection, _attempt: object) -> Topic:
        present = find_topic(connection, target.name, lock=True)
        if present.topic_id == target.topic_id:
            set_overrides(connection, present.topic_id, {**present.overrides, **configs}, to_text(wanted))
        return find_topic(connection, target.name)

    return cluster.store.transact(copy)


def _is_copied(target: Topic) -> bool:
    """Whether the topic has schemas by id, and no subject that they are from."""
    columns = target.columns
    return columns is not None and bool(columns.schemas_by_id) and subject_name(target.config.value_schema) is None


def _follows_own_registry(topic: Topic) -> bool:
    return subject_name(topic.config.value_schema) is not None and not topic.config.schema_registry_url
