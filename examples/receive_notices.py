"""A web service of your own that is notified when a job has ended, and refuses forged notices.

Start the system as README.md says, with JOBS_NOTIFY_SECRET and JOBS_NOTIFY_HOSTS, then:

    uvicorn receive_notices:app --port 9002 &
    jobctl publish hot.write_report --payload '{"title": "March"}' --notify http://127.0.0.1:9002/

The receiver prints a line when the job has ended: `write_report … completed`.
"""

import hashlib
import hmac
import os
import sqlite3
from datetime import UTC, datetime, timedelta

from fastapi import FastAPI, HTTPException, Request, status
from pydantic import AwareDatetime, BaseModel, ValidationError

SECRET = os.environ["JOBS_NOTIFY_SECRET"].encode()
MAX_BYTES = 256 * 1024
MAX_AGE = timedelta(minutes=5)


class Notice(BaseModel):
    delivery: str
    """The same when the notice is sent again."""
    sent_at: AwareDatetime
    job_id: str
    job_type: str
    state: str
    """completed, dead, cancelled or expired."""


app = FastAPI()
seen = sqlite3.connect("notices.db", isolation_level=None)
seen.execute("CREATE TABLE IF NOT EXISTS deliveries (id TEXT PRIMARY KEY)")


@app.post("/", status_code=status.HTTP_204_NO_CONTENT)
async def receive_notice(request: Request) -> None:
    body = await read_bounded_body(request)
    expected = "sha256=" + hmac.new(SECRET, body, hashlib.sha256).hexdigest()
    signature = request.headers.get("X-Switchyard-Signature", "")
    if not hmac.compare_digest(expected.encode(), signature.encode()):
        raise HTTPException(status.HTTP_401_UNAUTHORIZED, "not signed with our secret")
    try:
        notice = Notice.model_validate_json(body)
    except ValidationError as error:
        raise HTTPException(status.HTTP_422_UNPROCESSABLE_CONTENT, "not a notice") from error
    if abs(datetime.now(UTC) - notice.sent_at) > MAX_AGE:
        raise HTTPException(status.HTTP_401_UNAUTHORIZED, "an old notice, sent once more")
    # A notice may be sent more than once: a repeated one is acknowledged, and not acted upon.
    added = seen.execute("INSERT OR IGNORE INTO deliveries VALUES (?)", (notice.delivery,))
    if added.rowcount:
        print(f"{notice.job_type} {notice.job_id} {notice.state}", flush=True)  # your work here


async def read_bounded_body(request: Request) -> bytes:
    """Read the body before anybody has shown who they are: no more than MAX_BYTES of it."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BYTES:
            raise HTTPException(status.HTTP_413_CONTENT_TOO_LARGE)
    return bytes(body)
