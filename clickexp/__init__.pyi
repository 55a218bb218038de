from .experiment.api import FittedRun as FittedRun
from .experiment.api import run as run
from .models import CascadeModel as CascadeModel
from .models import ClickChainModel as ClickChainModel
from .models import DependentClickModel as DependentClickModel
from .models import DocumentCTRModel as DocumentCTRModel
from .models import DocumentRankCTRModel as DocumentRankCTRModel
from .models import DynamicBayesianNetwork as DynamicBayesianNetwork
from .models import GlobalCTRModel as GlobalCTRModel
from .models import MixtureModel as MixtureModel
from .models import PositionBasedModel as PositionBasedModel
from .models import RankCTRModel as RankCTRModel
from .models import TrustBiasModel as TrustBiasModel
from .models import UserBrowsingModel as UserBrowsingModel
from .runs.run import Run as Run
from .training import EarlyStopping as EarlyStopping
from .training import Trainer as Trainer

__version__: str
