"""conf/topic.properties matches spark_log/config/topic_configs.py."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "settings_reference.py"


def test_the_reference_matches_the_code() -> None:
    spec = importlib.util.spec_from_file_location("settings_reference", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.TARGET.read_text() == script.reference(), "run `python scripts/settings_reference.py`"
