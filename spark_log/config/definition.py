"""Defines a config of topics or groups in the metadata of the dataclass field for its value."""

from dataclasses import dataclass, field
from typing import Any

from spark_log.config.values import ValueType


@dataclass(frozen=True)
class ConfigDefinition:
    """The description of one config, for reference pages and `describe_configs`."""

    name: str
    """Kafka's dotted name, or that of a config that only spark-log has."""
    kind: str
    """Kafka's name of the type: long, int, double, boolean, string or list."""
    default: str
    """The default, as a user would type it."""
    valid: str
    """The accepted values, in words."""
    unit: str
    """ms, bytes, messages, level, or empty."""
    doc: str
    """Its effect, and the reason if the default differs from Kafka's."""
    kafka_default: str | None
    """Kafka's default if it differs; None if they are equal or Kafka has no such config."""


def config(name: str, default: Any, value_type: ValueType, doc: str, unit: str = "", kafka: str | None = None) -> Any:
    definition = ConfigDefinition(
        name, value_type.kind, value_type.show(default), value_type.expected, unit, doc, kafka
    )
    return field(default=default, metadata={"definition": definition, "type": value_type})
