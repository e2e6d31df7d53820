"""Shows the recorded changes with their users, newest first (page `/audit`)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from spark_log.clients.admin.audit import RecordedChange, read_changes
from spark_log.console.access.roles import Role
from spark_log.console.pages.groups import visible_groups
from spark_log.console.pages.redrive import REDRIVE
from spark_log.console.routes import Call, View

LIMIT = 200
SEARCHED_MAX = 10_000
"""The number of newest changes that are searched for the ones that a user may see."""


@dataclass(frozen=True)
class Audit:
    """The recorded changes.

    `who`, `target` and `outcome` are the filter. An empty one matches all changes. `older_ms` is the end of the next
    page, if there may be one.
    """

    who: str
    target: str
    outcome: str
    changes: Sequence[RecordedChange]
    older_ms: int | None


def _facts(call: Call) -> Audit:
    who, target, outcome = (call.query.get(name, "").strip() for name in ("who", "target", "outcome"))
    before = call.query.get("before_ms", "")
    changes = read_changes(
        call.cluster,
        who=who or None,
        target=target or None,
        outcome=outcome or None,
        to_ms=int(before) if before.isascii() and before.isdecimal() and len(before) < 16 else None,
        limit=LIMIT if call.role.sees_all else SEARCHED_MAX,
    )
    if not call.role.sees_all:
        groups = {group.group_id for group in visible_groups(call)}
        changes = [shown for each in changes if (shown := visible_change(each, call.role, groups)) is not None][:LIMIT]
    return Audit(who, target, outcome, changes, changes[-1].time_ms if len(changes) == LIMIT else None)


def visible_change(change: RecordedChange, role: Role, groups: Collection[str]) -> RecordedChange | None:
    """Return the change as it is shown to a role that hides topics, or None if the role shows neither its topic nor its
    group. Pure.

    `groups` are the groups that the role shows. Changes of groups, and redrives, are shown without parameters and
    errors, which may name topics.
    """
    if change.action == REDRIVE:
        shown = role.sees(change.target.removeprefix("topic "))
        return replace(change, parameters={}, error=None) if shown else None
    if change.action.startswith("/topics/{topic}"):  # then the target begins with the topic, whose name has no comma
        return change if role.sees(change.target.partition(", ")[0].removeprefix("topic ")) else None
    if change.action == "/topics":
        created = change.parameters.get("topic")
        return change if isinstance(created, str) and role.sees(created) else None
    if change.action.startswith("/groups/{group}") and change.target.removeprefix("group ") in groups:
        return replace(change, parameters={}, error=None)
    return None


VIEWS = (View("/audit", "audit.html", _facts, title="Audit"),)
