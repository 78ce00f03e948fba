"""``python -m specpilot_vllm``."""

import sys

from .main import main

sys.exit(main())
