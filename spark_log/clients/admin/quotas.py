"""Sets client quotas. Changes are recorded in `__audit`."""

from collections.abc import Mapping

from spark_log.clients.admin.audit import recorded
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.quotas.quota_rows import write_quotas
from spark_log.cluster.quotas.rules import Entity, check_value, named


def alter_quota(cluster: Cluster, who: str, source: str, entity: Entity, values: Mapping[str, float | None]) -> None:
    """Set quota values of an entity; the value None deletes that quota. `who` and `source` are for the audit. Raises
    IllegalArgumentError or InvalidConfigurationError.
    """
    with recorded(cluster, who, "AlterClientQuotas", named(entity), values, source):
        check_values(entity, values)
        write_quotas(cluster.store, [(entity, values)])


def check_values(entity: Entity, values: Mapping[str, float | None]) -> None:
    """Raise the errors that `alter_quota` would raise for these values. Nothing is changed."""
    for config, value in values.items():
        check_value(entity, config, 1.0 if value is None else value)
