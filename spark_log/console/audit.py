"""Applies every change of the console, so that each is recorded in `__audit` with its outcome."""

from spark_log import clock
from spark_log.clients.admin.audit import record_change
from spark_log.console.routes import Call, Change, Done, Forbidden
from spark_log.errors import InvalidConfigurationError, redact

_HIDDEN = "***"
_FIELDS_MAX = 50

_REFUSAL_S = 10.0
_REFUSALS_MAX = 10_000
_refusals: dict[tuple[str, str, str], float] = {}
"""When the last refusal was recorded, by cluster, user and action."""


def audited(change: Change, call: Call) -> Done:
    """Apply the change, and record its user, its target and its outcome. A refused change is recorded too, with the
    names of its fields, but not if the same refusal was recorded just before.
    """
    parameters = {name: _HIDDEN if name in change.hidden else value for name, value in call.form.items()}
    target = ", ".join(f"{name} {value}" for name, value in call.path.items())

    def record(outcome: str, error: BaseException | None = None) -> None:
        text = None if error is None else redact(str(error)) or type(error).__name__
        action = change.action or change.path
        record_change(call.cluster, call.user.name, action, target, parameters, outcome, "console", text)

    try:
        call.require(change.allow)
        if len(call.form) > _FIELDS_MAX:  # more fields would hide the others in the audit
            raise InvalidConfigurationError(f"{len(call.form)} fields, more than {_FIELDS_MAX}")
        done = change.apply(call)
    except Forbidden as error:
        parameters = dict.fromkeys(list(parameters)[:_FIELDS_MAX], _HIDDEN)
        if _is_first_refusal(call, change.action or change.path):
            record("refused", error)
        raise
    except BaseException as error:
        record("failed", error)
        raise
    record("succeeded")
    return done


def _is_first_refusal(call: Call, action: str) -> bool:
    """Return whether no such refusal was recorded within _REFUSAL_S: a user without rights must not fill the audit."""
    key, now_s = (call.cluster.cluster_id, call.user.name, action), clock.monotonic_s()
    if now_s - _refusals.get(key, -_REFUSAL_S) < _REFUSAL_S:
        return False
    if len(_refusals) >= _REFUSALS_MAX:
        _refusals.clear()
    _refusals[key] = now_s
    return True
