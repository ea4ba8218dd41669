"""The application uses the routes of its modules, without building them again."""

from typing import Annotated

from fastapi import Depends, FastAPI, Header, Request
from httpx import ASGITransport, AsyncClient

from switchyard.api.app import ROUTERS, create_app
from switchyard.api.dashboard import signing_in
from switchyard.api.engine import contract, health, webhooks
from switchyard.api.http.routing import GuardedRoute, Routes
from switchyard.services.common.settings import Settings

ALL_ROUTES = [route for router in ROUTERS for route in router.routes]


def test_an_application_builds_no_route_again() -> None:
    """Building them would cost the first request a tenth of a second."""
    for app in (create_app(Settings(amqp_url=None)), create_app(Settings(amqp_url=None))):
        assert [id(route) for route in app.routes[-len(ALL_ROUTES) :]] == [*map(id, ALL_ROUTES)]


def test_all_routers_are_of_our_own_class() -> None:
    """Their own router sets what an application would set while it builds them."""
    assert all(isinstance(router, Routes) for router in ROUTERS)


def test_every_route_checks_the_key_before_it_reads_a_body() -> None:
    """Except routes without a key: they read no body, or identify the sender by it."""
    without_key = (health.router, contract.router, webhooks.router, signing_in.router)
    keyless = [
        route for router in (*without_key, signing_in.file_router) for route in router.routes
    ]
    for route in ALL_ROUTES:
        assert isinstance(route, GuardedRoute)
        if not route.guards:
            assert route in keyless, route.path
            assert route.body_field is None, route.path


async def test_a_guard_is_asked_once_and_stays_in_the_documentation() -> None:
    guard, router, asked = _Guard(), Routes(), []

    @router.post("/", dependencies=[Depends(guard)])
    async def endpoint(body: dict[str, int]) -> dict[str, int]:
        asked.append(list(guard.called))
        return body

    app = FastAPI()
    app.router.routes.extend(router.routes)
    async with AsyncClient(transport=ASGITransport(app), base_url="http://test") as client:
        answer = await client.post("/", json={"number": 1})
    assert answer.json() == {"number": 1}
    assert asked == [["admit"]]
    assert app.openapi()["paths"]["/"]["post"]["parameters"][0]["name"] == "x-documented"


class _Guard:
    def __init__(self) -> None:
        self.called: list[str] = []

    async def admit(self, request: Request) -> None:
        self.called.append("admit")

    async def __call__(self, x_documented: Annotated[str, Header()] = "") -> None:
        self.called.append("call")


def test_the_routes_that_take_files() -> None:
    takes_files = {
        route.path for route in ALL_ROUTES if isinstance(route, GuardedRoute) and route.takes_files
    }
    assert takes_files == {
        "/documents",
        "/extract/text",
        "/extract/references",
        "/parse/references",
        "/process/references",
        "/backfills/inputs",
        "/v1/files",
        "/dashboard/documents",
        "/dashboard/backfills/inputs",
    }
