from pathlib import Path

import pytest
from jinja2 import Environment, meta, nodes

from switchyard.api.dashboard import formats

TEMPLATES = Path(__file__).parents[2] / "src/switchyard/api/dashboard/templates"
ENVIRONMENT = Environment(autoescape=True)
ENVIRONMENT.filters.update(formats.FILTERS)


def names_made(part: nodes.Node) -> set[str]:
    """Macros, imports and values that a part of a template makes."""
    made = {each.name for each in part.find_all(nodes.Macro)}
    made |= {each.target for each in part.find_all(nodes.Import)}
    targets = (each.target for each in part.find_all(nodes.Assign))
    return made | {each.name for each in targets if isinstance(each, nodes.Name)}


@pytest.mark.parametrize("name", sorted(each.name for each in TEMPLATES.glob("*.html")))
def test_a_live_block_needs_nothing_that_its_template_makes_outside_of_it(name: str) -> None:
    # To bring a page up to date, the block is written alone: what stands around it is not there.
    template = ENVIRONMENT.parse((TEMPLATES / name).read_text())
    for block in template.find_all(nodes.Block):
        if block.name.startswith("live_"):
            alone = nodes.Template(block.body)
            alone.set_environment(ENVIRONMENT)
            needed = meta.find_undeclared_variables(alone)
            missing = needed & names_made(template) - names_made(block)
            assert not missing, f"{block.name} needs {sorted(missing)}"
