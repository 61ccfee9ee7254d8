"""`python -m megafuse` is the command `megafuse`."""

from __future__ import annotations

import sys

from megafuse.cli import main

sys.exit(main())
