"""Sweeps: a queue of fresh processes over devices, resuming by configuration, and collected results.

A single run is in `clickexp.experiment`.
"""
