# SPDX-License-Identifier: BSD-3-Clause
# In: digits.pte and an image of 8 x 8 floats. Out: its digit and the probability.
from __future__ import annotations

import sys

import numpy as np

import torchette

scores = np.asarray(torchette.load(sys.argv[1])(np.fromfile(sys.argv[2], "<f4").reshape(1, 64)))[0]
print(scores.argmax(), f"{scores.max():.4f}")
