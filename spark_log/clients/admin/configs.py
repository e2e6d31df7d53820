"""Reads and sets configs of topics, groups and the cluster, with kafka-python's arguments and results.

All configs are dynamic. A resource of type BROKER, with any name, means the cluster: its settings are Kafka's
cluster-wide broker defaults, and no broker has its own settings.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kafka.admin import AlterConfigOp, ConfigFilterType, ConfigResource, ConfigResourceType, ConfigSourceType

from spark_log.clients.admin.audit import local_user, recorded
from spark_log.clients.admin.outcomes import outcome_of
from spark_log.clients.kafka_errors import kafka_errors
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.settings import alter_settings, read_settings
from spark_log.cluster.topics import Topic, find_topic, list_topics
from spark_log.config import ClusterSettings, TopicConfig, canonical, definitions, group_definitions
from spark_log.errors import InvalidConfigurationError, InvalidTopicError, MetadataConflictError
from spark_log.facts.share_groups import ConfigOrigin, group_config_entries
from spark_log.groups.group_names import check_group_id
from spark_log.groups.share.administration import alter_group_configs
from spark_log.groups.share.rows import groups_with_configs
from spark_log.replication.controller import topic_operations

_TRIES = 100
"""Maximum attempts to change a topic's configs. Each failed attempt means that another client has changed them."""
_GROUP_SOURCES = {
    ConfigOrigin.GROUP: ConfigSourceType.DYNAMIC_GROUP_CONFIG,
    ConfigOrigin.CLUSTER: ConfigSourceType.DYNAMIC_DEFAULT_BROKER_CONFIG,
    ConfigOrigin.DEFAULT: ConfigSourceType.DEFAULT_CONFIG,
}
_SETTING_TYPES = {bool: "BOOLEAN", int: "LONG", str: "STRING"}
"""Kafka's types of cluster settings, by the type of their defaults."""


def describe_resource(cluster: Cluster, resource: ConfigResource) -> dict[str, dict[str, Any]]:
    """Return the facts of all configs of a topic, of a group or of the cluster."""
    if _is_cluster(resource):
        return _cluster_entries(read_settings(cluster))
    if _is_group(resource):
        return _group_entries(cluster, check_group_id(resource.name))
    return entries_of(_topic_of(cluster, resource).overrides, everything=True)


def _skipped(wanted: Any, source: ConfigSourceType) -> bool:
    """Whether the filter skips `source`. Settings of the cluster count as modified, as no broker has its own."""
    if source is ConfigSourceType.DYNAMIC_DEFAULT_BROKER_CONFIG:
        return wanted in (ConfigFilterType.DEFAULT, ConfigFilterType.STATIC)
    return bool(wanted.should_skip(source))


def _cluster_entries(overrides: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    set_, default = ConfigSourceType.DYNAMIC_DEFAULT_BROKER_CONFIG, ConfigSourceType.DEFAULT_CONFIG
    defaults = ClusterSettings()
    return {
        name: {
            "value": overrides.get(name, text),
            "read_only": False,
            "is_sensitive": False,
            "config_source": (set_ if name in overrides else default).name,
            "config_type": _SETTING_TYPES[type(getattr(defaults, name.replace(".", "_")))],
            "documentation": "",
        }
        for name, text in defaults.as_text().items()
    }


def _group_entries(cluster: Cluster, group_id: str) -> dict[str, dict[str, Any]]:
    """Return the facts of all configs of a group, as a broker describes them."""
    return {
        entry.definition.name: {
            "value": entry.value,
            "read_only": False,
            "is_sensitive": False,
            "config_source": _GROUP_SOURCES[entry.origin].name,
            "config_type": entry.definition.kind.upper(),
            "documentation": entry.definition.doc,
        }
        for entry in group_config_entries(cluster.store, group_id)
    }


def entries_of(overrides: Mapping[str, str], *, everything: bool = False) -> dict[str, dict[str, Any]]:
    """Return the facts of the configs that are set, or of all with `everything`, as a broker describes them."""
    values = TopicConfig.from_stored(overrides).as_text()
    return {
        definition.name: {
            "value": values[definition.name],
            "read_only": False,
            "is_sensitive": False,
            "config_source": (
                ConfigSourceType.DYNAMIC_TOPIC_CONFIG
                if definition.name in overrides
                else ConfigSourceType.DEFAULT_CONFIG
            ).name,
            "config_type": definition.kind.upper(),
            "documentation": definition.doc,
        }
        for definition in definitions()
        if everything or definition.name in overrides
    }


def alter_resource(
    cluster: Cluster, who: str, source: str, resource: ConfigResource, *, validate_only: bool, incremental: bool
) -> None:
    """Set configs of a topic, of a group or of the cluster. `resource.configs` has the values that `alter_configs`
    accepts. `who` and `source` are for the audit of a group's configs.
    """
    changes = dict(resource.configs or {})
    if _is_cluster(resource):
        settings = {name: _new_text(name, value) for name, value in changes.items()}
        alter_settings(cluster, settings, validate_only=validate_only, replace_all=not incremental)
        return
    if _is_group(resource):
        group_id = check_group_id(resource.name)
        texts = {name: _new_text(name, value) for name, value in changes.items()}
        if validate_only:
            alter_group_configs(cluster.store, group_id, texts, replace_all=not incremental, validate_only=True)
        else:
            alter_recorded(cluster, who, source, group_id, texts, replace_all=not incremental)
        return
    for attempt in range(_TRIES):  # values may depend on present ones, which another client may change in between
        topic = _topic_of(cluster, resource)
        others = {} if incremental else dict.fromkeys(topic.overrides)
        values = {name: _new_value(topic, name, value) for name, value in canonical(changes).items()}
        try:
            topic_operations.alter_configs(
                cluster, topic.name, {**others, **values}, validate_only=validate_only, seen=topic
            )
            return
        except MetadataConflictError:
            if attempt == _TRIES - 1:
                raise


def alter_recorded(
    cluster: Cluster,
    who: str,
    source: str,
    group_id: str,
    changes: Mapping[str, str | None],
    *,
    replace_all: bool = False,
) -> None:
    """Set configs of a group as `alter_group_configs` does, and record it. `who` and `source` are for the audit."""
    with recorded(cluster, who, "IncrementalAlterConfigs", f"group {group_id}", changes, source):
        alter_group_configs(cluster.store, group_id, changes, replace_all=replace_all)


def _each(resources: Sequence[ConfigResource], action: Any) -> dict[str, dict[str, str]]:
    result: dict[str, dict[str, str]] = {}
    for resource in resources:
        _, error = outcome_of(action, resource)
        kind = resource.resource_type.name.lower()
        result.setdefault(kind, {})[resource.name] = "OK" if error is None else str(error)
    return result


def _topic_of(cluster: Cluster, resource: ConfigResource) -> Topic:
    if resource.resource_type is not ConfigResourceType.TOPIC:
        raise InvalidConfigurationError(
            f"{resource.resource_type.name} {resource.name!r}: only topics, groups and the cluster (BROKER) have"
            " configs"
        )
    if not isinstance(resource.name, str):
        raise InvalidTopicError(f"topic: expected a name, got {resource.name!r}")
    return cluster.store.read(lambda connection: find_topic(connection, resource.name))


def _is_cluster(resource: ConfigResource) -> bool:
    return resource.resource_type is ConfigResourceType.BROKER


def _is_group(resource: ConfigResource) -> bool:
    return resource.resource_type is ConfigResourceType.GROUP


def _raise_unknown(resources: Iterable[ConfigResource]) -> None:
    of_topics = {definition.name for definition in definitions()}
    of_the_cluster = ClusterSettings().as_text().keys()
    unknown: set[str] = set()
    for resource in resources:
        names = dict.fromkeys(resource.configs or ())
        if _is_cluster(resource):
            unknown |= names.keys() - of_the_cluster
        elif _is_group(resource):
            unknown |= names.keys() - group_definitions().keys()
        else:
            unknown |= canonical(names).keys() - of_topics
    if unknown:
        raise ValueError(f"Unrecognized configs: {unknown}")


def config_text(name: str, value: object) -> str:
    """Return the text of a given value. Raises InvalidConfigurationError unless it is a text or a number."""
    if not isinstance(value, str | int | float):
        raise InvalidConfigurationError(f"config {name!r}: {value!r} is neither a text nor a number")
    return str(value)


def _new_text(name: str, given: Any) -> str | None:
    """Return the text to store, or None to reset the config to its default. Raises for an operation on lists."""
    op, value = given if isinstance(given, tuple) else (AlterConfigOp.SET, given)
    op = AlterConfigOp.build_from(op)
    if op not in (AlterConfigOp.SET, AlterConfigOp.DELETE):
        raise InvalidConfigurationError(f"config {name!r}: {op.name} is for lists")
    return None if op is AlterConfigOp.DELETE or value is None else config_text(name, value)


def _new_value(topic: Topic, name: str, given: Any) -> str | None:
    """Return the text to store, or None to reset the config to its default."""
    op, value = given if isinstance(given, tuple) else (AlterConfigOp.SET, given)
    op = AlterConfigOp.build_from(op)
    if op in (AlterConfigOp.SET, AlterConfigOp.DELETE):
        return _new_text(name, given)
    kinds = {definition.name: definition.kind for definition in definitions()}
    if kinds.get(name) != "list":
        raise InvalidConfigurationError(f"config {name!r}: {op.name} is for lists, this is a {kinds.get(name)}")
    now = topic.config.as_text()[name].split(",")
    items = config_text(name, value).split(",")
    if op is AlterConfigOp.APPEND:
        return ",".join([*now, *(item for item in items if item not in now)])
    return ",".join(item for item in now if item not in items)


class ConfigCalls:
    """The methods of Admin for configs."""

    _cluster: Cluster

    @kafka_errors()
    def describe_configs(
        self,
        config_resources: Iterable[ConfigResource],
        include_synonyms: bool = False,
        config_filter: Any = "modified",
    ) -> dict[str, dict[str, dict[str, Any]]]:
        """Return {'topic', 'group' or 'broker': {name: {config: facts such as 'value', 'config_source'}}}, by default
        only of configs that are not at their defaults. A resource of type BROKER, with any name, means the whole
        cluster. A group need not exist.

        Raises UnknownTopicOrPartitionError.
        """
        chosen = ConfigFilterType.build_from(config_filter)
        described: dict[str, dict[str, dict[str, Any]]] = {}
        for resource in config_resources:
            entries = describe_resource(self._cluster, resource)
            names = canonical(dict.fromkeys(resource.configs)) if resource.configs is not None else None
            described.setdefault(resource.resource_type.name.lower(), {})[resource.name] = {
                name: entry
                for name, entry in entries.items()
                if (names is None or name in names) and not _skipped(chosen, ConfigSourceType[entry["config_source"]])
            }
        return described

    @kafka_errors()
    def alter_configs(
        self,
        config_resources: Sequence[ConfigResource],
        validate_only: bool = False,
        raise_on_unknown: bool = True,
        incremental: bool | None = None,
    ) -> dict[str, dict[str, str]]:
        """Set configs; return {'topic', 'group' or 'broker': {name: 'OK' or the error}}. BROKER with any name is the
        cluster.

        Values are texts or (AlterConfigOp, text). With `incremental=False` the other configs are reset. With
        `raise_on_unknown`, raises ValueError for a config that does not exist.
        """
        if raise_on_unknown:
            _raise_unknown(config_resources)
        return _each(
            config_resources,
            lambda resource: alter_resource(
                self._cluster, local_user(), "admin", resource,
                validate_only=validate_only, incremental=incremental is not False,
            ),
        )  # fmt: skip

    @kafka_errors()
    def reset_configs(
        self,
        config_resources: Sequence[ConfigResource],
        validate_only: bool = False,
        raise_on_unknown: bool = True,
        incremental: bool | None = None,
    ) -> dict[str, dict[str, str]]:
        """Reset to defaults the configs that the resources name; a resource that names none resets all its configs."""
        if raise_on_unknown:
            _raise_unknown(config_resources)

        def reset(resource: ConfigResource) -> None:
            defaults = dict.fromkeys(resource.configs or ())
            alter_resource(
                self._cluster, local_user(), "admin",
                ConfigResource(resource.resource_type, resource.name, defaults),
                validate_only=validate_only, incremental=bool(defaults),
            )  # fmt: skip

        return _each(config_resources, reset)

    @kafka_errors()
    def list_config_resources(self, resource_types: Iterable[Any] | None = None) -> dict[str, list[str]]:
        """Return {'topic': [names of all topics]}, and {'group': [ids]} of the groups that set configs, if any do."""
        groups = self._cluster.store.read(groups_with_configs)
        topics = [topic.name for topic in list_topics(self._cluster)]
        return {"topic": topics, **({"group": groups} if groups else {})}
