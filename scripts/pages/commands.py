"""The reference of the commands, from what they print for --help."""

import os
import subprocess
import sys
from collections.abc import Iterator

COMMANDS = {
    "clickexp": ("clickexp.cli.main", [[]], "Runs an experiment, a sweep or a search."),
    "clickexp-data": (
        "clickexp.cli.data",
        [[], ["prepare"], ["inspect"], ["verify"], ["download"]],
        "Reads, describes and checks logs.",
    ),
    "clickexp-compare": (
        "clickexp.cli.compare",
        [[], ["online"], ["wandb"]],
        "Compares runs as tables, figures, a page and a dashboard.",
    ),
    "clickexp-export": (
        "clickexp.cli.export",
        [[]],
        "Writes what a fitted model knows as tables for other tools.",
    ),
}
COMPLETION = """
## Shell completion

Groups, options and keys of `clickexp` complete with Tab after

```bash
eval "$(clickexp -sc install=bash)"
```

and with `install=zsh` or `install=fish` in those shells. The line belongs into `~/.bashrc`, where the environment of
clickexp is active.
"""


def pages() -> Iterator[tuple[str, str]]:
    """The page, by its path in docs/."""
    lines = ["# Commands", "", "What each command prints for `--help`.", ""]
    for command, (module, calls, sentence) in COMMANDS.items():
        lines += [f"## {command}", "", sentence, ""]
        for words in calls:
            lines += [
                "```console",
                f"$ {' '.join([command, *words])} --help",
                printed(module, command, words),
                "```",
                "",
            ]
    yield "reference/commands.md", "\n".join(lines) + COMPLETION


def printed(module: str, command: str, words: list[str]) -> str:
    """The help of a command at 80 columns."""
    call = f"import sys; sys.argv = [{command!r}, *{words!r}, '--help']; from {module} import main; main()"
    env = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-c", call], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.rstrip()
