"""Pages of the site that are made from the code: models, configuration, commands, notebooks."""
