"""Defines the interface between the application of the console and its pages.

A page module of `console/pages` has some of the tuples `VIEWS`, `CHANGES`, `PREVIEWS`, `PREFERENCES` and `STREAMS`.
Paths are templates such as `/topics/{topic}`. A value in a path is one segment (`paths.encode_segment`).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Event

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic, find_topics
from spark_log.console.access.roles import Allow as Allow
from spark_log.console.access.roles import Role, User
from spark_log.console.snapshots import Snapshots, visible
from spark_log.errors import FatalError
from spark_log.facts.metrics.cluster_snapshot import ClusterSnapshot


class NotFound(FatalError):
    """The cluster has no such object, or the user's role does not show it.

    Remedy: check its name.
    """


class Forbidden(FatalError):
    """The user's role, or the console, does not allow this.

    Remedy: start the console with the --allow that the message names, and give the user a role that has it.
    """


@dataclass(frozen=True)
class Call:
    """One request with its user. A handler runs in a thread of its own.

    `path` has the values of the path template. `query` and `form` have the last value of each name. A JSON body that is
    an object is a form too, with texts as they are and other values as JSON. `left` is set when the browser has closed
    the connection. Long operations check it.
    """

    cluster: Cluster
    user: User
    path: Mapping[str, str]
    query: Mapping[str, str]
    form: Mapping[str, str]
    snapshots: Snapshots
    allowed: frozenset[Allow] = frozenset()
    """The changes that option --allow permits."""
    left: Event = field(default_factory=Event)
    cookies: Mapping[str, str] = field(default_factory=dict)

    @property
    def role(self) -> Role:
        return self.user.role

    def snapshot(self) -> ClusterSnapshot:
        """Return the state of the cluster, without the topics that the user may not see.

        The state is at most 2 s old, or 20 times the duration of its read if that is longer.
        """
        return visible(self.snapshots.now(), self.role)

    def topic(self, name: str) -> Topic:
        """Return the topic. Raises NotFound if it is unknown, or the user's role does not show it."""
        found = self.cluster.store.read(lambda connection: find_topics(connection, [name])) if self.sees(name) else {}
        if name not in found:
            raise NotFound(f"there is no topic {name!r}")
        return found[name]

    def sees(self, topic: str) -> bool:
        """Return whether the user's role shows the topic of this name."""
        return self.role.sees(topic)

    def may(self, allow: Allow) -> bool:
        """Return whether the user may make changes of this kind."""
        return allow in self.allowed and allow in self.role.allows

    def require(self, allow: Allow) -> None:
        """Raise Forbidden unless the user may make changes of this kind."""
        if not self.may(allow):
            missing = "your role lacks it" if allow in self.allowed else f"the console runs without --allow {allow}"
            raise Forbidden(f"Changes of {allow} are not allowed: {missing}.")


@dataclass(frozen=True)
class View:
    """A page that only reads.

    GET `path` renders `template` with the result of `facts`. GET /api/v1 + `path` returns this result as JSON.
    """

    path: str
    template: str
    facts: Callable[[Call], object]
    title: str = ""
    """The text of the link in the navigation, or empty if there is no link."""


@dataclass(frozen=True)
class Done:
    """The outcome of a change.

    `location` is the page that shows the outcome together with `message`. `facts` is the JSON of the API. `cookies` are
    set in the user's browser for a year.
    """

    location: str
    message: str
    facts: object = None
    cookies: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Change:
    """A change of the cluster.

    POST `path` with a form or JSON redirects to `Done.location` with status 303. POST /api/v1 + `path` returns
    `Done.facts` as JSON. `hidden` has the names of fields whose values are not written to the audit, such as the value
    of a record. `action` is the name of the change in the audit, `path` if it is empty. Other programs use it, too.
    """

    path: str
    allow: Allow
    apply: Callable[[Call], Done]
    hidden: frozenset[str] = frozenset()
    action: str = ""


@dataclass(frozen=True)
class Preview:
    """A page that shows the effect of a change before it is made.

    POST `path`, with the fields of a Change, renders `template` with the result of `facts`. POST /api/v1 + `path`
    returns this result as JSON. Nothing is changed or recorded, and no other host is asked. The method is POST because
    a form may contain a secret, which must not be in an address.
    """

    path: str
    allow: Allow
    template: str
    facts: Callable[[Call], object]


@dataclass(frozen=True)
class Preference:
    """A change of cookies of the user's own browser only.

    POST `path` works as for a Change. A preference is not recorded.
    """

    path: str
    apply: Callable[[Call], Done]


@dataclass(frozen=True)
class Download:
    """A response in parts. `parts` is closed when the browser disconnects. `filename` is None if the browser shows the
    response.
    """

    content_type: str
    parts: Iterator[bytes]
    filename: str | None = None


@dataclass(frozen=True)
class Stream:
    """A response that is produced while it is sent, to GET `path` and to GET /api/v1 + `path`."""

    path: str
    serve: Callable[[Call], Download]
