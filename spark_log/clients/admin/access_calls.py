"""Defines the methods of `Admin` for the users of gateways and their ACLs."""

from collections.abc import Iterable, Sequence
from typing import Any

from kafka.errors import NoError

from spark_log.clients.admin import acls as on_acls
from spark_log.clients.admin import users as on_users
from spark_log.clients.admin.audit import local_user
from spark_log.clients.kafka_errors import kafka_error, kafka_errors
from spark_log.cluster.cluster import Cluster

_SOURCE = "admin"


class AccessCalls:
    """Methods of `Admin`. Any process that can open the store may call them: ACLs restrict only clients of gateways."""

    _cluster: Cluster

    @kafka_errors()
    def alter_user_scram_credentials(self, alterations: Sequence[Any]) -> dict[str, str | None]:
        """Apply UserScramCredentialUpsertions and -Deletions; return {user: error message, or None for success}."""
        found = on_users.alter_scram_credentials(self._cluster, local_user(), _SOURCE, alterations)
        return {user: None if error is None else str(error) for user, error in found.items()}

    @kafka_errors()
    def describe_user_scram_credentials(self, users: Iterable[str] | None = None) -> dict[str, dict[str, Any]]:
        """Return {user: {'error', 'credential_infos': [{'mechanism', 'iterations'}]}}, by default for all users."""
        return on_users.describe_scram_credentials(self._cluster, users)

    @kafka_errors()
    def create_acls(self, acls: Sequence[Any]) -> dict[str, list[Any]]:
        """Add ACLs; return {'succeeded': the ACLs, 'failed': errors}. Gateways apply them within a second."""
        outcomes = on_acls.create_acls(self._cluster, local_user(), _SOURCE, [on_acls.acl_of(each) for each in acls])
        pairs = list(zip(acls, outcomes, strict=True))
        return {
            "succeeded": [acl for acl, error in pairs if error is None],
            "failed": [kafka_error(error) for _, error in pairs if error is not None],
        }

    @kafka_errors()
    def describe_acls(self, acl_filter: Any) -> tuple[list[Any], type[Exception]]:
        """Return the ACLs that kafka-python's ACLFilter matches, and NoError."""
        found = on_acls.find_acls(self._cluster, on_acls.filter_of(acl_filter))
        return [on_acls.kafka_acl(acl) for acl in found], NoError

    @kafka_errors()
    def delete_acls(self, acl_filters: Sequence[Any]) -> list[tuple[Any, list[Any], type[Exception]]]:
        """Delete the ACLs that the ACLFilters match. Return (filter, its deleted ACLs, NoError) for each filter."""
        filters = [on_acls.filter_of(each) for each in acl_filters]
        found = on_acls.delete_acls(self._cluster, local_user(), _SOURCE, filters)
        return [
            (given, [on_acls.kafka_acl(acl) for acl in acls], NoError)
            for given, acls in zip(acl_filters, found, strict=True)
        ]
