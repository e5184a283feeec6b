# SPDX-License-Identifier: BSD-3-Clause
# In: this folder. Out: a page on http://localhost:8000 with a network that recognizes drawn digits.
"""Trains the digits network, compiles it, builds the runtime for browsers around it, and serves the page.

All outputs are written to .torchette/web; a second start reuses most of them.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import train  # noqa: E402

import torchette  # noqa: E402
from torchette.build import web  # noqa: E402
from torchette.progress import Progress  # noqa: E402

PAGE = ("index.html", "digits.css", "digits.js")


def build(folder: Path) -> Path:
    """Writes the files of the page to `folder`: HTML, JavaScript, the runtime, the network."""
    folder.mkdir(parents=True, exist_ok=True)
    model, network = folder / "digits.pte", folder / "trained_from.txt"
    recipe = (HERE / "train.py").read_text(encoding="utf-8") + torchette.__version__
    if not (model.exists() and network.exists() and network.read_text(encoding="utf-8") == recipe):
        print("training and compiling the network", flush=True)
        torchette.compile(train.trained(), (train.data(held_back=True)[0][:1],)).save(model)
        network.write_text(recipe, encoding="utf-8")
    print("building the runtime", flush=True)
    with Progress(interval=0) as progress:
        web.build([model], folder, report=progress)
    for name in PAGE:
        shutil.copyfile(HERE / name, folder / name)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=HERE.parents[1] / ".torchette" / "web")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1, this machine alone)"
    )
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--build-only", action="store_true", help="do not serve")
    options = parser.parse_args()
    folder = build(options.folder)
    if options.build_only:
        return
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer((options.host, options.port), handler) as server:
        print(f"http://{options.host}:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
