"""The ledger's promises about claims hold for random events in any order."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.requests import RedrivenCopy
from switchyard.services.engine.records.results import (
    Claimed,
    Finished,
    HeldByWorker,
    JobRecord,
    Running,
)
from switchyard.services.engine.records.states import TRANSITIONS, AttemptOutcome, State
from tests.support.made import NOW, claim, finish, letter, message, new_job, record_redrive

WORKERS = st.sampled_from(["worker-1", "worker-2", "worker-3"])
# Seldom SUCCEEDED: most of what can go wrong goes wrong before a job has ended for good.
# An end as QUEUED is a snooze: it counts as no attempt.
ENDS = [State.RETRYING, State.QUEUED, State.DEAD] * 2 + [State.SUCCEEDED]
FINAL = (State.SUCCEEDED, State.CANCELLED)


@dataclass(frozen=True)
class Copy:
    """A message that the broker may deliver, any number of times, as brokers do."""

    redrives: int
    attempts: int


class ClaimMachine(RuleBasedStateMachine):
    """One job, three workers, and a broker that delivers any copy at any time."""

    def __init__(self, runner: asyncio.Runner, ledger: Ledger, job_id: str) -> None:
        super().__init__()
        self.runner, self.ledger, self.job_id = runner, ledger, job_id
        self.copies = [Copy(0, 0)]
        self.claims: dict[str, Copy] = {}
        self.owner: str | None = None
        """The claim that may run the job."""
        self.cancel_asked = False
        """Whether a cancel came while the job ran."""
        self.last_record: JobRecord | None = None

    def run(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    @rule()
    def record(self) -> None:
        self.run(self.ledger.jobs.record(new_job(message(self.job_id))))

    @rule()
    def confirm(self) -> None:
        self.run(self.ledger.jobs.mark_queued([self.job_id], NOW))

    @rule(data=st.data(), worker_id=WORKERS, is_takeover=st.booleans())
    def deliver(self, data: st.DataObject, worker_id: str, is_takeover: bool) -> None:
        copy = data.draw(st.sampled_from(self.copies[-3:]))
        claim_id = f"claim-{len(self.claims)}"
        request = claim(
            message(self.job_id, redrives=copy.redrives, attempts=copy.attempts),
            claim_id,
            worker_id=worker_id,
            takeover_from=self.owner if is_takeover else None,
        )
        self.claims[claim_id] = copy
        answer = self.run(self.ledger.jobs.claim(request))
        if isinstance(answer, Claimed):
            assert self.owner is None or is_takeover, "two owners"
            assert not self.cancel_asked, "it runs again"
            self.owner = claim_id
        elif isinstance(answer, Finished) and self.cancel_asked:
            self.owner = None  # the takeover of a cancelled job ends it
        elif isinstance(answer, HeldByWorker):
            assert answer.claim_id == self.owner

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), state=st.sampled_from(ENDS))
    def finish(self, data: st.DataObject, state: State) -> None:
        claim_id = data.draw(st.sampled_from(list(self.claims)[-3:]))
        copy = self.claims[claim_id]
        attempts = copy.attempts + (state is not State.QUEUED)
        request = finish(
            state, claim_id, job_id=self.job_id, attempts=attempts, outcome=AttemptOutcome.RETRY
        )
        before = self.run(self.ledger.job_reads.get(self.job_id))
        is_accepted = self.run(self.ledger.jobs.finish(request))
        if claim_id == self.owner:
            assert is_accepted
            self.owner = None
            if state is State.RETRYING:
                self.copies.append(Copy(copy.redrives, attempts))
        else:
            assert self.run(self.ledger.job_reads.get(self.job_id)) == before, (
                "a late finish changed it"
            )

    # Only one time in four, or most jobs would end by it:
    @rule(is_drawn=st.sampled_from([False, False, False, True]))
    def cancel(self, is_drawn: bool) -> None:
        if is_drawn:
            answer = self.run(self.ledger.jobs.cancel(self.job_id, NOW))
            self.cancel_asked |= isinstance(answer, Running)

    @rule(is_marked_sent=st.booleans())
    def redrive(self, is_marked_sent: bool) -> None:
        record = self.run(self.ledger.job_reads.get(self.job_id))
        if record is not None and record.state is State.DEAD:
            self.copies.append(Copy(record.redrives + 1, 0))
            self.run(record_redrive(self.ledger, record.redrives + 1, self.job_id))
            if is_marked_sent:
                copy = RedrivenCopy(self.job_id, record.redrives + 1)
                self.run(self.ledger.redrives.record_redriven([copy], NOW))

    @rule(worker_id=WORKERS)
    def release(self, worker_id: str) -> None:
        record = self.run(self.ledger.job_reads.get(self.job_id))
        self.run(self.ledger.jobs.release_all(worker_id, NOW))
        if record is not None and record.claim_id == self.owner and record.worker_id == worker_id:
            self.owner = None

    @rule(data=st.data(), reason=st.sampled_from(["expired", "exhausted"]))
    def bury(self, data: st.DataObject, reason: str) -> None:
        copy = data.draw(st.sampled_from(self.copies))
        dead = letter(self.job_id, reason, redrives=copy.redrives, attempts=copy.attempts)
        self.run(self.ledger.dead_letters.index_dead([dead]))
        record = self.run(self.ledger.job_reads.get(self.job_id))
        if record is not None and record.state in (State.DEAD, State.CANCELLED):
            self.owner = None

    @invariant()
    def promises_hold(self) -> None:
        record = self.run(self.ledger.job_reads.get(self.job_id))
        before, self.last_record = self.last_record, record
        if record is None:
            return
        running = record.state is State.RUNNING
        assert (record.claim_id if running else None) == self.owner
        assert (record.finished_at is not None) == (record.state in {*FINAL, State.DEAD})
        if before is None:
            return
        copy_number = (record.redrives, record.attempts)
        assert copy_number >= (before.redrives, before.attempts), "attempts went down"
        if before.state in FINAL:
            assert record.state is before.state, "a finished job changed"
        if before.state is not record.state:
            assert record.state in TRANSITIONS[before.state]


@pytest.mark.parametrize("examples", [8, pytest.param(100, marks=pytest.mark.long)])
def test_of_all_copies_of_a_job_one_runs_at_a_time(database_url: str, examples: int) -> None:
    with asyncio.Runner() as runner:
        ledger = runner.run(Ledger.open(database_url))
        numbers = iter(range(1_000_000))
        try:
            run_state_machine_as_test(
                # Any factory will do, although the type asks for a class.
                lambda: ClaimMachine(runner, ledger, f"job-{next(numbers)}"),  # type: ignore[arg-type]
                settings=settings(
                    max_examples=examples,
                    stateful_step_count=30,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            runner.run(ledger.close())
