"""The machine that a number was measured on, in one line; the duration of a call."""

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path


def describe_machine() -> str:
    """Cores, processor, memory in GiB, Python."""
    facts = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in facts if line.startswith("model name"))
    kilobytes = int(Path("/proc/meminfo").read_text().split()[1])
    processor = next(names, platform.machine())
    return f"{os.cpu_count()} cores ({processor}), {kilobytes / 2**20:.0f} GiB, Python {platform.python_version()}"


def seconds_of(action: Callable[[], object]) -> float:
    """Duration of the call."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began
