"""Topic configs, in kafka-python's arguments and results. Every config of ours is dynamic; brokers have none yet."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kafka.admin import AlterConfigOp, ConfigFilterType, ConfigResource, ConfigResourceType, ConfigSourceType

from spark_log.admin.outcomes import outcome_of
from spark_log.cluster import topics as engine
from spark_log.cluster.cluster import Cluster
from spark_log.config import TopicConfig, canonical, definitions
from spark_log.errors import InvalidConfigurationError, InvalidTopicError


def describe_configs(
    cluster: Cluster, resources: Iterable[ConfigResource], config_filter: Any
) -> dict[str, dict[str, dict[str, Any]]]:
    """{'topic': {name: {config: facts}}}; by default what differs from the default."""
    wanted = ConfigFilterType.build_from(config_filter)
    result: dict[str, dict[str, dict[str, Any]]] = {}
    for resource in resources:
        topic = _topic_of(cluster, resource)
        names = canonical(dict.fromkeys(resource.configs)) if resource.configs is not None else None
        entries = entries_of(topic.overrides, everything=True)
        result.setdefault("topic", {})[topic.name] = {
            name: entry
            for name, entry in entries.items()
            if (names is None or name in names) and not wanted.should_skip(ConfigSourceType[entry["config_source"]])
        }
    return result


def entries_of(overrides: Mapping[str, str], *, everything: bool = False) -> dict[str, dict[str, Any]]:
    """Facts of the configs that are set, or of `everything`, as a broker describes them."""
    values = TopicConfig.from_overrides(overrides).as_text()
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


def alter_configs(
    cluster: Cluster,
    resources: Sequence[ConfigResource],
    *,
    validate_only: bool,
    raise_on_unknown: bool,
    incremental: bool | None,
) -> dict[str, dict[str, str]]:
    """'OK' or the error for each topic. A config's value, or (AlterConfigOp, value); APPEND and SUBTRACT for lists.

    With `incremental=False` configs that are not named go back to their defaults.
    """
    changes = {id(resource): dict(resource.configs or {}) for resource in resources}
    if raise_on_unknown:
        _raise_unknown(changes.values())

    def alter(resource: ConfigResource) -> None:
        topic = _topic_of(cluster, resource)
        changed = canonical(changes[id(resource)])
        wanted = {name: _new_value(topic, name, given) for name, given in changed.items()}
        if incremental is False:
            wanted = {**dict.fromkeys(topic.overrides), **wanted}
        engine.alter_configs(cluster, topic.name, wanted, validate_only=validate_only)

    return _each(resources, alter)


def reset_configs(
    cluster: Cluster, resources: Sequence[ConfigResource], *, validate_only: bool, raise_on_unknown: bool
) -> dict[str, dict[str, str]]:
    """Put the named configs, or all for none, back to their defaults."""
    if raise_on_unknown:
        _raise_unknown(resource.configs or () for resource in resources)

    def reset(resource: ConfigResource) -> None:
        topic = _topic_of(cluster, resource)
        names = list(resource.configs) if resource.configs else list(topic.overrides)
        engine.alter_configs(cluster, topic.name, dict.fromkeys(names), validate_only=validate_only)

    return _each(resources, reset)


def _each(resources: Sequence[ConfigResource], action: Any) -> dict[str, dict[str, str]]:
    result: dict[str, dict[str, str]] = {}
    for resource in resources:
        _, error = outcome_of(lambda resource=resource: action(resource))  # type: ignore[misc]
        kind = resource.resource_type.name.lower()
        result.setdefault(kind, {})[resource.name] = "OK" if error is None else str(error)
    return result


def _topic_of(cluster: Cluster, resource: ConfigResource) -> engine.Topic:
    if resource.resource_type is not ConfigResourceType.TOPIC:
        raise InvalidConfigurationError(f"{resource.resource_type.name} {resource.name!r}: only topics have configs")
    if not isinstance(resource.name, str):
        raise InvalidTopicError(f"topic: expected a name, got {resource.name!r}")
    return cluster.store.read(lambda connection: engine.find_topic(connection, resource.name))


def _raise_unknown(named: Iterable[Iterable[str]]) -> None:
    known = {definition.name for definition in definitions()}
    unknown = {name for names in named for name in canonical(dict.fromkeys(names))} - known
    if unknown:
        raise ValueError(f"Unrecognized configs: {unknown}")


def _new_value(topic: engine.Topic, name: str, given: Any) -> str | None:
    """The text to store; None puts the config back to its default."""
    op, value = given if isinstance(given, tuple) else (AlterConfigOp.SET, given)
    op = AlterConfigOp.build_from(op)
    if op is AlterConfigOp.DELETE:
        return None
    if op is AlterConfigOp.SET:
        return None if value is None else str(value)
    kinds = {definition.name: definition.kind for definition in definitions()}
    if kinds.get(name) != "list":
        raise InvalidConfigurationError(f"config {name!r}: {op.name} is for lists, this is a {kinds.get(name)}")
    now = topic.config.as_text()[name].split(",")
    if op is AlterConfigOp.APPEND:
        return ",".join([*now, *(item for item in str(value).split(",") if item not in now)])
    return ",".join(item for item in now if item not in str(value).split(","))
