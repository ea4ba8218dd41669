"""Schedules of a file, and those that are there by themselves."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.schedules.service import ScheduleConflict, Schedules
from switchyard.services.engine.wings import job_modules
from switchyard.services.pipeline.operations import DEFAULT_SCHEDULES
from tests.support.schedules import Time, add, book, entry, outcomes, runner
from tests.support.system import System


def write(path: Path, cron: str, *names: str) -> Path:
    file = path / "schedules.toml"
    file.write_text("".join(f'[{each}]\ncron = "{cron}"\njob = "hot.noop"\n' for each in names))
    return file


async def test_the_file_is_taken_over_and_what_it_no_longer_has_goes(
    system: System, time: Time, tmp_path: Path
) -> None:
    own = system.settings.model_copy(update={"schedules": write(tmp_path, "* * * * *", "a", "b")})
    await book(system).load(own)
    await book(system).pause("b")
    time.now += 30
    assert await runner(system).turn() == 1
    write(tmp_path, "* * * * *", "b", "c")
    await book(system).load(own)
    found = {each.name: each for each, _ in await book(system).list_all()}
    assert set(found) == {"b", "c"}
    assert found["b"].paused_at is not None
    with pytest.raises(ScheduleConflict, match="JOBS_SCHEDULES"):
        await book(system).remove("c")
    await add(system, entry("d"))
    write(tmp_path, "* * * * *", "d")
    with pytest.raises(ScheduleConflict, match="jobctl schedules remove d"):
        await book(system).load(own)


async def test_the_active_scheduler_reads_the_file_again_when_it_has_changed(
    system: System, time: Time, tmp_path: Path
) -> None:
    own = write(tmp_path, "* * * * *", "a")
    firing = runner(system, schedules=own, default_schedules=False)

    async def names() -> set[str]:
        await firing.load_if_changed()
        return {each.name for each, _ in await book(system).list_all()}

    assert await names() == {"a"}
    write(tmp_path, "*/5 * * * *", "a", "b")
    with capture_logs() as said:
        assert await names() == {"a", "b"}
        assert await names() == {"a", "b"}
    assert [(each["changed"], each["gone"]) for each in said] == [(["a", "b"], [])]
    for broken in ("[a]\ncron = 7", "no TOML", "[a]\n[b]\ncron = '* * * * *'\njob = 'hot.nothing'"):
        own.write_text(broken)
        with capture_logs() as said:
            assert await names() == {"a", "b"}  # nothing of it, and nothing lost
            assert await names() == {"a", "b"}
        assert [each["log_level"] for each in said] == ["error"]
    own.unlink()
    assert await names() == {"a", "b"}
    write(tmp_path, "* * * * *", "b", "c")
    assert await names() == {"b", "c"}
    time.now += 60
    assert await firing.turn() == 2


async def test_what_fires_by_itself_can_be_had_otherwise(
    system: System, time: Time, tmp_path: Path
) -> None:
    everything = Schedules(system.ledger, Registry.load(job_modules()))
    await everything.load(system.settings)
    usual = {each.name: each for each, _ in await everything.list_all()}
    assert set(usual) == {each.name for each in DEFAULT_SCHEDULES}
    assert {each.origin for each in usual.values()} == {"default"}
    with pytest.raises(ScheduleConflict, match="JOBS_DEFAULT_SCHEDULES"):
        await everything.remove("cleanup-expired")
    # An entry of the file takes the place of one; a system without their types has none.
    own = {"schedules": write(tmp_path, "0 1 * * *", "cleanup-expired")}
    known = Registry([*Registry.load(job_modules()), *system.registry])
    book_of_all = Schedules(system.ledger, known)
    await book_of_all.load(system.settings.model_copy(update=own))
    assert (await everything.get("cleanup-expired")).origin == "file"
    assert (await everything.get("cleanup-expired")).cron == "0 1 * * *"
    await book(system).load(system.settings.model_copy(update={"default_schedules": False}))
    assert await everything.list_all() == []


async def test_a_due_time_is_not_lost_when_the_next_scheduler_takes_the_file_over(
    system: System, time: Time, tmp_path: Path
) -> None:
    own = system.settings.model_copy(update={"schedules": write(tmp_path, "* * * * *", "tidy")})
    await book(system).load(own)
    time.now += 45  # it was due 15 s ago, and the scheduler is dead
    await book(system).load(own)
    assert await runner(system).turn() == 1
    assert await outcomes(system) == [(30.0, "fired", 1)]
