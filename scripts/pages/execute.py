"""Executes the notebooks in place, as their pages show them.

python scripts/pages/execute.py            all
python scripts/pages/execute.py first_run
"""

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent.parent.parent / "examples/notebooks"


def main() -> None:
    """Executes those that the arguments name, or all."""
    for file in sorted(FOLDER.glob("*.ipynb")):
        if file.stem in (sys.argv[1:] or [file.stem]):
            nbformat.write(executed(file), file)
            print(f"executed {file.name}")


def executed(file: Path) -> nbformat.NotebookNode:
    """A notebook with the outputs of its execution in an empty folder; an error of a cell is raised."""
    notebook = nbformat.read(file, as_version=4)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # commands of this environment
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook, timeout=600, coalesce_streams=True, resources={"metadata": {"path": folder}}
        )
        client.execute(
            env={
                **os.environ,
                "PATH": path,
                "WANDB_MODE": "disabled",
                "NO_COLOR": "1",
                "COLUMNS": "100",
            }
        )
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times
    return notebook


if __name__ == "__main__":
    main()
