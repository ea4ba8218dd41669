"""After: the same with Switchyard. docs/from-celery.md goes through it line by line.

As ../README.md says, in this folder and with JOBS_MODULES=shop_switchyard:

    echo '{"ada": [3, 4.5], "bob": [8], "eve": []}' > till.json
    jobctl publish hot.close_month --payload '{"month": "2026-10"}' \
           --delay 2s --expires-in 1h --wait=pipeline
    jobctl schedules add close-month '30 6 1 * *' hot.close_month --timezone Europe/Berlin \
           --payload '{"month": "last month"}'
"""

import shop
from pydantic import BaseModel

from switchyard import Done, Job, JobContext, Limit, Next, Outcome, PermanentError, job


class Month(BaseModel):
    month: str


class Invoice(BaseModel):
    customer: str
    month: str


class Book(BaseModel):
    month: str
    invoices: list[str]


INVOICES = Limit("invoices", per_minute=600)


@job("close_month", worker="shop", lanes=("hot",))
async def close_month(payload: Month, ctx: JobContext) -> Outcome:
    invoices = [
        Job("write_invoice", {"customer": customer, "month": payload.month})
        for customer in shop.customers()
    ]
    return Next(invoices, then=Job("bind_invoices", {"month": payload.month}))


@job(
    "write_invoice",
    worker="shop",
    lanes=("hot",),
    max_attempts=5,
    timeout=60,
    isolation="process",
    limits=[INVOICES],
)
def write_invoice(payload: Invoice, ctx: JobContext) -> Outcome:
    try:
        return Done({"invoice": shop.invoice(payload.customer, payload.month)})
    except shop.UnknownCustomer as error:
        raise PermanentError(f"no customer {error}") from error


@job("bind_invoices", worker="shop", lanes=("hot",))
async def bind_invoices(payload: Month, ctx: JobContext) -> Outcome:
    invoices = [each.result["invoice"] async for each in ctx.joined() if each.result]
    book = Book(month=payload.month, invoices=invoices)
    return Next([Job("send_mail", book.model_dump(), priority=9)])


@job("send_mail", worker="shop", lanes=("hot",))
async def send_mail(payload: Book, ctx: JobContext) -> Outcome:
    return Done({"mail": f"sent {len(payload.invoices)} invoices of {payload.month}"})
