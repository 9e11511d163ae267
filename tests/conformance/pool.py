"""Worker processes that judge one case after the other, so that a crash or an endless loop costs only its case."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import TypeAlias

import jax

from tests.conformance import cases
from tests.conformance.judge import Result

CASES_UNTIL_CLEAN_UP = 200  # this often, a worker forgets what JAX compiled
START_SECONDS = 300.0  # more than importing JAX ever takes, for a worker that never comes up

# Judges the case of the given name, and calls the second argument with the name of each stage.
Judge: TypeAlias = Callable[[str, Callable[[str], None]], Result]


def judge_all(groups: Mapping[str, str], judge: Judge, *, workers: int = 2, timeout: float = 60.0) -> Iterator[Result]:
    """The results of the cases, as they come in. `groups` has for the name of each case its group.

    `judge` is sent to other processes, so it must be importable.
    """
    workers = min(workers, len(groups))
    idle: SimpleQueue[_Worker] = SimpleQueue()

    def judge_one(name: str) -> Result:
        worker = idle.get()
        try:
            return worker.judge(name, groups[name], timeout)
        finally:
            idle.put(worker)

    threads = ThreadPoolExecutor(workers or 1)
    try:
        for _ in range(workers):
            idle.put(_Worker(judge))
        for future in as_completed([threads.submit(judge_one, name) for name in groups]):
            yield future.result()
    finally:
        threads.shutdown(cancel_futures=True)
        for _ in range(workers):
            idle.get().stop()


class _Worker:
    """A process that judges cases; a new one takes its place when it dies."""

    def __init__(self, judge: Judge) -> None:
        self.work = judge
        self.process: multiprocessing.process.BaseProcess | None = None

    def judge(self, name: str, group: str, timeout: float) -> Result:
        """The result of the case `name`, also if it kills the process or never ends."""
        if self.process is None:
            self.start()
        self.connection.send(name)
        start, stage = time.monotonic(), "reference"
        try:
            while self.connection.poll(max(0.0, start + timeout - time.monotonic())):
                message = self.connection.recv()
                if isinstance(message, Result):
                    return message
                stage = message
        except EOFError:
            code = self.stop()
            end = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            verdict, reason = "crash", f"{end} in the stage {stage}"
        else:
            self.stop()
            verdict, reason = "timeout", f"more than {timeout:g} s, in the stage {stage}"
        return Result(name, group, verdict, reason, time.monotonic() - start)

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")  # a forked process would inherit the locks of JAX's threads
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, self.work), daemon=True)
        self.process.start()
        theirs.close()
        if not self.connection.poll(START_SECONDS):
            self.stop()
            raise RuntimeError("A worker process did not start.")
        self.connection.recv()  # raises EOFError, with the worker's own words on stderr, if it failed to start

    def stop(self) -> int:
        """End the process; its exit code."""
        if self.process is None:
            return 0
        self.connection.close()
        self.process.kill()
        self.process.join()
        code, self.process = self.process.exitcode or 0, None
        return code


def _work(connection: Connection, judge: Judge) -> None:
    """Judge the cases whose names come in, until the other side is gone."""
    cases.load()
    connection.send("ready")
    # What the libraries print about a failing case is in its result, or not worth reading.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    done = 0
    while True:
        try:
            name = connection.recv()
        except EOFError:
            return
        connection.send(judge(name, connection.send))
        done += 1
        if done % CASES_UNTIL_CLEAN_UP == 0:
            jax.clear_caches()
