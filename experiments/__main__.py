"""`python -m experiments` lists the experiments."""

import sys

from experiments.launch import main

sys.exit(main())
