"""The command `clickexp`, as `python -m clickexp`."""

from clickexp.cli.main import main

main()
