"""By how much the memory of this process grows while something runs."""

from __future__ import annotations

import threading
from pathlib import Path


class PeakMemory:
    """`with PeakMemory() as memory: ...`; then `memory.growth` is in bytes (0 where the system does not tell)."""

    growth = 0

    def __enter__(self) -> PeakMemory:
        self._before = _resident()
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._watcher.join()

    def _watch(self) -> None:
        while not self._done.wait(0.005):
            self.growth = max(self.growth, _resident() - self._before)


def _resident() -> int:
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * 4096 if status.exists() else 0
