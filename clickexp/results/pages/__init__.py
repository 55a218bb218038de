"""Pages of HTML that need no network: of one run, and of runs beside each other."""
