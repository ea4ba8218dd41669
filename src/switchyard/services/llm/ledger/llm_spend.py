"""Record the cost of calls of language models, and keep it within budgets.

There is an account for each day, each backfill, each provider by day, and each API key by day and
by month; it adds up the cost of its calls. If a call has a budget, the most that it may cost is
reserved in one transaction before it is made, with the accounts' rows locked, and replaced by its
actual cost afterwards. So calls under way in the whole fleet never reserve more than is left. Days
are in UTC, times the database's own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, TextClause, case, delete, func, select, text, update

from switchyard.services.common.durations import DAY
from switchyard.services.engine.ledger.sql.codec import clean
from switchyard.services.engine.ledger.sql.dialect import (
    Columns,
    db_now,
    rows_parameters,
    rows_source,
)
from switchyard.services.engine.ledger.sql.repository import Repository, read, write, write_soon
from switchyard.services.engine.ledger.sql.stopwatch import Stopwatch
from switchyard.services.engine.ledger.sql.tables import api_keys, bulk_operations
from switchyard.services.engine.records.bulk import ENDED
from switchyard.services.engine.records.retention import Removal
from switchyard.services.engine.records.system import KeyLimits
from switchyard.services.llm.ledger.llm_tables import llm_accounts, llm_calls
from switchyard.services.llm.records.llm_spend import (
    BudgetState,
    CallState,
    LlmCall,
    NoBudgetLeft,
    SpendRow,
    SpentBy,
)

LOST_AFTER = 7200.0
"""Seconds after which an open call counts as lost, because its process died: no job runs that
long."""
ROUNDING_ERROR = 1e-9
"""Amount of money up to which sums may be wrong by rounding."""
_SUMS: Columns = {  # columns of an account that add up its calls
    "calls": "integer",
    "saved_calls": "integer",
    "unpriced_calls": "integer",
    "input_tokens": "bigint",
    "cached_tokens": "bigint",
    "output_tokens": "bigint",
    "spent": "double precision",
    "reserved": "double precision",
    "saved": "double precision",
}
_ACCOUNT: Columns = {"key": "text", "day": "text", **_SUMS}
_COLUMN_BY_GROUPING = {
    "type": "job_type",
    "document": "document_id",
    "job": "job_id",
    "backfill": "backfill_id",
}
"""Column of `llm_calls` by the grouping (`SpentBy`), for groupings that have another name than
their column."""


class LlmSpendRepository(Repository):
    """Calls, accounts and budgets. All methods raise LedgerUnavailable when the database is
    unreachable."""

    @write
    def reserve_llm_call(
        self,
        connection: Connection,
        call: LlmCall,
        *,
        per_day: float | None,
        ttl: float | None = None,
    ) -> NoBudgetLeft | bool:
        """Reserve what a call costs at most (`call.cost`) in each of its budgets: that of the day,
        of its backfill and of its API key. Returns NoBudgetLeft if one has too little left; False,
        and records nothing, if no budget applies to the call. `ttl` is the seconds for which the
        call may be under way, if longer than a job."""
        return reserve_call(connection, call, db_now(connection), per_day=per_day, ttl=ttl)

    @write
    def settle_llm_call(self, connection: Connection, call: LlmCall) -> None:
        """Record how a call has ended, in place of its reservation. A second time changes
        nothing."""
        settle_call(connection, call, db_now(connection))

    @write_soon("call cost not recorded")
    def settle_llm_call_soon(self, connection: Connection, call: LlmCall) -> None:
        """Do what `settle_llm_call` does, in the transaction of the next change of a job."""
        settle_call(connection, call, db_now(connection))

    @write
    def settle_lost_llm_calls(self, connection: Connection, limit: int) -> Removal:
        """Record, as `unsure` and at their estimated cost, up to `limit` calls whose process has
        died."""
        watch = Stopwatch(connection)
        now = db_now(connection)
        lost_query = (
            select(llm_calls)
            .where(llm_calls.c.state == CallState.OPEN, llm_calls.c.at < now - LOST_AFTER)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        rows = connection.execute(lost_query).all()
        for row in rows:
            cost = row.cost or 0.0
            changes = {"reserved": -cost, "spent": cost, "calls": 1}
            _add_to_accounts(connection, _account_keys_of_row(row), row.day, changes)
            condition = llm_calls.c.id == row.id
            connection.execute(
                update(llm_calls).where(condition).values(state=CallState.UNSURE.value)
            )
        return Removal(Counter({"llm_calls": len(rows)}), len(rows) < limit, watch.seconds())

    @read
    def llm_budgets(self, connection: Connection, *, per_day: float | None) -> list[BudgetState]:
        """Return the budgets of today and of all backfills that have one and have not ended."""
        today = f"day:{_day_at(db_now(connection))}"
        limits = {} if per_day is None else {today: per_day}
        backfill_query = select(bulk_operations.c.id, bulk_operations.c.budget).where(
            bulk_operations.c.budget.is_not(None),
            bulk_operations.c.state.not_in([each.value for each in ENDED]),
        )
        limits |= {f"backfill:{row.id}": row.budget for row in connection.execute(backfill_query)}
        accounts = select(llm_accounts).where(llm_accounts.c.key.in_(limits))
        rows = {row.key: row for row in connection.execute(accounts)}
        return [_budget_state(rows.get(key), limit, key) for key, limit in limits.items()]

    @read
    def api_key_budgets(
        self, connection: Connection, key_id: str, limits: KeyLimits
    ) -> list[tuple[BudgetState, float]]:
        """Return the budgets of an API key as they are now, each with the seconds until it begins
        anew."""
        now = db_now(connection)
        budgets = _api_key_budgets(key_id, limits, _day_at(now))
        accounts = select(llm_accounts).where(llm_accounts.c.key.in_(budgets))
        rows = {row.key: row for row in connection.execute(accounts)}
        return [
            (_budget_state(rows.get(key), limit, key), _seconds_left(key, now) or 0.0)
            for key, limit in budgets.items()
        ]

    @read
    def short_api_key_budgets(self, connection: Connection) -> list[BudgetState]:
        """Return the budgets of API keys that had too little left for the last call that needed
        them, or that have nothing left."""
        day = _day_at(db_now(connection))
        query = select(api_keys.c.id, api_keys.c.limits).where(
            api_keys.c.limits.is_not(None), api_keys.c.revoked_at.is_(None)
        )
        limits: dict[str, float] = {}
        for row in connection.execute(query):
            limits |= _api_key_budgets(row.id, KeyLimits.from_json(json.loads(row.limits)), day)
        accounts = select(llm_accounts).where(llm_accounts.c.key.like("key:%/" + day[:7] + "%"))
        budgets = [
            _budget_state(row, limits[row.key])
            for row in connection.execute(accounts)
            if row.key in limits
        ]
        return [each for each in budgets if each.is_short or each.left <= 0]

    @read
    def llm_spent_today(self, connection: Connection) -> dict[str, SpendRow]:
        """Return the cost of today's calls by the provider's name; under `""`, the cost of all."""
        day = _day_at(db_now(connection))
        accounts = select(llm_accounts).where(llm_accounts.c.day == day)
        rows = {}
        for row in connection.execute(accounts):
            kind, _, name = row.key.partition(":")
            if kind == "key":
                continue
            name = name.rpartition("/")[0] if kind == "provider" else ""
            rows[name] = SpendRow(
                name=name,
                calls=row.calls,
                saved_calls=row.saved_calls,
                unsure_calls=0,
                unpriced_calls=row.unpriced_calls,
                input_tokens=row.input_tokens,
                cached_tokens=row.cached_tokens,
                output_tokens=row.output_tokens,
                cost=row.spent,
                reserved=_round_off(row.reserved),
                saved=row.saved,
            )
        return rows

    @read
    def llm_spend(
        self,
        connection: Connection,
        by: SpentBy,
        *,
        since: str | None = None,
        until: str | None = None,
        names: Collection[str] | None = None,
        limit: int = 100,
    ) -> list[SpendRow]:
        """Return what was spent on the days from `since` to `until` (`2026-11-22`), both included,
        grouped `by` day, model …; with `names`, only the groups of these names; up to `limit`
        groups. Days come in their order, other groups with the most expensive first."""
        query = _spend_query(by).limit(limit)
        if names is not None:
            query = query.where(llm_calls.c[_COLUMN_BY_GROUPING.get(by, by)].in_(names))
        if since is not None:
            query = query.where(llm_calls.c.day >= since)
        if until is not None:
            query = query.where(llm_calls.c.day <= until)
        return [SpendRow(**row._mapping) for row in connection.execute(query)]

    @write
    def drop_llm_calls(self, connection: Connection, *, max_age: float, limit: int) -> Removal:
        """Delete up to `limit` calls, and up to `limit` accounts, of days that are more than
        `max_age` seconds ago."""
        watch = Stopwatch(connection)
        day = _day_at(db_now(connection) - max_age)
        removed: Counter[str] = Counter()
        for key in (llm_calls.c.id, llm_accounts.c.key):
            table = key.table
            old_keys = select(key).where(table.c.day < day).limit(limit)
            deleted = connection.execute(delete(table).where(key.in_(old_keys), table.c.day < day))
            removed[table.name] = deleted.rowcount
        is_complete = all(number < limit for number in removed.values())
        return Removal(+removed, is_complete, watch.seconds())


def reserve_call(
    connection: Connection,
    call: LlmCall,
    now: float,
    *,
    per_day: float | None,
    ttl: float | None = None,
) -> NoBudgetLeft | bool:
    """Do what `LlmSpendRepository.reserve_llm_call` does, within a transaction."""
    limits = _budget_limits(connection, call, per_day, now)
    if not limits:
        return False
    if connection.scalar(select(llm_calls.c.id).where(llm_calls.c.id == call.id)):
        return True  # reserved before, by a process that has died
    day = _day_at(now)
    keys = _account_keys_of_call(call, day)
    accounts = _lock_accounts(connection, keys, day)
    for key, limit in limits.items():
        budget = _budget_state(accounts[key], limit)
        needed = call.cost
        if needed is None or (needed > 0 and needed > budget.left + ROUNDING_ERROR):
            values = {"short_of": limit}
            _update_accounts(connection, [key], values)
            return NoBudgetLeft(budget, needed, _seconds_left(key, now))
    cost = call.cost or 0.0
    _add_to_accounts(connection, keys, day, {"reserved": cost})
    if any(accounts[key].short_of is not None for key in limits):
        _update_accounts(connection, limits, {"short_of": None})
    # Dated ahead, so that a call with a long `ttl` counts as lost only after that.
    _insert_call(connection, call, now + max(0.0, (ttl or 0.0) - LOST_AFTER), day)
    return True


def settle_call(connection: Connection, call: LlmCall, now: float) -> None:
    """Do what `LlmSpendRepository.settle_llm_call` does, within a transaction."""
    day = _day_at(now)
    existing = None
    # Most calls have no record yet: nothing was reserved for them.
    if call.state is CallState.FREE or not _insert_call(connection, call, now, day):
        query = select(llm_calls).where(llm_calls.c.id == call.id).with_for_update()
        existing = connection.execute(query).one_or_none()
        if existing is None or existing.state not in (CallState.OPEN, CallState.UNSURE):
            return
    keys = _account_keys_of_call(call, day)
    changes: dict[str, float] = {}
    if existing is not None:
        day, keys = existing.day, _account_keys_of_row(existing)
        changes["reserved" if existing.state == CallState.OPEN else "spent"] = -(
            existing.cost or 0.0
        )
        condition = llm_calls.c.id == call.id
        if call.state is CallState.FREE:
            connection.execute(delete(llm_calls).where(condition))
        else:  # updated, not replaced: a transaction that waits for the row finds it
            values = {"state": call.state.value, "cost": call.cost, **_tokens(call)}
            connection.execute(update(llm_calls).where(condition).values(values))
    if call.state is not CallState.FREE:
        column = "saved" if call.state is CallState.SAVED else "spent"
        changes[column] = changes.get(column, 0.0) + (call.cost or 0.0)
        # A call that counted as lost is already in the numbers.
        if existing is None or existing.state == CallState.OPEN:
            changes["saved_calls" if call.state is CallState.SAVED else "calls"] = 1
        if call.state is not CallState.SAVED:
            changes |= {"unpriced_calls": int(call.cost is None), **_tokens(call)}
    _add_to_accounts(connection, keys, day, changes)


_KEY_LIMITS = text("SELECT limits FROM api_keys WHERE id = :id")


def _budget_limits(
    connection: Connection, call: LlmCall, per_day: float | None, now: float
) -> dict[str, float]:
    """Return the limits of a call's budgets, by the key of the budget's account."""
    limits = {} if per_day is None else {f"day:{_day_at(now)}": per_day}
    backfill = call.asked_by.backfill_id
    if backfill is not None:
        query = select(bulk_operations.c.budget).where(bulk_operations.c.id == backfill)
        budget = connection.scalar(query)
        if budget is not None:
            limits[f"backfill:{backfill}"] = budget
    key_id = api_key_id_of(call.asked_by.source)
    if key_id is not None:
        key_limits = connection.scalar(_KEY_LIMITS, {"id": key_id})
        if key_limits is not None:
            parsed = KeyLimits.from_json(json.loads(key_limits))
            limits |= _api_key_budgets(key_id, parsed, _day_at(now))
    return limits


def _lock_accounts(connection: Connection, keys: Iterable[str], day: str) -> dict[str, Row[Any]]:
    """Lock the accounts' rows until the end of the transaction."""
    _add_to_accounts(connection, keys, day, {})
    rows = connection.execute(select(llm_accounts).where(llm_accounts.c.key.in_(list(keys))))
    return {row.key: row for row in rows}


def _add_to_accounts(
    connection: Connection, keys: Iterable[str], day: str, amounts: Mapping[str, float]
) -> None:
    """Add the same amounts to each account, and lock the rows until the end of the transaction, in
    the same order in all processes."""
    dialect = connection.dialect.name
    sums = [amounts.get(name, 0) for name in _SUMS]
    rows = [[key, _day_of_account(key, day), *sums] for key in sorted(keys)]
    connection.execute(_add_statement(dialect), rows_parameters(dialect, _ACCOUNT, rows))


def _add_statement(dialect: str) -> TextClause:
    # Constant text: building an expression takes longer than running it.
    names = ", ".join(_ACCOUNT)
    changes = ", ".join(f"{name} = llm_accounts.{name} + excluded.{name}" for name in _SUMS)
    return text(
        f"INSERT INTO llm_accounts ({names}) "
        f"SELECT {names} FROM {rows_source(dialect, _ACCOUNT)} WHERE true "
        f"ON CONFLICT (key) DO UPDATE SET {changes}"
    )


def _day_of_account(key: str, day: str) -> str | None:
    """Return the day from which an account's age is counted: for the account of a month, the
    month's last day; None for the account of a backfill, which is not deleted by age."""
    if key.startswith("backfill:"):
        return None
    return f"{day[:7]}-31" if _is_monthly(key) else day


def _is_monthly(account: str) -> bool:
    kind, _, id_and_period = account.partition(":")
    return kind == "key" and id_and_period.rpartition("/")[2].count("-") == 1


def _update_accounts(
    connection: Connection, keys: Iterable[str], values: Mapping[str, Any]
) -> None:
    connection.execute(
        update(llm_accounts).where(llm_accounts.c.key.in_(list(keys))).values(dict(values))
    )


_CALL = [column.name for column in llm_calls.columns]
_INSERT_CALL = text(
    f"INSERT INTO llm_calls ({', '.join(_CALL)}) "
    f"VALUES ({', '.join(f':{name}' for name in _CALL)}) "
    "ON CONFLICT DO NOTHING RETURNING id"
)


def _insert_call(connection: Connection, call: LlmCall, at: float, day: str) -> bool:
    """Insert a call. Returns False if there is one of this id already."""
    asked_by = call.asked_by
    values = {
        "id": call.id,
        "at": at,
        "day": day,
        "state": call.state.value,
        "batch": call.batch,
        **_tokens(call),
        "cost": call.cost,
        "provider": call.provider,
        "model": clean(call.model),
        "job_type": asked_by.job_type,
        "source": clean(asked_by.source),
        "job_id": asked_by.job_id,
        "document_id": clean(asked_by.document_id),
        "backfill_id": asked_by.backfill_id,
    }
    return connection.execute(_INSERT_CALL, values).first() is not None


def _tokens(call: LlmCall) -> dict[str, int]:
    return {
        "input_tokens": call.usage.get("prompt_tokens", 0),
        "cached_tokens": call.usage.get("cached_tokens", 0),
        "output_tokens": call.usage.get("completion_tokens", 0),
    }


def _account_keys_of_call(call: LlmCall, day: str) -> list[str]:
    return _account_keys(call.provider, call.asked_by.backfill_id, call.asked_by.source, day)


def _account_keys_of_row(row: Row[Any]) -> list[str]:
    return _account_keys(row.provider, row.backfill_id, row.source, row.day)


def _account_keys(provider: str, backfill: str | None, source: str | None, day: str) -> list[str]:
    keys = [f"day:{day}"]
    key_id = api_key_id_of(source)
    if key_id is not None:
        keys += _api_key_account_keys(key_id, day)
    if provider:
        keys.append(f"provider:{provider}/{day}")
    if backfill is not None:
        keys.append(f"backfill:{backfill}")
    return keys


def api_key_id_of(source: str | None) -> str | None:
    """Return the id of the API key that published jobs of a source; None for other sources."""
    kind, _, key_id_and_name = (source or "").partition(":")
    return key_id_and_name.partition("/")[0] or None if kind == "api" else None


def _api_key_account_keys(key_id: str, day: str) -> list[str]:
    """Return the keys of an API key's accounts: of the day, and of its month."""
    return [f"key:{key_id}/{day}", f"key:{key_id}/{day[:7]}"]


def _api_key_budgets(key_id: str, limits: KeyLimits, day: str) -> dict[str, float]:
    budgets = (limits.budget_per_day, limits.budget_per_month)
    accounts = zip(_api_key_account_keys(key_id, day), budgets, strict=True)
    return {account: budget for account, budget in accounts if budget is not None}


def _seconds_left(account: str, now: float) -> float | None:
    """Return the seconds until an account begins anew; None if it never does."""
    if account.startswith("backfill:"):
        return None
    if not _is_monthly(account):
        return DAY - now % DAY
    today = datetime.fromtimestamp(now, UTC)
    next_month = (today.replace(day=1) + timedelta(days=32)).replace(day=1)
    return (next_month.replace(hour=0, minute=0, second=0, microsecond=0) - today).total_seconds()


def _budget_state(row: Row[Any] | None, limit: float, key: str = "") -> BudgetState:
    if row is None:
        return BudgetState(key, limit, 0.0, 0.0)
    is_short = row.short_of is not None and limit <= row.short_of
    return BudgetState(row.key, limit, row.spent, _round_off(row.reserved), is_short)


def _round_off(reserved: float) -> float:
    """Return a reserved amount without the rounding error of additions and subtractions."""
    return reserved if reserved > ROUNDING_ERROR else 0.0


def _spend_query(by: SpentBy) -> Any:
    calls = llm_calls.c
    name = calls[_COLUMN_BY_GROUPING.get(by, by)]
    is_saved = calls.state == CallState.SAVED

    def count(condition: Any) -> Any:
        return func.count(case((condition, 1)))

    def total(column: Any, condition: Any) -> Any:
        return func.coalesce(func.sum(case((condition, column), else_=0)), 0)

    is_paid = calls.state.in_([CallState.PAID.value, CallState.UNSURE.value])
    cost = total(calls.cost, is_paid)
    query = select(
        name.label("name"),
        count(is_paid).label("calls"),
        count(is_saved).label("saved_calls"),
        count(calls.state == CallState.UNSURE).label("unsure_calls"),
        count(is_paid & calls.cost.is_(None)).label("unpriced_calls"),
        # int: PostgreSQL's sums of bigint are numeric
        total(calls.input_tokens, is_paid).cast(calls.input_tokens.type).label("input_tokens"),
        total(calls.cached_tokens, is_paid).cast(calls.cached_tokens.type).label("cached_tokens"),
        total(calls.output_tokens, is_paid).cast(calls.output_tokens.type).label("output_tokens"),
        cost.label("cost"),
        total(calls.cost, calls.state == CallState.OPEN).label("reserved"),
        total(calls.cost, is_saved).label("saved"),
    ).group_by(name)
    return query.order_by(name) if by == "day" else query.order_by(cost.desc(), name)


def _day_at(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).date().isoformat()
