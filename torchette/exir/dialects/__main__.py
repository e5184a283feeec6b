# SPDX-License-Identifier: BSD-3-Clause
# `python -m torchette.exir.dialects` prints the page about dialects, which `./dev docs` writes.

from torchette.exir.dialects.page import page

if __name__ == "__main__":
    print(page(), end="")
