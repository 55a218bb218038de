"""Which way the layers import, and that the command stays light."""

import ast
import functools
import importlib.metadata
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import defaultdict
from graphlib import TopologicalSorter
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
        name
        for name in imports(file)
        if any(f"{name}.".startswith(f"{package}.") for package in packages)
    }


FLOORS = (
    ("types", "numerics", "errors", "utils"),
    ("data", "metrics", "runs"),
    ("parameters", "results"),
    ("propensities",),
    ("models", "loggers"),
    ("simulation", "evaluation"),
    ("training",),
    ("posteriors",),
    ("updates",),
    ("experiment",),
    ("export", "sweeps"),
    ("online",),
    ("cli", "plugins"),
)
"""A room imports those of lower floors, and none beside it; the ground floor's import each other."""
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def room_of(file: Path) -> str:
    return file.relative_to(ROOT / "clickexp").parts[0].removesuffix(".py")


def test_rooms_import_downwards_only():
    """Imports inside functions count."""
    wrong = []
    for file in FILES:
        room = room_of(file)
        if room in ("__init__", "__main__"):
            continue
        for name in uses(file, "clickexp"):
            other = name.split(".")[1]
            if other.startswith("__"):
                continue  # of the package itself
            lower = FLOOR[other] < FLOOR[room] or (FLOOR[room] == 0 and FLOOR[other] == 0)
            if other != room and not lower:
                wrong.append(f"{file.relative_to(ROOT)} imports {name}")
    assert not wrong


def import_graph() -> dict[str, set[str]]:
    """The modules that each module imports, in functions and for type checkers too.

    Packages that load names on first use import what their stubs name; the root is above all others.
    """
    modules = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
        for file in FILES
    }
    graph = {}
    for module, file in modules.items():
        names = imports(file)
        if (stub := file.with_suffix(".pyi")).exists() and module != "clickexp":
            names |= {f"{module}.{name}" for name in imports(stub)}
        graph[module] = {name if name in modules else name.rpartition(".")[0] for name in names} & {
            *modules
        }
    return graph


def test_no_module_imports_itself_by_way_of_others():
    TopologicalSorter(import_graph()).prepare()  # raises CycleError, which names the modules


def test_no_folders_import_each_other():
    """But for what a folder's `__init__` names for others, and the command's `__main__`."""
    graph, folders = import_graph(), defaultdict(set)
    packages = {module for module in graph if (ROOT / module.replace(".", "/")).is_dir()}
    for module, others in graph.items():
        if module not in packages and module != "clickexp.__main__":
            folder = module.rpartition(".")[0]
            folders[folder] |= {
                other if other in packages else other.rpartition(".")[0] for other in others
            } - {folder}
    TopologicalSorter(folders).prepare()


def test_the_design_lists_the_rooms_from_the_ground_up():
    text = (ROOT / "docs/design.md").read_text()
    root, drawing = re.search(r"^clickexp/ +(.*?)\n(.*?)^examples/", text, re.S | re.M).groups()
    named = re.findall(r"\w+(?=/)", drawing)
    folders = {file.parent.name for file in FILES if "plugins" not in file.parts} | {"plugins"}
    assert {*named} == folders - {"clickexp"}
    rooms = [name for name in named if name in FLOOR]
    assert {*rooms, *root.split(", and rooms")[0].split(", ")} == {*FLOOR}
    assert sorted(rooms, key=FLOOR.get) == rooms


def test_every_suppression_has_a_reason():
    comments = [
        (file, token.string)
        for file in FILES
        for token in tokenize.generate_tokens(io.StringIO(file.read_text()).readline)
        if token.type == tokenize.COMMENT
        and re.match(r"# (noqa|pyright: ignore|type: ignore)", token.string)
    ]
    assert comments
    assert not [comment for comment in comments if not re.fullmatch(r"# .*?  # \w.*", comment[1])]


def test_batches_turn_at_one_place():
    """Lists first or ranks first: `clickexp.types.swap_list_and_rank` leads from one to the other."""
    turns = re.compile(r"\.T\b|swapaxes|moveaxis|transpose")
    rooms = ("models", "parameters", "metrics", "evaluation")
    assert not [file for file in FILES if room_of(file) in rooms and turns.search(file.read_text())]


def test_every_room_says_what_lives_there():
    folders = {file.parent for file in FILES if "plugins" not in file.parts}
    for folder in folders:
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), folder


def test_few_modules_stand_at_the_root():
    modules = {file.stem for file in FILES if file.parent == ROOT / "clickexp"}
    assert modules == {"__init__", "__main__", "types", "numerics", "errors"}


@pytest.mark.parametrize(
    "packages, allowed",
    [
        (
            ("hydra", "omegaconf"),
            {"clickexp/cli/experiment.py"}
            | {
                f"clickexp/experiment/{name}.py"
                for name in ("api", "differences", "hydra_errors", "instantiate")
            }
            | {"clickexp/experiment/overrides.py"}
            | {f"clickexp/experiment/{name}.py" for name in ("resolve", "run", "values")}
            | {f"clickexp/sweeps/{name}.py" for name in ("callback", "checks", "job", "launcher")}
            | {f"clickexp/sweeps/{name}.py" for name in ("search", "space")}
            | {"clickexp/plugins/hydra_plugins/clickexp_launcher/launcher.py"}
            | {"clickexp/plugins/hydra_plugins/clickexp_sweeper/sweeper.py"},
        ),
        (
            ("optuna",),
            {f"clickexp/sweeps/{name}.py" for name in ("search", "space", "study")}
            | {"clickexp/results/hyperparameters.py"},
        ),
        (("onnx",), {"clickexp/export/onnx_graph.py"}),
        (("ray",), {"clickexp/sweeps/backends/ray.py"}),
        (("submitit",), {"clickexp/sweeps/backends/slurm.py"}),
        (("wandb",), {"clickexp/loggers/wandb.py", "clickexp/results/dashboard/workspace.py"}),
        (
            ("wandb_workspaces",),
            {"clickexp/results/dashboard/workspace.py", "clickexp/results/dashboard/panels.py"},
        ),
        (("torch", "clax"), set()),
    ],
)
def test_a_package_is_imported_only_where_it_belongs(packages, allowed):
    importing = {str(file.relative_to(ROOT)) for file in FILES if uses(file, *packages)}
    assert importing == allowed


BEHIND_EXTRAS = {
    "clickexp/results/hyperparameters.py": "search",
    **{f"clickexp/sweeps/{name}.py": "search" for name in ("search", "space", "study")},
    "clickexp/export/onnx_graph.py": "onnx",
    "clickexp/cli/download.py": "hf",
    "clickexp/loggers/mlflow.py": "mlflow",
    "clickexp/loggers/tensorboard.py": "tensorboard",
    "clickexp/loggers/trackio.py": "trackio",
    "clickexp/sweeps/backends/slurm.py": "slurm",
    "clickexp/sweeps/backends/ray.py": "ray",
    "clickexp/results/dashboard/workspace.py": "dashboard",
    "clickexp/results/dashboard/panels.py": "dashboard",
}


NOT_IMPORTED = {"alembic", "sqlalchemy"}
"""Of an extra; MLflow imports them where it writes to a database."""


def distributions(requirements: list[str]) -> set[str]:
    return {normalized(re.match(r"[\w.-]+", requirement)[0]) for requirement in requirements}


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


packages_distributions = functools.cache(importlib.metadata.packages_distributions)


def needed(file: Path) -> set[str]:
    """Distributions of other projects that a file imports, anywhere in it."""
    modules = (
        {name.split(".")[0] for name in imports(file)} - sys.stdlib_module_names - {"clickexp"}
    )
    known = packages_distributions()
    return {normalized(name) for module in modules for name in known.get(module, [module])}


def test_all_that_is_imported_is_declared_and_the_other_way_round():
    """What a plain install runs is in the dependencies; a file behind an extra may import what that has besides."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = distributions(project["dependencies"])
    extras = {
        name: distributions(listed) for name, listed in project["optional-dependencies"].items()
    }
    assert set(BEHIND_EXTRAS.values()) < set(extras)
    used = defaultdict(set)
    for file in FILES:
        name = BEHIND_EXTRAS.get(str(file.relative_to(ROOT)))
        extra = extras.get(name, set())
        assert needed(file) <= declared | extra, (
            f"{file}: {needed(file) - declared - extra} is not declared"
        )
        used[name] |= needed(file)
    assert all(extras[name] - NOT_IMPORTED <= used[name] for name in {*BEHIND_EXTRAS.values()})
    assert declared <= set().union(*used.values())


def test_the_entry_point_is_short():
    assert len((ROOT / "clickexp/cli/experiment.py").read_text().splitlines()) <= 60


PRINTING = """
import sys
from hydra._internal.config_repository import CachingConfigRepository
from clickexp.cli.data import main as data

def heavy(*names):
    return sorted({"jax", "polars", "pyarrow", *names} & {*sys.modules})

def ended(command, *words):
    try:
        command(*words)
    except SystemExit as end:
        assert not end.code

made, make = [], CachingConfigRepository.__init__
CachingConfigRepository.__init__ = lambda *given: (made.append(1), make(*given))[1]
ended(data, ["--help"])
print("heavy:", heavy("numpy", "rich"), len(made))
from clickexp.cli.main import main
sys.argv = ["clickexp", "--help"]
ended(main)
print("heavy:", heavy("flax", "numpy", "optax", "wandb"), len(made))
sys.argv = ["clickexp", "--cfg", "job"]
ended(main)
print("heavy:", heavy("flax", "jaxtyping", "optax", "rax", "wandb"))
"""


def test_help_and_configuration_are_shown_without_heavy_imports(tmp_path):
    """Nor does Hydra compose a configuration for the help."""
    line = [sys.executable, "-c", PRINTING]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True)
    found = [line for line in done.stdout.splitlines() if line.startswith("heavy:")]
    assert found == ["heavy: [] 0", "heavy: [] 0", "heavy: []"]
    assert "dataset" in done.stdout and "clickexp.models.UserBrowsingModel" in done.stdout


def test_a_run_imports_no_package_that_only_some_runs_need():
    """Each job of a sweep pays for them, before it trains."""
    code = """
import sys
import clickexp.experiment.run
print(sorted({"polars", "pyarrow", "scipy.stats", "wandb"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_nothing_enables_64_bit_mode():
    assert not [file for file in FILES if "jax_enable_x64" in file.read_text()]
