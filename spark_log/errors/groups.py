"""Errors of consumer groups and share groups."""

from spark_log.errors.base import FatalError, RetriableError


class CoordinatorNotAvailableError(RetriableError):
    """The group cannot answer a member yet: its assignment is being computed, or the member must first report all that
    it has.

    Remedy: none; Kafka clients send a full heartbeat.
    """


class CommitFailedError(FatalError):
    """The consumer is no longer a member of the group, so its partitions may belong to another member, which continues
    from the last commit.

    Remedy: call poll() to join again; process faster than max_poll_interval_ms, or raise it.
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

    Remedy: repeat the request with the epoch of the next heartbeat response; Kafka clients do so.
    """


class UnreleasedInstanceIdError(FatalError):
    """A running member has the same group.instance.id.

    Remedy: stop that one, or wait until its session has ended; give each running consumer its own group.instance.id.
    """


class UnsupportedAssignorError(FatalError):
    """The group.remote.assignor is not one of the server's.

    Remedy: set it to uniform or range.
    """


class GroupMaxSizeReachedError(FatalError):
    """The group has group.consumer.max.size members; or, if its leader assigns, 1,000 members or 4 MiB of their
    metadata and assignments.

    Remedy: run fewer consumers, or raise the cluster setting; give the group fewer topics.
    """


class GroupAssignmentTooLargeError(FatalError):
    """The leader of a group has sent assignments that exceed 4 MiB together with the metadata of the members.

    Remedy: divide the work among several groups.
    """


class InvalidRegularExpressionError(FatalError):
    """A subscription is not a regular expression in RE2's syntax.

    Remedy: correct the expression; the message says where it is wrong.
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

    Remedy: check the id with `spark-log group list`.
    """


class GroupSubscribedToTopicError(FatalError):
    """Members of the group are subscribed to the topic whose offsets are to be deleted.

    Remedy: stop these consumers, or unsubscribe them.
    """


class OffsetMetadataTooLargeError(FatalError):
    """The metadata text of a commit is larger than offset.metadata.max.bytes.

    Remedy: commit a shorter text, or raise the cluster setting.
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
