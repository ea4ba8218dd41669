"""What all models of the API are."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ApiModel(BaseModel):
    """What goes in or out as JSON. How it is checked is worked out when it is first used: a program
    that calls the API needs a few of a hundred models, and each takes a millisecond."""

    model_config = ConfigDict(defer_build=True)


class RequestModel(ApiModel):
    """Body of a request. It is built with its class: FastAPI gives a body's field an alias, which
    has no effect there, and expects pydantic to say so while the route is made, not at first use.
    """

    model_config = ConfigDict(defer_build=False)
