"""Every error has a kind, and every kind says what it means over HTTP and on the command line.

A new exception class that nobody has placed is found here, and not by a user who gets a traceback.
"""

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import switchyard
from switchyard.api.client.errors import ApiError
from switchyard.api.http.errors import PROBLEM_OF, problem_of
from switchyard.api.http.problems import Problem
from switchyard.api.models.problems import KINDS as PROBLEMS
from switchyard.broker.errors import BrokerError, ManagementError
from switchyard.cli.base.errors import EXIT_CODES, CommandFailed, WrongUsage, exit_code_of, explain
from switchyard.services.common.errors import (
    KINDS,
    PermanentError,
    RetryableError,
    SwitchyardError,
    kind_of,
)
from switchyard.services.common.files.errors import (
    DiskFull,
    DocumentTooLarge,
    FileTooLarge,
    NotStored,
    StorageError,
    UnsupportedDocument,
)
from switchyard.services.common.files.storage_quota import StorageFull
from switchyard.services.engine.backfill.sources import InvalidBackfill, SourceUnreachable
from switchyard.services.engine.bulk.control import BulkConflict, UnknownBulkOperation
from switchyard.services.engine.dead.changes import InvalidRedrive
from switchyard.services.engine.dead.scan import ScanBusy
from switchyard.services.engine.jobs.registry import InvalidPayload, RegistryError, UnknownJobType
from switchyard.services.engine.records.errors import (
    IdempotencyConflict,
    InvalidCursor,
    LedgerError,
    LedgerFull,
    LedgerLocked,
    LedgerReadOnly,
    LedgerUnavailable,
    RowRejected,
    SchemaOutdated,
)
from switchyard.services.pipeline.documents.document_service import UnknownDocument

FAMILIES = {SwitchyardError, LedgerError, StorageError}
"""What the errors of one room share, whatever their kinds: caught, and never raised."""
OTHER_ROOTS = (BrokerError, ApiError, CommandFailed, Problem)
"""Trees of their own: the broker's, the HTTP client's, the command line's, and HTTP answers."""
SIGNALS = {
    "broker.task_supervisor.BackgroundFailed": "a defect in a background task: the traceback helps",
    "broker.happy_eyeballs.AllAttemptsFailed": "becomes the error of what was asked for",
    "broker.wire.field_table.UnreadableTable": "becomes the delivery's own complaint",
    "services.engine.bulk.session.SessionEnded": "ends a handler whose operation is another's",
    "services.engine.jobs.retry.RemoteError": "stands for a handler's error from another process",
    "services.engine.dead.replay._RollBack": "ends a transaction that must leave nothing",
    "services.pipeline.index.index_rebuild._NotBuilding": "ends a build that another process ended",
    "services.pipeline.workers.figures._TimeBudgetExceeded": "ends a job's turn at pictures",
    "services.engine.ledger.sql.database._ConnectionLost": "begins a transaction again",
    "services.engine.bulk.halting.Halted": "ends a pass of an operation that stops itself",
    "services.engine.runtime.process_pool.ProcessEnded": "becomes a failure or ProcessCrashed",
    "services.engine.runtime.inline.HandedOver": "ends the run of a job that workers go on with",
    "services.engine.runtime.running_job.ClaimLost": "ends the run of a job that is another's",
    "services.common.toml_file.InvalidToml": "becomes the error of the setting that names the file",
    "services.pipeline.workers.stages.ContentReplaced": "ends a stage of a replaced document",
}
"""Never seen by a caller of their module, or meant to be seen as the defect that they are."""


def modules() -> Iterator[str]:
    for module in pkgutil.walk_packages(switchyard.__path__, "switchyard."):
        if ".migrations." not in module.name:  # run by alembic, which is what they import
            yield module.name


def exceptions() -> dict[str, type[BaseException]]:
    found = {}
    for name in modules():
        for _, each in inspect.getmembers(importlib.import_module(name), inspect.isclass):
            if issubclass(each, BaseException) and each.__module__ == name:
                found[f"{name}.{each.__name__}".removeprefix("switchyard.")] = each
    return found


EXCEPTIONS = exceptions()
OURS = {name: each for name, each in EXCEPTIONS.items() if issubclass(each, SwitchyardError)}


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_every_error_has_its_place_in_a_tree(name: str) -> None:
    error = EXCEPTIONS[name]
    has_root = issubclass(error, (SwitchyardError, *OTHER_ROOTS))
    assert has_root != (name in SIGNALS), (
        "derive it from a kind of switchyard.services.common.errors"
    )


def test_signals_are_listed_only_while_they_exist() -> None:
    assert sorted(set(SIGNALS) - set(EXCEPTIONS)) == []


@pytest.mark.parametrize("name", OURS)
def test_every_error_is_of_exactly_one_kind(name: str) -> None:
    kinds = [kind.__name__ for kind in KINDS if issubclass(OURS[name], kind)]
    assert len(kinds) == (0 if OURS[name] in FAMILIES else 1), kinds


def test_what_has_no_kind_is_never_raised() -> None:
    names = {family.__name__ for family in FAMILIES} | {kind.__name__ for kind in KINDS}
    made = re.compile(rf"\braise ({'|'.join(names)})\(")
    raised = [
        f"{file}:{node.lineno}"
        for file in Path(*switchyard.__path__).rglob("*.py")
        if made.search(text := file.read_text())  # or to parse them all takes seconds
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and getattr(node.exc.func, "id", None) in names
    ]
    assert raised == []


def test_every_kind_is_explained_in_the_tree_that_the_module_opens_with() -> None:
    tree = importlib.import_module("switchyard.services.common.errors").__doc__ or ""
    assert [kind.__name__ for kind in KINDS if f"─ {kind.__name__} " not in tree] == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_mapped_once_to_a_problem_and_once_to_an_exit_code(
    kind: type[SwitchyardError],
) -> None:
    assert PROBLEM_OF[kind] in PROBLEMS
    assert problem_of(kind("why")).kind.name == PROBLEM_OF[kind]
    assert EXIT_CODES[kind] == 1
    assert (exit_code_of(kind("two\nlines")), explain(kind("two\nlines"))) == (1, "two lines")


@pytest.mark.parametrize("name", [name for name in EXCEPTIONS if name.startswith("broker.errors.")])
def test_every_error_of_the_broker_is_mapped_as_well(name: str) -> None:
    error = EXCEPTIONS[name]
    made = error.__new__(error)
    assert isinstance(made, BrokerError)
    made.dead_lettered = made.maybe_accepted = False  # type: ignore[attr-defined]
    made.routing_key = "hot.summarize"  # type: ignore[attr-defined]
    # What the broker never takes is for the client to change; with all else it comes again.
    never = {"broker.errors.MessageTooLarge": 413, "broker.errors.NeverTaken": 422}
    assert problem_of(made).kind.status == never.get(name, 503)
    assert exit_code_of(made) == 1


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (InvalidBackfill("why"), "invalid"),
        (InvalidRedrive("why"), "invalid"),
        (InvalidPayload("why"), "invalid"),
        (InvalidCursor("why"), "invalid"),
        (RowRejected("why"), "invalid"),
        (UnknownBulkOperation("why"), "not-found"),
        (UnknownDocument("why"), "not-found"),
        (UnknownJobType("why"), "not-found"),
        (BulkConflict("why"), "wrong-state"),
        (ScanBusy("why"), "wrong-state"),
        (IdempotencyConflict("key", "job"), "idempotency-conflict"),
        (DocumentTooLarge("why"), "too-large"),
        (FileTooLarge("why"), "too-large"),
        (UnsupportedDocument("why"), "unsupported-media-type"),
        (StorageFull("why"), "storage-full"),
        (DiskFull("why"), "storage-full"),
        (LedgerFull("why"), "storage-full"),
        (SourceUnreachable("why"), "source-away"),
        (LedgerUnavailable("why"), "ledger-away"),
        (LedgerLocked("why"), "ledger-away"),
        (LedgerReadOnly("why"), "ledger-away"),
        (SchemaOutdated("why"), "ledger-away"),
        (ManagementError("why"), "broker-away"),
        (RetryableError("why"), "unavailable"),
        (PermanentError("why"), "internal-error"),
        (RegistryError("why"), "internal-error"),
        (NotStored("why"), "internal-error"),
        (ValueError("why"), "internal-error"),
    ],
)
def test_what_an_error_is_answered_with(error: Exception, problem: str) -> None:
    assert problem_of(error).kind.name == problem


@pytest.mark.parametrize(
    "error",
    [
        RowRejected("INSERT INTO jobs"),
        LedgerUnavailable("db.internal:5432"),
        RetryableError("http://llm.internal"),
        PermanentError("/var/secret"),
        RegistryError("/var/secret"),
        NotStored("uploads/incoming/1"),
        ManagementError("http://rabbit.internal"),
    ],
)
def test_hosts_paths_and_statements_stay_in_the_log(error: Exception) -> None:
    assert str(error) not in str(problem_of(error).text)


def test_what_can_be_asked_again_says_when() -> None:
    assert int((problem_of(RetryableError("why")).headers or {})["Retry-After"]) >= 1


def test_what_was_typed_wrongly_is_exit_code_2_and_a_bug_of_ours_has_none() -> None:
    assert exit_code_of(WrongUsage("why")) == 2
    assert exit_code_of(CommandFailed("why")) == 1
    assert exit_code_of(ValueError("why")) is None


def test_an_error_of_a_family_is_of_its_own_kind() -> None:
    for error in (LedgerUnavailable("x"), SchemaOutdated("x"), RowRejected("x"), FileTooLarge("x")):
        assert kind_of(error) in KINDS
    assert kind_of(LedgerError("x")) is None
