"""Before: the month's end of a shop with Celery 5, on RabbitMQ.

pip install celery
export CELERY_BROKER_URL=amqp://USER:PASSWORD@localhost/celery
echo '{"ada": [3, 4.5], "bob": [8], "eve": []}' > till.json
celery -A shop_celery worker --beat --concurrency 4 --loglevel INFO &
python shop_celery.py 2026-10
"""

import os
import sys
from typing import Any

import shop
from celery import Celery, chain, chord
from celery.schedules import crontab

app = Celery("shop", broker=os.environ["CELERY_BROKER_URL"], backend="db+sqlite:///results.db")
app.conf.update(
    task_default_queue="shop",
    task_queue_max_priority=10,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    result_expires=86_400,
    timezone="Europe/Berlin",
    beat_schedule={
        "close-month": {
            "task": "close_month",
            "schedule": crontab(minute="30", hour="6", day_of_month="1"),
            "args": ("last month",),
        }
    },
)


@app.task(name="close_month")
def close_month(month: str) -> str:
    invoices = (write_invoice.si(customer, month) for customer in shop.customers())
    last = chain(bind_invoices.s(month), send_mail.s().set(priority=9))
    return str(chord(invoices)(last).id)


@app.task(
    name="write_invoice",
    autoretry_for=(ConnectionError,),
    retry_backoff=5,
    retry_backoff_max=300,
    max_retries=4,
    rate_limit="600/m",
    time_limit=60,
)
def write_invoice(customer: str, month: str) -> str:
    return shop.invoice(customer, month)


@app.task(name="bind_invoices")
def bind_invoices(invoices: list[str], month: str) -> dict[str, Any]:
    return {"month": month, "invoices": invoices}


@app.task(name="send_mail")
def send_mail(book: dict[str, Any]) -> str:
    return f"sent {len(book['invoices'])} invoices of {book['month']}"


if __name__ == "__main__":
    month = close_month.apply_async((sys.argv[1],), countdown=2, expires=3_600)
    print(app.AsyncResult(month.get(timeout=30)).get(timeout=60))
