"""`python -m experiments` lists the experiments."""

import sys

from experiments.command_line.launch import main

sys.exit(main())
