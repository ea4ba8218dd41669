"""Ask the settings' model servers, with stored answers, gate, budgets, second requests and
failover."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from switchyard.services.common.settings import LlmServer, Settings
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.output_stream import OutputStream
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring.metric_names import LLM_HEDGES, Metric, Samples
from switchyard.services.llm.batch_collector import BatchCollector
from switchyard.services.llm.budget_account import BudgetAccount, CallCharge, NoBudget
from switchyard.services.llm.completion_reader import Completion
from switchyard.services.llm.concurrency_policy import CallEnd, ConcurrencyPolicy
from switchyard.services.llm.endpoint_requests import EMBEDDINGS, Endpoint
from switchyard.services.llm.gate import (
    SHORT_PAUSE,
    Admission,
    BudgetRefusal,
    CallOutcome,
    LlmGate,
    Urgency,
)
from switchyard.services.llm.hedges import Hedges
from switchyard.services.llm.llm_errors import (
    EmptyLlmAnswer,
    InvalidLlmResponse,
    LlmBadRequest,
    LlmContextTooLong,
    LlmCut,
    LlmDeclined,
    LlmLimited,
    LlmOverloaded,
    LlmRefused,
    LlmSaturated,
    LlmTimeout,
    LlmUnavailable,
    LlmUnreachable,
    add_server_name,
)
from switchyard.services.llm.records.llm_servers import AnswerClaim, AnswerClaimRequest
from switchyard.services.llm.records.llm_spend import LlmCall, Requester, Reservation
from switchyard.services.llm.server_client import ModelResponse, ServerClient
from switchyard.services.llm.stored_answers import StoredAnswers

SLOT_TIMEOUT = 30.0
"""Seconds that a call waits for a slot; then its job goes back to its queue without using up an
attempt."""
HEDGE_SLOT_TIMEOUT = 1.0
"""Seconds that a second request (`hedges`) waits for a slot."""
MAX_ROUNDS = 10
"""How often a request is sent again after a 429 or 503."""
NO_REQUESTER = Requester()


@dataclass(frozen=True, slots=True)
class _ModelRequest:
    """A request, before a server is chosen for it: arguments of `ModelClient.answer`."""

    chat: Mapping[str, Any]
    urgency: Urgency
    output: OutputStream | None = None
    requester: Requester = NO_REQUESTER
    model: str | None = None
    keep_all: bool = False
    endpoint: Endpoint | None = None
    record_soon: bool = False


@dataclass(frozen=True, slots=True)
class _GatedCall:
    """A call that the gate has admitted or refused, with what it may cost at that server."""

    admission: Admission | BudgetRefusal
    call: LlmCall

    @property
    def server(self) -> LlmServer:
        return self.admission.server


class ModelClient:
    """Asks the servers of the settings. Open it with `ModelClient.open`, once for a process."""

    def __init__(
        self,
        servers: Sequence[LlmServer],
        clients: Mapping[str, ServerClient],
        gate: LlmGate | None,
        answers: StoredAnswers,
        account: BudgetAccount,
        hedges: Hedges,
        collector: BatchCollector | None = None,
    ) -> None:
        self._servers = servers
        self._clients = clients
        self._gate = gate
        self._answers = answers
        self._account = account
        self._hedges = hedges
        self._collector = collector

    def _servers_for(self, request: _ModelRequest) -> list[LlmServer]:
        """Return the servers that have the model, and whose API can take the request. Raises
        LlmRefused if there is none."""
        model, clients = request.model, self._clients
        servers_with_model = [each for each in self._servers if each.serves(model)]
        if not servers_with_model:
            raise LlmRefused(
                f"no server has the model {model!r}: see JOBS_LLM_PROVIDERS", is_missing=True
            )
        refusals = [
            clients[each.name].refusal(request.chat, request.endpoint)
            for each in servers_with_model
        ]
        able_servers = [
            each
            for each, refusal in zip(servers_with_model, refusals, strict=True)
            if refusal is None
        ]
        if not able_servers:
            raise LlmBadRequest(f"{servers_with_model[0].name}: {refusals[0]}")
        return able_servers

    def answer_key_fields(self, request: _ModelRequest) -> dict[str, Any]:
        """Return the fields of which the key of a stored answer is made: the chat as `asked`, and
        address and model of the servers of the lowest order. The names of these fields are part
        of stored keys, and of the questions that batches store: do not rename them."""
        able_servers = self._servers_for(request)
        lowest_order = min(each.order for each in able_servers)
        servers = sorted(
            [each.base_url, each.model] for each in able_servers if each.order == lowest_order
        )
        question: dict[str, Any] = {"servers": servers, "asked": request.chat}
        if request.endpoint is not None:
            question["endpoint"] = request.endpoint.path
        return question | {"keeps_all": True} if request.keep_all else question

    @classmethod
    @asynccontextmanager
    async def open(
        cls, settings: Settings, ledger: Ledger | None, *, policy: ConcurrencyPolicy | None = None
    ) -> AsyncIterator[ModelClient]:
        """Open a client; its connections end with the context. Without a ledger, only this process
        knows of its calls. Raises LlmRefused when no server is set, or its address is invalid."""
        servers = settings.llm_servers
        if not servers:
            raise LlmRefused("no model server is set: JOBS_LLM_BASE_URL is empty")
        async with AsyncExitStack() as stack:
            clients = {}
            for server in servers:
                connecting = ServerClient.connect(server, settings.llm_timeout)
                clients[server.name] = await stack.enter_async_context(connecting)
            gate = None
            if ledger is not None:
                gate = await stack.enter_async_context(
                    LlmGate.open(settings, ledger, policy=policy)
                )
            account = BudgetAccount.from_settings(settings, ledger)
            collector = BatchCollector.from_settings(settings, ledger, account)
            hedges = Hedges(settings.llm_hedge_share)
            answers = StoredAnswers.from_settings(settings, ledger)
            stack.push_async_callback(answers.close)
            yield cls(servers, clients, gate, answers, account, hedges, collector)

    async def answer(
        self,
        chat: Mapping[str, Any],
        *,
        urgency: Urgency,
        timeout: float,
        fresh: bool = False,
        output: OutputStream | None = None,
        requester: Requester = NO_REQUESTER,
        batch: bool = False,
        model: str | None = None,
        keep_all: bool = False,
        endpoint: Endpoint | None = None,
        record_soon: bool = False,
    ) -> tuple[Completion, bool]:
        """Return the answer to a chat (`messages`, `max_tokens`, …), and whether it was reused:
        unless `fresh`, a question that was asked before, or is being asked, is not paid for again.

        `timeout` is in seconds, the wait for a slot included. `output` gets the text as it comes;
        `requester` is charged for the call. With a `model`, only servers that have it are asked;
        with `keep_all`, the answer has a `body` with all fields. With an `endpoint`, `chat` is the
        body of its request. With `batch`, and neither `fresh` nor `model`, the question is
        collected for a batch where there is a Batch API, and WaitingForBatch is raised; the job is
        retried when the batch has ended. With `record_soon`, the ends of call and answer are
        committed with the ledger's next write, for which the caller does not wait: for a job that
        ends next, with that end.

        Raises LlmUnavailable, InvalidLlmResponse (try again later; `counts` says whether that is an
        attempt), LlmRefused, NoBudget, StorageError, and LedgerError.
        """
        request = _ModelRequest(
            chat, urgency, output, requester, model, keep_all, endpoint, record_soon
        )
        question = self.answer_key_fields(request)
        collector = self._collector if batch and not fresh and model is None else None
        gate = self._gate if collector is None else None
        claimed: _GatedCall | None = None

        async def claim(claim_request: AnswerClaimRequest) -> AnswerClaim | None:
            """Claim the answer, and take a slot with it."""
            nonlocal claimed
            if gate is None:
                return None
            reservation = self._reservations(request)
            answer_claim, admission = await gate.claim_and_enter(
                claim_request,
                urgency,
                excluded=self._unable_servers(request),
                reservation=reservation,
            )
            if admission is not None:
                claimed = _GatedCall(admission, reservation(admission.server).call)
            return answer_claim

        async def ask(seconds_left: float) -> Completion:
            nonlocal claimed
            if collector is not None:
                await collector.collect(question, requester)
            gated_call, claimed = claimed, None
            return await self._ask_servers(request, seconds_left, gated_call)

        try:
            answer, reused = await self._answers.get(
                question, ask, timeout=timeout, fresh=fresh, record_soon=record_soon, claim=claim
            )
        finally:
            if gate is not None and claimed is not None:  # an answer was found after all
                await asyncio.shield(self._give_back(gate, claimed))
        came_from_batch = collector is not None and await collector.finish_wait(question, requester)
        if reused and not came_from_batch:
            models = [each.model for each in self._servers]
            await self._account.record_cache_saving(answer, requester, models, soon=record_soon)
        return answer, reused

    @property
    def has_waiting(self) -> bool:
        """Whether calls wait for a slot at a server."""
        return self._gate is not None and self._gate.has_waiting

    def metric_samples(self) -> list[tuple[Metric, Samples]]:
        """Return the client's metrics."""
        counts = self._hedges.counts.items()
        return [(LLM_HEDGES, {(outcome,): float(number) for outcome, number in counts})]

    async def forget(self, chat: Mapping[str, Any], *, model: str | None = None) -> None:
        """Delete the stored answer to a question: it can't be used."""
        await self._answers.forget(
            self.answer_key_fields(_ModelRequest(chat, Urgency(), model=model))
        )

    async def _ask_servers(
        self, request: _ModelRequest, timeout: float, claimed_call: _GatedCall | None
    ) -> Completion:
        """Ask the first server that can answer; `claimed_call` is a slot that the call has
        already."""
        deadline = time.monotonic() + timeout
        excluded = self._unable_servers(request)
        last_error: LlmUnavailable | InvalidLlmResponse | LlmRefused | NoBudget | None = None
        decline: LlmDeclined | None = None
        for _ in range(MAX_ROUNDS + len(self._clients)):
            seconds_left = deadline - time.monotonic()
            if len(excluded) == len(self._clients) or seconds_left <= 0:
                break
            try:
                # Half of the time is left for the call: a call that begins too late for an answer
                # would count as a time-out of the server, and use up an attempt of the job.
                slot_timeout = min(SLOT_TIMEOUT, seconds_left / 2)
                gated_call = claimed_call or await self._take_slot(request, slot_timeout, excluded)
                claimed_call = None
            except LlmSaturated as error:
                if decline is not None:  # another call would be declined and charged again
                    raise decline from error
                if isinstance(last_error, LlmRefused):  # another server may not refuse the request
                    raise
                # A server's answer says more than that the other servers have no free slot.
                raise last_error or error from error
            try:
                seconds_left = deadline - time.monotonic()
                return await self._ask_hedged(gated_call, request, seconds_left, excluded)
            except (LlmLimited, LlmOverloaded) as error:
                # This server is paused now, or gets fewer calls; the gate chooses the next one.
                last_error = error
            except (LlmUnavailable, InvalidLlmResponse, NoBudget) as error:
                last_error = error
                excluded.add(gated_call.server.name)
            except LlmRefused as error:
                last_error = error
                excluded.add(gated_call.server.name)
                if isinstance(error, LlmDeclined):
                    decline = decline or error
                if not error.is_server_specific:
                    refuser = next(
                        server for server in self._servers if server.name == gated_call.server.name
                    )
                    excluded |= {
                        server.name
                        for server in self._servers
                        if not takes_over(server, error, refuser)
                    }
        raise decline or last_error or LlmTimeout(f"no model server answered within {timeout:g} s")

    async def _take_slot(
        self, request: _ModelRequest, timeout: float, excluded: set[str]
    ) -> _GatedCall:
        """Wait for a slot at a server that is not in `excluded`, and reserve what the call may cost
        there."""
        reservation = self._reservations(request)
        if self._gate is not None:
            admission: Admission | BudgetRefusal = await self._gate.enter(
                request.urgency, timeout=timeout, excluded=excluded, reservation=reservation
            )
        else:
            name = next(name for name in self._clients if name not in excluded)
            admission = Admission(LlmServer(name=name, base_url=""), "")  # its name alone is used
        return _GatedCall(admission, reservation(admission.server).call)

    def _reservations(self, request: _ModelRequest) -> Callable[[LlmServer], Reservation]:
        """Return a function that computes the reservation for a call to a server."""
        estimates: dict[str, LlmCall] = {}

        def reservation(server: LlmServer) -> Reservation:
            if server.name not in estimates:  # a call that waits asks for a slot again and again
                estimates[server.name] = self._account.estimate(
                    server,
                    request.chat,
                    request.requester,
                    has_answer=request.endpoint is not EMBEDDINGS,
                )
            return self._account.reservation(estimates[server.name])

        return reservation

    def _unable_servers(self, request: _ModelRequest) -> set[str]:
        """Return the names of the servers that can't take the request. Raises LlmRefused if no
        server can."""
        return set(self._clients) - {each.name for each in self._servers_for(request)}

    async def _give_back(self, gate: LlmGate, gated_call: _GatedCall) -> None:
        """Give back the slot of a call that was not made, with its reservation."""
        if isinstance(gated_call.admission, Admission):
            freed_calls = self._account.ended_calls(gated_call.call, CallCharge())
            await gate.leave(gated_call.admission, None, freed_calls)

    async def _ask_hedged(
        self, gated_call: _GatedCall, request: _ModelRequest, timeout: float, excluded: set[str]
    ) -> Completion:
        """Call the server. If a hot request is late, send it again, and use the answer that begins
        first."""
        hedge_delay = self._hedges.next_hedge_delay() if request.urgency.lane == 0 else None
        if hedge_delay is None:
            return await self._call(gated_call, request, timeout)
        deadline = time.monotonic() + timeout
        other_servers = set(self._clients) - excluded - {gated_call.server.name}

        async def first(output: OutputStream) -> Completion:
            return await self._call(gated_call, replace(request, output=output), timeout)

        async def second(output: OutputStream) -> Completion:
            excluded_for_second = excluded | {gated_call.server.name} if other_servers else excluded
            slot_timeout = min(HEDGE_SLOT_TIMEOUT, deadline - time.monotonic())
            second_call = await self._take_slot(request, slot_timeout, excluded_for_second)
            seconds_left = deadline - time.monotonic()
            return await self._call(second_call, replace(request, output=output), seconds_left)

        return await self._hedges.race(hedge_delay, request.output, first, second)

    async def _call(
        self, gated_call: _GatedCall, request: _ModelRequest, timeout: float
    ) -> Completion:
        admission, charge, output = gated_call.admission, CallCharge(), request.output
        if isinstance(admission, BudgetRefusal):
            raise self._account.no_budget_error(admission.no_budget, gated_call.call.model)
        outcome: CallOutcome | None = None
        failure: LlmUnavailable | InvalidLlmResponse | LlmRefused | None = None
        if output is not None:
            output.begin()  # discards what a server that was asked before has written
        try:
            client = self._clients[admission.server.name]
            client.adopt(admission.learned)
            response = await client.ask(
                request.chat,
                timeout=timeout,
                on_text=None if output is None else output.write,
                restart=lambda: None if output is None else output.begin(),
                on_broken=charge.count_broken,
                keep_all=request.keep_all,
                endpoint=request.endpoint,
            )
            charge.answer = response.answer
            learned = "" if client.learned == admission.learned else client.learned
            outcome = _outcome_of_response(response, learned)
            if response.timing.first_token is not None:
                self._hedges.observe_latency(response.timing.first_token)
            return response.answer
        except BaseException as error:
            charge.error = error
            if isinstance(error, LlmUnavailable | InvalidLlmResponse | LlmRefused):
                outcome, failure = outcome_of_error(error), error
                if len(self._clients) > 1:
                    add_server_name(error, admission.server.name)
            raise
        finally:
            if self._gate is not None:
                # Also when the job is cancelled: until it is done, other calls wait for the slot,
                # and can't spend what is reserved.
                calls = self._account.ended_calls(gated_call.call, charge)
                is_overload = False
                if request.record_soon and outcome and outcome.end is CallEnd.ANSWERED:
                    self._gate.leave_answered(admission, outcome, calls)
                else:
                    is_overload = await asyncio.shield(self._gate.leave(admission, outcome, calls))
                if is_overload and failure is not None:
                    raise LlmOverloaded(
                        f"{failure}; it had other calls and gets fewer now", after=SHORT_PAUSE
                    ) from failure


def takes_over(server: LlmServer, error: LlmRefused, refuser: LlmServer) -> bool:
    """Return whether a server is to be asked after `refuser` has refused the request with `error`:
    a server with the same model would refuse it again."""
    is_other = server.model != refuser.model
    match error:
        case LlmContextTooLong():
            if server.context_length and refuser.context_length:
                is_other = server.context_length > refuser.context_length
            return is_other and "context_length" in server.takes_over
        case LlmDeclined():
            return is_other and "content_filter" in server.takes_over
    return False


def _outcome_of_response(response: ModelResponse, learned: str) -> CallOutcome:
    wait = response.quota_wait
    reason = "its limits are used up" if wait else ""
    return CallOutcome(
        CallEnd.ANSWERED, response.timing, pause=wait, reason=reason, learned=learned
    )


def outcome_of_error(error: LlmUnavailable | InvalidLlmResponse | LlmRefused) -> CallOutcome:
    """Return the outcome of a failed call, for the gate."""
    reason = str(error)[:200]
    match error:
        case LlmLimited():
            pause = SHORT_PAUSE if error.after is None else error.after
            return CallOutcome(CallEnd.REFUSED, pause=pause, reason=reason)
        case LlmTimeout():
            return CallOutcome(CallEnd.TIMED_OUT, is_failure=True, reason=reason)
        case LlmCut() | EmptyLlmAnswer():
            return CallOutcome(CallEnd.BROKEN, is_failure=True, reason=reason)
        case (
            LlmUnreachable()
            | LlmUnavailable()
            | InvalidLlmResponse()
            | LlmRefused(is_server_specific=True)
        ):
            return CallOutcome(CallEnd.FAILED, is_failure=True, reason=reason)
        case _:
            return CallOutcome(CallEnd.FAILED)


@asynccontextmanager
async def model_client_of(
    ctx: JobContext,
    settings: Settings | None = None,
    client_class: type[ModelClient] = ModelClient,
) -> AsyncIterator[ModelClient]:
    """Yield the client of `client_class` that the jobs of this process share, or a new one if they
    share nothing. It asks the servers of `settings`, by default the job's."""

    def open_client() -> Any:
        return client_class.open(settings or ctx.settings, ctx.ledger)

    if ctx.shared is not None:
        yield await ctx.shared.get(client_class, open_client)
        return
    async with open_client() as client:
        yield client
