"""Where the project's files are."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REAL_LOGS = Path(os.environ.get("CLICKEXP_DATA", ROOT.parent / "shared/data"))
"""Logs that the project does not publish; tests on them skip where they are not."""
