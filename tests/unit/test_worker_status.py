"""Which silent workers count: those without a successor."""

from switchyard.services.engine.monitoring.worker_status import alive_and_silent, is_replaced
from switchyard.services.engine.records.results import WorkerRecord


def make_worker(worker_id: str, *kinds: str, started_at: float, beat_at: float) -> WorkerRecord:
    return WorkerRecord(
        worker_id=worker_id,
        kinds=kinds,
        lanes=("hot",),
        host="here",
        pid=1,
        concurrency=4,
        started_at=started_at,
        beat=1,
        beat_at=beat_at,
        stopped_at=None,
        hot_at=None,
    )


def test_a_silent_worker_is_replaced_by_later_workers_of_all_its_kinds() -> None:
    first = make_worker("first", "llm", "embed", started_at=0, beat_at=10)
    llm = make_worker("second", "llm", started_at=12, beat_at=20)
    embed = make_worker("third", "embed", started_at=13, beat_at=20)
    assert not is_replaced(first, [first, llm])
    assert is_replaced(first, [first, llm, embed])
    assert not is_replaced(llm, [first, llm, embed])


def test_a_worker_that_ran_beside_it_is_no_replacement() -> None:
    silent = make_worker("silent", "llm", started_at=0, beat_at=10)
    assert not is_replaced(silent, [silent, make_worker("beside", "llm", started_at=5, beat_at=90)])


def test_replaced_workers_and_direct_callers_are_neither_alive_nor_silent() -> None:
    killed = make_worker("killed", "llm", started_at=0, beat_at=10)
    successor = make_worker("successor", "llm", started_at=15, beat_at=99)
    silent = make_worker("silent", "ocr", started_at=0, beat_at=10)
    caller = make_worker("caller", started_at=0, beat_at=99)
    workers = [killed, successor, silent, caller]
    assert alive_and_silent(workers, takeover_after=20, now=100) == ([successor], [silent])
