"""Towers with known values, for users whose behaviour is simulated."""

from collections.abc import Container, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx

from clickexp.errors import ConfigError
from clickexp.parameters.base import Parameter
from clickexp.types import Batch, Logits
from clickexp.utils.bounds import Probability

_BY_RANK = ("examination_by_rank", "trust_positive", "trust_negative")
"""Options with a number per rank."""


class FixedParameter(Parameter):
    """z = values[id]: known logits that no optimizer changes. A single value serves every document."""

    def __init__(self, values: np.ndarray | float, use_feature: str = "query_doc_ids"):
        self.values = nnx.Variable(jnp.asarray(values, jnp.float32))
        self.use_feature = use_feature

    def logit(self, batch: Batch) -> Logits:
        """The known logits of the documents."""
        values = self.values[...]
        return values.reshape(1, 1) if values.ndim == 0 else values[batch[self.use_feature]]

    def limits(self) -> dict[str, int]:
        """The largest id; none for a single value."""
        return {self.use_feature: self.values.shape[0] - 1} if self.values.ndim else {}


class DecayingExamination(Parameter):
    """z = top - decay log(d), d the distance in ranks to the last click, or to the top of the list.

    Models whose examination does not depend on clicks get the distance to the top, the rank itself.
    """

    def __init__(self, top: float, decay: float):
        self.top = top
        self.decay = decay

    def logit(self, batch: Batch) -> Logits:
        """The logits by position and, where the batch has one, last click."""
        distance = batch["positions"] - batch.get("last_click_positions", 0)
        return self.top - self.decay * jnp.log(distance.astype(jnp.float32))


class GivenExamination(Parameter):
    """z = logits[d - 1], d the distance in ranks to the last click, or to the top of the list: numbers that are given.

    As DecayingExamination has it, models whose examination does not depend on clicks get the rank.
    """

    def __init__(self, logits: np.ndarray):
        self.logits = nnx.Variable(jnp.asarray(logits, jnp.float32))

    def logit(self, batch: Batch) -> Logits:
        """The given logits by position and, where the batch has one, last click."""
        return self.logits[...][batch["positions"] - batch.get("last_click_positions", 0) - 1]

    def limits(self) -> dict[str, int]:
        """The last rank that a number is given for."""
        return {"positions": self.logits.shape[0]}


def logits_of(probabilities: np.ndarray) -> np.ndarray:
    """log(p / (1 - p)), between -30 and 30: finite for probabilities of 0 and 1."""
    with np.errstate(divide="ignore"):
        return np.clip(np.log(probabilities / (1 - probabilities)), -30, 30)


class Behavior(NamedTuple):
    """Options on the behavior of users that does not depend on documents.

    Attributes:
        examination_top: Examination logit of the first document.
        examination_decay: Its decrease with the logarithm of the rank.
        continuation: Logit of going on, for users with such a parameter.
        examination_by_rank: P(examination) of each rank, in place of the first two.
        trust_positive: P(click | examined, attractive) of each rank, for users with trust bias.
        trust_negative: P(click | examined, not attractive) of each rank, for users with trust bias.
    """

    examination_top: float = 2.0
    examination_decay: float = 1.5
    continuation: float = 2.0
    examination_by_rank: Sequence[Probability] | None = None
    trust_positive: Sequence[Probability] | None = None
    trust_negative: Sequence[Probability] | None = None

    @property
    def _given(self) -> dict[str, Sequence[float]]:
        """The numbers by rank that are given, by their keys in a configuration."""
        numbers = {name: getattr(self, name) for name in _BY_RANK}
        return {key: stated for key, stated in numbers.items() if stated is not None}

    def check_read(self, roles: Container[str], user: str) -> None:
        """Checks that a user has the towers that numbers are given for.

        Args:
            roles: What its constructor takes.
            user: Its name, for the message.

        Raises:
            ConfigError: It has no such tower.
        """
        for key in self._given:
            tower = "examination" if key == "examination_by_rank" else "true_positive"
            if not any(role in roles for role in (tower, "true_positive", "shared")):
                model = "TrustBiasModel" if tower == "true_positive" else "PositionBasedModel"
                what = f"{key}: the user {user} has no {tower}"
                raise ConfigError(f"{what}. Choose clickexp.models.{model}, or leave it out")

    def towers(self, positions: int) -> dict[str, Parameter]:
        """The towers of roles that do not depend on documents.

        Args:
            positions: Ranks shown.

        Raises:
            ConfigError: Numbers are given for fewer ranks, or one kind of trust bias without the other.
        """
        for key, numbers in self._given.items():
            if len(numbers) < positions:
                what = f"{key} has {len(numbers)} numbers, and lists show {positions} documents"
                raise ConfigError(f"{what}. Give one for each rank, or lower positions")
        if (self.trust_positive is None) != (self.trust_negative is None):
            raise ConfigError(
                "trust_positive and trust_negative belong together. Give both, or neither"
            )
        ranks = np.arange(1, positions + 1)
        top, decay = self.examination_top, self.examination_decay
        if self.examination_by_rank is None:
            examination = top - decay * np.log(ranks)
            tower: Parameter = DecayingExamination(top, decay)
            trusted: Parameter = DecayingExamination(top - 3.0, decay)
            bias: Parameter = DecayingExamination(0.0, decay)
        else:
            examination = logits_of(np.asarray(self.examination_by_rank[:positions], np.float64))
            tower, trusted = GivenExamination(examination), GivenExamination(examination - 3.0)
            # added to attraction, so 0 at the top
            bias = GivenExamination(examination - examination[0])
        towers = {
            "examination": tower,
            "bias": bias,
            "true_positive": tower,
            "false_positive": trusted,
        }
        if self.trust_positive is not None and self.trust_negative is not None:
            probability = 1 / (1 + np.exp(-examination))
            for role, clicked in (
                ("true_positive", self.trust_positive),
                ("false_positive", self.trust_negative),
            ):
                towers[role] = GivenExamination(
                    logits_of(probability * np.asarray(clicked[:positions], np.float64))
                )
        return {**towers, "continuation": FixedParameter(self.continuation)}
