"""Machines that lose their power: data that was not forced to disk is lost."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres import PostgresServer

_CAN_MOUNT = os.geteuid() == 0 and Path("/dev/loop-control").exists() and shutil.which("mkfs.ext4") is not None

needs_a_disk = pytest.mark.skipif(not _CAN_MOUNT, reason="mounts a disk of its own: takes root, loop devices, ext4")


class Disk:
    """An ext4 file system in an image file. The image holds what the kernel has written to the "device"; data that
    programs have written without forcing it is in memory only.
    """

    def __init__(self, image: Path, folder: Path) -> None:
        self.image, self.folder = image, folder

    @classmethod
    def make(cls, image: Path, folder: Path) -> "Disk":
        with image.open("wb") as file:
            file.truncate(32 * 1024 * 1024)
        subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
        return cls(image, folder)

    @contextlib.contextmanager
    def mounted(self) -> Iterator[Path]:
        self.folder.mkdir()
        subprocess.run(["mount", "-o", "loop", str(self.image), str(self.folder)], check=True)
        try:
            yield self.folder
        finally:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)

    def after_a_power_cut(self, image: Path, folder: Path) -> "Disk":
        """The disk after a power cut at this moment; the next mount replays its journal."""
        shutil.copyfile(self.image, image)
        return Disk(image, folder)


class Unforced:
    """A PostgreSQL whose write-ahead log reaches the disk by forced commits only: its log writer is stopped."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        writer = "FROM pg_stat_activity WHERE backend_type = 'walwriter'"
        while not (pid := server.query(f"SELECT pid {writer}")):  # a server accepts connections before it has one
            time.sleep(0.01)
        self._writer = int(pid)
        while True:  # not during its work, when it holds a lock that every commit needs
            os.kill(self._writer, signal.SIGSTOP)
            while not self._stands_still():
                pass
            if server.query(f"SELECT wait_event_type {writer}") == "Activity":
                return
            os.kill(self._writer, signal.SIGCONT)

    def _stands_still(self) -> bool:
        state = Path(f"/proc/{self._writer}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "T"

    def cut_the_power(self) -> None:
        """Lose everything in memory; the server restarts and recovers from its disk."""
        os.kill(self._writer, signal.SIGKILL)
        self._server.kill()
        self._server.start()
