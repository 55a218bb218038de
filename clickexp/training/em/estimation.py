"""Estimates from counts: what counting and expectation-maximisation share."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Integer

from clickexp.data.batches import Arrays, at_step, with_mask
from clickexp.data.feed import Compiled, Data, feed, session_count
from clickexp.errors import ConfigError
from clickexp.evaluation.evaluator import ModelState
from clickexp.models.base import ClickModel, Model
from clickexp.parameters import Rows
from clickexp.training.base import BaseTrainer
from clickexp.training.em.bernoulli import (
    BernoulliTowers,
    Counts,
    Logit,
    counts_of_rows,
    estimates,
)
from clickexp.training.loop import Learner
from clickexp.training.spread import by_row, by_session, on_each, training_on
from clickexp.types import Array, ByRank, Count, Scalar
from clickexp.utils.bounds import BatchSize, NonNegativeFloat

_FEW_ROWS = 4096
"""Towers of at most so many rows add up in float64 on the host, since single rows may count every document."""

Expected = tuple[Scalar | None, dict[str, Counts]]
"""Summed loss of a batch, unless counts do not depend on the logits, and counts for each role."""

Expect = Callable[[BernoulliTowers, Mapping[str, Logit], ByRank], Expected]
"""The counts of a batch, given the logits of each role at each document."""

_Entry = TypeVar("_Entry")
_Logits = dict[str, Rows]
"""One per row, by role."""
_Totals = dict[str, Rows]
"""Successes and failures of each row, by role."""


@dataclasses.dataclass(eq=False, kw_only=True)
class EstimatingTrainer(BaseTrainer):
    """Fits a model by passes over the log that count; a subclass defines what is counted and how often.

    Attributes:
        prior_successes: Successes that every estimate starts from.
        prior_failures: Failures that it starts from.
        batch_size: Sessions per step. The counts of a pair are float32, exact up to 2^24 impressions.
    """

    prior_successes: NonNegativeFloat = 1.0
    prior_failures: NonNegativeFloat = 1.0
    batch_size: BatchSize = 8192
    iterations = 1  # passes over the log

    def expectation(self, model: type[Model], **settings: Any) -> Expect:
        """The counts for a class of models.

        Args:
            model: The class.
            **settings: Arguments that models are built with, as far as they matter.

        Raises:
            ConfigError: There is nothing to count.
        """
        raise NotImplementedError

    def learner(self, model: Model, train: Data | None = None) -> Learner:
        """Counting; see `Learner`."""
        simplified = getattr(model, "fix_continuation", False)
        expect = self.expectation(type(model), fix_continuation=simplified)
        # there are entries for click models only
        return _Counting(self, cast(ClickModel, model), expect)


class ByModel(Generic[_Entry]):
    """Counts of models by their class: those of the nearest class which a model inherits from."""

    def __init__(self) -> None:
        self._entries: dict[type[Model], tuple[_Entry, dict[str, Any]]] = {}

    def of(self, *models: type[Model], **settings: Any) -> Callable[[_Entry], _Entry]:
        """Returns a decorator that adds an entry for classes of models.

        Args:
            *models: The classes.
            **settings: Arguments that a model must have been built with.
        """

        def add(entry: _Entry) -> _Entry:
            self._entries.update(dict.fromkeys(models, (entry, settings)))
            return entry

        return add

    def find(self, model: type[Model], settings: Mapping[str, Any]) -> _Entry | None:
        """Returns the entry of a class; None where there is none for these settings."""
        kind = next((kind for kind in model.__mro__ if kind in self._entries), None)
        if kind is None:
            return None
        entry, required = self._entries[kind]
        is_met = all(settings.get(name, False) == value for name, value in required.items())
        return entry if is_met else None

    def names(self) -> str:
        """Returns the names of the models that there is an entry for."""
        return ", ".join(
            kind.name_with(**settings) for kind, (_, settings) in self._entries.items()
        )


class _Sums(NamedTuple):
    """The sums of one batch besides the totals of many rows."""

    few: dict[str, Array]
    loss: Scalar | None
    documents: Count


class _Counting(Learner):
    """Passes that count; the state is the logit of each row by role."""

    state: _Logits

    def __init__(self, trainer: EstimatingTrainer, model: ClickModel, expect: Expect):
        self._trainer, self._model, self._expect = trainer, model, expect
        self.passes = trainer.iterations
        self._towers = BernoulliTowers(model)
        self._prior = np.array([trainer.prior_successes, trainer.prior_failures], np.float32)
        self._unseen = float(estimates(np.zeros((1, 2), np.float32), self._prior)[0])
        self._many = [role for role, rows in self._towers.sizes.items() if rows > _FEW_ROWS]
        initial = {
            role: Rows(jnp.full((rows, 1), self._unseen, jnp.float32), 1)
            for role, rows in self._towers.sizes.items()
        }
        self._initial = initial
        super().__init__(initial, training_on(trainer.devices))
        step = self.devices.mapped(self._superbatch, [by_row, by_row, by_session], (0, on_each))
        self._step = Compiled(step, donate_argnums=0)
        self._estimate = Compiled(_estimated)
        self.programs = self._step, self._estimate
        self.settings = {"batch_size": trainer.batch_size, "prior": self._prior.tolist()}

    def run_pass(self, data: Data, epoch: int) -> tuple[float | None, int]:
        sizes, trainer = self._towers.sizes, self._trainer
        nothing = {role: Rows(jnp.zeros((sizes[role], 2)), 2) for role in self._many}
        many = self.devices.lay(nothing)
        few = {role: np.zeros((rows, 2)) for role, rows in sizes.items() if role not in many}
        loss, documents, done, total, mean = 0.0, 0, 0, session_count(data), None
        size, steps = trainer.batch_size, trainer.steps_per_execution
        for batch in feed(data, size, steps, devices=self.devices.feeding):
            self.devices.check(batch)
            many, sums = self._step(many, self.state, batch.arrays)
            for role, totals in sums.few.items():
                few[role] += np.asarray(totals, np.float64).sum(axis=0)
            done += batch.sessions
            if sums.loss is not None:
                loss += float(np.asarray(sums.loss, np.float64).sum())
                documents += int(np.asarray(sums.documents).sum())
                mean = loss / max(documents, 1)
            trainer.logger.progress("train", epoch, done, total, mean)
        small = {role: Rows(totals.astype(np.float32), 2) for role, totals in few.items()}
        totals = {**many, **self.devices.lay(small)}
        self.state = {role: self._estimate(counts, self._prior) for role, counts in totals.items()}
        return mean, done

    def model_state(self) -> ModelState:
        self._towers.store(self.devices.by_id(self.state), self._unseen)
        return (self.devices.lay_others(nnx.state(self._model)),)

    def restore(self, model: Model, best: _Logits | None) -> None:
        """Without any improvement every row has the estimate of the prior."""
        logits = self._initial if best is None else self.devices.whole(best, self.like[1])
        self._towers.store(logits, self._unseen)

    def _superbatch(self, many: _Totals, logits: _Logits, arrays: Arrays) -> tuple[_Totals, _Sums]:
        """Adds a superbatch to the totals of many rows; the rest for each batch, stacked."""
        arrays, placement = with_mask(arrays), self.devices.placement

        def body(many: _Totals, index: Integer[Array, ""]) -> tuple[_Totals, _Sums]:
            lists = at_step(arrays, index)
            mask = lists["mask"].astype(bool)
            batch = ByRank({**lists, "mask": mask, "clicks": lists["clicks"] & mask})
            rows = self._towers.rows(batch)
            places = {
                role: placement.places(ids, logits[role].values).ravel()
                for role, ids in rows.items()
            }
            taken = {}
            for role, ids in rows.items():
                of_ids = placement.take(logits[role].values, places[role], 1)
                taken[role] = jnp.broadcast_to(of_ids.reshape(ids.shape), batch.shape)
            loss, counted = self._expect(self._towers, taken, batch)
            few, added = {}, {}
            for role, ids in rows.items():
                of_rows = counts_of_rows(ids, counted[role], batch)
                if role in many:
                    totals = placement.scattered(
                        jax.lax.scatter_add, many[role].values, places[role], of_rows
                    )
                    added[role] = dataclasses.replace(many[role], values=totals)
                else:
                    nothing = jnp.zeros((self._towers.sizes[role], 2))
                    few[role] = nothing.at[ids.ravel()].add(of_rows)
            return added, _Sums(few, loss, jnp.sum(mask, dtype=jnp.int32))

        many, sums = jax.lax.scan(body, many, jnp.arange(len(arrays["mask"])))
        return many, placement.summed(sums)


def _estimated(totals: Rows, prior: Array) -> Rows:
    """The logit of each row."""
    return Rows(estimates(totals.values, prior)[:, None], 1)


def unsupported(
    verb: str, names: str, model: type[Model], settings: Mapping[str, Any], others: str
) -> ConfigError:
    """The error for a model that a trainer cannot estimate."""
    return ConfigError(f"{verb} estimates {names}, not {model.name_with(**settings)}; use {others}")
