"""Copies the typed columns of mirrored topics whose schemas are subjects of the source's schema registry.

The target's registry does not have the subject, and its ids belong to other schemas. So the topic in the target gets
the column definitions of its source, with the texts of the schemas as key.schema and value.schema.
"""

from collections.abc import Mapping
from dataclasses import replace

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic, configs_json, find_topic, set_configs
from spark_log.config import SOURCES
from spark_log.log.columns.topic_columns import to_text
from spark_log.registry.topic_schemas import subject_name
from spark_log.replication.controller.topic_copies import follow

_COLUMN_CONFIGS = tuple(f"{source}.{name}" for source in SOURCES for name in ("columns", "format", "framing", "schema"))


def configs_for_target(source: Topic) -> Mapping[str, str]:
    """Return the configs with which the target's topic is created. `copy_columns` adds those of copied columns."""
    if not _following(source):
        return source.overrides
    return {name: value for name, value in source.overrides.items() if name not in _COLUMN_CONFIGS}


def copy_columns(cluster: Cluster, source: Topic, target: Topic, *, missing: bool) -> Topic:
    """Update copied columns of the target's topic to the present definitions of its source. With `missing`, also add
    them if it has no columns. A topic with columns of its own keeps them. Return the target's topic.
    """
    columns, copied = source.columns, (missing and target.columns is None) or _is_copied(target)
    following = _following(source)
    if columns is None or not following or not copied:
        return target
    if target.columns is not None:
        if replace(target.columns, version=columns.version) == columns:
            return target
        columns = replace(columns, version=max(columns.version, target.columns.version + 1))
    configs = {name: source.overrides[name] for name in _COLUMN_CONFIGS if name in source.overrides}
    configs |= {f"{part.source}.schema": each.schema for part, each in columns.parts if part.source in following}

    def copy(connection: sa.Connection) -> Topic:
        present = find_topic(connection, target.name, lock=True)
        if present.topic_id == target.topic_id:
            set_configs(connection, present.topic_id, configs_json({**present.overrides, **configs}), to_text(columns))
        return find_topic(connection, target.name)

    changed = cluster.store.transact(copy)
    follow(cluster, changed.store_id, changed.topic_id)
    return changed


def _is_copied(target: Topic) -> bool:
    """Whether the topic has schemas by id without a subject, as only `copy_columns` makes them."""
    columns = target.columns
    own = {part.source for part in target.config.parts if subject_name(part) is None}
    return columns is not None and any(each.schemas_by_id and part.source in own for part, each in columns.parts)


def _following(topic: Topic) -> set[str]:
    """Return the parts, key and value, whose schema is a subject of the cluster's own registry."""
    if topic.config.schema_registry_url:
        return set()
    return {part.source for part in topic.config.parts if subject_name(part) is not None}
