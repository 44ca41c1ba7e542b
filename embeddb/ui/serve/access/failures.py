"""Who gave a wrong token too often: nobody looks at what comes from there for a while."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from ipaddress import IPv6Address, ip_address

__all__ = ["MOST", "WINDOW_S", "Failures"]

#: Wrong tokens from one address within so many seconds.
MOST, WINDOW_S = 10, 60.0
#: Addresses that are remembered.
_MOST_ADDRESSES = 10_000


class Failures:
    """By address; of IPv6 by network, of which one user has all addresses. Of one process."""

    def __init__(self) -> None:
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, address: str) -> float:
        """Seconds until an address may try again; 0 where it may."""
        times = self._times.get(_network(address))
        if times is None or len(times) < MOST:
            return 0.0
        return max(0.0, times[0] + WINDOW_S - time.monotonic())

    def add(self, address: str) -> None:
        network = _network(address)
        times = self._times.setdefault(network, deque(maxlen=MOST))
        times.append(time.monotonic())
        self._times.move_to_end(network)
        while len(self._times) > _MOST_ADDRESSES:
            self._times.popitem(last=False)


def _network(address: str) -> str:
    try:
        found = ip_address(address)
    except ValueError:
        return address[:64]
    if not isinstance(found, IPv6Address):
        return str(found)
    return str(found.ipv4_mapped or int(found) >> 64)
