"""Topic configs and cluster settings: their names, types, defaults and limits."""

from spark_log.config.cluster_settings import ClusterSettings
from spark_log.config.topic_configs import ConfigDefinition, TopicConfig, canonical, definitions, validate_overrides

__all__ = ["ClusterSettings", "ConfigDefinition", "TopicConfig", "canonical", "definitions", "validate_overrides"]
