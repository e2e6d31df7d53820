"""What machine a number was measured on, in one line."""

import os
import platform
from pathlib import Path


def describe_machine() -> str:
    """Cores, memory in GiB, processor, Python."""
    facts = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in facts if line.startswith("model name")), platform.machine())
    kilobytes = int(Path("/proc/meminfo").read_text().split()[1])
    return f"{os.cpu_count()} cores ({model}), {kilobytes / 2**20:.0f} GiB, Python {platform.python_version()}"
