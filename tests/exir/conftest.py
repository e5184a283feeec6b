# SPDX-License-Identifier: BSD-3-Clause
# Makes the small modules of graphs.py importable in all tests of this folder.

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
