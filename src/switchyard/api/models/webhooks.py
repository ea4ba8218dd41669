"""What is answered to other systems' deliveries, as JSON."""

from __future__ import annotations

from pydantic import Field

from switchyard.api.models.base import ApiModel


class DeliveryView(ApiModel):
    """What became of a delivery."""

    job_id: str | None = Field(default=None, description="The job that it asked for.")
    duplicate: bool = Field(default=False, description="It was known: nothing was done again.")
    ignored: str | None = Field(default=None, description="Why nothing was done.")
