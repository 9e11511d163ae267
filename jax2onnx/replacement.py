"""Files that are complete or absent.

Everything is written and flushed in a temporary folder next to the destination first, then moved into place; a full
disk or an interrupt leaves things as they were.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Sequence
from typing import BinaryIO


class Output:
    """A stream to a file. Its errors say to which: the system, where a disk is full, does not."""

    def __init__(self, stream: BinaryIO, final: str) -> None:
        self._stream, self._final = stream, final

    def write(self, content: bytes | memoryview) -> None:
        """Append to the file."""
        with self._named_errors():
            self._stream.write(content)

    def tell(self) -> int:
        """How many bytes were written."""
        return self._stream.tell()

    def flush(self) -> None:
        """Wait until the file is on the disk."""
        with self._named_errors():
            self._stream.flush()
            os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Write what is left, too."""
        with self._named_errors():
            self._stream.close()

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = self._final
            raise


def temporary(target: str) -> str:
    """A name next to `target` that nothing has."""
    folder, base = os.path.split(target)
    return os.path.join(folder, f".{base}.{secrets.token_hex(4)}.tmp")


class Replacement:
    """A set of files that replaces what is at their final names, all or nothing.

    Whenever a model is at its final name, the data files it refers to are the ones written with it. A single file is
    replaced in one step. If data files have to be replaced too, the old model is moved aside before and the new one
    comes last: someone who looks (or a machine that stops) in between finds no model, but never a mixture.
    """

    def __init__(self, target: str) -> None:
        self._stage = temporary(target)
        self._finals: list[str] = []  # the model is last
        self._leftovers: list[str] = []

    def __enter__(self) -> Replacement:
        os.mkdir(self._stage)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._stage)
        for path in self._leftovers:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def staged(self, final: str) -> str:
        """Where a file is until it is moved to `final`. All are in one folder, so that they find each other there."""
        return os.path.join(self._stage, os.path.basename(final))

    @contextlib.contextmanager
    def open(self, final: str) -> Iterator[Output]:
        """A stream to what will be the file `final`."""
        with contextlib.closing(Output(open(self.staged(final), "xb"), final)) as output:
            yield output
            output.flush()
        if os.path.exists(final):
            os.chmod(self.staged(final), stat.S_IMODE(os.stat(final).st_mode))
        self._finals.append(final)

    def commit(self, remove: Sequence[str] = ()) -> None:
        """Move the files into place, then delete those in `remove`."""
        *data, model = self._finals
        in_use = [final for final in data if os.path.exists(final)]
        aside = {path: temporary(path) for path in ([model, *in_use] if in_use else [])}
        placed = []
        try:
            for path, away in aside.items():
                os.replace(path, away)
            for final in self._finals:
                os.replace(self.staged(final), final)
                placed.append(final)
        except BaseException:  # also an interrupt
            if os.path.exists(self.staged(model)):  # not yet done: put everything back as it was, the model last
                for final in placed:
                    os.unlink(final)
                for path, away in reversed(aside.items()):
                    with contextlib.suppress(FileNotFoundError):
                        os.replace(away, path)
            raise
        self._leftovers += aside.values()
        self._leftovers += remove
        _sync_folder(os.path.dirname(model))


def _sync_folder(folder: str) -> None:
    """Make renames in `folder` survive a power cut, where the platform can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
