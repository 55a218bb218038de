"""The command `clickexp-compare`: runs beside each other. Heavy imports wait until they are needed."""

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence

from clickexp.utils import exits

_DESCRIPTION = """\
Compares runs: prints which is best, and writes beside the results one page that
needs no network, tables/ (CSV, Markdown, LaTeX) and, with --figures, figures/.

  clickexp-compare outputs/sweeps/users --baseline PBM
  clickexp-compare outputs/sweeps outputs/2026-11-21 --output outputs/comparison
  clickexp-compare outputs/sweeps --metrics ll,ndcg@5   columns of the tables
  clickexp-compare outputs/ubm --figures                as PDF and PNG
  clickexp-compare outputs/sweeps --published           beside published figures
  clickexp-compare wandb --help                         on Weights & Biases
  clickexp-compare online --help                        two runs judged by users
"""
_WANDB = """\
Creates a workspace and a report on Weights & Biases: means over seeds,
differences to the baseline, curves by rank, cutoff, epoch and sessions,
hyperparameters.

  clickexp-compare wandb --project clickexp
  clickexp-compare wandb outputs/sweeps/users --baseline PBM --sync
  clickexp-compare wandb --project clickexp --dry-run > dashboard.json
"""
_ONLINE = """\
Lets users judge the rankers of two runs: an A/B test and team-draft
interleaving, with a click model as the user. Prints the result and writes
online.json and figures/ to RUN_B/online/, where `clickexp-compare` finds them.

  clickexp-compare online outputs/a outputs/b          users of a simulation
  clickexp-compare online outputs/a outputs/b --user outputs/dbn   fitted ones
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command with the arguments, by default those of the process."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = _COMMANDS[words.pop(0)] if words and words[0] in _COMMANDS else _folders
    with exits.ending("clickexp-compare"):
        chosen = vars(command().parse_intermixed_args(words))
        module, _, function = chosen.pop("run").partition(":")
        with exits.importing():
            imported = importlib.import_module(module)
        getattr(imported, function)(**chosen)


def _folders() -> argparse.ArgumentParser:
    parser = exits.parser("clickexp-compare", _DESCRIPTION)
    parser.add_argument(
        "folders", metavar="FOLDER", nargs="+", help="folder of a run, a sweep, or many of them"
    )
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        help="where to write; by default the first folder, or comparison/ in that of a run",
    )
    text = "model or row that others are tested against; by default the best"
    parser.add_argument("--baseline", metavar="NAME", help=text)
    parser.add_argument(
        "--metrics",
        type=_names,
        metavar="A,B,...",
        help="columns of the tables, the first orders them",
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="leaderboard.csv with all metrics, and what their intervals and tests are over",
    )
    parser.add_argument("--title", help="of the page; by default folder and dataset")
    parser.add_argument(
        "--figures",
        dest="with_figures",
        action="store_true",
        help="draw figures as PDF and PNG; of a single run, those of its report",
    )
    parser.add_argument(
        "--open", dest="open_page", action="store_true", help="open the page in a browser"
    )
    parser.add_argument(
        "--published",
        dest="run",
        action="store_const",
        const="clickexp.results.commands.published:compare_published",
        default="clickexp.results.commands.compare:compare",
        help="print and write published figures of experiments beside those of the runs",
    )
    return parser


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _wandb() -> argparse.ArgumentParser:
    parser = exits.parser("clickexp-compare wandb", _WANDB)
    text = "folder of runs: panels are those of what these logged, and offline runs are found there"
    parser.add_argument("folders", metavar="FOLDER", nargs="*", help=text)
    parser.add_argument("--project", required=True, help="project on Weights & Biases")
    parser.add_argument("--entity", help="user or team; by default yours")
    parser.add_argument(
        "--group", help="show the runs of this group only, such as the name of a sweep's folder"
    )
    parser.add_argument(
        "--baseline", metavar="MODEL", help="model that the others are shown against, such as PBM"
    )
    parser.add_argument("--title", help="of the workspace and the report")
    parser.add_argument(
        "--sync", action="store_true", help="upload the offline runs below the folders first"
    )
    text = "write the specification as JSON instead, without an account and without a network"
    parser.add_argument("--dry-run", action="store_true", help=text)
    parser.set_defaults(run="clickexp.results.dashboard.workspace:dashboard")
    return parser


def _online() -> argparse.ArgumentParser:
    parser = exits.parser("clickexp-compare online", _ONLINE)
    text = "folder of a run that kept its model (save_model=true)"
    parser.add_argument("a", metavar="RUN_A", help=text)
    parser.add_argument("b", metavar="RUN_B", help="another one, with the same dataset")
    text = "folder of the run whose click model is the user; by default the true user of simulated clicks"
    parser.add_argument("--user", metavar="RUN", default="true", help=text)
    text = "sessions of the A/B test, and as many of interleaving (default: 100000)"
    parser.add_argument("--sessions", metavar="N", type=int, default=100_000, help=text)
    text = "users, whose ids are assigned to A or B; by default those of sessions are"
    parser.add_argument("--users", metavar="N", type=int, help=text)
    text = "days that sessions are spread over, with a look at the end of each (default: 14)"
    parser.add_argument("--days", metavar="N", type=int, default=14, help=text)
    parser.add_argument(
        "--positions",
        metavar="K",
        type=int,
        help="documents shown; by default those of the dataset",
    )
    parser.add_argument(
        "--alpha",
        type=float,
        default=0.05,
        help="error rate of tests and intervals (default: 0.05)",
    )
    parser.add_argument(
        "--power", type=float, default=0.8, help="of the minimum detectable effect (default: 0.8)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="the same seed gives the same sessions (default: 0)"
    )
    parser.add_argument(
        "--dataset", metavar="PATH", help="the log, if it is no longer where the runs read it"
    )
    parser.add_argument(
        "--output", metavar="FOLDER", help="where to write; by default in RUN_B/online/"
    )
    text = "let the configurations of the runs call code outside clickexp; only for folders from someone you trust"
    parser.add_argument("--trust", action="store_true", help=text)
    parser.add_argument(
        "--json", dest="as_json", action="store_true", help="print the result as one JSON object"
    )
    parser.set_defaults(run="clickexp.online.command:online")
    return parser


_COMMANDS: dict[str, Callable[[], argparse.ArgumentParser]] = {"online": _online, "wandb": _wandb}
"""Besides folders: by the word that comes first, a parser whose default `run` is module:function."""
