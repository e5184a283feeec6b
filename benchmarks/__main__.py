# SPDX-License-Identifier: BSD-3-Clause
# What `./dev bench` runs.

from benchmarks.models import main

raise SystemExit(main())
