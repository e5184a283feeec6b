# SPDX-License-Identifier: BSD-3-Clause
# The entry point of `./dev bench`.

import sys

from benchmarks import (
    accuracy,
    boards,
    codegen,
    families,
    images,
    integrity,
    lite,
    llm,
    memory,
    models,
    peers,
    perplexity,
    report,
    sources,
    targets,
    tax,
    threads,
    vulkan,
    xnnpack,
    xnnpack_library,
    zoo,
)

PARTS = {
    "accuracy": accuracy.main,
    "boards": boards.main,
    "codegen": codegen.main,
    "images": images.main,
    "integrity": integrity.main,
    "lite": lite.main,
    "llm": llm.main,
    "kernels": families.main,
    "memory": memory.main,
    "peers": peers.main,
    "perplexity": perplexity.main,
    "report": report.main,
    "sources": sources.main,
    "targets": targets.main,
    "tax": tax.main,
    "threads": threads.main,
    "vulkan": vulkan.main,
    "xnnpack": xnnpack.main,
    "xnnpack_library": xnnpack_library.main,
    "zoo": zoo.main,
}

part = PARTS.get(sys.argv[1]) if len(sys.argv) > 1 else None
raise SystemExit(part(sys.argv[2:]) if part else models.main())
