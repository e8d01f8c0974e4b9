"""The network is closed to tests, and the commands of the package run on a machine that has none."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.network import NETWORK, ClosedError

ISOLATED = ["unshare", "--map-root-user", "--net"]
"""Starts a process in a network of its own, without a single interface that is up."""
CORE = """
import sys
from pathlib import Path
from induction_memory.cli import main
from tests.sweep.tiny_sweep import FILE
from tests.tiny_runs import tiny
from induction_memory.training.run import start

up = [line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
assert up == ["lo"], up
start(tiny(), "run", progress=False)
Path("runs.toml").write_text(FILE)
for line in sys.argv[1:]:
    sys.argv = ["induction-memory", *line.split()]
    main()
"""
COMMANDS = [
    "presets",
    "probe run --step 0,12",
    "ablate run",
    "patch run",
    "circuit run",
    "heads run",
    "surgery run --memory W_O2 --erase e",
    "attention run --out maps.html",
    "report run --out page.html",
    "branch run --at 4 --out branch",
    "sweep runs.toml --out sweep --workers 1",
    "verify run",
]


def connect():
    socket.create_connection(("192.0.2.1", 80), timeout=1)


def send():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.sendto(b"x", ("192.0.2.1", 9))


def serve():
    with socket.socket() as own:
        own.bind(("0.0.0.0", 0))


def talk_to_this_machine():
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))


ATTEMPTS = [connect, send, serve, talk_to_this_machine, lambda: socket.getaddrinfo("example.org", 80)]


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_a_test_that_asks_for_the_network_is_refused_and_the_attempt_is_noted(attempt):
    with pytest.raises(ClosedError, match="the network is closed to tests: socket"):
        attempt()
    assert len(NETWORK.attempts) == 1
    NETWORK.attempts.clear()


@pytest.mark.loopback
def test_a_test_that_asks_by_name_reaches_this_machine_and_no_other():
    talk_to_this_machine()
    for attempt in (connect, send, serve):
        with pytest.raises(ClosedError):
            attempt()
    NETWORK.attempts.clear()


@pytest.mark.hard
def test_the_commands_run_where_there_is_no_network_at_all(tmp_path, knocks):
    try:
        subprocess.run([*ISOLATED, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as reason:
        pytest.skip(f"no network of its own for a process here: {reason}")
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [*ISOLATED, sys.executable, "-c", CORE, *COMMANDS]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    knocks["commands without a network"] += len(COMMANDS)
