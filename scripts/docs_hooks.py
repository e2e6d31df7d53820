"""mkdocs hook: replaces `<!-- generated: NAME -->` in a page by the generated part of the reference."""

import re
from typing import Any

import docs_cli
import docs_tables

GENERATED = {
    "command line": docs_cli.reference,
    "jobs": docs_cli.jobs_reference,
    "topic configs": docs_tables.topic_configs,
    "group configs": docs_tables.group_configs,
    "cluster settings": docs_tables.cluster_settings,
    "producer settings": docs_tables.producer_settings,
    "consumer settings": docs_tables.consumer_settings,
    "share consumer settings": docs_tables.share_consumer_settings,
    "admin settings": docs_tables.admin_settings,
    "client settings without effect": docs_tables.settings_without_effect,
    "refused client settings": docs_tables.refused_settings,
    "kafka options": docs_tables.kafka_options,
    "errors": docs_tables.errors,
}
_PLACE = re.compile(r"^<!-- generated: (.*) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    return _PLACE.sub(lambda place: GENERATED[place[1]](), markdown)
