"""Stores the users of gateways with their SCRAM credentials (KIP-554). A row never has a password."""

import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from spark_log.cluster.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES,
    SALT_BYTES_MAX,
    Credential,
    Mechanism,
    credential_of,
    made_up_credential,
    salted_password,
)
from spark_log.config.values import can_be_stored
from spark_log.errors import ResourceNotFoundError, UnacceptableCredentialError
from spark_log.metadata import tables as t
from spark_log.metadata.insert import insert_or_replace
from spark_log.metadata.sql_columns import CLUSTER, SCRAM_CREDENTIAL
from spark_log.metadata.store import Store

NAME_LENGTH_MAX = 249


@dataclass(frozen=True)
class KnownCredential:
    """The parts of a credential that may be shown."""

    user: str
    mechanism: Mechanism
    iterations: int


@dataclass(frozen=True)
class Upsertion:
    """A new credential of a user. It replaces the user's credential for this mechanism."""

    user: str
    mechanism: Mechanism
    credential: Credential


def upsertion_of_password(
    user: str, mechanism: Mechanism, password: str, iterations: int = ITERATIONS_MIN
) -> Upsertion:
    """Return a credential of the password with a new salt.

    Raises UnacceptableCredentialError if the password is empty, or the user name or the iterations are not allowed.
    """
    if not password:
        raise UnacceptableCredentialError("the password is empty")
    _check(user, iterations)
    salt = secrets.token_bytes(SALT_BYTES)
    salted = salted_password(password, mechanism, salt, iterations)
    return Upsertion(user, mechanism, credential_of(salted, mechanism, salt, iterations))


def upsertion_of_salted(user: str, mechanism: Mechanism, salt: bytes, iterations: int, salted: bytes) -> Upsertion:
    """Return a credential of a password that the client has salted.

    Raises UnacceptableCredentialError if the user name, the iterations or the length of a value is not allowed.
    """
    _check(user, iterations)
    if not 0 < len(salt) <= SALT_BYTES_MAX:
        raise UnacceptableCredentialError(f"the salt has {len(salt)} bytes: expected 1 to {SALT_BYTES_MAX}")
    expected = len(salted_password("", mechanism, b"-", 1))
    if len(salted) != expected:
        raise UnacceptableCredentialError(f"the salted password has {len(salted)} bytes: expected {expected}")
    return Upsertion(user, mechanism, credential_of(salted, mechanism, salt, iterations))


def alter_credentials(
    store: Store, upsertions: Sequence[Upsertion] = (), deletions: Collection[tuple[str, Mechanism]] = ()
) -> None:
    """Apply all changes or none. Raises ResourceNotFoundError if a credential to delete does not exist."""

    def body(connection: sa.Connection) -> None:
        for user, mechanism in sorted(deletions):
            delete = t.scram_credential.delete().where(_is(user, mechanism))
            if not can_be_stored(user) or not connection.execute(delete).rowcount:
                raise ResourceNotFoundError(f"user {user!r} has no {mechanism.sasl_name} credential")
        for upsertion in sorted(upsertions, key=lambda one: (one.user, one.mechanism)):
            key = {"user_name": upsertion.user, "mechanism": int(upsertion.mechanism)}
            insert_or_replace(connection, t.scram_credential, [{**key, **vars(upsertion.credential)}])

    store.transact(body)


def delete_user(store: Store, user: str) -> None:
    """Delete all credentials of a user. Raises ResourceNotFoundError if there are none."""
    known = [each.mechanism for each in list_credentials(store, [user])]
    if not known:
        raise ResourceNotFoundError(f"there is no user {user!r}")
    alter_credentials(store, deletions=[(user, mechanism) for mechanism in known])


def list_credentials(store: Store, users: Collection[str] | None = None) -> list[KnownCredential]:
    """Return the credentials of these users (None means all), sorted by user and mechanism."""
    wanted = None if users is None else {name for name in users if can_be_stored(name)}
    query = sa.select(SCRAM_CREDENTIAL.user_name, SCRAM_CREDENTIAL.mechanism, SCRAM_CREDENTIAL.iterations)
    if wanted is not None:
        query = query.where(SCRAM_CREDENTIAL.user_name.in_(wanted))
    rows = store.read(lambda connection: connection.execute(query).all())
    return sorted(
        (KnownCredential(user, Mechanism(mechanism), iterations) for user, mechanism, iterations in rows),
        key=lambda each: (each.user, each.mechanism),
    )


def find_credential(store: Store, user: str, mechanism: Mechanism) -> Credential:
    """Return the user's credential, or for an unknown user one that matches no password."""
    query = sa.select(
        SCRAM_CREDENTIAL.salt, SCRAM_CREDENTIAL.iterations, SCRAM_CREDENTIAL.stored_key, SCRAM_CREDENTIAL.server_key
    )
    name = user if can_be_stored(user) else ""  # no user has this name

    def read(connection: sa.Connection) -> Credential:
        secret = connection.execute(sa.select(CLUSTER.secret)).scalar_one()
        row = connection.execute(query.where(_is(name, mechanism))).first()
        return made_up_credential(secret, name, mechanism) if row is None else Credential(*row)

    return store.read(read)


def _is(user: str, mechanism: Mechanism) -> sa.ColumnElement[bool]:
    return (SCRAM_CREDENTIAL.user_name == user) & (SCRAM_CREDENTIAL.mechanism == int(mechanism))


def _check(user: str, iterations: int) -> None:
    if not 0 < len(user) <= NAME_LENGTH_MAX or not can_be_stored(user):
        raise UnacceptableCredentialError(f"user name {user[:50]!r}: expected 1 to {NAME_LENGTH_MAX} characters")
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise UnacceptableCredentialError(
            f"{iterations} iterations: expected {ITERATIONS_MIN} to {ITERATIONS_MAX}, as in Kafka"
        )
