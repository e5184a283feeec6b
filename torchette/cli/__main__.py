# SPDX-License-Identifier: BSD-3-Clause
# `python -m torchette.cli`: the console script where there is none.

from __future__ import annotations

import sys

from torchette.cli import main

sys.exit(main())
