"""Topic configs and cluster settings: their names, types, defaults and limits."""

from spark_log.config.cluster_settings import ClusterSettings
from spark_log.config.definition import ConfigDefinition
from spark_log.config.group_configs import GroupConfig, group_definitions, validate_group_overrides
from spark_log.config.topic_config_texts import canonical
from spark_log.config.topic_configs import TopicConfig, definitions
from spark_log.config.typed_configs import SOURCES, PartConfigs

__all__ = [
    "SOURCES",
    "ClusterSettings",
    "ConfigDefinition",
    "GroupConfig",
    "PartConfigs",
    "TopicConfig",
    "canonical",
    "definitions",
    "group_definitions",
    "validate_group_overrides",
]
