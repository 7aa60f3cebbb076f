"""`python -m specd.prompt`: the worker process that renders chat templates."""

import sys

from specd.prompt.renderer import main

sys.exit(main())
