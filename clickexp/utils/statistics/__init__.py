"""Intervals and tests of means and differences."""
