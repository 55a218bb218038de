"""A propensity source: examination that falls as a power of the position."""

from dataclasses import dataclass

import numpy as np

from clickexp.propensities import Propensities, PropensitySource
from clickexp.utils.bounds import PositiveFloat


@dataclass(frozen=True)
class PowerLaw(PropensitySource):
    """p_k = 1 / k^eta, a common assumption of simulations (Joachims, Swaminathan and Schnabel 2017)."""

    eta: PositiveFloat = 1.0
    may_have_offsets = (
        False  # so that debias=affine, which needs them, is refused before the log is read
    )

    def __call__(self, dataset):
        positions = np.arange(1, dataset.positions + 1)
        return Propensities.relative(positions**-self.eta, source=f"1 / k^{self.eta:g}")
