"""Neural click models, on the recurrence of `clickexp.models.sequential`. Classic models do not live here."""
