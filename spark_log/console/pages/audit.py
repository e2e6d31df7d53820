"""Page `/audit`: who changed what, newest first."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spark_log.admin.audit import RecordedChange, read_changes
from spark_log.console.routes import Call, View

LIMIT = 200


@dataclass(frozen=True)
class Audit:
    """`who`, `target`, `outcome`: the filter; empty: all. `older_ms`: for the next page, if there may be one."""

    who: str
    target: str
    outcome: str
    changes: Sequence[RecordedChange]
    older_ms: int | None


def _facts(call: Call) -> Audit:
    who, target, outcome = (call.query.get(name, "").strip() for name in ("who", "target", "outcome"))
    before = call.query.get("before_ms", "")
    found = read_changes(
        call.cluster,
        who=who or None,
        target=target or None,
        outcome=outcome or None,
        to_ms=int(before) if before.isascii() and before.isdecimal() and len(before) < 16 else None,
        limit=LIMIT,
    )
    shown = [change for each in found if (change := _visible(call, each)) is not None]
    return Audit(who, target, outcome, shown, found[-1].time_ms if len(found) == LIMIT else None)


def _visible(call: Call, change: RecordedChange) -> RecordedChange | None:
    """The change as the user's role shows it. Changes of a topic that it hides are left out, and the parameters of
    changes of other objects, since they may name topics.
    """
    if call.role.sees_all:
        return change
    topic = None
    if change.action.startswith("/topics/{topic}"):  # then the target begins with it; names of topics have no comma
        topic = change.target.partition(", ")[0].removeprefix("topic ")
    if topic is None:
        created = change.parameters.get("topic")
        if change.action == "/topics" and not (isinstance(created, str) and call.sees(created)):
            return None
        return change if change.action == "/topics" else replace(change, parameters={}, error=None)
    return change if call.sees(topic) else None


VIEWS = (View("/audit", "audit.html", _facts, title="Audit"),)
