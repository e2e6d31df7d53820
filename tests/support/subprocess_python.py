"""Python programs in a separate process: for objects that a process can have only once (a JVM), or that must not
outlive the test.
"""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def run_python(program: str, *arguments: str, timeout_s: float = 300.0) -> str:
    """Run `program` text in the repository with this interpreter; its stdout, or an error with all it printed."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        raise AssertionError(f"exit code {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}")
    return done.stdout
