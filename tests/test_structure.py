"""Which way the layers import, and that the command stays light."""

import ast
import functools
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "clickexp").rglob("*.py"))


def imports(file: Path) -> set[str]:
    """Full names of the modules that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def uses(file: Path, *packages: str) -> set[str]:
    return {
        name for name in imports(file) if any(f"{name}.".startswith(f"{package}.") for package in packages)
    }


def files_of(*parts: str) -> list[Path]:
    return [file for file in FILES if str(file.relative_to(ROOT)).startswith(parts)]


LAYERS = {
    "types": tuple(
        f"clickexp/{name}.py"
        for name in ("types", "errors", "bounds", "construct", "objective", "suggest", "escape", "checks", "files")
    ),
    "numerics": ("clickexp/numerics.py",),
    "parameters": ("clickexp/parameters/",),
    "models": ("clickexp/models/",),
    "metrics": ("clickexp/metrics/",),
    "data": ("clickexp/data/",),
    "loggers": ("clickexp/loggers/",),
    "training": ("clickexp/training/",),
    "sweeps": ("clickexp/sweeps/", "clickexp/plugins/"),
    "compare": ("clickexp/compare/", "clickexp/compare_main.py"),
}
FORBIDDEN = {
    "types": ("numerics", "parameters", "models", "metrics", "data", "loggers", "training", "experiment"),
    "numerics": ("parameters", "models", "metrics", "data", "loggers", "training", "experiment"),
    "parameters": ("models", "metrics", "data", "loggers", "training", "experiment"),
    "models": ("metrics", "data", "loggers", "training", "experiment"),
    "metrics": ("parameters", "models", "data", "loggers", "training", "experiment"),
    "data": ("models", "metrics", "loggers", "training", "sweeps", "experiment"),
    "loggers": ("parameters", "models", "metrics", "data", "training", "sweeps", "experiment"),
    "training": ("sweeps", "experiment", "main"),
    "sweeps": ("parameters", "models", "metrics", "data", "training", "main"),
    "compare": ("parameters", "models", "metrics", "data", "training", "experiment", "main"),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_import_downwards_only(layer):
    files = files_of(*LAYERS[layer])
    assert files
    wrong = {file.name: uses(file, *(f"clickexp.{name}" for name in FORBIDDEN[layer])) for file in files}
    assert not any(wrong.values()), wrong


@pytest.mark.parametrize(
    "packages, allowed",
    [
        (
            ("hydra", "omegaconf"),
            {f"clickexp/{name}.py" for name in ("main", "experiment", "components", "overrides", "mistakes", "help")}
            | {f"clickexp/sweeps/{name}.py" for name in ("callback", "job", "launcher", "search")}
            | {"clickexp/plugins/hydra_plugins/clickexp_launcher/launcher.py"}
            | {"clickexp/plugins/hydra_plugins/clickexp_sweeper/sweeper.py"},
        ),
        (("optuna",), {"clickexp/sweeps/search.py"}),
        (("ray",), {"clickexp/sweeps/ray.py"}),
        (("submitit",), {"clickexp/sweeps/slurm.py"}),
        (("wandb",), {"clickexp/loggers/wandb.py", "clickexp/compare/dashboard.py"}),
        (("wandb_workspaces",), {"clickexp/compare/dashboard.py"}),
        (("torch", "clax"), set()),
    ],
)
def test_a_package_is_imported_only_where_it_belongs(packages, allowed):
    importing = {str(file.relative_to(ROOT)) for file in FILES if uses(file, *packages)}
    assert importing == allowed


BEHIND_EXTRAS = {
    "clickexp/sweeps/search.py": "search",
    "clickexp/sweeps/slurm.py": "slurm",
    "clickexp/sweeps/ray.py": "ray",
    "clickexp/compare/dashboard.py": "dashboard",
}


def distributions(requirements: list[str]) -> set[str]:
    return {normalized(re.match(r"[\w.-]+", requirement)[0]) for requirement in requirements}


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


packages_distributions = functools.cache(importlib.metadata.packages_distributions)


def needed(file: Path) -> set[str]:
    """Distributions of other projects that a file imports, anywhere in it."""
    modules = {name.split(".")[0] for name in imports(file)} - sys.stdlib_module_names - {"clickexp"}
    known = packages_distributions()
    return {normalized(name) for module in modules for name in known.get(module, [module])}


def test_all_that_is_imported_is_declared_and_the_other_way_round():
    """What a plain install runs is in the dependencies; a file behind an extra may import what that has besides."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = distributions(project["dependencies"])
    extras = {name: distributions(listed) for name, listed in project["optional-dependencies"].items()}
    assert set(BEHIND_EXTRAS.values()) < set(extras)
    used = set()
    for file in FILES:
        extra = extras.get(BEHIND_EXTRAS.get(str(file.relative_to(ROOT))), set())
        assert needed(file) <= declared | extra, f"{file}: {needed(file) - declared - extra} is not declared"
        assert extra <= needed(file)
        used |= needed(file)
    assert declared == used & declared


def test_the_entry_point_is_short():
    assert len((ROOT / "clickexp/main.py").read_text().splitlines()) <= 60


def test_showing_the_configuration_imports_nothing_heavy(tmp_path):
    code = """
import sys
from clickexp.main import main
sys.argv = ["clickexp", "--cfg", "job"]
main()
heavy = {"jax", "jaxtyping", "flax", "optax", "polars", "pyarrow", "wandb", "rax"} & set(sys.modules)
print("heavy:", sorted(heavy))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "heavy: []"
    assert "clickexp.models.UserBrowsingModel" in done.stdout


def test_a_run_imports_no_package_that_only_some_runs_need():
    """Each job of a sweep pays for them, before it trains."""
    code = """
import sys
import clickexp.experiment
print(sorted({"polars", "pyarrow", "scipy.stats", "wandb"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_nothing_enables_64_bit_mode():
    assert not [file for file in FILES if "jax_enable_x64" in file.read_text()]
