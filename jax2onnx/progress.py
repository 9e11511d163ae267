"""A line on the terminal that shows that work goes on. In a pipe or a file, nothing."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

_WIDTH = 30


class Progress:
    """Shows a text and the seconds since the start; once `report` is called, a bar. Removes itself at the end."""

    def __init__(self, text: str, *, quiet: bool = False) -> None:
        self._stream = sys.stderr
        self._text, self._shown = text, not quiet and self._stream.isatty()
        self._share: float | None = None
        self._start = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Progress:
        if self._shown:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            self._done.set()
            self._thread.join()
            self._stream.write("\r\033[K")
            self._stream.flush()

    def report(self, done: int, total: int) -> None:
        """Say how much is done."""
        self._share = done / max(total, 1)

    def _run(self) -> None:
        while not self._done.wait(0.2):
            self._stream.write(f"\r\033[K{self._line()}")
            self._stream.flush()

    def _line(self) -> str:
        seconds = f"{time.monotonic() - self._start:.0f} s"
        if self._share is None:
            return f"{self._text} ... {seconds}"
        full = int(self._share * _WIDTH)
        return f"{self._text} [{'#' * full}{'.' * (_WIDTH - full)}] {self._share:.0%} {seconds}"
