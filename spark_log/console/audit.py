"""The only place where changes are applied, so that each change is recorded in `__audit` with its outcome."""

from spark_log.clients.admin.audit import record_change
from spark_log.console.routes import Call, Change, Done, Forbidden
from spark_log.errors import InvalidConfigurationError, redact

_HIDDEN = "***"
_FIELDS_MAX = 50


def audited(change: Change, call: Call) -> Done:
    """Apply the change, and record its user, its target and its outcome. A refused change is recorded too."""
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
        record("refused", error)
        raise
    except BaseException as error:
        record("failed", error)
        raise
    record("succeeded")
    return done
