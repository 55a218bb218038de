"""The configuration reference, from the files in conf/ and their comments."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
KEY = re.compile(
    r"^(?P<indent> *)(?P<key>[\w@/.]+):(?: (?P<value>[^#]*?))?(?: *# (?P<comment>.*))?$"
)
GROUPS = {
    "model": "Click models; each has [a page](../models/index.md).",
    "loss": "Of `model=ranker`; [rankers](../rankers.md) has formulas.",
    "debias": "What `model=ranker` makes of clicks.",
    "propensity": "Where `debias=` has examination from.",
    "dataset": "Where sessions come from; [data formats](../data-formats.md) has sample rows.",
    "parameter": "Towers, chosen per role: `attraction=deep`, in full `parameter@attraction=deep`.",
    "optimizer": "`lazy_*` and `natural_gradient` update the table rows of a batch; the others every row.",
    "metric": "Several by `metric=[click,ranking]`; [metrics](../metrics.md) has definitions.",
    "trainer": "How a model is fitted.",
    "logger": "Several by `logger=[jsonl,wandb]`.",
    "launcher": "Where the runs of a sweep run.",
    "search": "How a search chooses its trials; see [search](../howto/search.md).",
    "debug": "Small runs of everything.",
    "variant": "Changes of an experiment.",
    "sweep": "Sweeps by name: `+sweep=seeds`.",
    "experiment": "Experiments by name: `+experiment=cascade_user`.",
}


def pages() -> Iterator[tuple[str, str]]:
    """The page, by its path in docs/."""
    yield "reference/configuration.md", page()


def page() -> str:
    """Every key of every file with its default and its comment."""
    lines = [
        "# Configuration",
        "",
        (
            "Made from the comments of `conf/`. A key is set by `key=value`, an option of a group chosen by "
            "`group=option`; `clickexp --cfg job` prints the result, `clickexp --help` the defaults. Groups with `+` "
            "are added: `+sweep=seeds`. `???` has no default and must be set; `null` is explained in the comment of "
            "its key."
        ),
        "",
    ]
    lines += [
        "## Keys at the top",
        "",
        *table((ROOT / "conf/config.yaml").read_text(), stop="hydra"),
        "",
    ]
    for group, sentence in GROUPS.items():
        plus = "+" if group in ("variant", "sweep", "experiment") else ""
        name = "ROLE" if group == "parameter" else f"{plus}{group}"
        lines += [f"## {name}=", "", sentence, ""]
        for file in sorted((ROOT / "conf" / group).glob("*.yaml")):
            lines += option(file)
    return "\n".join(lines)


def option(file: Path) -> list[str]:
    """A section: the sentence at the head, commands, keys."""
    text = file.read_text()
    # a line that ends in a backslash goes on in the next
    head = [
        line.removeprefix("#").removeprefix(" ")
        for line in text.splitlines()
        if line.startswith("#")
    ]
    joined = re.sub(r"\\\n *", "", "\n".join(head)).splitlines()
    commands = [line for line in joined if line.startswith("clickexp")]
    words = [line for line in joined if not line.startswith(("clickexp", "@package"))]
    rows = table(text)
    return [
        f"### {file.stem}",
        "",
        " ".join(words),
        "",
        *(f"    {line}" for line in commands),
        "",
        *rows,
        "",
    ]


def table(text: str, stop: str = "") -> list[str]:
    """Rows of the keys that have a value or a comment, nested ones by their full name."""
    rows, path = [], []
    for line in text.splitlines():
        found = KEY.match(line)
        if not found or line.startswith("#"):
            continue
        depth = len(found["indent"]) // 2
        path = [*path[:depth], found["key"]]
        if path[0] == stop:
            break
        if (
            path[0] == "defaults"
            or path[-1] in ("_partial_",)
            or (not found["value"] and not found["comment"])
        ):
            continue
        value = (found["value"] or "").strip()
        rows.append(
            f"| `{'.'.join(path)}` | {f'`{escape(value)}`' if value else ''} | {escape(found['comment'] or '')} |"
        )
    return ["| key | default | meaning |", "|---|---|---|", *rows] if rows else []


def escape(text: str) -> str:
    """Text for a cell."""
    return (
        text.replace("|", "\\|").replace("<", "&lt;")
        if "`" not in text
        else text.replace("|", "\\|")
    )
