"""Simulated clicks: true users, the lists they see, and datasets of both. Nothing here reads a log of real clicks."""

from clickexp.simulation.letor import open_letor
from clickexp.simulation.simulated import simulate

__all__ = ["open_letor", "simulate"]
