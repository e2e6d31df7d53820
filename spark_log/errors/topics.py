"""Errors of topics, partitions, replicas and brokers, and of configs and options."""

from spark_log.errors.base import FatalError, RetriableError


class UnknownTopicOrPartitionError(RetriableError):
    """The cluster has no topic of this name, or the topic has no partition of this number. Retriable as in Kafka,
    because another process may be about to create it.

    Remedy: check the name with `spark-log topic list`; create the topic, or add partitions to it.
    """


class NotLeaderForPartitionError(RetriableError):
    """The partition has no leader, or it elected another one since the writer last asked.

    Remedy: repeat the call. If the partition stays without a leader (`spark-log topic describe`), bring one of its
    in-sync brokers or log dirs back.
    """


class TopicMovedError(NotLeaderForPartitionError):
    """The topic is being moved to another metadata store, or has been moved. Clients look it up again and repeat the
    call.

    Remedy: repeat the call with the topic as the cluster has it now; abort and repeat a transaction.
    """


class NotEnoughReplicasError(RetriableError):
    """With acks=all, the in-sync replicas are fewer than min.insync.replicas. Nothing was appended.

    Remedy: bring brokers or log dirs back, or lower the topic's min.insync.replicas; then repeat the call.
    """


class NotEnoughReplicasAfterAppendError(RetriableError):
    """With acks=all, the records were appended, but not every in-sync replica had them in time.

    Remedy: repeat the call: a producer or a Spark batch that repeats it creates no duplicates.
    """


class NotCoordinatorError(RetriableError):
    """Another process took the coordinator's lease; the change was not made.

    Remedy: none, unless it occurs often: then the process was suspended for longer than controller.lease.ms, or its
    host is overloaded.
    """


class NotControllerError(RetriableError):
    """Another process took the controller's lease; the change was not made.

    Remedy: none, unless it occurs often: then the process was suspended for longer than controller.lease.ms, or its
    host is overloaded.
    """


class InvalidConfigurationError(FatalError):
    """A config does not exist, its value is not valid, or two values contradict each other.

    Remedy: correct the config that the message names; docs/reference/configs.md lists all, with types and defaults.
    """


class WrongDatabaseError(InvalidConfigurationError):
    """The address of a metadata store names a database that does not exist, or that of another store.

    Remedy: correct the address, or restore the database from a backup.
    """


class InvalidOptionError(FatalError):
    """An option of `format("spark_log")` is missing, not valid, or contradicts another.

    Remedy: correct the option that the message names.
    """


class InvalidTopicError(FatalError):
    """The topic name is not legal: 1 to 249 characters of a-z, A-Z, 0-9, `.`, `_` and `-`, and neither `.` nor `..`.

    Remedy: choose another name.
    """


class InvalidPartitionsError(FatalError):
    """The number of partitions is not valid: it is below 1, above the limit, or not more than the topic has.

    Remedy: give a number in the range that the message names. A topic never loses partitions.
    """


class InvalidReplicationFactorError(FatalError):
    """The replication factor is below 1 or larger than the number of brokers that are alive.

    Remedy: choose a smaller factor, or add brokers.
    """


class TopicAlreadyExistsError(FatalError):
    """The topic exists, or its name differs from an existing one only in `.` and `_`.

    Remedy: use the existing topic, or choose another name.
    """


class PolicyViolationError(FatalError):
    """The operation is not allowed on this topic: it is internal, or its cleanup.policy does not permit it. Or a
    transaction would have too many batches, or offsets of too many groups.

    Remedy: choose another topic, or alter its cleanup.policy if the message names it; commit more often, or the offsets
    of fewer groups together.
    """


class DuplicateBrokerRegistrationError(FatalError):
    """A broker with this id exists already, or another process serves it.

    Remedy: choose another id, or stop the other process.
    """


class BrokerIdNotRegisteredError(FatalError):
    """The cluster has no broker with this id.

    Remedy: check it with `spark-log broker list`; `spark-log broker add` registers one.
    """


class InvalidReplicationAssignmentError(FatalError):
    """The replica assignment is malformed, names a broker twice or one that does not exist, or is placed by hand where
    spark-log places replicas.

    Remedy: correct the assignment as the message says.
    """


class NoReassignmentInProgressError(FatalError):
    """The partition has no reassignment to cancel.

    Remedy: none: it has finished, or was never started.
    """


class ElectionNotNeededError(FatalError):
    """The partition already has the leader that the election would choose.

    Remedy: none.
    """


class PreferredLeaderNotAvailableError(FatalError):
    """The preferred leader is not alive, not in sync, or lacks records.

    Remedy: bring its broker back, wait until it is in sync, and repeat the election.
    """


class EligibleLeadersNotAvailableError(FatalError):
    """No replica of the partition is alive.

    Remedy: bring a broker or a log dir of the partition back.
    """
