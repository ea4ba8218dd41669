"""The Python code in the documentation can be copied as it is."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.docs import PAGES, ROOT

BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
PAGES_WITH_CODE = [page for page in PAGES if BLOCK.search(page.read_text())]


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_is_complete(page: Path) -> None:
    """It compiles, and defines each name that it uses, perhaps further up on its page."""
    source = "\n\n".join(BLOCK.findall(page.read_text()))
    compile(source, str(page), "exec")
    result = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "-"],
        input=source,
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
