"""Match each publish with its outcome: a confirm, a return, or the end of its channel."""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

from switchyard.broker.errors import PublishError, Refused, Unroutable
from switchyard.broker.wire.failures import ChannelLoss

Waiter = TypeVar("Waiter")
_Key = tuple[str, str, str]
"""Message id, exchange and routing key: all that identifies a returned message."""


class UnconfirmedPublishes(Generic[Waiter]):
    """The publishes of one channel that wait for their confirm.

    `Waiter` is the type of the waiter. The meaning of a return, an ack, a nack and the end of the
    channel is decided here for both publishers; how frames arrive is left to them.
    """

    def __init__(self) -> None:
        self._last_tag = 0
        self._waiting: dict[int, tuple[Waiter, _Key, int]] = {}
        """By delivery tag: the waiter, its key, and the size of the body in bytes."""
        # Counted: one job sent twice can come back twice before either is confirmed.
        self._returned: Counter[_Key] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(
        self, waiter: Waiter, message_id: str, exchange: str, routing_key: str, size: int = 0
    ) -> None:
        """Add the publish that was just sent, with a body of `size` bytes. Its tag is its number on
        the channel, from 1, as the broker counts too."""
        self._last_tag += 1
        self._waiting[self._last_tag] = (waiter, (message_id, exchange, routing_key), size)

    def note_return(self, message_id: str, exchange: str, routing_key: str) -> None:
        """Note a basic.return: no queue took the message. It comes before the confirm, without a
        tag."""
        self._returned[message_id, exchange, routing_key] += 1

    def pop_confirmed(
        self, tag: int, *, multiple: bool, accepted: bool
    ) -> list[tuple[Waiter, PublishError | None]]:
        """Handle basic.ack or basic.nack: remove and return the waiters that it ends, with their
        errors.

        `multiple` means every tag up to this one.
        """
        tags = [tag]
        if multiple:
            # Insertion order is tag order, so these are at the front.
            tags = []
            for waiting in self._waiting:
                if waiting > tag:
                    break
                tags.append(waiting)
        all_accepted = accepted and not self._returned
        return [
            (ended[0], None if all_accepted else self._error(ended[1], accepted))
            for each in tags
            if (ended := self._waiting.pop(each, None)) is not None
        ]

    def pop_all(self, reason: str) -> list[tuple[Waiter, PublishError | None]]:
        """Remove all waiters, as the channel or its connection is gone; return each with its
        error."""
        loss = ChannelLoss(reason)
        waiting = list(self._waiting.values())
        self._waiting.clear()
        self._returned.clear()
        alone = len(waiting) == 1
        return [
            (waiter, loss.as_error(exchange, routing_key, size, alone=alone))
            for waiter, (_, exchange, routing_key), size in waiting
        ]

    def _error(self, key: _Key, accepted: bool) -> PublishError | None:
        if key in self._returned:
            self._returned[key] -= 1
            self._returned += Counter()  # drops what is at zero
            return Unroutable(key[1], key[2])
        if not accepted:
            return Refused(f"the broker refused {key[2]!r} (nack)")
        return None
