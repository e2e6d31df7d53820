"""Tables of the reference, from the definitions in the code."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from spark_log import errors as spark_log_errors
from spark_log.clients.admin.admin_settings import AdminSettings
from spark_log.clients.client_settings import NO_EFFECT, REFUSED
from spark_log.clients.consume.consumer_settings import ConsumerSettings
from spark_log.clients.consume.share_settings import ShareConsumerSettings
from spark_log.clients.produce.producer_settings import ProducerSettings
from spark_log.config import ClusterSettings, ConfigDefinition, definitions, group_definitions
from spark_log.errors import SparkLogError
from spark_log.spark.datasource.options.kafka_options import KAFKA_OPTIONS, PREFIX, Honoured, Ignored


def topic_configs() -> str:
    return _configs(definitions())


def group_configs() -> str:
    return _configs(group_definitions().values())


def _configs(entries: Iterable[ConfigDefinition]) -> str:
    parts = []
    for entry in entries:
        unit = f" ({entry.unit})" if entry.unit else ""
        kafka = f" Kafka's default is `{entry.kafka_default}`." if entry.kafka_default is not None else ""
        facts = f"Type: {entry.kind}{unit}. Default: `{entry.default}`.{kafka} Valid: {entry.valid}."
        parts.append(f"### `{entry.name}`\n\n{entry.doc}\n\n{facts}\n")
    return "\n".join(parts)


def cluster_settings() -> str:
    defaults = ClusterSettings().as_text()
    rows = [(f"`{name}`", f"`{defaults[name]}`", text) for name, text in _documented(ClusterSettings, ".")]
    return _table(("Setting", "Default", "Meaning"), rows)


def producer_settings() -> str:
    return _settings(ProducerSettings)


def consumer_settings() -> str:
    return _settings(ConsumerSettings)


def share_consumer_settings() -> str:
    return _settings(ShareConsumerSettings)


def admin_settings() -> str:
    return _settings(AdminSettings)


def settings_without_effect() -> str:
    return _by_reason(NO_EFFECT)


def refused_settings() -> str:
    return _by_reason(REFUSED)


def kafka_options() -> str:
    """The treatment of each option of Kafka's clients that is given to `format("spark_log")`."""
    rows = []
    for name, decision in KAFKA_OPTIONS.items():
        if isinstance(decision, Honoured):
            rows.append((f"`{PREFIX}{name}`", "honoured", decision.meaning))
        elif isinstance(decision, Ignored):
            rows.append((f"`{PREFIX}{name}`", "ignored", decision.reason))
        else:
            sides = {"read": "in reads", "write": "in writes"}
            where = " and ".join(sides[side] for side in decision.sides)
            unless = f", unless it is `{decision.unless}`" if decision.unless is not None else ""
            message = decision.message.replace("{name} not supported", "Not supported").replace("{name}", "It")
            rows.append((f"`{PREFIX}{name}`", f"refused {where}{unless}", message))
    return _table(("Option", "Treatment", "Meaning or reason"), rows)


def errors() -> str:
    """The error catalogue: a section for each class, with its cause and its remedy."""
    parts = []
    for kind in error_classes():
        cause, remedy = cause_and_remedy(kind)
        facts = "Retriable: the same call may succeed later." if kind.retriable else "Fatal: the same call fails again."
        parts.append(f"### `{kind.__name__}`\n\n{cause}\n\n**Remedy:** {remedy}\n\n{facts}\n")
    return "\n".join(parts)


def cause_and_remedy(kind: type[SparkLogError]) -> tuple[str, str]:
    """The first paragraphs of the docstring before and after "Remedy:"."""
    cause, _, remedy = inspect.cleandoc(kind.__doc__ or "").partition("Remedy:")
    return _text(cause), _sentence(remedy.partition("\n\n")[0])


def error_classes() -> list[type[SparkLogError]]:
    """Every error that is raised, in alphabetical order."""
    kinds = [
        kind for kind in vars(spark_log_errors).values() if inspect.isclass(kind) and issubclass(kind, SparkLogError)
    ]
    abstract = (SparkLogError, spark_log_errors.RetriableError, spark_log_errors.FatalError)
    return sorted((kind for kind in kinds if kind not in abstract), key=lambda kind: kind.__name__)


def _settings(kind: type[Any]) -> str:
    defaults = {field.name: field.default for field in fields(kind)}
    rows = [(f"`{name}`", _default(defaults[name]), text) for name, text in _documented(kind, "_")]
    return _table(("Setting", "Default", "Meaning"), rows)


def _default(value: Any) -> str:
    if isinstance(value, tuple):
        value = ", ".join(getattr(item, "name", str(item)) for item in value)
    return "" if value == "" else f"`{value}`"


def _documented(kind: type[Any], separator: str) -> Iterable[tuple[str, str]]:
    """(name, docstring) of each field of a dataclass; a docstring is the text below the field."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            yield field.target.id.replace("_", separator), _text(str(text.value.value))


def _by_reason(settings: Mapping[str, str]) -> str:
    names: dict[str, list[str]] = {}
    for name, reason in settings.items():
        names.setdefault(reason, []).append(f"`{name}`")
    return _table(("Settings", "Reason"), [(", ".join(found), reason) for reason, found in names.items()])


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _sentence(text: str) -> str:
    text = _text(text)
    return text[:1].upper() + text[1:]


def _text(text: str | None) -> str:
    return re.sub(r"\s+", " ", text or "").strip()
