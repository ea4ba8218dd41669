"""The application's routes are those of its modules, as they are."""

from switchyard.api.app import ROUTERS, create_app
from switchyard.api.dashboard import signing_in
from switchyard.api.engine import contract, health, webhooks
from switchyard.api.http.routing import GuardedRoute, Routes
from switchyard.services.common.settings import Settings

LISTED = [route for router in ROUTERS for route in router.routes]


def test_an_application_builds_no_route_again() -> None:
    """With the first request, that would be a tenth of a second."""
    for app in (create_app(Settings(amqp_url=None)), create_app(Settings(amqp_url=None))):
        assert [id(route) for route in app.routes[-len(LISTED) :]] == [*map(id, LISTED)]


def test_all_routes_answer_alike() -> None:
    """What an application would else say while it builds them, they have from their own list."""
    assert all(isinstance(router, Routes) for router in ROUTERS)


def test_every_route_knows_whom_it_lets_in_before_it_reads_a_body() -> None:
    """But those that need no key: they read none, or tell by it who sends it."""
    without_key = (health.router, contract.router, webhooks.router, signing_in.router)
    keyless = [
        route for router in (*without_key, signing_in.file_router) for route in router.routes
    ]
    for route in LISTED:
        assert isinstance(route, GuardedRoute)
        if not route.guards:
            assert route in keyless, route.path
            assert route.body_field is None, route.path


def test_a_route_that_documents_files_is_one_that_takes_them() -> None:
    takes_files = {
        route.path for route in LISTED if isinstance(route, GuardedRoute) and route.takes_files
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
