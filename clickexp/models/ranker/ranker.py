"""A ranker learned from clicks."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from clickexp.data import Dataset
from clickexp.errors import ConfigError
from clickexp.models.base import Model, checks_batch
from clickexp.models.ranker.debias import Debias, NoDebias
from clickexp.models.ranker.losses import Loss, PerList, SoftmaxLoss
from clickexp.models.roles import Role
from clickexp.parameters import (
    EmbeddingParameterConfig,
    GlobalParameterConfig,
    PositionParameterConfig,
    SumParameterConfig,
)
from clickexp.parameters.base import Parameter, Sizes
from clickexp.types import Array, Batch, Logits, Scalar
from clickexp.utils.batches import Limit


class Ranker(Model):
    """Ranks documents by a tower that minimises a loss of rankings over clicks, corrected for their bias.

    Attributes:
        attraction: The tower, whose logits are the scores.
        loss: The loss of a ranking; see `clickexp.models.ranker.losses`.
        debias: What the ranker makes of clicks; see `clickexp.models.ranker.debias` and `learned`.

    Raises:
        ConfigError: The correction is not defined for the loss, or the tower reads at most positions.
    """

    name = "Ranker"

    attraction: Role = Role(EmbeddingParameterConfig())
    loss: Loss = SoftmaxLoss()
    debias: Debias = NoDebias()

    def __post_init__(self, *sizes: Any) -> None:
        self.check_settings(loss=self.loss, debias=self.debias, attraction=self.attraction)
        super().__post_init__(*sizes)
        self.separates_examination = self.debias.learns_examination
        self.name = self.name_with(loss=self.loss, debias=self.debias)

    def build_parts(self, sizes: Sizes, rngs: nnx.Rngs) -> None:
        """Builds what the correction of clicks learns, and the noise of losses that are drawn."""
        self.learned = nnx.data(self.debias.build(sizes, rngs))
        self.noise = _Noise(rngs) if self.loss.random else None

    @classmethod
    def name_with(
        cls, loss: Loss | None = None, debias: Debias | None = None, **settings: object
    ) -> str:
        """Returns the name of a ranker with this loss and correction, such as Ranker(softmax, ips)."""
        return f"{cls.name}({(loss or SoftmaxLoss()).name}, {(debias or NoDebias()).name})"

    @classmethod
    def check_settings(
        cls,
        loss: Loss | None = None,
        debias: Debias | None = None,
        attraction: object = None,
        **settings: object,
    ) -> None:
        """ConfigError where the correction is not defined for the loss, or scores do not depend on documents."""
        if _ignores_documents(attraction):
            raise ConfigError(
                f"model.attraction={type(attraction).__name__}: it gives all documents of a position the same score, "
                "which ranks nothing; choose a tower of documents, such as attraction=embedding"
            )
        (debias or NoDebias()).check(loss or SoftmaxLoss())

    def prepare(self, dataset: Dataset) -> Dataset:
        """Resolves the correction, and returns the dataset with the columns that it reads."""
        self.debias = self.debias.resolved(dataset)
        return self.debias.prepare(dataset)

    def relevance(self, batch: Batch) -> Logits:
        """Returns the scores."""
        return self.attraction.logit(batch)

    def score_towers(self) -> list[Parameter]:
        """Returns the tower."""
        return [self.attraction]

    @checks_batch("mask", "clicks")
    def compute_loss(self, batch: Batch, aggregate: bool = True) -> Scalar | PerList:
        """Returns the loss of the rankings, and of what the correction learns itself.

        Args:
            batch: Sessions with clicks.
            aggregate: Whether to return the mean over documents instead of one number per list.
        """
        mask = batch["mask"].astype(bool)
        scores = jnp.broadcast_to(self.relevance(batch), mask.shape)
        key = self.noise() if self.noise else None
        masked = {**batch, "mask": mask, "clicks": batch["clicks"].astype(bool) & mask}
        losses = self.debias.loss(self.loss, scores, masked, self.learned, key)
        return self._reported(losses, mask, aggregate)

    def examination(self) -> Array | None:
        """Returns the learned examination by position from 1, relative to the first; None where none is learned."""
        examination = self.debias.examination(self.learned)
        return None if examination is None else examination / examination[0]

    def limits(self) -> list[Limit]:
        """Returns the largest ids and positions that the ranker has parameters for."""
        learned = (
            []
            if self.learned is None or self.positions is None
            else [Limit("positions", self.positions, "debias")]
        )
        return [*super().limits(), *learned]


def _ignores_documents(tower: object) -> bool:
    """Returns whether these are settings of a tower that reads at most positions."""
    if isinstance(tower, SumParameterConfig):
        return all(term is None or _ignores_documents(term) for term in tower.terms.values())
    by_position = isinstance(tower, PositionParameterConfig) and tower.use_feature == "positions"
    return by_position or isinstance(tower, GlobalParameterConfig)


class _Noise(nnx.Module):
    """A stream of keys in training; always the same one in evaluation."""

    def __init__(self, rngs: nnx.Rngs):
        self.stream = rngs["noise"].fork()
        self.deterministic = True

    def __call__(self) -> Array:
        return jax.random.key(0) if self.deterministic else self.stream()

    def set_view(self, deterministic: bool | None = None) -> None:
        """As Flax's layers have it."""
        if deterministic is not None:
            self.deterministic = deterministic
