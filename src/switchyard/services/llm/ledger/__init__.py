"""What the ledger keeps of calls to language models."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from switchyard.services.engine.ledger import Ledger


class LlmLedger:
    """The repositories of this wing, in the database of a ledger. Cheap to make, and nothing has to
    be closed. What needs SQLAlchemy is loaded when one is made: job types are listed without it."""

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
