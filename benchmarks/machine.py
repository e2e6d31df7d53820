"""What machine a number was measured on, in one line."""

import os
import platform
from pathlib import Path


def describe_machine() -> str:
    """Cores, processor, memory in GiB, Python."""
    facts = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in facts if line.startswith("model name"))
    kilobytes = int(Path("/proc/meminfo").read_text().split()[1])
    processor = next(names, platform.machine())
    return f"{os.cpu_count()} cores ({processor}), {kilobytes / 2**20:.0f} GiB, Python {platform.python_version()}"
