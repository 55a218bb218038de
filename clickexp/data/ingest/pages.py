"""Result pages put together from rows of impressions, whatever their order, with faulty ones left out."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from clickexp.data.id_table import IdTable
from clickexp.data.ingest.faults import Faults
from clickexp.data.ingest.source_table import option_key
from clickexp.data.ingest.spool import Spool
from clickexp.data.log_writer import LogWriter
from clickexp.data.names import keys_of
from clickexp.data.schema import SourceLocation
from clickexp.utils.changes import changes

Rows = pl.DataFrame
"""A row per impression: session, document, rank, click and further fields; `place`, where it stands; `state`, one of
those below; once sessions are whole `page`, the number of its session here."""

SOUND, LEAVES_GAP, SPOILS_PAGE = 0, 1, 2
"""States of a row: sound; faulty and not clicked, so that its rank may stay empty, as where an advertisement is not
logged; or faulty and perhaps clicked, so that nobody knows what its user did."""

PAGES = "pages"
"""The table of a log that numbers its result pages."""
_GATHERED = 1 << 13
"""Sessions whose rows memory holds at a time where those of a session lie apart."""
_COMPARED = ("session", "document", "rank", "click", "place", "state", "page")
"""Fields of rows of a document that are the same, or may differ."""


class ApartError(Exception):
    """Rows of a session that lie apart, with those of others between."""


def whole_sessions(blocks: Iterable[Rows]) -> Iterator[Rows]:
    """The same rows cut between sessions: the last session of a block waits for what follows."""
    held = None
    for rows in filter(len, blocks):
        rows = rows if held is None else pl.concat([held, rows])
        page = rows["session"].rle_id()
        cut = int(np.searchsorted(page.to_numpy(), page[-1]))
        if cut:
            yield rows[:cut].with_columns(page=page[:cut])
        held = rows[cut:]
    if held is not None:
        yield held.with_columns(page=pl.lit(0, pl.UInt32))


def starts_of(rows: Rows) -> np.ndarray:
    """The first row of each page, where the rows of a page stand together."""
    return np.flatnonzero(changes(rows["page"].to_numpy()))


def gathered(
    blocks: Iterable[Rows], scratch: Path, note: Callable[[str, int], object]
) -> Iterator[Rows]:
    """The rows session by session, in the order in which sessions begin; those of a session in the order of the log.

    Rows wait on disk, where they take 1 to 2 times the bytes of their fields; memory holds those of 8,192 sessions.

    Args:
        blocks: Rows in the order of the log.
        scratch: Folder for them.
        note: Counts the sessions whose rows lay apart.
    """
    sessions, spools, seen = IdTable(), {}, 0
    for rows in blocks:
        number = sessions.ids(keys_of(rows["session"])) - 1
        rows = rows.with_columns(
            number=pl.Series(number), at=np.arange(seen, seen + len(rows), dtype=np.int64)
        )
        seen += len(rows)
        bucket = number // _GATHERED
        for place in np.unique(bucket).tolist():
            spool = spools.setdefault(place, Spool[Rows](scratch / f"sessions-{place}"))
            spool.append(rows.filter(pl.Series(bucket == place)))
    for place in sorted(spools):
        rows = pl.concat([*spools[place]]).sort("number", maintain_order=True)
        spools[place].file.unlink()  # lists take its room
        reach = rows.group_by("number").agg(
            pl.len(), (pl.col("at").max() - pl.col("at").min() + 1).alias("reach")
        )
        note("gathered_sessions", len(reach.filter(pl.col("reach") > pl.col("len"))))
        yield rows.drop("number", "at")


class Pages:
    """Checks the rows of whole sessions, merges those that are there several times, and sorts them by rank.

    A page that has two values of what is one per session, or two documents at a rank, is left out.

    Args:
        per_session: Fields of which a session has one value.
        locations: Those that places count from: the number of a location times 2^32, plus the row there.
        faults: Counts the faults.
        log: Counts what is merged and left out.

    Attributes:
        sessions: Numbers the sessions.
    """

    def __init__(
        self,
        per_session: Sequence[str],
        locations: Sequence[SourceLocation],
        faults: Faults,
        log: LogWriter,
    ):
        self._per_session, self._locations = per_session, locations
        self._faults, self._log = faults, log
        self.sessions = IdTable()

    def sound(self, rows: Rows) -> Rows:
        """The sound rows of whole sessions by page and rank.

        Raises:
            ApartError: A session has had rows before.
        """
        begun, earlier = rows["session"].gather(starts_of(rows)), len(self.sessions)
        numbers = self.sessions.ids(keys_of(begun))
        if (numbers != earlier + np.arange(1, len(begun) + 1)).any():
            raise ApartError
        if not rows["state"].max():
            kept = self._merged(rows)
        else:
            state, page = rows["state"], rows["page"]
            spoilt = page.filter(state == SPOILS_PAGE).unique()
            whole = rows.filter(~page.is_in(spoilt.implode()))
            kept = self._merged(whole.filter(whole["state"] == SOUND))
            gaps = whole.filter(whole["state"] == LEAVES_GAP)["page"]
            self._log.note(
                "dropped_rows", len(gaps.filter(gaps.is_in(kept["page"].unique().implode())))
            )
        self._log.note("dropped_pages", len(begun) - kept["page"].n_unique())
        return kept

    def _merged(self, rows: Rows) -> Rows:
        """One row per rank of each page, without pages that contradict themselves."""
        rows = self._filled(rows)
        same_page = (rows["page"] == rows["page"].shift()).fill_null(False)
        spoilt = self._differing(rows, same_page)
        # rarely, and to sort copies all
        if (same_page & (rows["rank"] < rows["rank"].shift())).any():
            rows = rows.sort("page", "rank", maintain_order=True)  # pages ascend before, too
        again = same_page & (rows["rank"] == rows["rank"].shift())
        if again.any():
            spoilt += self._contradicting(rows, again)
            clicks, starts = rows["click"].to_numpy(), np.flatnonzero(~again.to_numpy())
            clicked = np.logical_or.reduceat(clicks, starts)
            both = clicked & ~np.logical_and.reduceat(clicks, starts)
            rows = rows.filter(~again).with_columns(click=pl.Series(clicked))
            kept = ~rows["page"].is_in(_joined(spoilt)).to_numpy()
            copies = np.diff(np.append(starts, len(again))) - 1
            self._log.note("merged_rows", copies[kept].sum())
            self._log.note("merged_rows_of_two_click_values", copies[kept & both].sum())
        return rows.filter(~rows["page"].is_in(_joined(spoilt))) if spoilt else rows

    def _filled(self, rows: Rows) -> Rows:
        """The rows with what other rows of their page state in place of empty cells of what is one per session."""
        lacking = [name for name in self._per_session if rows[name].null_count()]
        if not lacking:
            return rows
        return rows.with_columns(pl.col(lacking).forward_fill().backward_fill().over("page"))

    def _differing(self, rows: Rows, same_page: pl.Series) -> list[pl.Series]:
        """The pages with two values of what is one per session."""
        remedy = "a session is one result page: give every page its own session"
        spoilt = []
        for name in self._per_session:
            other = same_page & (rows[name] != rows[name].shift()).fill_null(False)
            what = f"its {option_key(name)} differs from the one above in its session"
            spoilt += self._spoilt(rows, other, what, remedy, f"pages_with_two_values_of_{name}")
        return spoilt

    def _contradicting(self, rows: Rows, again: pl.Series) -> list[pl.Series]:
        """The pages with two documents at a rank, or two values of one there."""
        other = again & (rows["document"] != rows["document"].shift()).fill_null(False)
        what = "its session shows another document at rank {rank}"
        remedy = "a rank shows one document: give every page its own session, or drop one of the two rows"
        spoilt = self._spoilt(rows, other, what, remedy, "pages_with_two_documents_at_a_rank")
        for name in {*rows.columns} - {*_COMPARED, *self._per_session}:
            differs = again & ~other & (rows[name] != rows[name].shift()).fill_null(False)
            what = f"its session has another {name} of this document at rank {{rank}}"
            remedy = f"a document has one {name}: drop one of the two rows"
            kind = f"pages_with_two_values_of_{name}"
            spoilt += self._spoilt(rows, differs, what, remedy, kind)
        return spoilt

    def _spoilt(
        self, rows: Rows, bad: pl.Series, what: str, remedy: str, kind: str
    ) -> list[pl.Series]:
        """Counts the pages of bad rows as faulty, and returns them."""
        if not bad.any():
            return []
        bad_rows = rows.filter(bad).unique("page", keep="first", maintain_order=True)
        place = bad_rows["place"].to_numpy()
        for source in dict.fromkeys((place >> 32).tolist()):
            chosen = np.flatnonzero(place >> 32 == source)
            self._faults.add(
                kind,
                self._locations[source],
                place[chosen] & 0xFFFFFFFF,
                lambda number, chosen=chosen: what.format(
                    **bad_rows.row(int(chosen[number]), named=True)
                ),
                remedy,
                unit="pages",
            )
        return [bad_rows["page"]]


def _joined(pages: Sequence[pl.Series]) -> pl.Series:
    """Pages of several series as polars' `is_in` takes them."""
    return pl.concat(pages).implode() if pages else pl.Series([[]], dtype=pl.List(pl.UInt32))
