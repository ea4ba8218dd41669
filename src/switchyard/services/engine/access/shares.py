"""Share a limited amount among clients, so that none takes all of it."""

from __future__ import annotations


class Shares:
    """An amount that clients take parts of: bytes of memory, or a number of streams.

    No client gets more than is left for others: one alone at most half, each of two a third. These
    are the dynamic thresholds of shared buffers (Choudhury and Hahne, IEEE/ACM Transactions on
    Networking 6 (1998), 130): whoever comes next finds something, and nothing is set aside for
    those who don't come.
    """

    def __init__(self, total: int, *, parent: Shares | None = None, name: str = "") -> None:
        """`total`: the amount that there is. With `parent`, all that is taken here is also taken
        there, by the client `name`."""
        if total < 1:
            raise ValueError("the amount to share must be at least 1")
        self._total = total
        self._parent = parent
        self._name = name
        self._taken: dict[str, int] = {}
        self.used = 0
        """Units that all clients use together."""

    def take(self, client: str, amount: int) -> bool:
        """Take `amount` for the client; return False and take nothing if that is too much. While
        nobody has taken anything, any amount is allowed: callers bound one request."""
        own = self._taken.get(client, 0) + amount
        if self.used and own > self._total - self.used:
            return False
        if self._parent is not None and not self._parent.take(self._name, amount):
            return False
        self._taken[client] = own
        self.used += amount
        return True

    def give_back(self, client: str, amount: int) -> None:
        """Give back some of what the client took."""
        if self._parent is not None:
            self._parent.give_back(self._name, amount)
        self.used -= amount
        left = self._taken[client] - amount
        if left:
            self._taken[client] = left
        else:
            del self._taken[client]
