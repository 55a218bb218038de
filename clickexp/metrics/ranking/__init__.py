"""Metrics of ranked lists with relevance labels. Metrics of clicks are one folder up."""
