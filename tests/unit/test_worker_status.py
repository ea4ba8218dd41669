"""Which silent workers are still worth a look."""

from switchyard.services.engine.monitoring.worker_status import alive_and_silent, is_replaced
from switchyard.services.engine.records.results import WorkerRecord


def worker(worker_id: str, *kinds: str, started_at: float, beat_at: float) -> WorkerRecord:
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


def test_a_silent_worker_is_replaced_by_later_ones_of_its_kinds_also_by_silent_ones() -> None:
    first = worker("first", "llm", "embed", started_at=0, beat_at=10)
    llm = worker("second", "llm", started_at=12, beat_at=20)
    embed = worker("third", "embed", started_at=13, beat_at=20)
    assert not is_replaced(first, [first, llm])
    assert is_replaced(first, [first, llm, embed])
    assert not is_replaced(llm, [first, llm, embed])


def test_one_that_ran_beside_it_does_not_replace_it() -> None:
    silent = worker("silent", "llm", started_at=0, beat_at=10)
    assert not is_replaced(silent, [silent, worker("beside", "llm", started_at=5, beat_at=90)])


def test_replaced_workers_and_callers_of_models_count_neither_as_alive_nor_as_silent() -> None:
    killed = worker("killed", "llm", started_at=0, beat_at=10)
    successor = worker("successor", "llm", started_at=15, beat_at=99)
    silent = worker("silent", "ocr", started_at=0, beat_at=10)
    caller = worker("caller", started_at=0, beat_at=99)
    workers = [killed, successor, silent, caller]
    assert alive_and_silent(workers, takeover_after=20, now=100) == ([successor], [silent])
