from pathlib import Path

import pytest
from jinja2 import Environment, meta, nodes

from switchyard.api.dashboard import formats

TEMPLATES = Path(__file__).parents[2] / "src/switchyard/api/dashboard/templates"
ENVIRONMENT = Environment(autoescape=True)
ENVIRONMENT.filters.update(formats.FILTERS)


def defined_names(part: nodes.Node) -> set[str]:
    """Return the macros, imports and values that a part of a template defines."""
    names = {each.name for each in part.find_all(nodes.Macro)}
    names |= {each.target for each in part.find_all(nodes.Import)}
    targets = (each.target for each in part.find_all(nodes.Assign))
    return names | {each.name for each in targets if isinstance(each, nodes.Name)}


@pytest.mark.parametrize("name", sorted(each.name for each in TEMPLATES.glob("*.html")))
def test_a_live_block_uses_no_name_that_its_template_defines_elsewhere(name: str) -> None:
    # An update of the page renders the block alone, without the definitions around it.
    template = ENVIRONMENT.parse((TEMPLATES / name).read_text())
    for block in template.find_all(nodes.Block):
        if block.name.startswith("live_"):
            block_template = nodes.Template(block.body)
            block_template.set_environment(ENVIRONMENT)
            needed = meta.find_undeclared_variables(block_template)
            missing = needed & defined_names(template) - defined_names(block)
            assert not missing, f"{block.name} needs {sorted(missing)}"
