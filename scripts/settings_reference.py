"""Writes conf/topic.properties from the definitions in spark_log/config/topic_configs.py; a test compares the two.

Run `python scripts/settings_reference.py` after a change of a definition.
"""

import textwrap
from pathlib import Path

from spark_log.config import definitions

TARGET = Path(__file__).resolve().parents[1] / "conf" / "topic.properties"

_HEAD = """\
# Every setting of a topic, with its default. Names and units are Kafka's; settings of spark-log alone begin
# with "Not in Kafka".
# Set them with `spark-log topic create NAME --config name=value` or `spark-log topic alter`; all take effect at once.
# Written by scripts/settings_reference.py from spark_log/config/topic_configs.py.
"""


def reference() -> str:
    """The text of conf/topic.properties."""
    parts = [_HEAD]
    for entry in definitions():
        unit = f", in {entry.unit}" if entry.unit else ""
        kafka = f" Kafka's default is {entry.kafka_default}." if entry.kafka_default is not None else ""
        doc = textwrap.wrap(f"{entry.doc}{kafka}", 117, break_long_words=False, break_on_hyphens=False)
        lines = [f"# {line}" for line in doc]
        lines += [f"# {entry.kind}{unit}; valid: {entry.valid}", f"{entry.name}={entry.default}"]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    TARGET.write_text(reference())
