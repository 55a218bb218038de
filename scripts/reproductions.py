"""The section of docs/reproductions.md on published experiments, made from their files.

python scripts/reproductions.py           writes it between its two markers
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/reproductions.md"
START = "<!-- published experiments: written by scripts/reproductions.py -->"
END = "<!-- end of published experiments -->"
SHOWN = "ppl"


def main() -> None:
    PAGE.write_text(replaced(PAGE.read_text()))


def replaced(text: str) -> str:
    """The text with the section as the files have it now."""
    before, rest = text.split(START)
    return before + START + "\n" + section() + END + rest.split(END)[1]


def section() -> str:
    """What there is to run, and the published perplexities that runs are compared with."""
    nodes = list(experiments())
    rows = [["`+experiment=`", "of CLAX 2025", "runs", "published time"], ["---"] * 4]
    rows += [[f"`{node['name']}`", node["experiment"], runs(node), node["time"]] for node in nodes]
    names = list(dict.fromkeys(model for node in nodes for model in figures(node)))
    by_model = [["Published perplexity", *(f"{node['experiment'][0]}" for node in nodes)]]
    by_model += [["---", *["---:"] * len(nodes)]]
    by_model += [
        [model, *(shown(figures(node).get(model, {})) for node in nodes)] for model in names
    ]
    return f"{table(rows)}\n{table(by_model)}"


def experiments() -> Iterator[Mapping[str, Any]]:
    """The reproduction nodes of the experiments of CLAX 2025, by number."""
    files = sorted((ROOT / "conf/experiment").glob("*.yaml"))
    nodes = [yaml.safe_load(file.read_text()).get("reproduction") for file in files]
    clax = (node for node in nodes if node and node["name"].startswith("clax2025"))
    return iter(sorted(clax, key=lambda node: node["experiment"]))


def figures(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of the first reference, by model."""
    return next(iter(node["published"].values()))["figures"]


def shown(of_model: Mapping[str, Any]) -> str:
    value = of_model.get(SHOWN, "")
    value = value.get("full", "") if isinstance(value, Mapping) else value
    return f"{value:.4f}" if value else ""


def runs(node: Mapping[str, Any]) -> str:
    """Such as "10 models x 3 splits"."""
    full = node["full"]
    counts = {
        "models": full["models"],
        "compressions": full.get("compressions", ""),
        "splits": str(full["seeds"]),
    }
    lists = {name: text.split(",") for name, text in counts.items() if text}
    return " x ".join(
        f"{len(items)} {name if len(items) > 1 else name[:-1]}" for name, items in lists.items()
    )


def table(rows: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    main()
