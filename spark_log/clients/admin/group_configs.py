"""Reads and sets configs of groups. Changes are recorded in `__audit`."""

from collections.abc import Mapping
from typing import Any

from kafka.admin import ConfigSourceType

from spark_log.clients.admin.audit import recorded
from spark_log.cluster.cluster import Cluster
from spark_log.facts.share_groups import ConfigOrigin, group_config_entries
from spark_log.groups.share.administration import alter_group_configs

_SOURCES = {
    ConfigOrigin.GROUP: ConfigSourceType.DYNAMIC_GROUP_CONFIG,
    ConfigOrigin.CLUSTER: ConfigSourceType.DYNAMIC_DEFAULT_BROKER_CONFIG,
    ConfigOrigin.DEFAULT: ConfigSourceType.DEFAULT_CONFIG,
}


def alter_recorded(
    cluster: Cluster,
    who: str,
    source: str,
    group_id: str,
    changes: Mapping[str, str | None],
    *,
    replace_all: bool = False,
) -> None:
    """Set configs as `alter_group_configs`. `who` and `source` are for the audit."""
    with recorded(cluster, who, "IncrementalAlterConfigs", f"group {group_id}", changes, source):
        alter_group_configs(cluster.store, group_id, changes, replace_all=replace_all)


def config_entries(cluster: Cluster, group_id: str) -> dict[str, dict[str, Any]]:
    """Return the facts of all configs of a group, as a broker describes them."""
    return {
        entry.definition.name: {
            "value": entry.value,
            "read_only": False,
            "is_sensitive": False,
            "config_source": _SOURCES[entry.origin].name,
            "config_type": entry.definition.kind.upper(),
            "documentation": entry.definition.doc,
        }
        for entry in group_config_entries(cluster.store, group_id)
    }
