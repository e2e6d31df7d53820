"""Health check of a Spark Master or Worker: `spark_health.py URL`, the URL of its web UI. Exit code 0: healthy.

A Master is healthy while it leads; a Worker while the Master that it has registered with counts it as alive.
"""

import json
import sys
from typing import Any
from urllib.request import urlopen

TIMEOUT_S = 4


def problem(url: str) -> str | None:
    """Why the daemon is not healthy. OSError if it, or a Worker's Master, does not answer."""
    state = _state(url)
    if "workers" in state:
        return None if state["status"] == "ALIVE" else f"the Master is {state['status']}"
    if not state["masterwebuiurl"]:
        return "the Worker has not registered with a Master"
    known = {worker["id"]: worker["state"] for worker in _state(state["masterwebuiurl"])["workers"]}
    counted_as = known.get(state["id"], "unknown")
    return None if counted_as == "ALIVE" else f"the Master counts this Worker as {counted_as}"


def _state(url: str) -> Any:
    with urlopen(f"{url.rstrip('/')}/json/", timeout=TIMEOUT_S) as answer:
        return json.load(answer)


if __name__ == "__main__":
    try:
        sys.exit(problem(sys.argv[1]))
    except OSError as error:
        sys.exit(f"no answer: {error}")
