"""The application's routes are those of its modules, as they are."""

from switchyard.api.app import ROUTERS, create_app
from switchyard.api.http.routing import Routes
from switchyard.services.settings import Settings

LISTED = [route for router in ROUTERS for route in router.routes]


def test_an_application_builds_no_route_again() -> None:
    """With the first request, that would be a tenth of a second."""
    for app in (create_app(Settings(amqp_url=None)), create_app(Settings(amqp_url=None))):
        assert [id(route) for route in app.routes[-len(LISTED) :]] == [*map(id, LISTED)]


def test_all_routes_answer_alike() -> None:
    """What an application would else say while it builds them, they have from their own list."""
    assert all(isinstance(router, Routes) for router in ROUTERS)
