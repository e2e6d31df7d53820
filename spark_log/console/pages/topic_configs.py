"""Shows one config of a topic, previews a change, and makes it (page `/topics/{topic}/configs/{config}`).

The preview does not ask an external schema registry, because the user chooses its address. Only the change, which is
recorded, asks it.
"""

from dataclasses import dataclass

from spark_log.cluster.names import is_internal
from spark_log.config import canonical, definitions
from spark_log.console.listing import row_of
from spark_log.console.paths import url
from spark_log.console.rendering import config
from spark_log.console.routes import Allow, Call, Change, Done, Forbidden, NotFound, Preview, View
from spark_log.errors import InvalidConfigurationError, SparkLogError, redact
from spark_log.registry.topic_schemas import asks_registry, parts_changed_by
from spark_log.replication.controller.topic_operations import alter_configs


@dataclass(frozen=True)
class ConfigPreview:
    """A config of a topic.

    `new` is its value after the change that the form describes, or None without a change. `given` is the value of the
    form, which is sent again with the change. `refused` is the reason why the change would be refused. `asks_registry`
    is whether a schema registry must accept the change too. Only the change asks the registry.
    """

    topic: str
    name: str
    value: str
    default: str
    is_set: bool
    kind: str
    valid: str
    unit: str
    doc: str
    kafka_default: str | None
    new: str | None
    given: str | None
    resets: bool
    refused: str | None
    asks_registry: bool


def _facts(call: Call) -> ConfigPreview:
    topic = call.topic(call.path["topic"])
    name = next(iter(canonical({call.path["config"]: ""})))
    definition = next((each for each in definitions() if each.name == name), None)
    if definition is None:
        raise NotFound(f"there is no topic config {name!r}")
    resets = call.form.get("reset") == "1"
    value = None if resets else call.form.get("value")
    new = refused = None
    asks = False
    if resets or value is not None:
        _refuse_internal(topic.name)
        try:
            _refuse_hidden(name, topic.config.as_text()[name], value)
            after = alter_configs(call.cluster, topic.name, {name: value}, validate_only=True, ask_registry=False)
            new = redact(after.config.as_text()[name])
            asks = asks_registry(after.config, parts_changed_by({name}))
        except SparkLogError as error:
            new, refused = redact(value or ""), redact(str(error))
    return row_of(
        ConfigPreview,
        definition,
        topic=topic.name,
        value=redact(topic.config.as_text()[name]),
        is_set=name in topic.overrides,
        new=new,
        given=value,
        resets=resets,
        refused=refused,
        asks_registry=asks,
    )


def _alter(call: Call) -> Done:
    """Set the config that field `config` names to field `value`, or reset it if field `reset` is 1. Field `expected` is
    the value that the user saw.
    """
    topic = call.topic(call.path["topic"])
    _refuse_internal(topic.name)
    name, resets = call.form.get("config", ""), call.form.get("reset") in ("1", "true")
    value = call.form.get("value")
    if not resets and value is None:
        raise InvalidConfigurationError("value: expected the new value of the config, or reset=1")
    now, expected = topic.config.as_text().get(name), call.form.get("expected")
    if expected is not None and now is not None and _lines(redact(now)) != _lines(expected):
        raise InvalidConfigurationError(f"{name}: another user has changed it to {redact(now)!r} meanwhile: look again")
    if now is not None and not resets:
        _refuse_hidden(name, now, value)
    changed = alter_configs(call.cluster, topic.name, {name: None if resets else value})
    set_to = changed.config.as_text().get(name)
    set_to = None if set_to is None else redact(set_to)
    shown = None if set_to is None else config(set_to)
    text = f"{name} of topic {topic.name} is {shown} now{' (the default)' if resets else ''}."
    return Done(url("/topics/{topic}", topic=topic.name) + "#configs", text, {"config": name, "value": set_to})


def _refuse_internal(topic: str) -> None:
    """Raise Forbidden for an internal topic, since the retention of __audit could remove the record of the change."""
    if is_internal(topic):
        raise Forbidden(f"Topic {topic} is internal: its configs are changed on the command line only.")


def _refuse_hidden(name: str, now: str, value: str | None) -> None:
    """Refuse a value that has *** in place of a secret. Pages show secrets so, and a form must not store the ***."""
    if value is not None and redact(now) != now and "***" in value:
        raise InvalidConfigurationError(f"{name}: the value has *** in place of a secret: write the secret")


def _lines(text: str) -> list[str]:
    """Return the lines of a text. Browsers end them with CR and LF."""
    return text.strip().splitlines()


VIEWS = (View("/topics/{topic}/configs/{config}", "topic_config.html", _facts),)
PREVIEWS = (Preview("/topics/{topic}/configs/{config}/preview", Allow.CONFIGS, "topic_config.html", _facts),)
CHANGES = (Change("/topics/{topic}/configs", Allow.CONFIGS, _alter),)
