"""What a fitted model reads of the documents in a file: ids, features and columns, as the log of its run has them."""

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from clickexp.data import Dataset, Sessions
from clickexp.data.encoding import FEATURES, Encoder, FeatureVectors, Names, Recoded
from clickexp.data.ingest.columns import ANY_ID, Field
from clickexp.data.ingest.lists import Lists
from clickexp.data.schema import CATEGORY, COLUMNS, Column
from clickexp.simulation.svmlight import TRANSFORMS

_IDS = ("query_doc_ids", "query_ids")


@dataclass(frozen=True)
class Needs:
    """What a model reads.

    Attributes:
        ids: Whether it looks documents up by their ids.
        columns: Declarations of features and of the log's own columns, as files have them.
        required: Names of those that the model reads; the others may be what search sessions follow from.
        encoder: Makes feature vectors of the columns, where the model reads vectors that are made so.
        categories: Names of the categories that training shows, by column.
        transform: What the reader of the log has applied to features.
        unknown: How many values of files are other categories, by column.
    """

    ids: bool
    columns: Mapping[str, Column]
    required: Collection[str]
    encoder: Encoder | None
    categories: Mapping[str, Names]
    transform: str = "none"
    unknown: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, dataset: Dataset, read: Collection[str], transform: str) -> "Needs":
        """Returns what a model reads.

        Args:
            dataset: That of the run.
            read: Keys of a batch that the model reads.
            transform: What the reader of the log has applied to features.
        """
        train, encoding = dataset.train, dataset.encoding
        encoder = encoding.features if encoding is not None and FEATURES in read else None
        made = [] if encoder is None else [column.name for column in encoder.columns]
        columns = _of_encoder(encoder)
        columns |= {
            name: train.schema[name] for name in train.columns.keys() - {*COLUMNS, FEATURES}
        }
        required = columns.keys() & {*made, *read}
        if FEATURES in read and (encoder is None or FEATURES in made):
            width = train.feature_lengths[FEATURES] if encoder is None else encoder.width(FEATURES)
            missing = encoder is not None and encoder.missing is not None
            columns[FEATURES] = Column(FEATURES, np.float32, shape=(width,), nan=missing)
            required = {*required, FEATURES}
        by_ids = [
            name
            for name in read
            if name in train.derived
            and not isinstance(train.derived[name], FeatureVectors | Recoded)
        ]
        has_ids = "query_doc_ids" in read or bool(by_ids)
        return cls(has_ids, columns, required, encoder, dataset.categories, transform)

    def declarations(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Returns declarations of the columns, under the names that a file has for them."""
        declared = {}
        for name, column in self.columns.items():
            if not column.shape:
                dtype = CATEGORY if column.is_category else column.batch_type.name
                options = {"dtype": dtype, "per": column.per, "fill": column.fill}
                declared[name] = {**options, "name": columns.get(name) or name}
        return declared

    def fields(self, fields: Mapping[str, Column | Field]) -> dict[str, Column | Field]:
        """Returns what the columns of a file are read as; ids are of any kind where the model reads none."""
        if self.ids:
            return dict(fields)
        free = {name: ANY_ID._replace(per_document=fields[name].per_document) for name in _IDS}
        return {**fields, **free}

    def encoded(self, lists: Lists) -> Lists:
        """Returns lists with categories by their numbers in training, and with transformed features."""
        documents, sessions = dict(lists.documents), dict(lists.sessions)
        for name, column in self.columns.items():
            values = documents if column.per_document else sessions
            if name not in values:
                continue
            if column.is_category:
                values[name] = self._numbers(name, pl.Series(values[name]))
            elif name == FEATURES:
                values[name] = TRANSFORMS[self.transform](np.asarray(values[name]))
        return replace(lists, documents=documents, sessions=sessions)

    def _numbers(self, name: str, values: pl.Series) -> np.ndarray:
        names = self.categories[name]
        known = pl.Series(names, dtype=values.dtype, strict=False)
        numbers = values.replace_strict(
            known, pl.Series(range(1, len(names) + 1)), default=0, return_dtype=pl.Int32
        )
        self.unknown[name] = self.unknown.get(name, 0) + int((numbers == 0).sum())
        return numbers.to_numpy()

    def applied(self, sessions: Sessions) -> Sessions:
        """Returns sessions with the feature vectors that the model reads."""
        if self.encoder is None:
            return sessions
        return sessions.replacing(FeatureVectors(self.encoder, sessions.schema))

    def report(self, source: Path) -> None:
        """Says how many values are of categories that training has not shown."""
        for name, count in self.unknown.items():
            if count:
                what = f"{count:,} values of {name} are categories that training does not show"
                sys.stderr.write(f"{source}: {what}, and count as none\n")


def _of_encoder(encoder: Encoder | None) -> dict[str, Column]:
    """Returns the columns that vectors are made of, as files have them, but for vectors."""
    if encoder is None:
        return {}
    nan = encoder.missing is not None
    return {
        column.name: Column(
            column.name, np.float32 if column.categories is None else CATEGORY, nan=nan
        )
        for column in encoder.columns
        if column.name != FEATURES
    }
