# SPDX-License-Identifier: BSD-3-Clause
# `python -m torchette.exir.dialects` prints docs/dialects.md.

from torchette.exir.dialects.page import page

if __name__ == "__main__":
    print(page(), end="")
