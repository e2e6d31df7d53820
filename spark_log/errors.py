"""One error tree. Class names are kafka-python's wherever Kafka has the error.

SparkLogError
├── RetriableError                    trying again may help (`retriable` is a fact of the class)
│   ├── MetadataStoreUnavailableError
│   ├── StorageUnavailableError
│   ├── UnknownTopicOrPartitionError  as in Kafka, where metadata may be on its way
│   ├── NotLeaderForPartitionError
│   ├── NotEnoughReplicasError
│   ├── NotEnoughReplicasAfterAppendError
│   ├── NotCoordinatorError, NotControllerError
│   └── KafkaTimeoutError
└── FatalError                        trying again changes nothing
    ├── ClusterNotFoundError, ClusterAlreadyExistsError, UnsupportedVersionError, UnsupportedStoreError,
    │   StoreChangedError, MetadataStoreError
    │   └── MetadataConflictError         (a MetadataStoreError)
    ├── InvalidConfigurationError, InvalidOptionError, InvalidTopicError, InvalidPartitionsError,
    │   InvalidReplicationFactorError, TopicAlreadyExistsError, PolicyViolationError
    ├── InvalidRecordError, MessageSizeTooLargeError, InvalidTimestampError
    ├── OffsetOutOfRangeError, LogTruncationError, NoOffsetForPartitionError, DataLossError
    ├── CommitFailedError, IllegalStateError
    ├── InvalidTxnStateError, TransactionAbortableError, InvalidTransactionTimeoutError,
    │   InvalidProducerIdMappingError, TransactionalIdNotFoundError,
    ├── ProducerFencedError, OutOfOrderSequenceNumberError, UnknownProducerIdError, WriteIdExpiredError
    ├── CheckpointMismatchError
    ├── DuplicateBrokerRegistrationError, BrokerIdNotRegisteredError, InvalidReplicationAssignmentError,
    │   NoReassignmentInProgressError, ElectionNotNeededError, PreferredLeaderNotAvailableError,
    │   EligibleLeadersNotAvailableError
    ├── UnknownMemberIdError, IllegalGenerationError, FencedInstanceIdError, InconsistentGroupProtocolError,
    │   AssignorFailedError, InvalidGroupIdError, InvalidSessionTimeoutError
    ├── NonEmptyGroupError, GroupIdNotFoundError, GroupSubscribedToTopicError, OffsetMetadataTooLargeError,
    │   IllegalArgumentError
    └── CorruptRecordError, UnsafePathError, LogDirMismatchError
"""

import re
from collections.abc import Mapping
from typing import Any


class SparkLogError(Exception):
    """Root of every error that spark-log raises on purpose."""

    retriable = False


class RetriableError(SparkLogError):
    retriable = True


class FatalError(SparkLogError):
    pass


class MetadataStoreUnavailableError(RetriableError):
    """The metadata store did not answer, or went away in the middle of a transaction."""


class StorageUnavailableError(RetriableError):
    """A log dir cannot be written or read just now (disk full, mount gone, object store away)."""


class UnknownTopicOrPartitionError(RetriableError):
    """This cluster does not host the topic or the partition."""


class NotLeaderForPartitionError(RetriableError):
    """The leader epoch that the writer knew is not the current one, or the partition has no leader."""


class NotEnoughReplicasError(RetriableError):
    """acks=all and the ISR is smaller than min.insync.replicas; nothing was appended."""


class NotEnoughReplicasAfterAppendError(RetriableError):
    """acks=all and the ISR shrank below min.insync.replicas while the records were on their way."""


class NotCoordinatorError(RetriableError):
    """The lease `coordinator` has gone to another term: what was about to be done under it is not done."""


class NotControllerError(RetriableError):
    """The lease `controller` has gone to another term: what was about to be done under it is not done."""


class KafkaTimeoutError(RetriableError):
    """The time given for the operation has passed."""


class ClusterNotFoundError(FatalError):
    """There is no cluster at the address."""


class ClusterAlreadyExistsError(FatalError):
    """There is a cluster at the address already."""


class UnsupportedVersionError(FatalError):
    """The metadata store was written by a newer spark-log."""


class UnsupportedStoreError(FatalError):
    """The metadata store cannot give the guarantees that the log needs (network file system, fsync off)."""


class MetadataStoreError(FatalError):
    """The metadata store refused a statement: a privilege or a table is missing, its file is damaged, it cannot hold a
    value, or spark-log has a defect.
    """


class MetadataConflictError(MetadataStoreError):
    """A row that may be there once is there already, or a row is still referred to."""


class StoreChangedError(FatalError):
    """The metadata store is on another server, or another line of its history, than the log dirs were written under."""


class InvalidConfigurationError(FatalError):
    """A config name or its value is not valid."""


class InvalidOptionError(FatalError):
    """An option of `format("spark_log")` is missing, contradictory or malformed."""


class InvalidTopicError(FatalError):
    """The topic name is not legal."""


class InvalidPartitionsError(FatalError):
    """The number of partitions is not valid."""


class InvalidReplicationFactorError(FatalError):
    """The replication factor is below 1 or larger than the number of brokers."""


class TopicAlreadyExistsError(FatalError):
    """The topic exists, or its name collides with one that does (`.` and `_` count as the same)."""


class PolicyViolationError(FatalError):
    """The operation is not allowed on this topic (internal, or of another cleanup.policy)."""


class InvalidRecordError(FatalError):
    """A record has a field that the log cannot take."""


class MessageSizeTooLargeError(InvalidRecordError):
    """A record is larger than max.message.bytes."""


class InvalidTimestampError(InvalidRecordError):
    """A record's timestamp is negative or too far in the future."""


class OffsetOutOfRangeError(FatalError):
    """The offset is below the log start offset or above the high watermark."""


class LogTruncationError(FatalError):
    """Records that the reader has read were cut off by an unclean leader election: its position is of another lineage.

    `divergent_offsets` has for each partition where to read on, `partition_offsets` where the reader was; the keys are
    TopicPartitions, and the values of the first are OffsetAndMetadata where a client raises it.
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
    """The group has committed no offset for the partition, and auto_offset_reset is none."""


class CommitFailedError(FatalError):
    """The consumer is no member of the group any more: its partitions may have another owner, who reads on."""


class IllegalStateError(FatalError):
    """The call does not fit what was called before: the client is closed, or in use by another thread."""


class DataLossError(FatalError):
    """Records that the reader was entitled to are gone (see failOnDataLoss)."""


class ProducerFencedError(FatalError):
    """A newer epoch of the same producer is at work."""


class InvalidTxnStateError(FatalError):
    """The call does not fit the state of the transaction: it is over, or another one is open."""


class TransactionAbortableError(FatalError):
    """The transaction cannot be committed. Abort it; the producer goes on with the next one (KIP-1050)."""


class InvalidTransactionTimeoutError(FatalError):
    """The transaction_timeout_ms asked for is above transaction.max.timeout.ms."""


class InvalidProducerIdMappingError(FatalError):
    """The transactional_id has expired (transactional.id.expiration.ms): close the producer and make another."""


class TransactionalIdNotFoundError(FatalError):
    """There is no producer with this transactional_id."""


class OutOfOrderSequenceNumberError(FatalError):
    """The producer's sequence has a gap: a batch before this one was lost."""


class UnknownProducerIdError(FatalError):
    """The producer's state has expired and its sequence is not 0."""


class WriteIdExpiredError(FatalError):
    """The write id's lease ran out before the append; its files may be gone."""


class DuplicateBrokerRegistrationError(FatalError):
    """There is a broker of this id already, or another process serves it."""


class BrokerIdNotRegisteredError(FatalError):
    """There is no broker of this id in the cluster."""


class InvalidReplicationAssignmentError(FatalError):
    """The replicas asked for a partition are not distinct brokers of the cluster."""


class NoReassignmentInProgressError(FatalError):
    """There is no reassignment of the partition to cancel."""


class ElectionNotNeededError(FatalError):
    """The partition has the leader that the election would give it."""


class PreferredLeaderNotAvailableError(FatalError):
    """The first of AR is not alive, not in sync, or has not every record."""


class EligibleLeadersNotAvailableError(FatalError):
    """No replica of the partition is alive."""


class CheckpointMismatchError(FatalError):
    """A Spark batch comes a second time with other rows, or after a newer one: a copied or rolled-back checkpoint."""


class UnknownMemberIdError(FatalError):
    """Not a member of the group, or no longer: its session has ended, and others may own what it owned."""


class IllegalGenerationError(FatalError):
    """What a member says is of another generation of the group than the one that it was told last."""


class FencedInstanceIdError(FatalError):
    """Another member has joined with the same group.instance.id."""


class InconsistentGroupProtocolError(FatalError):
    """No assignor is supported by all members of the group."""


class AssignorFailedError(FatalError):
    """The group's assignor raised, or what it returned is not an assignment. The members keep what they have."""


class InvalidGroupIdError(FatalError):
    """The group id is not valid."""


class InvalidSessionTimeoutError(FatalError):
    """The session timeout is not between the least and the most that are allowed."""


class NonEmptyGroupError(FatalError):
    """The group has live members."""


class GroupIdNotFoundError(FatalError):
    """There is no such group."""


class GroupSubscribedToTopicError(FatalError):
    """Live members of the group are subscribed to the topic."""


class OffsetMetadataTooLargeError(FatalError):
    """The free text of a commit is larger than offset.metadata.max.bytes."""


class IllegalArgumentError(FatalError):
    """A value that no call can mean: a negative offset, for one."""


class CorruptRecordError(FatalError):
    """Stored bytes fail their checksum or are not what the metadata says."""


class UnsafePathError(FatalError):
    """A path in the metadata is absolute, climbs with `..` or crosses a symlink."""


class LogDirMismatchError(FatalError):
    """A log dir does not carry the id that the metadata store knows: it is empty, swapped or restored."""


class DeltaNotInstalledError(FatalError):
    """Delta's JARs are not on Spark's class path, or could not be installed."""


_URL_PASSWORD = re.compile(r"(://[^:/@\s]*):[^\s/]*@")
_QUERY_SECRET = re.compile(r"([?&](?:password|secret_key|access_key|sslpassword|token)=)[^&\s'\"]*", re.IGNORECASE)


def redact(text: str) -> str:
    """`text` with the secrets of every URL in it replaced, for messages, logs, reprs and Spark plans."""
    return _QUERY_SECRET.sub(r"\1***", _URL_PASSWORD.sub(r"\1:***@", text))
