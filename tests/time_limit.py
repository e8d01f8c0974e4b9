"""A limit for each test, so that one that hangs fails: an alarm of the system, where it has one (not Windows)."""

import signal
import threading
from contextlib import contextmanager

import pytest


@contextmanager
def limited(seconds):
    """Inside the block, a test that takes longer fails where it is; it may be waiting for a process or a lock."""

    def stop(*_):
        pytest.fail(f"took longer than {seconds} seconds")

    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
