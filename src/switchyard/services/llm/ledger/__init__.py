"""The repositories of this wing (language models) in the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from switchyard.services.engine.ledger import Ledger


class LlmLedger:
    """The repositories for language models, in the database of a ledger. It is cheap to make, and
    need not be closed. SQLAlchemy is loaded only when one is made, as job types are listed without
    it."""

    def __init__(self, ledger: Ledger) -> None:
        from switchyard.services.llm.ledger.llm_answers import LlmAnswerRepository
        from switchyard.services.llm.ledger.llm_batches import LlmBatchRepository
        from switchyard.services.llm.ledger.llm_history import LlmHistory
        from switchyard.services.llm.ledger.llm_slots import LlmSlotRepository
        from switchyard.services.llm.ledger.llm_spend import LlmSpendRepository
        from switchyard.services.llm.ledger.openai_batches import OpenAiBatchRepository

        core = ledger.core
        self.answers = LlmAnswerRepository(core)
        self.batches = LlmBatchRepository(core)
        self.history = LlmHistory(core)
        self.slots = LlmSlotRepository(core)
        self.spending = LlmSpendRepository(core)
        self.openai = OpenAiBatchRepository(core)
