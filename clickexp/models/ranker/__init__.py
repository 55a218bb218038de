"""Rankers that learn from clicks: a loss of rankings, and a correction of the bias of clicks."""
