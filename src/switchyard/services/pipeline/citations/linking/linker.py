"""Link references to works. Each question to the catalogues is asked once in the whole fleet, and
its answer is kept in the ledger."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from switchyard.services.common.durations import DAY
from switchyard.services.common.errors import TemporarilyUnavailable
from switchyard.services.common.instance_ids import new_instance_id
from switchyard.services.common.settings import Settings
from switchyard.services.engine.ledger.leases import renewing
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.pipeline.citations.cited_works import CitedWork, LinkStatus, WorkLink
from switchyard.services.pipeline.citations.linking.catalogue import BATCH_SIZE, Catalogue
from switchyard.services.pipeline.citations.linking.catalogue_registry import CATALOGUES
from switchyard.services.pipeline.citations.linking.matching import choose_work, link_by_identifier
from switchyard.services.pipeline.citations.linking.work_questions import (
    LookupMethod,
    WorkQuestion,
    questions_of,
)
from switchyard.services.pipeline.citations.reference import Reference
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.sources.source_client import SourceClient
from switchyard.services.pipeline.sources.source_errors import (
    InvalidSourceResponse,
    SourceBusy,
    SourceNotFound,
    SourceRefused,
    SourceUnavailable,
)

if TYPE_CHECKING:  # the job types are imported without a database
    from switchyard.services.engine.ledger import Ledger

CLAIM_TTL = 6.0
"""Seconds after which a claim to ask a question ends, unless its process renews it. So another
process can ask after a crash."""
CLAIM_POLL_INTERVAL = 0.5
"""Seconds between polls for answers to questions that other processes ask."""
MAX_TRIES = 3
"""Attempts at a request to a catalogue."""
TURN_TIMEOUT = 10.0
"""Seconds that a job waits for its turn at a catalogue, or for the end of a catalogue's pause,
before it goes back to its queue."""
MAX_PAUSE = 600.0
"""Longest pause of a catalogue, in seconds, after which a job comes back. A catalogue that pauses
for longer is left out: the others link the references."""
READ_BATCH_SIZE = 500
"""Answers that are read from the ledger at once."""

WorksByQuestion = dict[str, list[Any]]
"""By a question's key, the works that were found, each with its `provider`."""


class OutOfTime(TemporarilyUnavailable):
    """The time for linking is over; the answers so far are kept."""


class Linker:
    """Links references within a time limit. Open it with `Linker.open`."""

    def __init__(
        self,
        ledger: Ledger,
        catalogues: Sequence[Catalogue],
        *,
        max_age: float,
        timeout: float,
        max_pause: float = MAX_PAUSE,
    ) -> None:
        self._ledger = ledger
        self._answer_repository = PipelineLedger(ledger).catalogue_answers
        self._catalogues = catalogues
        self._max_age = max_age
        self._deadline = time.monotonic() + timeout
        self._max_pause = max_pause
        self._holder = new_instance_id()
        self._log = structlog.get_logger("citations")
        self.paused: dict[str, float] = {}
        """By name, the catalogues that were left out, with the end of their pauses in seconds since
        the epoch. Answers that they could have added to are not kept, so that the next linker asks
        again."""

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        settings: Settings,
        ledger: Ledger,
        *,
        timeout: float,
        max_pause: float = MAX_PAUSE,
        lane: str = "",
    ) -> AsyncIterator[Linker]:
        """Open a linker for `timeout` seconds; its connections end with the context. `lane` is
        the job's; requests of the hot lane come before others.

        A catalogue that pauses for more than `max_pause` seconds is left out; for a shorter pause,
        SourceBusy is raised.
        """
        async with AsyncExitStack() as stack:
            catalogues = []
            for name in settings.link_catalogues:
                catalogue_class = CATALOGUES[name]
                connecting = SourceClient.connect(
                    catalogue_class.server(settings),
                    settings,
                    ledger,
                    max_wait=TURN_TIMEOUT,
                    lane=lane,
                )
                client = await stack.enter_async_context(connecting)
                catalogues.append(catalogue_class(client, contact=settings.contact))
            max_age = settings.link_answers_days * DAY
            yield cls(ledger, catalogues, max_age=max_age, timeout=timeout, max_pause=max_pause)

    async def link(self, references: Sequence[Reference]) -> list[WorkLink]:
        """Return the link of each reference, in order: by an identifier that a catalogue knows,
        else by search.

        Catalogues that pause for long are left out, and listed in `paused`. Raises OutOfTime,
        SourceBusy, and SourceUnavailable or InvalidSourceResponse where no catalogue answers; the
        next call uses the answers so far.
        """
        # In threads: a book has thousands of references, which would hold up the event loop.
        questions_of_all = await asyncio.to_thread(
            lambda: [questions_of(each) for each in references]
        )
        links: list[WorkLink | None] = [None] * len(references)
        for method in LookupMethod:
            open_questions, questions = await asyncio.to_thread(
                _open_questions, questions_of_all, method, links
            )
            answers = await self._find_answers(questions)
            links = await asyncio.to_thread(
                _update_links, links, references, open_questions, answers
            )
        return [link or WorkLink(LinkStatus.NOT_FOUND) for link in links]

    async def _find_answers(self, questions: Mapping[str, WorkQuestion]) -> WorksByQuestion:
        """Return the answer to each question, by the question's key: from the ledger, or asked by
        this or another process."""
        answers: WorksByQuestion = {}
        keys = list(questions)
        for start in range(0, len(keys), READ_BATCH_SIZE):
            answers |= await self._answer_repository.find_catalogue_answers(
                keys[start : start + READ_BATCH_SIZE], max_age=self._max_age
            )
        open_keys = [key for key in keys if key not in answers]
        while open_keys:
            has_progressed = False
            for batch in _batches(questions, open_keys):
                claims = await self._answer_repository.claim_catalogue_questions(
                    batch, self._holder, ttl=CLAIM_TTL, max_age=self._max_age
                )
                answers |= claims.stored
                if claims.claimed:
                    claimed = [questions[key] for key in claims.claimed]
                    answers |= await self._ask_claimed(claimed)
                has_progressed = has_progressed or bool(claims.stored or claims.claimed)
            open_keys = [key for key in open_keys if key not in answers]
            if open_keys and not has_progressed:
                self._check_time()
                await asyncio.sleep(CLAIM_POLL_INTERVAL)
        return answers

    async def _ask_claimed(self, questions: Sequence[WorkQuestion]) -> WorksByQuestion:
        """Ask the questions that this process has claimed, and keep the answers; give up the claims
        of questions without an answer."""
        keys = [each.key for each in questions]
        repository = self._answer_repository
        renew = partial(repository.renew_catalogue_claims, keys, self._holder, CLAIM_TTL)
        try:
            async with renewing("claims of questions", CLAIM_TTL, renew):
                self._check_time()
                answers, unsure_keys = await self._ask(questions)
                sure_answers = {
                    key: works for key, works in answers.items() if key not in unsure_keys
                }
                await repository.keep_catalogue_answers(sure_answers)
                if unsure_keys:
                    await repository.give_up_catalogue_claims(sorted(unsure_keys), self._holder)
                return answers
        except BaseException:
            try:
                await asyncio.shield(repository.give_up_catalogue_claims(keys, self._holder))
            except LedgerError as error:  # the claims run out by themselves
                self._log.warning("claims not released", error=str(error))
            raise

    async def _ask(self, questions: Sequence[WorkQuestion]) -> tuple[WorksByQuestion, set[str]]:
        """Ask the catalogues in their order, each only the questions that are still open.

        Returns the answers, and the keys of answers that must not be kept, as a catalogue that may
        know more failed or was left out.
        """
        answers: WorksByQuestion = {each.key: [] for each in questions}
        open_questions = list(questions)
        last_error: SourceUnavailable | InvalidSourceResponse | None = None
        has_answered = is_incomplete = False
        for catalogue in self._catalogues:
            if not open_questions:
                break
            if self.paused.get(catalogue.name, 0.0) > self._ledger.clock.time():
                has_answered = is_incomplete = True
                continue
            try:
                found_works = await self._look_up(catalogue, open_questions)
                has_answered = True
            except (SourceUnavailable, InvalidSourceResponse) as error:
                self._log.warning(
                    "catalogue request failed", catalogue=catalogue.name, error=str(error)
                )
                last_error = error
                continue
            except SourceBusy as error:
                if error.wait <= self._max_pause:
                    raise
                self.paused[catalogue.name] = self._ledger.clock.time() + error.wait
                self._log.warning(
                    "catalogue skipped",
                    catalogue=catalogue.name,
                    seconds=round(error.wait),
                    error=str(error),
                )
                has_answered = is_incomplete = True
                continue
            except (SourceRefused, SourceNotFound) as error:
                # It refuses only this question, and another catalogue may accept it.
                self._log.warning(
                    "catalogue request refused", catalogue=catalogue.name, error=str(error)
                )
                has_answered = True
                continue
            for key, works in found_works.items():
                answers[key] += [
                    {"provider": catalogue.name, "work": work.as_json()} for work in works
                ]
            open_questions = [
                each for each in open_questions if not _is_settled(each, answers[each.key])
            ]
        if last_error is None and not is_incomplete:
            return answers, set()
        if last_error is not None and not has_answered:
            raise last_error
        return answers, {each.key for each in open_questions}

    async def _look_up(
        self, catalogue: Catalogue, questions: Sequence[WorkQuestion]
    ) -> dict[str, list[CitedWork]]:
        if questions[0].method is not LookupMethod.SEARCH:

            async def ask() -> dict[str, list[CitedWork]]:
                works = await catalogue.find_by_identifiers(questions)
                return {key: [work] for key, work in works.items()}

        else:

            async def ask() -> dict[str, list[CitedWork]]:
                (question,) = questions
                return {question.key: await catalogue.search(question)}

        for attempt in range(1, MAX_TRIES + 1):
            try:
                return await self._ask_with_retries(ask)
            except (SourceUnavailable, InvalidSourceResponse) as error:
                if attempt == MAX_TRIES:
                    raise
                await self._sleep_or_raise(error.after or 0.5 * 2**attempt, error)
        raise AssertionError

    async def _ask_with_retries(self, ask: Any) -> dict[str, list[CitedWork]]:
        """Call `ask`, and again while a busy catalogue's pause is short."""
        while True:
            try:
                works: dict[str, list[CitedWork]] = await ask()
                return works
            except SourceBusy as error:
                if error.wait > TURN_TIMEOUT:
                    raise
                await self._sleep_or_raise(error.wait, error)

    async def _sleep_or_raise(self, seconds: float, error: Exception) -> None:
        if time.monotonic() + seconds > self._deadline:
            raise error
        await asyncio.sleep(seconds)

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise OutOfTime("time limit reached while linking references")


def _open_questions(
    questions_of_all: Sequence[Sequence[WorkQuestion]],
    method: LookupMethod,
    links: Sequence[WorkLink | None],
) -> tuple[dict[int, WorkQuestion], dict[str, WorkQuestion]]:
    """Return the questions of one method for references that are not linked yet, twice: by the
    reference's index in the list, and by the question's key."""
    open_questions = {
        index: question
        for index, questions in enumerate(questions_of_all)
        for question in questions
        if question.method is method and _is_unlinked(links[index])
    }
    return open_questions, {each.key: each for each in open_questions.values()}


def _update_links(
    links: Sequence[WorkLink | None],
    references: Sequence[Reference],
    open_questions: Mapping[int, WorkQuestion],
    answers: WorksByQuestion,
) -> list[WorkLink | None]:
    """Return the links after these questions are answered."""
    linked = list(links)
    for index, question in open_questions.items():
        link = _link_of(references[index], question, _works(answers[question.key]))
        previous_link = linked[index]
        if link.status is LinkStatus.LINKED or (
            link.status is LinkStatus.AMBIGUOUS and previous_link is None
        ):
            linked[index] = link
    return linked


def _is_unlinked(link: WorkLink | None) -> bool:
    return link is None or link.status is not LinkStatus.LINKED


def _batches(questions: Mapping[str, WorkQuestion], keys: Sequence[str]) -> Iterable[list[str]]:
    """Split questions into requests: many identifiers in one, each search on its own."""
    size = 1 if questions[keys[0]].method is LookupMethod.SEARCH else BATCH_SIZE
    return [list(keys[start : start + size]) for start in range(0, len(keys), size)]


def _works(answer: Sequence[Any]) -> list[tuple[str, CitedWork]]:
    return [(each["provider"], CitedWork.from_json(each["work"])) for each in answer]


def _is_settled(question: WorkQuestion, answer: Sequence[Any]) -> bool:
    """Return whether a question needs no other catalogue: for an identifier, if a work was found;
    for a search, if exactly one work fits the question."""
    if not answer or question.method is not LookupMethod.SEARCH:
        return bool(answer)
    reference = Reference(text="", title=question.value, year=question.year)
    return choose_work(reference, _works(answer)).status is LinkStatus.LINKED


def _link_of(
    reference: Reference, question: WorkQuestion, works: Sequence[tuple[str, CitedWork]]
) -> WorkLink:
    if question.method is LookupMethod.SEARCH:
        return choose_work(reference, works)
    if not works:
        return WorkLink(LinkStatus.NOT_FOUND)
    provider, work = works[0]
    return link_by_identifier(reference, question.method.value, provider, work)
