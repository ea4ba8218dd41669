"""The metrics that the processes show, on a real broker and ledger."""

import socket

import httpx
import pytest
from pydantic import SecretStr

from switchyard.api.metrics_server import PortTaken, serve_metrics
from switchyard.services.common.settings import LlmServer
from switchyard.services.engine.dead.indexing import index_waiting
from switchyard.services.engine.monitoring.metrics import Metrics, watch_ledger
from switchyard.services.engine.monitoring.system_metrics import SystemMetrics
from switchyard.services.engine.records.states import State
from switchyard.services.engine.scheduler.scheduler import Scheduler
from switchyard.services.llm.ledger import LlmLedger
from tests.support.api_server import serving
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.metrics import Scrape
from tests.support.system import System


async def scrape_metrics(metrics: Metrics) -> Scrape:
    return Scrape((await metrics.scrape()).decode())


async def has_two_letters(system: System) -> bool:
    return len(await system.letters()) == 2


async def test_a_worker_counts_its_jobs_by_type_lane_and_end(system: System) -> None:
    metrics = Metrics()
    await system.start_worker("llm", slots=3, reserve=1, metrics=metrics)
    good = await system.publish("hot.noop", {"n": 1})
    bad = await system.publish("backfill.scripted", {"steps": ["permanent"]})
    await system.publish_raw("hot.noop", b"not JSON")
    await system.wait_for_state(good, State.SUCCEEDED)
    await system.wait_for_state(bad, State.DEAD)
    labels = {
        (sample.name, *(sample.labels.get(label) for label in ("reason", "outcome", "status")))
        for sample in (await scrape_metrics(metrics)).samples
    }
    # Shown as 0 before the first one: Prometheus would not see the first increase otherwise.
    assert ("switchyard_job_deaths_total", "crashed", None, None) in labels
    assert ("switchyard_publishes_total", None, "full", None) in labels
    assert ("llm_requests_processed_total", None, None, "snoozed") in labels
    gated_id = await system.publish("hot.gated")
    await system.wait_for_state(gated_id, State.RUNNING)

    attempts = "switchyard_job_attempts_total"

    async def find_all_counted() -> Scrape | None:
        """Return the scrape once all are counted, a moment after their end is recorded."""
        scrape = await scrape_metrics(metrics)
        counts = (
            scrape.value("switchyard_deliveries_not_run_total", why="malformed"),
            scrape.value(attempts, lane="hot", job_type="noop", outcome="succeeded"),
            scrape.value(attempts, lane="backfill", job_type="scripted", outcome="dead"),
        )
        return scrape if all(counts) else None

    scrape: Scrape = await eventually(find_all_counted)
    assert scrape.value(attempts, lane="hot", job_type="noop", outcome="succeeded") == 1
    assert scrape.value(attempts, lane="backfill", job_type="scripted", outcome="dead") == 1
    assert scrape.value("switchyard_job_deaths_total", reason="permanent") == 1
    assert scrape.value("switchyard_job_duration_seconds_count", job_type="noop") == 1
    assert scrape.value("switchyard_job_wait_seconds_count", lane="hot") == 2
    assert 0 <= scrape.value("switchyard_job_wait_seconds_sum", lane="hot") < 10
    assert scrape.value("switchyard_job_attempts_used_count") == 2
    assert scrape.value("switchyard_slots", worker="llm") == 3
    assert scrape.value("switchyard_slots_used", worker="llm") == 1
    assert scrape.value("switchyard_slots_reserved", worker="llm") == 1
    assert scrape.value("switchyard_queue_consuming", queue="hot.llm") == 1
    journal.release(gated_id)
    await system.wait_for_state(gated_id, State.SUCCEEDED)


async def test_each_of_many_jobs_is_counted_once_in_whatever_process_it_runs(
    system: System,
) -> None:
    metrics = Metrics()
    await system.start_worker("llm", "embed", slots=20, metrics=metrics)
    succeeding_ids = [await system.publish("backfill.noop", {"n": n}) for n in range(60)]
    succeeding_ids += [await system.publish("hot.noop", {"n": n}) for n in range(20)]
    succeeding_ids += [await system.publish("hot.crunched", {"n": n}) for n in range(6)]
    succeeding_ids += [
        await system.publish("hot.scripted", {"steps": ["retry:0", "done"]}) for _ in range(5)
    ]
    dying_ids = [
        await system.publish("backfill.scripted", {"steps": ["permanent"]}) for _ in range(7)
    ]
    totals: list[float] = []
    for job_id in succeeding_ids:  # and scraped meanwhile: a counter never goes back
        await system.wait_for_state(job_id, State.SUCCEEDED, timeout=30)
        totals.append((await scrape_metrics(metrics)).value("switchyard_job_attempts_total"))
    assert totals == sorted(totals)
    for job_id in dying_ids:
        await system.wait_for_state(job_id, State.DEAD)

    async def find_all_counted() -> Scrape | None:  # counted once a delivery is acknowledged
        scrape = await scrape_metrics(metrics)
        total = scrape.value("switchyard_job_attempts_total")
        return scrape if total >= len(succeeding_ids) + len(dying_ids) + 5 else None

    scrape: Scrape = await eventually(find_all_counted)
    attempts, seconds = "switchyard_job_attempts_total", "switchyard_job_duration_seconds_count"
    used, waits = "switchyard_job_attempts_used", "switchyard_job_wait_seconds_count"
    assert scrape.value(attempts, lane="backfill", job_type="noop", outcome="succeeded") == 60
    assert scrape.value(attempts, lane="hot", job_type="noop", outcome="succeeded") == 20
    assert scrape.value(attempts, job_type="crunched", outcome="succeeded") == 6
    assert scrape.value(attempts, job_type="scripted", outcome="retried") == 5
    assert scrape.value(attempts, job_type="scripted", outcome="succeeded") == 5
    assert scrape.value(attempts, job_type="scripted", outcome="dead") == 7
    assert scrape.value(attempts) == 103
    assert scrape.value(seconds) == 103
    assert scrape.value(seconds, job_type="noop") == 80
    assert scrape.value(waits) == 98
    assert scrape.value(f"{used}_count") == 98
    assert scrape.value(f"{used}_bucket", job_type="scripted", le="1.0") == 7
    assert scrape.value(f"{used}_bucket", job_type="scripted", le="2.0") == 12
    assert scrape.value("switchyard_job_deaths_total") == 7
    requests = scrape.value("llm_requests_processed_total")
    assert requests == scrape.value(attempts, worker="llm")
    answers = scrape.value("llm_requests_processed_total", status="succeeded")
    assert answers == scrape.value("llm_request_latency_seconds_count")
    assert answers < requests, "retried, snoozed and dead jobs have no latency"


async def test_the_system_is_shown_by_lane_and_by_cause_of_death(system: System) -> None:
    metrics = Metrics()
    SystemMetrics(system.settings, system.registry, system.ledger).install(metrics)
    for number in range(3):
        await system.publish("backfill.noop", {"n": number})
    worker = await system.start_worker("llm", lanes=["hot"])
    dead = await system.publish("hot.scripted", {"steps": ["permanent"]})
    await system.publish_raw("nowhere.at_all", b"{}")
    await system.wait_for_state(dead, State.DEAD)
    await eventually(lambda: has_two_letters(system))
    await index_waiting(system.settings, system.ledger, system.registry)
    scrape = await scrape_metrics(metrics)
    assert scrape.value("switchyard_queue_ready", lane="backfill", queue="backfill.llm") == 3
    assert scrape.value("switchyard_lane_depth", lane="backfill") == 3
    assert scrape.value("switchyard_queue_consumers", queue="hot.llm") == 1
    assert scrape.value("switchyard_queue_consumers", queue="backfill.llm") == 0
    assert 0 < scrape.value("switchyard_queue_oldest_seconds", queue="backfill.llm") < 60
    assert 0 < scrape.value("switchyard_lane_oldest_seconds", lane="backfill") < 60
    assert scrape.value("switchyard_lane_oldest_seconds", lane="hot") == 0
    assert scrape.value("switchyard_jobs_open", lane="backfill", state="queued") == 3
    assert scrape.value("switchyard_dead_letters", lane="hot", reason="permanent") == 1
    assert scrape.value("switchyard_dead_letters", lane="other", reason="unroutable") == 1
    assert scrape.value("switchyard_queue_ready", lane="dead") == 2
    assert scrape.value("switchyard_workers", worker="llm", status="alive") == 1
    for part in ("broker", "management", "ledger"):
        assert scrape.value("switchyard_part_up", part=part) == 1
    await worker.stop()


async def test_each_model_server_is_shown_with_its_own_limit_and_so_is_vision(
    system: System,
) -> None:
    servers = (
        LlmServer(name="large", base_url="http://large/v1", max_calls=90),
        LlmServer(name="small", base_url="http://small/v1"),
    )
    vision_settings = {"vision_model": "sees", "vision_base_url": "http://sees/v1"}
    settings = system.settings.model_copy(
        update={"llm_providers": servers, "llm_concurrency_max": 20, **vision_settings}
    )
    for name in ("large", "small", "vision", "removed-server"):
        await LlmLedger(system.ledger).slots.take_llm_slot(
            name, name, "me", ttl=60, is_hot=True, first_limit=70, max_limit=70
        )
    metrics = Metrics()
    SystemMetrics(settings, system.registry, system.ledger).install(metrics)
    scrape = await scrape_metrics(metrics)
    limits = {
        name: scrape.value("switchyard_llm_server_limit", server=name)
        for name in ("large", "small", "vision")
    }
    assert limits == {"large": 70, "small": 20, "vision": 20}


async def test_api_and_scheduler_show_the_system_and_what_they_publish(
    system: System,
) -> None:
    async with serving(system.settings) as api:
        answer = await api.client.post("/jobs", json={"routing_key": "backfill.noop"})
        assert answer.status_code == 202
        text = await api.client.get("/metrics")
        assert text.headers["content-type"].startswith("text/plain")
        scrape = Scrape(text.text)
    assert scrape.value("switchyard_publishes_total", lane="backfill", outcome="accepted") == 1
    assert scrape.value("switchyard_queue_ready", queue="backfill.llm") == 1
    assert scrape.value("switchyard_ledger_seconds_count", work="write") >= 1

    metrics = Metrics()
    SystemMetrics(system.settings, system.registry, system.ledger).install(metrics)
    Scheduler(system.settings, system.registry, system.ledger, metrics=metrics)
    scrape = await scrape_metrics(metrics)
    assert scrape.value("switchyard_queue_ready", queue="backfill.llm") == 1
    assert scrape.value("switchyard_scheduler_active") == 0
    assert "switchyard_scheduler_published_total" in scrape.names


async def test_the_api_shows_its_metrics_to_those_with_a_key_alone(system: System) -> None:
    async with serving(system.settings, api_keys=SecretStr("monitor-0123456789abcdef:read")) as api:
        assert (await api.client.get("/metrics")).status_code == 401
        key = {"Authorization": "Bearer monitor-0123456789abcdef"}
        assert (await api.client.get("/metrics", headers=key)).status_code == 200


async def test_a_part_that_is_away_is_shown_as_down_and_no_other_metric_is_lost(
    system: System,
) -> None:
    away = system.settings.model_copy(
        update={"amqp_url": SecretStr("amqp://guest:guest@127.0.0.1:1/"), "management_url": None}
    )
    metrics = Metrics()
    SystemMetrics(away, system.registry, system.ledger).install(metrics)
    scrape = await scrape_metrics(metrics)
    assert "switchyard_part_up" in scrape.names
    assert not scrape.value("switchyard_part_up", part="broker")
    assert scrape.value("switchyard_part_up", part="ledger") == 1
    assert "switchyard_queue_ready" not in scrape.names


async def test_other_processes_serve_metrics_and_health_on_a_port_of_their_own() -> None:
    metrics = Metrics()
    watch_ledger(metrics)
    ready = False
    async with (
        serve_metrics(metrics, "127.0.0.1", 0, lambda: ready) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client,
    ):
        assert "switchyard_ledger_seconds" in (await client.get("/metrics")).text
        assert (await client.get("/health/live")).status_code == 200
        assert (await client.get("/health/ready")).status_code == 503
        ready = True
        assert (await client.get("/health/ready")).status_code == 200
        assert (await client.get("/jobs")).status_code == 404
    with pytest.raises(httpx.ConnectError):
        await httpx.AsyncClient(trust_env=False).get(f"http://127.0.0.1:{port}/metrics")


async def test_a_port_that_is_taken_is_refused_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(PortTaken, match=f"127.0.0.1:{port}"):
            async with serve_metrics(Metrics(), "127.0.0.1", port, lambda: True):
                pass
