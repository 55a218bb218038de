"""Scale on paper: memory, bytes and time of large logs, computed from constants that were measured.

    python scripts/bench/scale.py > docs/data/scale.md           the tables of docs/scale.md
    python scripts/bench/scale.py --logs 5e8:2e8 --documents 20  sessions and rows of your own

Nothing is measured here. `CONSTANTS` says what was, where and how; what nobody has measured yet is called a model.
"""

import argparse
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from clickexp.data.records import width_of
from clickexp.utils.bounds import MOST_IDS


class Constant(NamedTuple):
    """A number and its source.

    Attributes:
        value: In the unit that the name has.
        source: Where it comes from.
    """

    value: float
    source: str


_QUIET = "two cores of an AMD EPYC; `preparing.py`, 8 million sessions, quiet hour"
CONSTANTS = {
    "prepare_us": Constant(1.2, f"CPU us per session by one process ({_QUIET})"),
    "prepare_shared_us": Constant(1.9, "the same by several processes"),
    "name_us": Constant(0.25, "reading and writing a name, which one process does (4.65 million)"),
    "name_bytes": Constant(8.5, "of a query and a document of text, compressed (4.65 million)"),
    "key_bytes": Constant(34, "of a key in the table of a process that numbers them, at most"),
    "step_us": Constant(0.65, "CPU us of PBM's step per session, 1e7 rows (findings of 2026)"),
    "step_large_us": Constant(1.0, "the same in its slower half, taken for more than 1e7 rows"),
    "two_cores": Constant(2.2, "M sessions/s of an epoch on two cores, 1e7 rows, in a slow hour"),
    "fed": Constant(10.4, "M sessions/s of PBM's epoch on an H100, fed by one thread (`gpu.py`)"),
    "gpu": Constant(106.4, "the same where sessions are resident; several GPUs: a model"),
    "row_bytes": Constant(40, "of a row in training: 16 packed, 12 in the model, 12 of the best"),
    "most_bytes": Constant(
        73, "of a row for a moment before the first epoch, as XLA for CPUs has it"
    ),
    "shared_bytes": Constant(61, "the same of a row that devices share, which has 28 in training"),
    "document_bytes": Constant(28, "that devices send each other per document and table"),
    "link": Constant(450, "GB/s between the GPUs of a machine: a data sheet"),
    "network": Constant(50, "GB/s between machines: a data sheet, of 400 Gbit/s"),
    "gpu_memory": Constant(80, "GB of a GPU: a data sheet"),
    "resident_share": Constant(0.4, "of the free memory that resident sessions may take"),
    "export_us": Constant(
        9.4,
        "CPU us of an export per document (`export.py`, 4.65 million less 0.19, at a load of 6)",
    ),
    "export_bytes": Constant(100, "of memory that an export takes per document, beyond 510 MiB"),
}
LOGS = "1e8:1e8,1e9:5e8,1e10:2e9"
CORES, NODES, GPUS = 16, 64, 8


class Paper:
    """A log on paper.

    Args:
        sessions: Its sessions.
        rows: Rows of its table.
        documents: Of a list.
    """

    def __init__(self, sessions: float, rows: float, documents: int):
        if rows > MOST_IDS:
            raise SystemExit(f"{rows:g} rows: ids are 32-bit, up to {MOST_IDS:,}")
        self.sessions, self.rows, self.documents = sessions, rows, documents

    def __getattr__(self, name: str) -> float:
        return CONSTANTS[name].value

    @property
    def pack(self) -> float:
        """GB of the pack: a record, and the number of the query."""
        return self.sessions * (4 * width_of(self.documents) + 8) / 1e9

    @property
    def carried(self) -> float:
        """GB of the records, which a pass reads."""
        return self.sessions * 4 * width_of(self.documents) / 1e9

    @property
    def table(self) -> float:
        """GB of one table in training."""
        return self.rows * self.row_bytes / 1e9

    def preparing(self, workers: int) -> float:
        """Seconds of wall time by some cores."""
        if workers == 1:
            return self.sessions * self.prepare_us / 1e6
        shared = self.sessions * self.prepare_shared_us / 1e6 / workers
        return shared + self.rows * self.name_us / 1e6

    @property
    def core_epoch(self) -> float:
        """Seconds of an epoch on one core."""
        step = self.step_us if self.rows <= 1e7 else self.step_large_us
        return self.sessions * step / 1e6

    @property
    def stays(self) -> bool:
        """Whether the records stay on a GPU, beside its share of the table."""
        return self.carried < self.resident_share * (self.gpu_memory - self.table)

    def gpu_epoch(self, gpus: int) -> float:
        """Seconds of an epoch: GPUs share the steps, and sessions that do not stay come as fast as one thread feeds."""
        return self.sessions / 1e6 / (self.gpu * gpus if self.stays else self.fed)

    def nodes_epoch(self, nodes: int) -> float:
        """Seconds of an epoch of machines of eight GPUs, each of which feeds its own, and what they send: a model."""
        return self.gpu_epoch(GPUS) / nodes + self.sent / self.network

    @property
    def sent(self) -> float:
        """GB of an epoch that devices send each other."""
        return self.sessions * self.documents * self.document_bytes / 1e9

    @property
    def exporting(self) -> tuple[float, float]:
        """Seconds of an export on one core, and its GB."""
        return self.rows * self.export_us / 1e6, 0.54 + self.rows * self.export_bytes / 1e9


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def power(number: float) -> str:
    """A number as 5e8."""
    digits, exponent = f"{number:.1e}".split("e")
    return f"{digits.removesuffix('.0')}e{int(exponent)}"


def size(gigabytes: float) -> str:
    """A size in the unit that suits it."""
    return f"{gigabytes / 1000:.2g} TB" if gigabytes >= 1000 else f"{gigabytes:.3g} GB"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def memory_table(logs: Sequence[Paper]) -> str:
    """What a log takes on disk and in memory."""
    header = ["sessions", "rows", "pack", "names", "keys, one process", "table in training"]
    header += ["export"]
    rows = [
        [
            power(log.sessions),
            power(log.rows),
            size(log.pack),
            size(log.rows * log.name_bytes / 1e9),
            size(log.rows * log.key_bytes / 1e9),
            size(log.table),
            f"{size(log.exporting[1])}, {duration(log.exporting[0])}",
        ]
        for log in logs
    ]
    return table(header, rows)


def preparing_table(logs: Sequence[Paper]) -> str:
    """How long it takes to prepare a log."""
    header = ["sessions", "1 core", f"{CORES} cores", f"{NODES} nodes of {CORES}", "of that names"]
    rows = [
        [
            power(log.sessions),
            *(duration(log.preparing(workers)) for workers in (1, CORES, NODES * CORES)),
            duration(log.rows * log.name_us / 1e6),
        ]
        for log in logs
    ]
    return table(header, rows)


def training_table(logs: Sequence[Paper]) -> str:
    """How long an epoch takes."""
    header = ["sessions", "1 core", "2 cores", "1 GPU", f"{GPUS} GPUs", "sent between them"]
    header += [f"{NODES} nodes of {GPUS} GPUs", "records"]
    rows = []
    for log in logs:
        fits = log.rows * log.most_bytes / 1e9 < log.gpu_memory
        shared = log.rows * log.shared_bytes / GPUS / 1e9 < log.gpu_memory
        rows.append(
            [
                power(log.sessions),
                duration(log.core_epoch),
                duration(log.sessions / 1e6 / log.two_cores),
                duration(log.gpu_epoch(1)) if fits else "does not fit",
                duration(log.gpu_epoch(GPUS)) if shared else "does not fit",
                f"{size(log.sent)}, {duration(log.sent / log.link)}",
                duration(log.nodes_epoch(NODES)),
                "resident" if log.stays else "fed",
            ]
        )
    return table(header, rows)


def constants_table() -> str:
    """The constants."""
    rows = [[f"{each.value:g}", each.source] for each in CONSTANTS.values()]
    return table(["value", "of"], rows).replace("| --- | ---: |", "| ---: | --- |")


def page(logs: Sequence[Paper]) -> str:
    """All tables under their titles."""
    parts = {
        "Memory": memory_table(logs),
        "Preparation": preparing_table(logs),
        "An epoch of the position-based model": training_table(logs),
        "Constants": constants_table(),
    }
    return "\n\n".join(f"**{title}**\n\n{content}" for title, content in parts.items()) + "\n"


def papers(given: str, documents: int) -> list[Paper]:
    """Logs of SESSIONS:ROWS,..."""
    pairs = (each.split(":") for each in given.split(","))
    return [Paper(float(sessions), float(rows), documents) for sessions, rows in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--logs", default=LOGS, help="SESSIONS:ROWS,...")
    parser.add_argument("--documents", type=int, default=10, help="documents of a list")
    options = parser.parse_args()
    print(page(papers(options.logs, options.documents)), end="")


if __name__ == "__main__":
    main()
