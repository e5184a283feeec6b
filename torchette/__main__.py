# SPDX-License-Identifier: BSD-3-Clause
# `python -m torchette`: the same as the console script.

from __future__ import annotations

import sys

from torchette.cli import main

sys.exit(main())
