"""How often a log shows each document at each position, and what follows: harvested clicks, shares of the policy."""

from collections.abc import Callable, Sequence

import numpy as np
import polars as pl
from jaxtyping import Float

from clickexp.data import Sessions
from clickexp.data.view import Chunk

_POSITIONS = 1 << 32
"""Documents and positions are one number, since polars groups and joins by one key three times faster than by two."""
_GROUPS = 20
"""Of documents, one of which the jackknife leaves out at a time."""
_GROUP = (pl.col("document").cast(pl.Int64) * 2654435761 // 128) % _GROUPS
"""Of a document, by a hash that mixes the documents of a query."""


def _documents(chunk: Chunk) -> pl.DataFrame:
    """Returns the documents shown in some sessions: `place`, a number of a document and its position, and `clicks`."""
    documents = pl.Series(chunk.of_documents("query_doc_ids")).cast(pl.Int64)
    positions = pl.Series(chunk.of_documents("positions"))
    clicks = chunk.of_documents("clicks")
    return pl.DataFrame({"place": documents * _POSITIONS + positions, "clicks": clicks})


def exposure(parts: Sequence[Sessions]) -> pl.DataFrame:
    """Counts documents by position over all parts.

    Returns:
        One row per `document` and `position`, in no order: their `place`, how often the document was `shown` there,
        and its `clicks`.
    """
    chunks = [chunk for part in parts for chunk in part.chunks()]
    shown, clicks = pl.len().cast(pl.Int64).alias("shown"), pl.col("clicks").sum()
    nothing = pl.DataFrame(schema={"place": pl.Int64, "shown": pl.Int64, "clicks": pl.UInt32})
    counts = [_documents(sessions).group_by("place").agg(shown, clicks) for sessions in chunks]
    total, place = pl.concat([nothing, *counts]).group_by("place").sum(), pl.col("place")
    return total.with_columns(document=place // _POSITIONS, position=place % _POSITIONS)


def harvest(sessions: Sessions) -> Float[np.ndarray, "{_GROUPS} position position"]:
    """Returns A(k, l), positions from 1 at index 0, for each group of documents."""
    rates = np.zeros((_GROUPS, *(max(sessions.positions, sessions.ranks),) * 2))
    counts = exposure([sessions]).with_columns(group=_GROUP)
    shown, shown_other = pl.col("shown"), pl.col("shown_other")
    for (group,), documents in counts.partition_by("group", as_dict=True).items():
        pairs = documents.filter(pl.col("clicks") > 0).join(
            documents, on="document", suffix="_other"
        )
        pairs = pairs.filter(pl.col("position") != pl.col("position_other"))
        rate = pl.col("clicks") * shown_other / (shown + shown_other)
        cells = pairs.group_by("position", "position_other").agg(rate.sum().alias("rate"))
        rates[group, cells["position"] - 1, cells["position_other"] - 1] = cells["rate"]
    return rates


def policy_share(
    parts: Sequence[Sessions], others: Sequence[Sessions]
) -> Callable[[Chunk], np.ndarray]:
    """Returns a function of sessions: of each document shown, how often it was at its position, of the times shown.

    Args:
        parts: Sessions to count.
        others: Those to count documents in that `parts` do not show.
    """
    shares, of_others = _shares(parts), _shares(others)
    shares = pl.concat([shares, of_others.join(shares, on="document", how="anti")])

    def share(chunk: Chunk) -> np.ndarray:
        counted = _documents(chunk).join(shares, on="place", how="left", maintain_order="left")
        return counted["share"].fill_null(0.0).to_numpy()

    return share


def _shares(parts: Sequence[Sessions]) -> pl.DataFrame:
    share = pl.col("shown") / pl.col("shown").sum().over("document")
    return exposure(parts).with_columns(share=share)
