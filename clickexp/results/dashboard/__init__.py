"""Views on Weights & Biases that compare runs."""
