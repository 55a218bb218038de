"""The command `clickexp-export`: what a fitted model knows, as tables. Heavy imports wait until they are needed."""

import argparse
from collections.abc import Sequence

from clickexp.utils import exits
from clickexp.utils.memory import return_freed_arrays

_DESCRIPTION = """\
Writes what the fitted model of a run knows, as tables for other tools:

  examination.csv      by rank: examination, propensity, click rate
  shared.csv           what documents share: examination by position,
                       UBM's table, continuation, with 95% intervals
  documents.parquet    by document: attraction, satisfaction, relevance,
                       impressions and clicks; where tables have posteriors,
                       95% intervals and effective impressions
  predictions.parquet  with --predict: P(click), P(click given the clicks above)
                       and relevance of each document shown
  ranking.parquet      with --rank LISTS: documents of each list by score;
                       of a learning-to-rank file also scores.txt
  ranker.npz, .py      with --numpy: the ranker, and a scorer without JAX
  judgments.txt        with --judgments: grades 0 to 4 of the documents of each
                       query, as Elasticsearch Learning to Rank reads them
  thompson.parquet     with --thompson SEED: documents of each query, ordered by
                       a draw from the posteriors of tables
  figures/             examination beside click rates, and the distribution of
                       attraction, as PDF and PNG

  clickexp-export outputs/pbm
  clickexp-export outputs/pbm --predict                the test sessions
  clickexp-export outputs/pbm --predict my/sessions.parquet
  clickexp-export outputs/pbm --rank my/lists.parquet --numpy --onnx pbm.onnx
  clickexp-export outputs/pbm --dataset /where/the/log/is/now --output weights
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command with the arguments, by default those of the process."""
    with exits.ending("clickexp-export", "stopped, nothing half-written is left"):
        chosen = vars(_parser().parse_intermixed_args(arguments))
        return_freed_arrays()
        with exits.importing():
            from clickexp.export.drawn import export_drawn

        export_drawn(**chosen)


def _parser() -> argparse.ArgumentParser:
    parser = exits.parser("clickexp-export", _DESCRIPTION)
    parser.add_argument(
        "run", metavar="RUN", help="folder of a run that kept its model (save_model=true)"
    )
    parser.add_argument("--output", metavar="FOLDER", help="where to write; by default RUN/export")
    parser.add_argument(
        "--dataset", metavar="PATH", help="the log, if it is no longer where the run read it"
    )
    text = "sessions of the log that examination is averaged over, unless it is the same for all (default: test)"
    parser.add_argument("--part", choices=("train", "val", "test"), default="test", help=text)
    text = (
        "predict the sessions in a file, or folder of them, with a row per session or per document, and the ids of the "
        "log; without FILE those of --part, in their order"
    )
    parser.add_argument("--predict", metavar="FILE", nargs="?", const="", help=text)
    text = (
        "let the configuration in RUN call code outside clickexp, such as a tower of yours, and use its cache, in "
        "which the log may lie packed; "
        "only for a folder from someone you trust"
    )
    parser.add_argument("--trust", action="store_true", help=text)
    text = "order the documents of each query by a draw from the posteriors of tables; another SEED is another draw"
    parser.add_argument("--thompson", metavar="SEED", type=int, help=text)
    text = (
        "score and order the lists in a file, or folder of them, with a row per list or per document, and the ids of "
        "the log; "
        "or in a learning-to-rank file"
    )
    parser.add_argument("--rank", metavar="LISTS", help=text)
    text = "write judgments.txt, grades of relevance from 0 to 4 for Elasticsearch Learning to Rank"
    parser.add_argument("--judgments", dest="judgment_list", action="store_true", help=text)
    text = "write ranker.npz and ranker.py, which scores documents without JAX"
    parser.add_argument("--numpy", action="store_true", help=text)
    parser.add_argument(
        "--onnx", metavar="FILE", help="write the ranker as an ONNX model (needs the extra onnx)"
    )
    text = "print one JSON object with files and examination instead of their names"
    parser.add_argument("--json", dest="as_json", action="store_true", help=text)
    text = (
        "with --predict or --rank: what its columns are called, such as columns.query_doc_ids=docs, and files, "
        "separator, header, encoding, decimal, first_rank, time_format, time_zone, null_is_no_click and invalid, as "
        "dataset=lists has them"
    )
    parser.add_argument("options", metavar="key=value", nargs="*", default=[], help=text)
    return parser
