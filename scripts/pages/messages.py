"""The page of messages: common mistakes, what the command answers, and what to do."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MISTAKES = [
    (
        "clickexp model=ubmm",
        "Names of options come with the nearest one. `clickexp --help` lists them.",
    ),
    ("clickexp modle=pbm", "A group or key that does not exist; the nearest one is named."),
    (
        "clickexp trainer.epoch=5",
        "Keys of an option are listed in the [configuration reference](reference/configuration.md).",
    ),
    ("clickexp lr=0.1", "Learning rates belong to the optimizer: `optimizer.learning_rate=0.1`."),
    ("clickexp seed=abc", "Values are checked before anything runs."),
    ("clickexp trainer.epochs=-3", "So are their ranges."),
    ("clickexp model=pbm,ubm", "Several values are a sweep: add `-m`."),
    ("clickexp dataset=lists", "A log needs its path: `dataset.path=my/clicks`."),
    (
        "clickexp dataset=lists dataset.path=nowhere",
        "The path is that of a file or folder, seen from where the command runs.",
    ),
    (
        "clickexp trainer.early_stopping.metric=ndgc@10",
        "The metric must be one that `metric=` computes in the validation.",
    ),
    (
        "clickexp model=rctr trainer=em",
        "Which trainer fits which model is on [the page of the model](models/index.md).",
    ),
    ("clickexp-data inspect nowhere", "As for a run."),
    (
        "clickexp-export nowhere",
        "An export takes the folder of a finished run, the last line that the run printed.",
    ),
    ("clickexp-compare nowhere", "A comparison takes folders with finished runs in or below them."),
]
MODULES = {
    "clickexp": "main",
    "clickexp-data": "data",
    "clickexp-export": "export",
    "clickexp-compare": "compare",
}
REST = '\n--8<-- "docs/data/messages.md"\n'


def pages() -> Iterator[tuple[str, str]]:
    """The page, by its path in docs/."""
    lines = [
        "# Messages and what to do",
        "",
        (
            "Invalid configuration or data stops a command before training, with one line and the remedy; no folder is "
            "created. The jobs of a sweep and the trials of a search are checked before the first starts."
        ),
        "",
    ]
    with ThreadPoolExecutor(2) as pool, tempfile.TemporaryDirectory() as folder:
        answers = list(pool.map(lambda mistake: answer(mistake[0], folder), MISTAKES))
    for (command, advice), text in zip(MISTAKES, answers, strict=True):
        lines += ["```console", f"$ {command}", text, "```", "", advice, ""]
    yield "messages.md", "\n".join(lines) + REST


def answer(command: str, folder: str) -> str:
    """What a command prints that fails.

    Args:
        command: Words that end in an error.
        folder: Where to run it, so that nothing is left behind.

    Raises:
        RuntimeError: The command did not fail.
    """
    name, *words = command.split()
    call = f"import sys; sys.argv = [{name!r}, *{words!r}]; from clickexp.cli.{MODULES[name]} import main; main()"
    env = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", call], cwd=folder, env=env, capture_output=True, text=True
    )
    if not done.returncode:
        raise RuntimeError(f"{command} does not fail any more; see scripts/pages/messages.py")
    return (done.stderr or done.stdout).strip().splitlines()[-1].replace(folder, ".")
