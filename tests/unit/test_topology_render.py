"""The definitions file that `jobctl topology render` writes."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.broker.lanes import LANES, Route
from switchyard.broker.settings import Profile
from switchyard.broker.topology.build import build
from switchyard.broker.topology.definitions import render, render_text
from switchyard.services.engine.jobs.registry import Registry

DEFINITIONS = Path(__file__).parents[2] / "definitions.json"
ROUTES = [Route(lane.name, "summarize_content", "llm") for lane in LANES]


def test_definitions_json_is_the_classic_profile_of_the_built_in_jobs() -> None:
    rendered = render_text(build("classic", Registry.load().routes))
    assert DEFINITIONS.read_text() == rendered, (
        "write it anew: jobctl topology render --profile classic --vhost / > definitions.json"
    )


@pytest.mark.parametrize("profile", ["classic", "quorum"])
def test_every_object_has_all_fields_that_an_empty_node_needs(profile: Profile) -> None:
    definitions = render(build(profile, ROUTES), vhost="jobs/a b")
    assert definitions["vhosts"] == [{"name": "jobs/a b"}]
    for kind in ("policies", "exchanges", "queues", "bindings"):
        assert definitions[kind]
        assert all(item["vhost"] == "jobs/a b" for item in definitions[kind])
    for item in definitions["exchanges"] + definitions["queues"]:
        assert item["durable"] is True
        assert item["auto_delete"] is False
    for queue in definitions["queues"]:
        # A virtual host may have another default type.
        assert queue["arguments"]["x-queue-type"] in ("classic", "quorum")


def test_the_definitions_hold_neither_users_nor_settings_of_the_broker() -> None:
    assert set(render(build("classic", ROUTES))) == {
        *("vhosts", "policies", "exchanges", "queues", "bindings"),
    }


@given(routes=st.permutations(ROUTES))
def test_the_text_does_not_depend_on_the_order_of_routes(routes: list[Route]) -> None:
    text = render_text(build("quorum", routes))
    assert text == render_text(build("quorum", ROUTES))
    assert json.loads(text) == render(build("quorum", ROUTES))
    assert text.endswith("}\n")
