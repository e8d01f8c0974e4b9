"""The network is closed while tests run. A test that talks to its own machine asks for it: `@pytest.mark.loopback`.

The interpreter tells an audit hook of every name that is looked up and every address that is bound, connected or sent
to. What is not allowed raises, and is noted: a library that swallows the error does not hide it.
"""

import ipaddress
import socket
import sys
from typing import Any

ADDRESSED = ("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg")
LOOKED_UP = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")


class ClosedError(OSError):
    """A test asked for the network."""


class Network:
    """What tests may reach: nothing, or with `loopback` this machine."""

    def __init__(self) -> None:
        self.loopback = False
        self.attempts: list[str] = []

    def close(self) -> None:
        """From now on, and for the rest of this process."""
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not event.startswith("socket."):
            return
        if event in ADDRESSED:
            own, address = arguments
            if own.family not in (socket.AF_INET, socket.AF_INET6) or address is None:
                return
            host = address[0]
        elif event in LOOKED_UP:
            host = arguments[0]
        else:
            return
        if not (self.loopback and is_here(host)):
            self.attempts.append(f"{event} {host}")
            raise ClosedError(f"the network is closed to tests: {event} {host}")


def is_here(host: Any) -> bool:
    """Whether a host is this machine's loopback.

    >>> is_here("127.0.0.1"), is_here("localhost"), is_here("8.8.8.8"), is_here("0.0.0.0")
    (True, True, False, False)
    """
    name = host.decode() if isinstance(host, bytes) else host
    if name in ("localhost", None):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


NETWORK = Network()
