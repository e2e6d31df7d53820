"""Finds the partitions that requests of share sessions name, with the rights of the client.

A partition that does not exist, or that the client may not read, stays in its session, as in a broker: the client does
not name it again. Each fetch looks for it again, so it is read once it exists.
"""

import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from spark_log.cluster.security.acl_rules import Operation, ResourceType
from spark_log.errors import UnknownTopicOrPartitionError
from spark_log.gateway.access.rights import TOPIC_REFUSED
from spark_log.gateway.api import Client
from spark_log.gateway.protocol.error_codes import error_code
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.records.fetch_positions import NO_ID
from spark_log.gateway.services import Services
from spark_log.gateway.shares.share_sessions import Place, Session
from spark_log.ids import numbers_by_topic
from spark_log.log.partitions.partition_rows import Key

_UNKNOWN_TOPIC_ID = 100
_MISSING_MAX = 2_000
"""The number of missing partitions that a session remembers."""


@dataclass
class Asked:
    """The partitions of a request: the ones that exist and that the client may read, and errors of the others."""

    places: dict[Key, Place] = field(default_factory=dict)
    batches: dict[Key, Sequence[Message]] = field(default_factory=dict)
    errors: dict[tuple[uuid.UUID, int], int] = field(default_factory=dict)

    @property
    def identities(self) -> set[tuple[uuid.UUID, int]]:
        """Kafka's topic ids and partition numbers of `places`."""
        return {(place.topic_id, key[1]) for key, place in self.places.items()}


class _Topic(NamedTuple):
    """The partitions of a topic, in the form of a request."""

    topic_id: uuid.UUID
    partitions: list[int]


async def find_places(services: Services, session: Session, client: Client, topics: Sequence[Message]) -> Asked:
    """Return the partitions of a request. The store is not read if all of them are in the session, and the client may
    still read them.
    """
    of_session: Asked | None = await services.compute(_of_session, session, client, topics)
    return of_session if of_session is not None else await services.call(_asked, services, client, topics)


def _of_session(session: Session, client: Client, topics: Sequence[Message]) -> Asked | None:
    """Return the partitions of a request, or None if one is not in the session, or the client may not read it."""
    asked = Asked()
    for topic in topics:
        for part in topic.partitions:
            key = session.numbers.get((topic.topic_id, part.partition_index))
            place = None if key is None else session.places.get(key)
            if place is None or not _may_read(client, place.topic):
                return None
            asked.places[place.key] = place
            if part.acknowledgement_batches:
                asked.batches[place.key] = part.acknowledgement_batches
    return asked


async def find_missing_places(
    services: Services, session: Session, client: Client, asked: Asked, forgotten: Collection[tuple[uuid.UUID, int]]
) -> None:
    """Look again for the missing partitions of a session, except `forgotten`, and add them to those of the request."""
    session.missing -= asked.identities
    again = session.missing - asked.errors.keys() - set(forgotten)
    session.missing |= set(islice(asked.errors, max(0, _MISSING_MAX - len(session.missing))))
    if again:
        topics = [_Topic(*each) for each in numbers_by_topic(again).items()]
        again_asked = await services.call(_asked, services, client, topics)
        session.missing -= again_asked.identities
        asked.places |= again_asked.places
        asked.errors |= again_asked.errors


def _asked(services: Services, client: Client, topics: Iterable[Any]) -> Asked:
    """Find the partitions of a request in the store."""
    asked = Asked()
    topics = list(topics)
    names = services.topics.names({topic.topic_id or NO_ID for topic in topics})
    existing = services.topics.find(names.values())
    for topic in topics:
        topic_id = topic.topic_id or NO_ID
        name = names.get(topic_id)
        topic_facts = None if name is None else existing.get(name)
        for part in topic.partitions:
            number = part if isinstance(part, int) else part.partition_index
            place = topic_id, number
            if topic_facts is None or topic_facts.uuid != topic_id.hex:
                asked.errors[place] = _UNKNOWN_TOPIC_ID
            elif not _may_read(client, topic_facts.name):
                asked.errors[place] = TOPIC_REFUSED
            elif not 0 <= number < topic_facts.partition_count:
                asked.errors[place] = error_code(UnknownTopicOrPartitionError())
            else:
                key = (topic_facts.topic_id, number)
                asked.places[key] = Place(key, topic_facts.name, topic_id)
                if not isinstance(part, int) and part.acknowledgement_batches:
                    asked.batches[key] = part.acknowledgement_batches
    return asked


def _may_read(client: Client, topic: str) -> bool:
    return client.access.allows(Operation.READ, ResourceType.TOPIC, topic)


def refused_places(session: Session, client: Client) -> dict[Key, tuple[uuid.UUID, int]]:
    """Return the partitions of the session that the client may not read any more."""
    names = {place.topic for place in session.places.values()}
    refused = {name for name in names if not _may_read(client, name)}
    return {key: (place.topic_id, key[1]) for key, place in session.places.items() if place.topic in refused}
