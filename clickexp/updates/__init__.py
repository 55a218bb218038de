"""Runs that go on: yesterday's posterior as the prior of a fit to today's log."""
