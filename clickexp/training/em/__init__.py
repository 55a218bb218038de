"""Estimators that count: one pass for models without hidden events, expectation-maximisation for the others.

Gradients are one folder up.
"""
