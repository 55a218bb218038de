from .letor import open_letor as open_letor
from .simulated import simulate as simulate
