"""Manages users of gateways and SCRAM credentials, with kafka-python's types. Changes are recorded in `__audit`."""

from collections.abc import Iterable, Sequence
from typing import Any

from kafka.admin import ScramMechanism, UserScramCredentialDeletion, UserScramCredentialUpsertion

from spark_log.clients.admin.audit import recorded
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.security import users as stored
from spark_log.cluster.security.scram import Mechanism
from spark_log.cluster.security.users import KnownCredential, Upsertion
from spark_log.errors import (
    DuplicateResourceError,
    IllegalArgumentError,
    ResourceNotFoundError,
    SparkLogError,
    UnsupportedSaslMechanismError,
)


def put_user(cluster: Cluster, who: str, source: str, upsertions: Sequence[Upsertion]) -> None:
    """Create or replace credentials. `who` and `source` are for the audit."""
    for each in upsertions:
        facts = {"mechanism": each.mechanism.sasl_name, "iterations": each.credential.iterations}
        with recorded(cluster, who, "AlterUserScramCredentials", f"user {each.user}", {"set": facts}, source):
            stored.alter_credentials(cluster.store, [each])


def delete_credential(cluster: Cluster, who: str, source: str, user: str, mechanism: Mechanism | None = None) -> None:
    """Delete the user's credential of this mechanism, or all of them. Raises ResourceNotFoundError if there is none."""
    facts = {"delete": "all" if mechanism is None else mechanism.sasl_name}
    with recorded(cluster, who, "AlterUserScramCredentials", f"user {user}", facts, source):
        if mechanism is None:
            stored.delete_user(cluster.store, user)
        else:
            stored.alter_credentials(cluster.store, deletions=[(user, mechanism)])


def mechanism_of(number: int) -> Mechanism:
    """Return the mechanism with Kafka's number. Raises UnsupportedSaslMechanismError if there is none."""
    try:
        return Mechanism(number)
    except ValueError:
        raise UnsupportedSaslMechanismError(f"there is no SCRAM mechanism {number}") from None


def alter_scram_credentials(
    cluster: Cluster, who: str, source: str, alterations: Sequence[Any]
) -> dict[str, SparkLogError | None]:
    """Apply kafka-python's alterations; return the error of each user, or None for success. As in Kafka, a user with
    two alterations of the same mechanism is not changed.
    """
    for alteration in alterations:
        if not isinstance(alteration, UserScramCredentialUpsertion | UserScramCredentialDeletion):
            raise IllegalArgumentError(
                f"alterations: expected upsertions and deletions, got {type(alteration).__name__}"
            )
    outcomes: dict[str, SparkLogError | None] = {}
    for user in dict.fromkeys(alteration.user for alteration in alterations):
        try:
            _alter(cluster, who, source, user, [alteration for alteration in alterations if alteration.user == user])
            outcomes[user] = None
        except SparkLogError as error:
            outcomes[user] = error
    return outcomes


def _alter(cluster: Cluster, who: str, source: str, user: str, alterations: Sequence[Any]) -> None:
    mechanisms = [int(alteration.mechanism) for alteration in alterations]
    if len(set(mechanisms)) < len(mechanisms):
        raise DuplicateResourceError(f"user {user!r}: a mechanism is in the request more than once")
    upsertions = [
        stored.upsertion_of_salted(
            user,
            mechanism_of(alteration.mechanism),
            bytes(alteration.salt),
            alteration.iterations,
            bytes(alteration.salted_password),
        )
        for alteration in alterations
        if isinstance(alteration, UserScramCredentialUpsertion)
    ]
    deletions = [
        mechanism_of(alteration.mechanism)
        for alteration in alterations
        if isinstance(alteration, UserScramCredentialDeletion)
    ]
    put_user(cluster, who, source, upsertions)
    for mechanism in deletions:
        delete_credential(cluster, who, source, user, mechanism)


def known_credentials(cluster: Cluster, users: Iterable[str] | None) -> dict[str, list[KnownCredential]]:
    """Return the credentials of each user; None means all users. A user without credentials has an empty list."""
    wanted = None if users is None else list(users)
    found: dict[str, list[KnownCredential]] = {user: [] for user in wanted or ()}
    for each in stored.list_credentials(cluster.store, wanted):
        found.setdefault(each.user, []).append(each)
    return found


def describe_scram_credentials(cluster: Cluster, users: Iterable[str] | None) -> dict[str, dict[str, Any]]:
    """Return {user: {'error', 'credential_infos': [{'mechanism', 'iterations'}]}}; None means all users."""
    return {
        user: {
            "error": None if known else str(ResourceNotFoundError(f"there is no user {user!r}")),
            "credential_infos": [
                {"mechanism": ScramMechanism(each.mechanism), "iterations": each.iterations} for each in known
            ],
        }
        for user, known in known_credentials(cluster, users).items()
    }
