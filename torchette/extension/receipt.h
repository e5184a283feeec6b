// SPDX-License-Identifier: BSD-3-Clause
// Verifies a file with the receipt of its program: hashes of the file that `torchette.compile(...,
// verify=True)` stores as named data. docs/format.md describes the bytes.
#pragma once

#include "torchette/runtime/loader.h"
#include "torchette/runtime/program.h"
#include "torchette/runtime/span.h"

namespace torchette::extension {

/// The name of the receipt among a program's named data.
constexpr char kReceiptKey[] = "torchette.receipt";

/// Returns the XXH64 hash with seed 0. Its speed is that of the memory on processors with 64-bit
/// multiplication.
uint64_t xxh64(const void* data, size_t size);

/// Compares `file`, from which `program` was loaded, and the data files with the program's receipt. Reads
/// pieces of up to 1 MiB. Errors: NotFound (the program has no receipt), InvalidProgram (a byte of the file
/// has changed; the log has the range), InvalidExternalData (a data file is not in the receipt), those of the
/// loaders.
Error verify_integrity(const Program& program, const DataLoader& file,
                       Span<const DataLoader* const> data_files = {});

}  // namespace torchette::extension
