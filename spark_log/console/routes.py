"""The contract between the frame of the console and its pages.

A page module of `console/pages` has tuples `VIEWS`, `CHANGES`, `PREVIEWS`, `PREFERENCES` and `STREAMS`; any may be
absent. Paths are templates such as `/topics/{topic}`; a value in a path is one segment (`paths.encode_segment`).
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
    """One request: who asks, and for what. Handlers get it in a thread of their own.

    `path`: the values of the path template. `query`, `form`: the last value of each name; a JSON body that is an object
    is a form too (texts as they are, other values as JSON).
    `left`: set when the browser has closed the connection; long work looks at it.
    """

    cluster: Cluster
    user: User
    path: Mapping[str, str]
    query: Mapping[str, str]
    form: Mapping[str, str]
    snapshots: Snapshots
    allowed: frozenset[Allow] = frozenset()
    """Option --allow."""
    left: Event = field(default_factory=Event)
    cookies: Mapping[str, str] = field(default_factory=dict)

    @property
    def role(self) -> Role:
        return self.user.role

    def snapshot(self) -> ClusterSnapshot:
        """The facts of the cluster, at most 2 s old, without the topics that the user may not see."""
        return visible(self.snapshots.now(), self.role)

    def topic(self, name: str) -> Topic:
        """Raises NotFound if it is unknown, or the user's role does not show it."""
        found = self.cluster.store.read(lambda connection: find_topics(connection, [name])) if self.sees(name) else {}
        if name not in found:
            raise NotFound(f"there is no topic {name!r}")
        return found[name]

    def sees(self, topic: str) -> bool:
        """Whether the user's role shows the topic of this name."""
        return self.role.sees(topic)

    def may(self, allow: Allow) -> bool:
        """Whether the user may make changes of this kind."""
        return allow in self.allowed and allow in self.role.allows

    def require(self, allow: Allow) -> None:
        """Raises Forbidden unless the user may make changes of this kind."""
        if not self.may(allow):
            missing = "your role lacks it" if allow in self.allowed else f"the console runs without --allow {allow}"
            raise Forbidden(f"Changes of {allow} are not allowed: {missing}.")


@dataclass(frozen=True)
class View:
    """GET `path`: a page, `template` rendered with the facts. GET /api/v1 + `path`: the facts as JSON."""

    path: str
    template: str
    facts: Callable[[Call], object]
    title: str = ""
    """Text of the link in the navigation; empty: no link."""


@dataclass(frozen=True)
class Done:
    """The outcome of a change. `location`: page that shows it, with `message`. `facts`: JSON of the API. `cookies`: of
    the user's browser, for a year.
    """

    location: str
    message: str
    facts: object = None
    cookies: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Change:
    """POST `path` with a form or JSON: 303 to `Done.location`. POST /api/v1 + `path`: `Done.facts` as JSON.

    `hidden`: names of fields whose values are not written to the audit, such as the value of a record.
    """

    path: str
    allow: Allow
    apply: Callable[[Call], Done]
    hidden: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Preview:
    """POST `path`, as of a Change: a page, `template` rendered with the facts of what a change would do; or JSON.

    Nothing is changed or recorded, and no other host is asked. A form that may hold a secret is in no address.
    """

    path: str
    allow: Allow
    template: str
    facts: Callable[[Call], object]


@dataclass(frozen=True)
class Preference:
    """POST `path`, as of a Change, which changes nothing but cookies of the user's own browser. It is not recorded."""

    path: str
    apply: Callable[[Call], Done]


@dataclass(frozen=True)
class Download:
    """An answer in parts. `parts` is closed when the browser leaves. `filename`: None for an answer that is shown."""

    content_type: str
    parts: Iterator[bytes]
    filename: str | None = None


@dataclass(frozen=True)
class Stream:
    """GET `path`, and GET /api/v1 + `path`: an answer that is produced while it is sent."""

    path: str
    serve: Callable[[Call], Download]
