"""An engine on this machine: a few processes with one thread each, each controlled by a thread of this process."""

import queue
import threading

from induction_memory.sweep.job import Child, Job, Outcome


class Pool:
    """Up to `workers` processes at a time; one that is killed is replaced when there is more to do."""

    def __init__(self, workers: int) -> None:
        self._waiting: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[tuple[str, Outcome]] = queue.SimpleQueue()
        self._running: dict[threading.Thread, str] = {}
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> None:
        self._waiting.put(job)

    def next(self, timeout: float) -> tuple[str, Outcome] | None:
        try:
            return self._ended.get(timeout=timeout)
        except queue.Empty:
            return None

    def running(self) -> set[str]:
        return set(self._running.copy().values())

    def close(self) -> None:
        self._stop.set()
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        child, me = None, threading.current_thread()
        while (job := self._waiting.get()) is not None and not self._stop.is_set():
            try:
                child = child or Child()
            except OSError as error:
                self._ended.put((job.name, Outcome("failed", f"no process could be started for it: {error}")))
                continue
            self._running[me] = job.name
            outcome = child.run(job, self._stop.is_set)
            del self._running[me]
            if outcome.state in ("died", "stopped"):
                child.kill()
                child = None
            self._ended.put((job.name, outcome))
        if child is not None:
            child.kill()
