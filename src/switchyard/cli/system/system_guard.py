"""Whether a broker may be changed: not where it is another system's."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from switchyard.cli.base.common import open_ledger

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.records.errors import LedgerError


async def require_ours(settings: Settings) -> LedgerError | None:
    """Raises WrongSystem before anything is changed. A host without the ledger can't ask: why it
    could not is the answer."""
    from switchyard.services.engine.identity.broker import require_same_system
    from switchyard.services.engine.records.errors import LedgerError

    with suppress(ValueError):
        try:
            async with open_ledger(settings) as ledger:
                await require_same_system(settings, ledger)
        except LedgerError as error:
            return error
    return None
