"""The Python reference: the public names of each room, whose text mkdocstrings takes from the docstrings."""

import importlib
from collections.abc import Iterator

ROOMS = {
    "python": ("clickexp", "The names that most programs need.", ["clickexp"]),
    "models": (
        "Models",
        "Click models, their base classes, and roles; [Extend](../extend.md) shows your own.",
        ["clickexp.models"],
    ),
    "rankers": (
        "Rankers",
        "Losses of rankings and corrections of clicks, behind [`Ranker`](models.md#clickexp.models.Ranker).",
        [f"clickexp.models.ranker.{name}" for name in ("losses", "pairs", "debias", "learned")],
    ),
    "propensities": (
        "Propensities",
        "Where propensities of examination come from.",
        ["clickexp.propensities"],
    ),
    "parameters": ("Towers", "Towers and tables behind roles.", ["clickexp.parameters"]),
    "training": ("Training", "Trainers, optimizers, early stopping.", ["clickexp.training"]),
    "data": ("Data", "Datasets, readers, packed sessions, columns.", ["clickexp.data"]),
    "metrics": (
        "Metrics",
        "Metrics of clicks, of rankings, of hidden parameters.",
        ["clickexp.metrics"],
    ),
    "simulation": ("Simulation", "Logs of simulated users.", ["clickexp.simulation"]),
    "evaluation": (
        "Evaluation",
        "Groups of metrics, draws from posteriors.",
        ["clickexp.evaluation.groups", "clickexp.posteriors.draws"],
    ),
    "online": (
        "Online",
        "Rankers judged by users.",
        ["clickexp.online", "clickexp.utils.statistics.sequential"],
    ),
    "sweeps": (
        "Sweeps",
        "Pools that run the jobs of a sweep; [Extend](../extend.md#a-launcher-backend) shows your own.",
        [
            f"clickexp.sweeps.backends.{name}"
            for name in ("base", "pool", "slots", "remote", "slurm")
        ],
    ),
    "results": (
        "Results",
        "Reading and comparing runs, values per query, tests of significance, logging.",
        [
            *(
                f"clickexp.results{name}"
                for name in ("", ".commands.compare", ".comparison", ".per_query")
            ),
            "clickexp.utils.statistics.bootstrap",
            "clickexp.utils.statistics.means",
            "clickexp.runs.run",
            "clickexp.loggers",
            "clickexp.export.fitted",
        ],
    ),
}


def pages() -> Iterator[tuple[str, str]]:
    """Paths in docs/ and directives for mkdocstrings."""
    for stem, (title, sentence, modules) in ROOMS.items():
        lines = [f"# {title}", "", sentence, ""]
        for module in modules:
            for name in public(module):
                room = getattr(importlib.import_module(module), name).__module__.split(".")[1]
                elsewhere = stem == "python" and room in ROOMS
                line = f"- [`{module}.{name}`]({room}.md#clickexp.{room}.{name})"
                lines.append(line if elsewhere else f"\n::: {module}.{name}\n")
        yield f"reference/{stem}.md", "\n".join(lines)


def public(module: str) -> list[str]:
    """Classes and functions that a module offers: what it exports, or else defines."""
    found = importlib.import_module(module)
    exported = getattr(found, "__all__", None) or [
        name for name in vars(found) if not name.startswith("_")
    ]
    package = hasattr(found, "__path__")

    def kept(name: str) -> bool:
        one = getattr(found, name)
        ours = (getattr(one, "__module__", None) or "").startswith(
            module.partition(".")[0] if package else module
        )
        return callable(one) and ours

    return [name for name in exported if kept(name)]
