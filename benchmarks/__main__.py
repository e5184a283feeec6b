# SPDX-License-Identifier: BSD-3-Clause
# What `./dev bench` runs: the models, or with `kernels` as the first word the kernels by family.

import sys

from benchmarks import families, models

raise SystemExit(families.main(sys.argv[2:]) if sys.argv[1:2] == ["kernels"] else models.main())
