# SPDX-License-Identifier: BSD-3-Clause
# The compiler's tests share the small modules of graphs.py, wherever in this folder they stand.

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
