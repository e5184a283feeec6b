// SPDX-License-Identifier: BSD-3-Clause
// The receipt of a program: hashes of the whole file that `torchette.compile(..., verify=True)` stores as
// named data. What the file says is held against them; docs/format.md describes the bytes.
#pragma once

#include "torchette/runtime/loader.h"
#include "torchette/runtime/program.h"
#include "torchette/runtime/span.h"

namespace torchette::extension {

/// The name of the receipt among a program's named data.
constexpr char kReceiptKey[] = "torchette.receipt";

/// XXH64, seed 0: as fast as memory is read, on processors with a 64-bit multiplication.
uint64_t xxh64(const void* data, size_t size);

/// Reads all of `file`, the bytes that `program` was loaded from, and of the data files, in pieces of up to a
/// megabyte, and compares them with the program's receipt. Errors: NotFound (it has no receipt),
/// InvalidProgram (a byte of it has changed), InvalidExternalData (a data file is not one of those that the
/// receipt was made with), those of the loaders. The log says which bytes.
Error verify_integrity(const Program& program, const DataLoader& file,
                       Span<const DataLoader* const> data_files = {});

}  // namespace torchette::extension
