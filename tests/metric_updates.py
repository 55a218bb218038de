"""Metrics after batches, as users update them."""


def updated(metric, *batches, **outputs):
    """A new metric with the settings of one, or with those of a class by default, after batches [..., rank]."""
    fresh = metric() if isinstance(metric, type) else metric.empty()
    for batch in (*batches, *([outputs] if outputs else [])):
        fresh.update(**batch)
    return fresh
