"""The pages of the documentation, and the patterns of code in them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
CODE = re.compile(r"`([^`\n]+)`")
BLOCK = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
