"""Language models as the API answers and `jobctl llm … --json` prints them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from switchyard.api.models.llm import (
    AnswerOfModel,
    BatchedQuestions,
    BatchView,
    Budget,
    EndedPause,
    ModelServerView,
    ModelStatus,
    Spending,
    SpendReport,
    TimeLimit,
)

if TYPE_CHECKING:
    from switchyard.services.llm.llm_queue import LlmResult
    from switchyard.services.llm.records.llm_batches import LlmBatch
    from switchyard.services.llm.records.llm_servers import LlmServerReport, PauseEnded
    from switchyard.services.llm.records.llm_spend import BudgetState, SpendRow, SpentBy


def view_answer(result: LlmResult, raw_answers: list[str] | None = None) -> AnswerOfModel:
    """Show the state of a request; `raw_answers` are those that match no schema."""
    return AnswerOfModel.from_record(result, raw_answers=raw_answers)


def view_budget(budget: BudgetState) -> Budget:
    """Show a budget as it is now."""
    return Budget.from_record(
        budget, of=budget.key, set_aside=budget.reserved, too_little_left=budget.is_short
    )


def view_spending(
    rows: Iterable[SpendRow], budgets: Iterable[BudgetState], *, by: SpentBy, currency: str
) -> SpendReport:
    """Show what calls have cost, and what is left of the budgets."""
    return SpendReport(
        by=by,
        currency=currency,
        rows=[Spending.from_record(each) for each in rows],
        budgets=[view_budget(each) for each in budgets],
    )


def view_model_server(report: LlmServerReport, limit: int) -> ModelServerView:
    """Show a model server; `limit` calls may be made to it at a time."""
    return ModelServerView.from_record(
        report,
        limit=limit,
        pause_reason=report.state.pause_reason if report.paused_for else None,
        on_trial=report.state.is_on_trial,
        failures=report.state.failures,
    )


def view_ended_pause(server: str, ended: PauseEnded) -> EndedPause:
    """Show the pause of a server that was ended."""
    return EndedPause.from_record(ended, server=server)


def view_model_status(
    *,
    servers: Sequence[ModelServerView],
    time_limits: Iterable[tuple[str, float, float]],
    budgets: Iterable[BudgetState],
    currency: str,
    batches: Iterable[LlmBatch],
    batched_questions: Mapping[tuple[str, str], int],
) -> ModelStatus:
    """Show model servers, budgets and batches. `time_limits`: job type, seconds of an attempt, and
    of each of its calls; `batched_questions`: by server and state."""
    return ModelStatus(
        servers=list(servers),
        time_limits=[
            TimeLimit(job_type=job_type, attempt=attempt, call=call)
            for job_type, attempt, call in time_limits
        ],
        budgets=[view_budget(each) for each in budgets],
        currency=currency,
        batches=[BatchView.from_record(each) for each in batches],
        batched_questions=[
            BatchedQuestions(server=server, state=state, questions=number)
            for (server, state), number in batched_questions.items()
        ],
    )
