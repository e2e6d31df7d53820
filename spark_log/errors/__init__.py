"""The tree of spark-log's errors, which are in files by subject. Class names are kafka-python's wherever Kafka has the
error.

SparkLogError
├── RetriableError                    the same call may succeed later; `retriable` is True
│   ├── MetadataStoreUnavailableError
│   ├── StorageUnavailableError
│   │   └── DiskFullError, SourceUnavailableError   (StorageUnavailableErrors)
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
    ├── InvalidConfigurationError
    │   └── WrongDatabaseError            (an InvalidConfigurationError)
    ├── InvalidOptionError, InvalidTopicError, InvalidPartitionsError,
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

from spark_log.errors.base import *
from spark_log.errors.base import SparkLogError
from spark_log.errors.calls import *
from spark_log.errors.groups import *
from spark_log.errors.producers import *
from spark_log.errors.records import *
from spark_log.errors.stores import *
from spark_log.errors.texts import *
from spark_log.errors.topics import *

for _each in [*globals().values()]:
    if isinstance(_each, type) and issubclass(_each, SparkLogError):
        _each.__module__ = __name__  # the name that programs import, in tracebacks and in Spark's messages
