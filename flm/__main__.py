"""python -m flm is flm."""

from flm.cli.app import main

main()
