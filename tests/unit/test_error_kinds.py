"""Every error has a kind, and every kind has an HTTP problem and an exit code.

So a new exception class without a kind fails here, instead of giving a user a traceback.
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

COMMON_BASES = {SwitchyardError, LedgerError, StorageError}
"""Common bases of errors of different kinds: they are caught, and never raised."""
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
"""Exceptions without a kind, with the reason: callers of their module never see them, or should
see the traceback of a defect."""


def module_names() -> Iterator[str]:
    for module in pkgutil.walk_packages(switchyard.__path__, "switchyard."):
        if ".migrations." not in module.name:  # run by alembic, which is what they import
            yield module.name


def exceptions_by_name() -> dict[str, type[BaseException]]:
    exceptions = {}
    for name in module_names():
        for _, each in inspect.getmembers(importlib.import_module(name), inspect.isclass):
            if issubclass(each, BaseException) and each.__module__ == name:
                exceptions[f"{name}.{each.__name__}".removeprefix("switchyard.")] = each
    return exceptions


EXCEPTIONS = exceptions_by_name()
OURS = {name: each for name, each in EXCEPTIONS.items() if issubclass(each, SwitchyardError)}


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_every_error_has_a_root_or_is_a_listed_signal(name: str) -> None:
    error = EXCEPTIONS[name]
    has_root = issubclass(error, (SwitchyardError, *OTHER_ROOTS))
    assert has_root != (name in SIGNALS), (
        "derive it from a kind of switchyard.services.common.errors"
    )


def test_every_listed_signal_exists() -> None:
    assert sorted(set(SIGNALS) - set(EXCEPTIONS)) == []


@pytest.mark.parametrize("name", OURS)
def test_every_error_is_of_exactly_one_kind(name: str) -> None:
    kinds = [kind.__name__ for kind in KINDS if issubclass(OURS[name], kind)]
    assert len(kinds) == (0 if OURS[name] in COMMON_BASES else 1), kinds


def test_bases_and_kinds_themselves_are_never_raised() -> None:
    names = {base.__name__ for base in COMMON_BASES} | {kind.__name__ for kind in KINDS}
    raise_pattern = re.compile(rf"\braise ({'|'.join(names)})\(")
    raised = [
        f"{file}:{node.lineno}"
        for file in Path(*switchyard.__path__).rglob("*.py")
        if raise_pattern.search(
            text := file.read_text()
        )  # a quick test, because parsing every file takes seconds
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and getattr(node.exc.func, "id", None) in names
    ]
    assert raised == []


def test_every_kind_is_in_the_tree_of_the_modules_docstring() -> None:
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
    error_instance = error.__new__(error)
    assert isinstance(error_instance, BrokerError)
    error_instance.dead_lettered = error_instance.maybe_accepted = False  # type: ignore[attr-defined]
    error_instance.routing_key = "hot.summarize"  # type: ignore[attr-defined]
    # A client must change a message that the broker never takes; the other errors may be retried.
    client_errors = {"broker.errors.MessageTooLarge": 413, "broker.errors.NeverTaken": 422}
    assert problem_of(error_instance).kind.status == client_errors.get(name, 503)
    assert exit_code_of(error_instance) == 1


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
def test_an_error_becomes_its_problem(error: Exception, problem: str) -> None:
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


def test_a_retryable_error_has_a_retry_after() -> None:
    assert int((problem_of(RetryableError("why")).headers or {})["Retry-After"]) >= 1


def test_wrong_usage_has_exit_code_2_and_an_unknown_error_none() -> None:
    assert exit_code_of(WrongUsage("why")) == 2
    assert exit_code_of(CommandFailed("why")) == 1
    assert exit_code_of(ValueError("why")) is None


def test_an_error_with_a_common_base_has_its_own_kind() -> None:
    for error in (LedgerUnavailable("x"), SchemaOutdated("x"), RowRejected("x"), FileTooLarge("x")):
        assert kind_of(error) in KINDS
    assert kind_of(LedgerError("x")) is None
