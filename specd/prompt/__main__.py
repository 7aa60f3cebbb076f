"""`python -m specd.prompt`: the worker process that renders chat templates."""

import sys

from specd.prompt.render_process import main

sys.exit(main())
