"""``python -m meshwright``: the command line."""

from meshwright.service.cli.main import main

main()
