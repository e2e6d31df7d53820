"""Errors of calls that do not fit their client, of users and of access control."""

from spark_log.errors.base import FatalError, RetriableError


class KafkaTimeoutError(RetriableError):
    """The operation did not finish within the time that the caller allowed. The operation may still be done afterwards.

    Remedy: allow more time, or find what is slow: the message names the operation.
    """


class IllegalStateError(FatalError):
    """The call does not fit the state of the client: it is closed, in use by another thread, or was created before a
    fork.

    Remedy: create a client per thread and per process, and do not use one that is closed.
    """


class IllegalArgumentError(FatalError):
    """An argument is not valid, for example a negative offset.

    Remedy: correct the argument that the message names.
    """


class WakeupError(FatalError):
    """A poll of a share consumer ended because another thread called `wakeup`.

    Remedy: none; the consumer can be used further.
    """


class ClassicSessionRequiredError(FatalError):
    """The call needs objects of Spark's JVM, which a session of Spark Connect does not have.

    Remedy: make the session with `SparkSession.builder.master(...)`, or submit the program with spark-submit.
    """


class ResourceNotFoundError(FatalError):
    """There is no such user, or the user has no credential of this mechanism.

    Remedy: check the user with `spark-log user list`.
    """


class DuplicateResourceError(FatalError):
    """A request names the same user and mechanism twice.

    Remedy: name each pair of user and mechanism once.
    """


class UnacceptableCredentialError(FatalError):
    """A credential is refused: the name or the password is empty, or the iterations are too few or too many.

    Remedy: correct what the message names.
    """


class UnsupportedSaslMechanismError(FatalError):
    """There is no SASL mechanism of this name or number.

    Remedy: use SCRAM-SHA-256 or SCRAM-SHA-512.
    """


class SecurityDisabledError(FatalError):
    """The gateway does not check access control lists, so it neither shows nor changes them.

    Remedy: start the gateway with --acls, or use `spark-log acl`.
    """
