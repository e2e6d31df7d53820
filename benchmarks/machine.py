"""The machine that a number was measured on; the duration of a call; the CPU time and memory of a process."""

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


def cpu_s(pid: int, *, ended: bool = False) -> float:
    """CPU seconds of a process, and with `ended` of its children that have ended too; 0 if it has ended itself."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return sum(map(int, fields[11 : 15 if ended else 13])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int, what: str = "VmRSS") -> float:
    """A field of the status of a process, such as its memory now, or its largest (VmHWM)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{what}:")).split()[1]) / 1024
