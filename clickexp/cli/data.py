"""The command `clickexp-data`: prepares, inspects and verifies logs. Heavy imports wait until they are needed."""

import argparse
from collections.abc import Sequence

from clickexp.utils import exits

_DESCRIPTION = """\
Prepares search logs, describes and draws them, and verifies their files.

  clickexp-data prepare lists my/clicks data/clicks
                                     reads a log once, for many runs to open
  clickexp-data inspect data/clicks  counts, click rates, what they identify
  clickexp-data verify data/clicks   every file against its checksum
  clickexp-data download yandex_clax my/data
                                     a public log from Hugging Face
  clickexp-data prepare --help       formats and their options, such as
                                     columns.clicks=was_clicked positions=10
"""
_OPTIONS = (
    "options with values in YAML: positions=10 train_sessions=[0,5000] columns.clicks=was_clicked"
)


class _Parser(argparse.ArgumentParser):
    """Adds the formats to its help when asked for it, because they come with the readers."""

    def format_help(self) -> str:
        from clickexp.cli.log_commands import formats

        self.formatter_class, self.epilog = argparse.RawDescriptionHelpFormatter, formats()
        return super().format_help()


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command with the arguments, by default those of the process."""
    with exits.ending("clickexp-data", "stopped, nothing half-written is left", arguments):
        chosen = vars(_parsed(arguments))
        run = chosen.pop("run")
        if run == "download":
            from clickexp.cli.download import download

            download(**chosen)
            return
        with exits.importing():
            from clickexp.cli import log_commands as commands

        getattr(commands, run)(**chosen)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads arguments, of which key=value may also come after options such as --json."""
    parser = _parser()
    chosen, later = parser.parse_known_args(arguments)
    takes = "options" in chosen and all("=" in word and word[:1] != "-" for word in later)
    if later and not takes:
        parser.error(f"unrecognized arguments: {' '.join(later)}")
    if later:
        chosen.options += later
    return chosen


def _parser() -> argparse.ArgumentParser:
    parser = exits.parser("clickexp-data", _DESCRIPTION)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    text = "read a log of some format into a folder that any run opens at once"
    prepare = commands.add_parser("prepare", help=text, description=text)
    prepare.add_argument(
        "format",
        metavar="FORMAT",
        help="one of those below, or MODULE:FUNCTION, a reader of your own",
    )
    prepare.add_argument("source", metavar="SOURCE", help="file or folder of the log")
    prepare.add_argument(
        "target", metavar="TARGET", help="new folder; one that exists is never touched"
    )
    prepare.set_defaults(run="prepare_log")
    text = "report what is in a prepared folder, or in a source"
    inspect = commands.add_parser("inspect", help=text, description=text)
    inspect.add_argument("path", metavar="PATH", help="prepared folder, or file or folder of a log")
    inspect.add_argument(
        "--output",
        metavar="FOLDER",
        help="where figures/ goes (default: one below outputs/inspect)",
    )
    inspect.add_argument(
        "--json", action="store_true", help="print one JSON object instead of tables"
    )
    inspect.set_defaults(run="inspect_log")
    text = "read every file of a prepared folder, or of all in a cache, against its checksum"
    verify = commands.add_parser("verify", help=text, description=text)
    verify.add_argument("path", metavar="PATH", help="prepared folder, or a cache of these")
    verify.set_defaults(run="verify_logs")
    text = "download a public log from Hugging Face"
    download = commands.add_parser("download", help=text, description=text)
    download.add_argument(
        "name",
        metavar="NAME",
        help="yandex_clax, baidu_ultr or baidu_ultr_uva, as dataset= has them",
    )
    download.add_argument("target", metavar="FOLDER", help="where to; whole files there are kept")
    download.add_argument(
        "--files",
        metavar="PATTERN",
        default="*",
        help="of the names of files, such as '*0.parquet' (default: all)",
    )
    download.set_defaults(run="download")
    for command in (prepare, inspect):
        command.add_argument("options", metavar="key=value", nargs="*", default=[], help=_OPTIONS)
    return parser
