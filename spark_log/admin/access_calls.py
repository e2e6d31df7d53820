"""The calls of `Admin` on the users of gateways and on their rights."""

from collections.abc import Iterable, Sequence
from typing import Any

from spark_log.admin import users as on_users
from spark_log.admin.audit import local_user
from spark_log.cluster.cluster import Cluster
from spark_log.kafka_errors import kafka_errors

_SOURCE = "admin"


class AccessCalls:
    """Mixin. Whoever can open the store may call them: the rights are those of clients of gateways."""

    _cluster: Cluster

    @kafka_errors()
    def alter_user_scram_credentials(self, alterations: Sequence[Any]) -> dict[str, str | None]:
        """kafka-python's UserScramCredentialUpsertion and -Deletion; {user: error message, None for success}."""
        found = on_users.alter_scram_credentials(self._cluster, local_user(), _SOURCE, alterations)
        return {user: None if error is None else str(error) for user, error in found.items()}

    @kafka_errors()
    def describe_user_scram_credentials(self, users: Iterable[str] | None = None) -> dict[str, dict[str, Any]]:
        """{user: {'error', 'credential_infos': [{'mechanism', 'iterations'}]}}; all users for None."""
        return on_users.describe_scram_credentials(self._cluster, users)
