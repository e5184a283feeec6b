// SPDX-License-Identifier: BSD-3-Clause
// ExecuTorch's names of ETDumpGen and of the data sinks.
#pragma once

#include "torchette/extension/compat/runtime.h"
#include "torchette/extension/etdump.h"
#include "torchette/extension/file_data_sink.h"

namespace executorch::etdump {
using ::torchette::extension::BufferDataSink;
using ::torchette::extension::DataSinkBase;
using ::torchette::extension::ETDumpGen;
using ::torchette::extension::ETDumpResult;
using ::torchette::extension::FileDataSink;
}  // namespace executorch::etdump

// Older names, from before the namespace executorch.
namespace torch::executor {
using etdump_result = ::torchette::extension::ETDumpResult;
using ::torchette::extension::ETDumpGen;
}  // namespace torch::executor
