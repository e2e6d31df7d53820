"""Implements `spark-log-python`, an interpreter that starts Spark's Python processes in a quarter of the time.

Spark puts its `pyspark.zip` and `py4j-*-src.zip` first on PYTHONPATH. Python compiles modules from a zip anew in every
process, which takes about a second, and Spark starts several processes for each new query over a data source. If the
environment has the same versions installed, this interpreter removes the zips from the path, and so uses the compiled
modules. In everything else it is the environment's `python`.

Set PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON to it. This module runs at the start of each process, so it imports little.
"""

import os
import runpy
import sys
from collections.abc import Iterable
from typing import Any
from zipimport import ZipImportError, zipimporter

COMMAND = "spark-log-python"
_DAEMON = "pyspark.daemon"


def executable() -> str:
    """Return the interpreter for Spark's Python processes: `spark-log-python` if installed, else this interpreter."""
    from sysconfig import get_path

    command = os.path.join(get_path("scripts"), COMMAND)
    return command if os.access(command, os.X_OK) else sys.executable


def without_installed_zips(paths: Iterable[str], folders: Iterable[str]) -> list[str]:
    """Return `paths` without those zips of Spark whose package is installed in `folders` in the same version."""
    folders = list(folders)
    return [path for path in paths if not _is_installed(path, folders)]


def _is_installed(path: str, folders: Iterable[str]) -> bool:
    package = _package_in(os.path.basename(path))
    if package is None:
        return False
    version = f"{package}/version.py"
    for folder in folders:
        try:
            with open(os.path.join(folder, version), "rb") as file:
                return file.read() == zipimporter(path).get_data(version)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ZipImportError):
            return False
    return False


def _package_in(file_name: str) -> str | None:
    if file_name == "pyspark.zip":
        return "pyspark"
    return "py4j" if file_name.startswith("py4j-") and file_name.endswith("-src.zip") else None


def main() -> None:
    """Run the program that `python` would run with these arguments."""
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    kept = without_installed_zips(paths, sys.path)
    if kept != paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)
        sys.path[:] = [path for path in sys.path if path in kept or path not in paths]
    if sys.argv[1:2] != ["-m"] or len(sys.argv) < 3:
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    # All of Spark's processes run modules. These run here, because the start of another interpreter takes time.
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd()  # instead of this script's folder, as `python -m` has it
    del sys.argv[:2]
    from spark_log.spark.fork_server import run_program, take_over

    sys.argv[:] = take_over(sys.argv) or sys.argv
    if sys.argv[0] == _DAEMON:
        run_program(_run_daemon)
    else:
        sys.modules.pop(sys.argv[0], None)  # else runpy warns that the fork server has imported it
        run_program(lambda: runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True))


def _run_daemon() -> None:
    """Run Spark's daemon, but let its workers end without a traceback when Spark has closed their connection.

    Spark closes the connections of idle workers after a minute and at its end. Such a worker tries to report the end of
    its input as an error. With Unix sockets this fails, and Spark's own code prints a traceback. A worker also seeds
    numpy's generator before its first task, because the daemon may have imported numpy already.
    """
    import pyspark.daemon

    from spark_log.spark.fork_server import reseed

    daemon: Any = pyspark.daemon
    run_worker = daemon.worker
    is_new_fork = True

    def worker(*arguments: Any) -> Any:
        nonlocal is_new_fork
        if is_new_fork:
            reseed()
            is_new_fork = False
        try:
            return run_worker(*arguments)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(1)

    daemon.worker = worker
    sys.modules["__main__"] = daemon
    daemon.manager()
