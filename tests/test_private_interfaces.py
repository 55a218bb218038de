"""docs/private.md lists what is used of other libraries beyond their public interfaces, and all of it exists."""

import ast
import importlib
import re
from collections import defaultdict

import pytest
from places import ROOT

PAGE = (ROOT / "docs/private.md").read_text()
LISTED = re.findall(r"^\| `([\w.]+)` \|", PAGE, re.MULTILINE)


def imported():
    """Full names that files import, with the files."""
    found = defaultdict(set)
    for folder in ("clickexp", "scripts", "tests"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.ImportFrom) and node.level == 0:
                    for alias in node.names:
                        found[f"{node.module}.{alias.name}"].add(str(file.relative_to(ROOT)))
                elif isinstance(node, ast.Import):
                    for alias in node.names:
                        found[alias.name].add(str(file.relative_to(ROOT)))
    return found


IMPORTED = imported()


def is_inside(name, module):
    return f"{name}.".startswith(f"{module}.")


def is_private(name):
    """Whether a path has a private part, or is one of the modules that the page takes for private."""
    library = name.split(".")[0]
    if library in ("clickexp", "scripts", "__future__"):
        return False
    return any(part.startswith("_") for part in name.split(".")) or any(
        is_inside(name, module) for module in LISTED
    )


PRIVATE = {name: files for name, files in IMPORTED.items() if is_private(name)}


def test_the_page_lists_every_private_interface():
    missing = {
        name: files
        for name, files in PRIVATE.items()
        if not any(is_inside(name, module) for module in LISTED)
    }
    assert not missing, f"docs/private.md lacks {missing}: say what it is for, or do without"


def test_what_to_check_exists():
    named = re.findall(r"`((?:tests|scripts)/[\w/.-]+)`", PAGE)
    assert named and not [path for path in named if not (ROOT / path).exists()]


@pytest.mark.parametrize("module", LISTED)
def test_the_page_lists_nothing_that_is_not_used(module):
    assert any(is_inside(name, module) for name in IMPORTED)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # those of the libraries themselves
@pytest.mark.parametrize("name", sorted(PRIVATE))
def test_an_installed_version_has_what_is_imported(name):
    library = name.split(".")[0]
    pytest.importorskip(library)
    module, _, attribute = name.rpartition(".")
    remedy = (
        f"{', '.join(sorted(PRIVATE[name]))} import {name}, which the installed {library} does not have: "
        "docs/private.md says what it is for, and what to check"
    )
    try:
        found = importlib.import_module(module)
        has = hasattr(found, attribute) or importlib.import_module(name)
    except ImportError:
        has = False
    assert has, remedy
