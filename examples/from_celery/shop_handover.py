"""In between: Celery tasks under the old names that hand their work to Switchyard.

It takes the place of the old worker as long as some programs and schedules still call Celery:

    export JOBS_API_URL=http://127.0.0.1:8000
    celery -A shop_handover worker --concurrency 1 --loglevel INFO
"""

import os
from typing import Any

from celery import Celery, Task

from switchyard import Client

app = Celery("shop", broker=os.environ["CELERY_BROKER_URL"])
app.conf.update(task_default_queue="shop", task_queue_max_priority=10, task_acks_late=True)
UNTIL_ACCEPTED: dict[str, Any] = {
    "autoretry_for": (Exception,),
    "max_retries": None,
    "retry_backoff": True,
    "retry_backoff_max": 60,
}


@app.task(bind=True, name="close_month", **UNTIL_ACCEPTED)
def close_month(self: Task, month: str) -> None:
    hand_over(self, {"month": month})


@app.task(bind=True, name="write_invoice", **UNTIL_ACCEPTED)
def write_invoice(self: Task, customer: str, month: str) -> None:
    hand_over(self, {"customer": customer, "month": month})


def hand_over(task: Task, payload: dict[str, Any]) -> None:
    """Publish a job once, even where Celery runs the task twice: its id is the idempotency key."""
    with Client() as client:  # JOBS_API_URL, JOBS_API_KEY
        client.publish(f"hot.{task.name}", payload, idempotency_key=task.request.id)
