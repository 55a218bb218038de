"""Where propensities of examination come from: lists, fitted runs, click rates, interventions in the log.

What rankers do with them is in `clickexp.models.ranker`.
"""

from clickexp.propensities.base import Propensities as Propensities
from clickexp.propensities.base import PropensitySource as PropensitySource
from clickexp.propensities.base import Weighting as Weighting
from clickexp.propensities.harvest import HarvestedPropensities as HarvestedPropensities
from clickexp.propensities.simulated import SimulatedPropensities as SimulatedPropensities
from clickexp.propensities.sources import ClickRatePropensities as ClickRatePropensities
from clickexp.propensities.sources import GivenPropensities as GivenPropensities
from clickexp.propensities.sources import RandomizedPropensities as RandomizedPropensities
from clickexp.propensities.sources import RunPropensities as RunPropensities
