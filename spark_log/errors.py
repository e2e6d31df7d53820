"""The tree of spark-log's errors. Class names are kafka-python's wherever Kafka has the error.

SparkLogError
├── RetriableError                    the same call may succeed later; `retriable` is True
│   ├── MetadataStoreUnavailableError
│   ├── StorageUnavailableError
│   │   └── DiskFullError             (a StorageUnavailableError)
│   ├── UnknownTopicOrPartitionError  retriable as in Kafka
│   ├── NotLeaderForPartitionError
│   │   └── TopicMovedError           (a NotLeaderForPartitionError)
│   ├── NotEnoughReplicasError
│   ├── NotEnoughReplicasAfterAppendError
│   ├── NotCoordinatorError, CoordinatorNotAvailableError, NotControllerError
│   ├── SchemaRegistryUnavailableError
│   ├── TransactionCommitPendingError
│   └── KafkaTimeoutError
└── FatalError                        the same call fails again
    ├── ClusterNotFoundError, ClusterAlreadyExistsError, UnsupportedVersionError, UnsupportedStoreError,
    │   StoreChangedError, MetadataStoreError
    │   └── MetadataConflictError         (a MetadataStoreError)
    ├── InvalidConfigurationError, InvalidOptionError, InvalidTopicError, InvalidPartitionsError,
    │   InvalidReplicationFactorError, TopicAlreadyExistsError, PolicyViolationError
    ├── InvalidRecordError
    │   └── MessageSizeTooLargeError, InvalidTimestampError   (InvalidRecordErrors)
    ├── InvalidSchemaError, IncompatibleSchemaError, SchemaRegistryError
    │   └── SchemaNotFoundError           (a SchemaRegistryError)
    ├── OffsetOutOfRangeError, LogTruncationError, NoOffsetForPartitionError, DataLossError
    ├── CommitFailedError, IllegalStateError, WakeupError
    ├── InvalidTxnStateError, TransactionAbortableError, InvalidTransactionTimeoutError,
    │   InvalidProducerIdMappingError, TransactionalIdNotFoundError
    ├── ProducerFencedError, OutOfOrderSequenceNumberError, UnknownProducerIdError, WriteIdExpiredError
    ├── CheckpointMismatchError
    ├── DuplicateBrokerRegistrationError, BrokerIdNotRegisteredError, InvalidReplicationAssignmentError,
    │   NoReassignmentInProgressError, ElectionNotNeededError, PreferredLeaderNotAvailableError,
    │   EligibleLeadersNotAvailableError
    ├── UnknownMemberIdError, IllegalGenerationError, FencedInstanceIdError, InconsistentGroupProtocolError,
    │   RebalanceInProgressError, AssignorFailedError, InvalidGroupIdError, InvalidSessionTimeoutError,
    │   FencedMemberEpochError, StaleMemberEpochError, UnreleasedInstanceIdError, UnsupportedAssignorError,
    │   GroupMaxSizeReachedError, GroupAssignmentTooLargeError, InvalidRegularExpressionError
    ├── NonEmptyGroupError, GroupIdNotFoundError, GroupSubscribedToTopicError, OffsetMetadataTooLargeError,
    │   IllegalArgumentError, InvalidRecordStateError, DeadLetterTopicError
    ├── StoreNotFoundError, CrossStoreTransactionError
    ├── ResourceNotFoundError, DuplicateResourceError, UnacceptableCredentialError, UnsupportedSaslMechanismError,
    │   SecurityDisabledError
    └── CorruptRecordError, UnsafePathError, LogDirMismatchError, DeltaNotInstalledError,
        ClassicSessionRequiredError
"""

import errno
import re
from collections.abc import Mapping
from typing import Any


class SparkLogError(Exception):
    """Root of every error that spark-log raises on purpose.

    The docstring of each class says when it is raised and, after "Remedy:", what to do.
    """

    retriable = False


class RetriableError(SparkLogError):
    """Base of the errors after which the same call may succeed later.

    Remedy: repeat the call with a pause between attempts. Clients, Spark jobs and the command line already repeat
    it for a while before they raise one.
    """

    retriable = True


class FatalError(SparkLogError):
    """Base of the errors that the same call raises again until something else is changed.

    Remedy: do what the error says; do not repeat the call as it is.
    """


class MetadataStoreUnavailableError(RetriableError):
    """The metadata store did not answer in time, or the connection to it was lost.

    Remedy: check that PostgreSQL runs and that this host reaches it, or that no process holds the SQLite file's
    lock; then repeat the call. An append that failed with it is in the log completely or not at all, and a producer
    that repeats it creates no duplicates.
    """


class StorageUnavailableError(RetriableError):
    """A log dir cannot be read or written: the disk is full, the mount is gone, or the object store does not answer.

    Remedy: free space, or restore the mount or the connection; `spark-log broker list` shows which log dirs are
    offline. Nothing was appended.
    """


class DiskFullError(StorageUnavailableError):
    """The disk or the quota of a log dir or of the metadata store is full. A producer tries again for 5 seconds only,
    since a full disk rarely gets room by itself.

    Remedy: free space on that disk; or lower retention.ms or retention.bytes of topics and shorten their
    file.delete.delay.ms, and run `spark-log maintenance`. Nothing was appended.
    """


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


class SchemaRegistryUnavailableError(RetriableError):
    """The schema registry of a topic (schema.registry.url) does not answer. Tails with values of a schema that is not
    known yet are sealed later; appends continue.

    Remedy: check the address and the server; what waits is done when it answers again.
    """


class TransactionCommitPendingError(RetriableError):
    """A transaction is committed, and a data store has not appended its records yet, because the store does not answer
    or a partition has no leader. The decision is durable, and the transaction cannot be aborted any more.

    Remedy: repeat the call, which waits for the store. A coordinator completes the transaction too. The next
    transaction of the same transactional_id begins after that.
    """


class KafkaTimeoutError(RetriableError):
    """The operation did not finish within the time that the caller allowed. It may still be done afterwards.

    Remedy: allow more time, or find what is slow: the message names the operation.
    """


class ClusterNotFoundError(FatalError):
    """There is no cluster at the address.

    Remedy: check the address; `spark-log init ADDRESS` creates a cluster.
    """


class ClusterAlreadyExistsError(FatalError):
    """A cluster cannot be created where one exists.

    Remedy: open the existing one, or choose another address.
    """


class UnsupportedVersionError(FatalError):
    """A newer spark-log, or one from before the first release, wrote the metadata store; or the called method of
    kafka-python's API does not exist here.

    Remedy: for a newer store, upgrade spark-log on this machine; for an older one, create a new cluster and copy
    the topics. The message says which case it is.
    """


class UnsupportedStoreError(FatalError):
    """The metadata store could lose acknowledged records: SQLite on a network file system, or PostgreSQL with fsync,
    full_page_writes or synchronous_commit off.

    Remedy: move the cluster's folder to a local disk, or switch the setting on.
    """


class MetadataStoreError(FatalError):
    """The metadata store refused a statement: a privilege or a table is missing, its file is damaged, or a value does
    not fit. Or a process was stopped for a day in the middle of a commit, whose outcome is not known any more.

    Remedy: the message holds the database's own text: grant the privilege, or restore the store from a backup.
    Report it if neither applies.
    """


class MetadataConflictError(MetadataStoreError):
    """A row exists already, or another row still refers to it.

    Remedy: repeat the operation, which then sees the other change; report it if it persists.
    """


class StoreChangedError(FatalError):
    """The metadata store is on another PostgreSQL server, in another database, or on another timeline than when it was
    last accepted: it was restored or promoted, and may know less than the log dirs hold. Clean-up of files and
    publication to Delta tables have stopped; appends and reads go on.

    Remedy: compare with `spark-log store status`, then run `spark-log store accept`.
    """


class InvalidConfigurationError(FatalError):
    """A config does not exist, its value is not valid, or two values contradict each other.

    Remedy: correct the config that the message names; docs/reference/configs.md lists all, with types and defaults.
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
    transaction would have too many batches.

    Remedy: choose another topic, or alter its cleanup.policy if the message names it; commit more often.
    """


class InvalidRecordError(FatalError):
    """A record has a field that the log cannot store: a wrong type, no value, or no key in a compacted topic. Nothing
    of the write was appended.

    Remedy: correct the record that the message names.
    """


class InvalidSchemaError(FatalError):
    """A schema of a topic's keys or values cannot be read, or has a field that cannot be a column: an unknown type, a
    name that Delta tables cannot have, names that differ in case only, too many fields.

    Remedy: correct the field that the message names.
    """


class IncompatibleSchemaError(FatalError):
    """The new schema gives a column of the topic another type, or has a name that differs from a column's in case only;
    or it is not compatible with the versions of its subject in the schema registry. The schema was not changed.

    Remedy: give the field a new name; or, for a subject, give a new field a default, or change the compatibility level.
    """


class SchemaRegistryError(FatalError):
    """The schema registry refuses the request: the version, the mode, the compatibility level or the subject's name is
    not valid, the subject is read-only, or another schema refers to the version.

    Remedy: correct the argument that the message names. `error_code` is that of Confluent's Schema Registry.
    """

    def __init__(self, message: str, error_code: int) -> None:
        super().__init__(message, error_code)
        self.error_code = error_code

    def __str__(self) -> str:
        return str(self.args[0])


class SchemaNotFoundError(SchemaRegistryError):
    """The schema registry has no such subject, version or schema.

    Remedy: list what there is with `Registry.subjects()` and `Registry.versions()`; register the schema.
    """


class MessageSizeTooLargeError(InvalidRecordError):
    """A record (key, value and headers) is larger than max.message.bytes.

    Remedy: make the record smaller, or raise the topic's max.message.bytes.
    """


class InvalidTimestampError(InvalidRecordError):
    """A record's timestamp is null, negative, or outside message.timestamp.before.max.ms and
    message.timestamp.after.max.ms.

    Remedy: correct the timestamp and the clock of its source, or raise the limit.
    """


class OffsetOutOfRangeError(FatalError):
    """The offset is below the log start offset or above the high watermark: the records were removed by retention, or
    do not exist yet.

    Remedy: seek to an offset in the range that the message names, or set auto_offset_reset.
    """


class LogTruncationError(FatalError):
    """An unclean leader election, or the restore of an older metadata store, removed records that the reader has read:
    its position belongs to the lost part of the log.

    Remedy: seek to `divergent_offsets` and handle what was read beyond them, or set auto_offset_reset.

    `divergent_offsets` has for each partition where to read on, `partition_offsets` where the reader was. Keys are
    TopicPartitions; a client's `divergent_offsets` has OffsetAndMetadata values.
    """

    def __init__(
        self, divergent_offsets: Mapping[Any, Any], partition_offsets: Mapping[Any, int] | None = None
    ) -> None:
        super().__init__(divergent_offsets)  # kafka-python's class, if this is one too, takes them so
        self.divergent_offsets = dict(divergent_offsets)
        self.partition_offsets = dict(partition_offsets or {})
        self.args = (self.divergent_offsets, self.partition_offsets)

    def __str__(self) -> str:
        return f"log truncated below the positions {self.partition_offsets}: diverging at {self.divergent_offsets}"


class NoOffsetForPartitionError(FatalError):
    """The group has committed no offset for the partition, and auto_offset_reset is none.

    Remedy: commit or seek to an offset, or set auto_offset_reset to earliest or latest.
    """


class CommitFailedError(FatalError):
    """The consumer is no longer a member of the group, so its partitions may belong to another member, which continues
    from the last commit.

    Remedy: call poll() to join again; process faster than max_poll_interval_ms, or raise it.
    """


class WakeupError(FatalError):
    """A poll of a share consumer ended because another thread called `wakeup`.

    Remedy: none; the consumer can be used further.
    """


class IllegalStateError(FatalError):
    """The call does not fit the state of the client: it is closed, in use by another thread, or was created before a
    fork.

    Remedy: create a client per thread and per process, and do not use one that is closed.
    """


class DataLossError(FatalError):
    """Records that the reader still had to read are gone: removed by retention, lost in an election, or their topic was
    deleted.

    Remedy: find the cause in the message; then start from a new position, or continue over the gap with
    failOnDataLoss=false.
    """


class ProducerFencedError(FatalError):
    """Another producer with the same transactional_id has started, so this one may not write any more.

    Remedy: close this producer. Run only one per transactional_id.
    """


class InvalidTxnStateError(FatalError):
    """The call does not fit the state of the transaction: it has ended, or none or another one is open.

    Remedy: call begin_transaction, sends, and commit_transaction or abort_transaction in this order.
    """


class TransactionAbortableError(FatalError):
    """The transaction cannot be committed: a send failed, its time-out has passed, an operator aborted it, or a topic
    was deleted (KIP-1050).

    Remedy: call abort_transaction and do the work again in a new transaction.
    """


class InvalidTransactionTimeoutError(FatalError):
    """The producer's transaction_timeout_ms is above the cluster's transaction.max.timeout.ms.

    Remedy: lower it, or raise the cluster setting.
    """


class InvalidProducerIdMappingError(FatalError):
    """The transactional_id has expired (transactional.id.expiration.ms).

    Remedy: close the producer and create another one.
    """


class TransactionalIdNotFoundError(FatalError):
    """There is no producer with this transactional_id.

    Remedy: check it with `spark-log transaction list`.
    """


class OutOfOrderSequenceNumberError(FatalError):
    """The producer's sequence numbers have a gap: a batch before this one was not appended.

    Remedy: close the producer, find out which records failed, and send them with a new producer.
    """


class UnknownProducerIdError(FatalError):
    """The producer was silent for longer than producer.id.expiration.ms, so duplicates of its batches can no longer be
    detected.

    Remedy: create a new producer, or raise the cluster setting.
    """


class WriteIdExpiredError(FatalError):
    """The lease of the writer's right to create files ended before the append, so its files may be deleted already.
    Nothing was appended.

    Remedy: repeat the whole write. For long Spark jobs raise spark.write.id.lease.ms.
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


class CheckpointMismatchError(FatalError):
    """A Spark sink writes another batch with the number of its last one, or an older batch after a newer one: the
    checkpoint was copied or rolled back. Where the sink cannot read Spark's offset log (the checkpoint is that of
    spark.sql.streaming.checkpointLocation), a repeated batch with other rows counts as another one.

    Remedy: start the query with a new checkpoint location, given by the option checkpointLocation.
    """


class CoordinatorNotAvailableError(RetriableError):
    """The group cannot answer a member yet: its assignment is being computed, or the member must first report all that
    it has.

    Remedy: none; Kafka clients send a full heartbeat.
    """


class UnknownMemberIdError(FatalError):
    """The member is not, or no longer, in the group: its session ended, and other members may own its partitions.

    Remedy: join again; a Consumer does so in its next poll().
    """


class IllegalGenerationError(FatalError):
    """The member's request belongs to another generation of the group than the current one.

    Remedy: send a heartbeat to learn the new generation; a Consumer does so in its next poll().
    """


class RebalanceInProgressError(FatalError):
    """The members of the group are joining its next generation, or wait for their assignments.

    Remedy: join again, then repeat the request.
    """


class FencedInstanceIdError(FatalError):
    """Another member joined with the same group.instance.id.

    Remedy: give each running consumer its own group_instance_id.
    """


class FencedMemberEpochError(FatalError):
    """A member of the consumer protocol sent an epoch that is not its own.

    Remedy: none; Kafka clients give their partitions up and join again.
    """


class StaleMemberEpochError(FatalError):
    """Offsets were committed or fetched with another epoch than the member's.

    Remedy: repeat it with the epoch of the next heartbeat response; Kafka clients do so.
    """


class UnreleasedInstanceIdError(FatalError):
    """A running member has the same group.instance.id.

    Remedy: stop it first, or wait until its session has ended; give each running consumer its own group.instance.id.
    """


class UnsupportedAssignorError(FatalError):
    """The group.remote.assignor is not one of the server's.

    Remedy: take uniform or range.
    """


class GroupMaxSizeReachedError(FatalError):
    """The group has group.consumer.max.size members; or, where its leader assigns, 1,000 members or 4 MiB of their
    metadata and assignments.

    Remedy: run fewer consumers, or raise the cluster setting; give the group fewer topics.
    """


class GroupAssignmentTooLargeError(FatalError):
    """The leader of a group has sent assignments that have more than 4 MiB with the metadata of the members.

    Remedy: divide the work among several groups.
    """


class InvalidRegularExpressionError(FatalError):
    """A subscription is not a regular expression in RE2's syntax.

    Remedy: correct it; the message says where it is wrong.
    """


class InconsistentGroupProtocolError(FatalError):
    """No assignor is supported by all members of the group.

    Remedy: give all members at least one assignor in common.
    """


class AssignorFailedError(FatalError):
    """The group's assignor raised an error, or returned something that is not a valid assignment. The members keep
    their partitions.

    Remedy: correct the assignor; the message holds its error.
    """


class InvalidGroupIdError(FatalError):
    """The group id is empty, too long, or not text.

    Remedy: choose another group id.
    """


class InvalidSessionTimeoutError(FatalError):
    """The session timeout is outside group.min.session.timeout.ms and group.max.session.timeout.ms.

    Remedy: choose one between them, or alter the cluster settings.
    """


class NonEmptyGroupError(FatalError):
    """The operation needs a group without members, and this one has some.

    Remedy: stop the group's consumers, or wait until their sessions end.
    """


class GroupIdNotFoundError(FatalError):
    """There is no group with this id, or it is of another type: a share group has no committed offsets.

    Remedy: check it with `spark-log group list`.
    """


class GroupSubscribedToTopicError(FatalError):
    """Members of the group are subscribed to the topic whose offsets are to be deleted.

    Remedy: stop these consumers, or unsubscribe them.
    """


class InvalidRecordStateError(FatalError):
    """A share group's record is not, or no longer, acquired by the member that acknowledges it: its lock ended, it was
    acknowledged before, or share.renew.acknowledge.enable is false.

    Remedy: work faster than share.record.lock.duration.ms, or renew the locks; the record is delivered again.
    """


class DeadLetterTopicError(FatalError):
    """The dead letter topic of a share group is missing, is not configured as one, or has a name that is not allowed.
    The group's records wait until it can be used.

    Remedy: create the topic with errors.deadletterqueue.group.enable=true, or change or clear the group's config
    errors.deadletterqueue.topic.name.
    """


class OffsetMetadataTooLargeError(FatalError):
    """The metadata text of a commit is larger than offset.metadata.max.bytes.

    Remedy: commit a shorter text, or raise the cluster setting.
    """


class IllegalArgumentError(FatalError):
    """An argument is not valid, for example a negative offset.

    Remedy: correct the argument that the message names.
    """


class StoreNotFoundError(FatalError):
    """The cluster has no data store of this name or number.

    Remedy: `spark-log store list` shows the stores; `spark-log store add` adds one.
    """


class CrossStoreTransactionError(FatalError):
    """A transaction, or a request that is atomic, would write to topics of several metadata stores.

    Remedy: keep the topics of one transaction in one store (`spark-log topic describe` shows the store of each). If
    readers may see a transaction in one store before they see it in another, allow it for producers with `spark-log
    cluster config --set transaction.cross.store=allow`.
    """


class ResourceNotFoundError(FatalError):
    """There is no such user, or the user has no credential of this mechanism.

    Remedy: check it with `spark-log user list`.
    """


class DuplicateResourceError(FatalError):
    """A request names the same user and mechanism twice.

    Remedy: name each once.
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

    Remedy: start it with --acls, or use `spark-log acl`.
    """


class CorruptRecordError(FatalError):
    """Stored bytes fail their checksum, are missing, or differ from what the metadata says, and no other replica has
    them intact.

    Remedy: restore the file that the message names from a backup, or read on behind it.
    """


class UnsafePathError(FatalError):
    """A path in the metadata or in a log dir is absolute, contains `..`, or crosses a symbolic link. Nothing was read
    or written.

    Remedy: remove the symbolic link; otherwise treat the metadata store as tampered with, and restore it.
    """


class LogDirMismatchError(FatalError):
    """A log dir's marker file is missing, unreadable, of another cluster, or older than the metadata store expects: the
    folder is empty, not mounted, swapped, or restored.

    Remedy: mount or restore the right folder. If it is lost for good, move the replicas of its broker to others
    (`spark-log partition reassign`).
    """


class DeltaNotInstalledError(FatalError):
    """Delta's JARs are not on Spark's class path, or could not be downloaded and installed.

    Remedy: run `spark-log delta install` on every machine of the Spark cluster, or start Spark with `--packages`.
    """


class ClassicSessionRequiredError(FatalError):
    """The call needs objects of Spark's JVM, which a session of Spark Connect does not have.

    Remedy: make the session with `SparkSession.builder.master(...)`, or submit the program with spark-submit.
    """


_USER_INFO = re.compile(
    r"""
    ://
    (?: (?P<user> [^\s/?#:]* ) : (?: (?!://) \S )*   # a password may have / ? # and @ that should be escaped
      | (?P<token> [^\s/?#:@]+ )
    ) @
    """,
    re.VERBOSE,
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*$")
_SCHEME_LENGTH_MAX = 40
_SECRET_PARAMETER = re.compile(
    r"""
    ( (?: ^ | [?&;\s] )
      (?: [\w.-]{0,40} (?: passw(?:or)?d | secret | token | api[_-]?key | access[_-]?key | credential | signature )
          [\w.-]{0,40} | sig ) = )
    (?: "[^"]*" | '[^']*' | [^&;\s'"]* )
    """,
    re.VERBOSE | re.IGNORECASE,
)


_FULL = (errno.ENOSPC, errno.EDQUOT)


def storage_error(message: str, error: OSError) -> StorageUnavailableError:
    """Return a StorageUnavailableError with this message. If `error` says that the disk or the quota is full, return a
    DiskFullError, whose message also has the remedy.
    """
    if error.errno not in _FULL:
        return StorageUnavailableError(message)
    return DiskFullError(
        f"{message}. Free space there; or lower retention.ms or retention.bytes of topics and shorten their"
        " file.delete.delay.ms, and run `spark-log maintenance`"
    )


def redact(text: str) -> str:
    """Return `text` with every secret in it replaced by ***, for messages, logs, reprs and Spark plans.

    Secrets are the passwords of URLs, user information of URLs that is a token (`https://TOKEN@host`), and parameters
    such as `token=`. A password ends at the last @ before a space, so that one with an unescaped / is hidden too. In
    `http://h:80/a@b`, more is hidden than necessary.
    """
    return _SECRET_PARAMETER.sub(r"\1***", _USER_INFO.sub(_without_secret, text))


def _without_secret(found: re.Match[str]) -> str:
    """Return the replacement of a URL's user information. A user name is kept only where it cannot be a token.

    For http and https it is replaced, because Git servers and schema registries accept tokens there.
    """
    before = _SCHEME.search(found.string[max(0, found.start() - _SCHEME_LENGTH_MAX) : found.start()])
    scheme = before[0].lower() if before else ""
    if scheme.startswith("postgres"):
        return found[0] if found["user"] is None else f"://{found['user']}:***@"
    if found["user"] is None or scheme in ("http", "https"):
        return "://***@"
    return f"://{found['user']}:***@"


def install_extra(name: str) -> str:
    """Return the end of an error message that says how to install an extra (pyproject.toml, `optional-dependencies`).

    No package index has spark-log, so another project could take the name there: the message must not suggest a
    `pip install` of the bare name.
    """
    return f"install spark-log with its extra '{name}': pip install '.[{name}]' in spark-log's repository"
