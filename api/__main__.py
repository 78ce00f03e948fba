"""``python -m specpilot``: the command line."""

import sys

from .cli.start import main

sys.exit(main())
