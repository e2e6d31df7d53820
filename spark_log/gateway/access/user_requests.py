"""Handles requests on the SCRAM credentials of users (KIP-554), for kafka-configs.sh --entity-type users."""

from collections import Counter

from kafka.admin import UserScramCredentialDeletion, UserScramCredentialUpsertion
from kafka.protocol.admin import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

from spark_log.clients.admin.users import alter_scram_credentials, known_credentials
from spark_log.cluster.security.acl_rules import Operation
from spark_log.errors import DuplicateResourceError, ResourceNotFoundError, SparkLogError
from spark_log.gateway.access.rights import on_cluster
from spark_log.gateway.api import Api, Client, blocking
from spark_log.gateway.protocol.error_codes import NONE, client_message, error_code, outcome_of
from spark_log.gateway.protocol.request_limits import TRANSACTIONS
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.services import Services


def describe_users(services: Services, request: Message, _client: Client) -> Message:
    """Return the mechanisms and iterations of the named users, or of all users for null or an empty list."""
    names = [each.name for each in request.users or ()]
    times = Counter(names)
    outcome = outcome_of(known_credentials, services.cluster, times or None)
    kind = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
    results = []
    for user, credentials in (outcome.result or {}).items():
        error: SparkLogError | None = None
        if times[user] > 1:
            error = DuplicateResourceError(f"user {user!r} is in the request more than once")
        elif not credentials:
            error = ResourceNotFoundError(f"there is no user {user!r}")
        infos = [
            kind.CredentialInfo(mechanism=int(credential.mechanism), iterations=credential.iterations)
            for credential in credentials
        ]
        results.append(
            kind(
                user=user,
                error_code=NONE if error is None else error_code(error),
                error_message=None if error is None else client_message(error),
                credential_infos=[] if error is not None else infos,
            )
        )
    return DescribeUserScramCredentialsResponse(
        throttle_time_ms=0, error_code=outcome.code, error_message=outcome.message, results=results
    )


def alter_users(services: Services, request: Message, client: Client) -> Message:
    """Change credentials. The client has salted the passwords already."""
    alterations: list[object] = []
    for each in request.deletions:
        alterations.append(_Deletion(each.name, each.mechanism))
    for each in request.upsertions:
        alterations.append(_Upsertion(each))
    outcomes = alter_scram_credentials(services.cluster, client.principal, "gateway", alterations)
    kind = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    return AlterUserScramCredentialsResponse(
        throttle_time_ms=0,
        results=[
            kind(
                user=user,
                error_code=NONE if error is None else error_code(error),
                error_message=None if error is None else client_message(error),
            )
            for user, error in outcomes.items()
        ],
    )


class _Deletion(UserScramCredentialDeletion):  # type: ignore[misc]
    """A deletion with any mechanism. kafka-python's class refuses unknown mechanisms, which need an error code."""

    def __init__(self, user: str, mechanism: int) -> None:
        self.user, self.mechanism = user, mechanism


class _Upsertion(UserScramCredentialUpsertion):  # type: ignore[misc]
    """An upsertion with a salted password. kafka-python's class would salt a password itself."""

    def __init__(self, sent: Message) -> None:
        self.user, self.mechanism, self.iterations = sent.name, sent.mechanism, sent.iterations
        self.salt, self.salted_password = sent.salt, sent.salted_password


APIS = (
    Api(DescribeUserScramCredentialsRequest, blocking(describe_users), advertised=(0, 0),
        rights=(on_cluster(Operation.DESCRIBE),)),
    Api(AlterUserScramCredentialsRequest, blocking(alter_users), advertised=(0, 0), limits=TRANSACTIONS,
        rights=(on_cluster(Operation.ALTER),)),
)  # fmt: skip
