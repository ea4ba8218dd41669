"""Schedules of a file, and default schedules."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.schedules.service import ScheduleConflict, Schedules
from switchyard.services.engine.wings import job_modules
from switchyard.services.pipeline.operations import DEFAULT_SCHEDULES
from tests.support.schedules import Time, add, book, entry, outcomes, runner
from tests.support.system import System


def write_schedules(folder: Path, cron: str, *names: str) -> Path:
    file = folder / "schedules.toml"
    file.write_text("".join(f'[{name}]\ncron = "{cron}"\njob = "hot.noop"\n' for name in names))
    return file


async def test_loading_the_file_adds_its_schedules_and_removes_those_it_no_longer_has(
    system: System, time: Time, tmp_path: Path
) -> None:
    settings = system.settings.model_copy(
        update={"schedules": write_schedules(tmp_path, "* * * * *", "a", "b")}
    )
    await book(system).load(settings)
    await book(system).pause("b")
    time.now += 30
    assert await runner(system).turn() == 1
    write_schedules(tmp_path, "* * * * *", "b", "c")
    await book(system).load(settings)
    schedules = {record.name: record for record, _ in await book(system).list_all()}
    assert set(schedules) == {"b", "c"}
    assert schedules["b"].paused_at is not None
    with pytest.raises(ScheduleConflict, match="JOBS_SCHEDULES"):
        await book(system).remove("c")
    await add(system, entry("d"))
    write_schedules(tmp_path, "* * * * *", "d")
    with pytest.raises(ScheduleConflict, match="jobctl schedules remove d"):
        await book(system).load(settings)


async def test_the_active_scheduler_reads_the_file_again_when_it_has_changed(
    system: System, time: Time, tmp_path: Path
) -> None:
    file = write_schedules(tmp_path, "* * * * *", "a")
    firing = runner(system, schedules=file, default_schedules=False)

    async def load_names() -> set[str]:
        await firing.load_if_changed()
        return {record.name for record, _ in await book(system).list_all()}

    assert await load_names() == {"a"}
    write_schedules(tmp_path, "*/5 * * * *", "a", "b")
    with capture_logs() as logs:
        assert await load_names() == {"a", "b"}
        assert await load_names() == {"a", "b"}
    assert [(line["changed"], line["gone"]) for line in logs] == [(["a", "b"], [])]
    for invalid_text in (
        "[a]\ncron = 7",
        "no TOML",
        "[a]\n[b]\ncron = '* * * * *'\njob = 'hot.nothing'",
    ):
        file.write_text(invalid_text)
        with capture_logs() as logs:
            assert await load_names() == {"a", "b"}  # nothing loaded, nothing removed
            assert await load_names() == {"a", "b"}
        assert [line["log_level"] for line in logs] == ["error"]
    file.unlink()
    assert await load_names() == {"a", "b"}
    write_schedules(tmp_path, "* * * * *", "b", "c")
    assert await load_names() == {"b", "c"}
    time.now += 60
    assert await firing.turn() == 2


async def test_default_schedules_can_be_replaced_and_switched_off(
    system: System, time: Time, tmp_path: Path
) -> None:
    all_schedules = Schedules(system.ledger, Registry.load(job_modules()))
    await all_schedules.load(system.settings)
    defaults = {record.name: record for record, _ in await all_schedules.list_all()}
    assert set(defaults) == {schedule.name for schedule in DEFAULT_SCHEDULES}
    assert {record.origin for record in defaults.values()} == {"default"}
    with pytest.raises(ScheduleConflict, match="JOBS_DEFAULT_SCHEDULES"):
        await all_schedules.remove("cleanup-expired")
    # An entry of the file replaces a default; without their job types there are no defaults.
    file_settings = {"schedules": write_schedules(tmp_path, "0 1 * * *", "cleanup-expired")}
    registry = Registry([*Registry.load(job_modules()), *system.registry])
    book_with_types = Schedules(system.ledger, registry)
    await book_with_types.load(system.settings.model_copy(update=file_settings))
    assert (await all_schedules.get("cleanup-expired")).origin == "file"
    assert (await all_schedules.get("cleanup-expired")).cron == "0 1 * * *"
    await book(system).load(system.settings.model_copy(update={"default_schedules": False}))
    assert await all_schedules.list_all() == []


async def test_a_due_time_is_not_lost_when_the_next_scheduler_loads_the_file(
    system: System, time: Time, tmp_path: Path
) -> None:
    settings = system.settings.model_copy(
        update={"schedules": write_schedules(tmp_path, "* * * * *", "tidy")}
    )
    await book(system).load(settings)
    time.now += 45  # it was due 15 s ago, and no scheduler was running
    await book(system).load(settings)
    assert await runner(system).turn() == 1
    assert await outcomes(system) == [(30.0, "fired", 1)]
