"""`python -m specd.prompt`: the process in which chat templates run."""

import sys

from specd.prompt.render_process import main

sys.exit(main())
