// SPDX-License-Identifier: BSD-3-Clause
// executor_runner: runs a method of a .pte file from the shell. In: a model and input files; inputs without a
// file are ones. Out: the outputs as text, JSON or files. Accepts the options of ExecuTorch's
// executor_runner.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>

#include "torchette/extension/backends.h"
#include "torchette/extension/buffer_data_loader.h"
#include "torchette/extension/bundled_program.h"
#include "torchette/extension/element.h"
#include "torchette/extension/error_name.h"
#include "torchette/extension/etdump.h"
#include "torchette/extension/event_recorder.h"
#include "torchette/extension/file_data_sink.h"
#include "torchette/extension/mmap_data_loader.h"
#include "torchette/extension/module.h"
#include "torchette/extension/print_value.h"
#include "torchette/extension/runner/npy.h"
#include "torchette/extension/source_lines.h"
#include "torchette/runtime/threads.h"

using namespace torchette;
using namespace torchette::extension;

namespace {

constexpr char kHelp[] =
    R"(usage: executor_runner --model_path FILE [options]

Runs a method of a .pte file. Inputs without a file are ones.

  --model_path FILE       the program (model.pte); - reads the standard input
  --method_name NAME      the method (default: the first one)
  --inputs A,B,...        one file for each input: .npy, or the bytes of the tensor; an empty entry means ones
  --input_shapes A,B,...  sizes of each input, such as 1x98,,1x1x98, within the method's bounds
  --output_file BASE      write BASE-0.bin, BASE-1.bin ...; .npy if BASE or an input ends in .npy; - writes
                          them to the standard output as .npy, in order, and prints nothing else
  --print_output MODE     none, summary (the first and last 100 elements) or all
  --num_executions N      number of executions (1)
  --json                  print one JSON object: sizes, elements, milliseconds
  --server_mode           run once for each line of the standard input, and read the input files again each time
  --cpu_threads N         threads for independent branches and in backends, from 1; -1, the default, is 1
  --data_path A,B,...     data files (.ptd) with weights outside the program
  --bundleio              the model is a bundled program (.bpte): run its case on the inputs in it, and
                          compare the outputs with the expected ones; automatic for such a file
  --testset_idx N         index of the case in the bundled program (0)
  --bundleio_rtol R, --bundleio_atol A
                          an element matches if |output - expected| <= A + R * |expected| (0.01 each)
  --verification LEVEL    minimal (default), internalconsistency, or integrity: compare all bytes of the model
                          and its data files with the checksums in the model's receipt
  --trace_path FILE       write the times of loading and executing as a Chrome trace
  --etdump_path FILE      write the events of loading and executing as an ETDump (.etdp) for an Inspector
  --dump_outputs, --dump_intermediate_outputs
                          with --etdump_path: also write the values of the outputs, or of every instruction
  --debug_output_path FILE
                          the file for these values (debug_output.bin)
  --debug_buffer_size N   collect them in a buffer of N bytes and write it at the end; values that do not fit
                          are dropped (default: write each value to the file at once)
  --help                  print this text

examples:
  executor_runner --model_path mobilenet.pte --num_executions 10 --print_output none --json
  executor_runner --model_path mobilenet.pte --inputs photo.npy --output_file scores.npy

Exit status: 0 on success, 1 if the model or an execution failed or an output of a case differs, 2 if an option
or a file is invalid.
)";

/// All options with their default values.
std::map<std::string, std::string> options = {
    {"model_path", "model.pte"},
    {"method_name", ""},
    {"inputs", ""},
    {"input_shapes", ""},
    {"output_file", ""},
    {"print_output", "summary"},
    {"num_executions", "1"},
    {"json", "false"},
    {"server_mode", "false"},
    {"cpu_threads", "-1"},
    {"data_path", ""},
    {"etdump_path", ""},
    {"bundleio", "false"},
    {"testset_idx", "0"},
    {"bundleio_rtol", "0.01"},
    {"bundleio_atol", "0.01"},
    {"verification", "minimal"},
    {"help", "false"},
    {"trace_path", ""},
    {"dump_outputs", "false"},
    {"dump_intermediate_outputs", "false"},
    {"debug_buffer_size", ""},
    {"debug_output_path", "debug_output.bin"},
};

/// Prints an error line and ends the program.
[[noreturn]] void fail(int status, const std::string& line) {
  std::fprintf(stderr, "executor_runner: %s\n", line.c_str());
  std::exit(status);
}
[[noreturn]] void fail(const std::string& subject, Error error) {
  char number[16];
  std::snprintf(number, sizeof(number), "0x%02x", static_cast<unsigned>(error));
  fail(1, subject + ": " + error_name(error) + " (" + number + ")");
}

bool is_set(const char* option) { return options[option] == "true"; }

long integer_option(const char* option, long minimum) {
  char* end;
  const long value = std::strtol(options[option].c_str(), &end, 10);
  if (options[option].empty() || *end != 0 || value < minimum)
    fail(2, std::string("--") + option + " must be an integer of at least " + std::to_string(minimum) +
                ", got " + options[option]);
  return value;
}

double tolerance_option(const char* option) {
  char* end;
  const double value = std::strtod(options[option].c_str(), &end);
  if (options[option].empty() || *end != 0 || !(value >= 0))
    fail(2, std::string("--") + option + " must be a number of at least 0, got " + options[option]);
  return value;
}

/// Parses --name value, --name=value and -name. A switch has no value, or =true; --noname turns it off.
void parse(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    const size_t dashes = word.find_first_not_of('-');
    if (dashes == 0 || dashes > 2 || dashes == std::string::npos)
      fail(2, "'" + word + "' is not an option; see --help");
    word = word.substr(dashes);
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const bool negated = name.compare(0, 2, "no") == 0 && options.count(name.substr(2)) != 0;
    const auto found = options.find(negated ? name.substr(2) : name);
    if (found == options.end()) fail(2, "unknown option --" + name + "; see --help");
    const bool is_switch = found->second == "true" || found->second == "false";
    if (is_switch && equals == std::string::npos) {
      found->second = negated ? "false" : "true";
    } else if (equals != std::string::npos) {
      found->second = word.substr(equals + 1);
    } else if (i + 1 < argc) {
      found->second = argv[++i];
    } else {
      fail(2, "--" + name + " needs a value");
    }
  }
}

/// Splits `text` at each `at`. An empty text has no pieces.
std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> pieces;
  for (size_t start = 0; !text.empty() && start <= text.size();) {
    const size_t end = std::min(text.find(at, start), text.size());
    pieces.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return pieces;
}

bool ends_with_npy(const std::string& path) {
  return path.size() >= 4 && path.compare(path.size() - 4, 4, ".npy") == 0;
}

std::string read_all(FILE* file) {
  std::string bytes;
  char piece[65536];
  for (size_t n; (n = fread(piece, 1, sizeof(piece), file)) != 0;) bytes.append(piece, n);
  return bytes;
}

void check_file(const std::string& path) {
  FILE* const file = fopen(path.c_str(), "rb");
  if (file == nullptr) fail(2, "cannot open " + path);
  fclose(file);
}

std::string read_file(const std::string& path) {
  FILE* const file = fopen(path.c_str(), "rb");
  if (file == nullptr) fail(2, "cannot open " + path);
  std::string bytes = read_all(file);
  fclose(file);
  return bytes;
}

/// A model from the standard input, in memory with the alignment of programs and bundled programs.
class InputStream {
 public:
  InputStream() {
    const std::string bytes = read_all(stdin);
    blocks_.resize((bytes.size() + sizeof(Block) - 1) / sizeof(Block));
    size_ = bytes.size();
    if (size_ != 0) memcpy(blocks_.data(), bytes.data(), size_);
  }
  Span<const uint8_t> bytes() const { return {reinterpret_cast<const uint8_t*>(blocks_.data()), size_}; }

 private:
  struct alignas(64) Block {
    uint8_t bytes[64];
  };
  std::vector<Block> blocks_;
  size_t size_ = 0;
};

/// Returns the tensor of input `index` from its file, or ones. Returns null if the input is not a tensor.
TensorPtr make_input(const MethodMeta& meta, size_t index, const std::string& path,
                     const std::string& shape) {
  const std::string name = "input " + std::to_string(index);
  const Result<Tag> tag = meta.input_tag(index);
  if (!tag.ok()) fail(name, tag.error());
  if (*tag != Tag::Tensor) {
    if (!path.empty() || !shape.empty()) fail(2, name + " is not a tensor: leave its entry empty");
    return nullptr;
  }
  const Result<TensorInfo> info = meta.input_tensor_meta(index);
  if (!info.ok()) fail(name, info.error());
  std::vector<SizesType> sizes(info->sizes().begin(), info->sizes().end());
  if (!shape.empty()) {
    sizes.clear();
    for (const std::string& size : split(shape, 'x')) {
      char* end;
      const long value = std::strtol(size.c_str(), &end, 10);
      if (size.empty() || *end != 0 || value < 0 || value > INT32_MAX)
        fail(2, "--input_shapes: '" + shape + "' does not have the form 1x3x224x224");
      sizes.push_back(static_cast<SizesType>(value));
    }
  }
  const std::vector<DimOrderType> order(info->dim_order().begin(), info->dim_order().end());
  if (ends_with_npy(path)) {
    std::string reason;
    TensorPtr array = read_npy(read_file(path), &reason);
    if (!array) fail(2, "cannot read " + path + ": " + reason);
    if (!shape.empty() &&
        !std::equal(sizes.begin(), sizes.end(), array->sizes().begin(), array->sizes().end()))
      fail(2, "the shape of " + path + " differs from --input_shapes");
    return array;
  }
  TensorPtr tensor = ones(sizes, info->scalar_type(), TensorShapeDynamism::STATIC);
  if (tensor && order.size() == sizes.size()) tensor = make_tensor_ptr(tensor, sizes, order);
  if (!tensor) fail(1, "cannot create " + name + ": its shape or dtype is not supported");
  if (!path.empty()) {
    const std::string bytes = read_file(path);
    if (bytes.size() < tensor->nbytes() || (shape.empty() && bytes.size() != tensor->nbytes()))
      fail(2, path + " has " + std::to_string(bytes.size()) + " bytes, " + name + " needs " +
                  std::to_string(tensor->nbytes()));
    std::copy_n(bytes.begin(), tensor->nbytes(), tensor->mutable_data_ptr<char>());
  }
  return tensor;
}

void print_json_number(std::ostream& out, Scalar value) {
  if (value.is_bool())
    out << (value.to_bool() ? "true" : "false");
  else if (value.is_integral())
    out << value.to_int();
  else if (std::isfinite(value.to_double()))
    out << value.to_double();
  else
    out << (std::isnan(value.to_double()) ? "\"nan\"" : value.to_double() > 0 ? "\"inf\"" : "\"-inf\"");
}

void print_json_string(std::ostream& out, const std::string& text) {
  out << '"';
  for (const char c : text) {
    char escaped[8];
    std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned char>(c));
    if (c == '"' || c == '\\')
      out << '\\' << c;
    else if (static_cast<unsigned char>(c) < 0x20)
      out << escaped;
    else
      out << c;
  }
  out << '"';
}

void print_json(std::ostream& out, const Value& value, const std::string& mode) {
  if (!value.is_tensor()) {
    if (value.is_scalar())
      print_json_number(out, value.to_scalar());
    else
      out << "null";
    return;
  }
  const Tensor& tensor = value.toTensor();
  out << "{\"dtype\": \"" << dtype_name(tensor.scalar_type()) << "\", \"sizes\": [";
  for (size_t d = 0; d < tensor.sizes().size(); ++d) out << (d != 0 ? ", " : "") << tensor.sizes()[d];
  out << ']';
  const auto count = static_cast<size_t>(tensor.numel());
  const auto print = [&](const char* name, size_t from, size_t to) {
    out << ", \"" << name << "\": [";
    for (size_t i = from; i < to; ++i) {
      if (i != from) out << ", ";
      print_json_number(out, get_element(tensor.const_data_ptr(), tensor.scalar_type(), i));
    }
    out << ']';
  };
  if (mode == "all" || (mode == "summary" && count <= 200)) {
    print("data", 0, count);
  } else if (mode == "summary") {
    print("first", 0, 100);
    print("last", count - 100, count);
  }
  out << '}';
}

void write_outputs(const std::vector<Value>& outputs, std::string base, bool npy) {
  if (ends_with_npy(base)) base.resize(base.size() - 4);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].is_tensor()) continue;
    const Tensor& tensor = outputs[i].toTensor();
    const std::string path = base + "-" + std::to_string(i) + (npy ? ".npy" : ".bin");
    const std::string bytes =
        npy ? write_npy(tensor) : std::string(tensor.const_data_ptr<char>(), tensor.nbytes());
    if (npy && bytes.empty()) fail(1, "NumPy lacks the dtype of output " + std::to_string(i));
    FILE* const file = fopen(path.c_str(), "wb");
    const bool written = file != nullptr && fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
    if ((file != nullptr && fclose(file) != 0) || !written) fail(2, "cannot write " + path);
  }
}

/// Writes the outputs to the standard output as consecutive .npy files. A scalar is an array without
/// dimensions.
void stream_outputs(const std::vector<Value>& outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Value& value = outputs[i];
    const std::string name = "output " + std::to_string(i);
    TensorPtr number;
    if (value.is_bool())
      number = scalar_tensor(value.to_scalar(), ScalarType::Bool);
    else if (value.is_int())
      number = scalar_tensor(value.to_scalar(), ScalarType::Long);
    else if (value.is_double())
      number = scalar_tensor(value.to_scalar(), ScalarType::Double);
    else if (!value.is_tensor())
      fail(1, name + " is neither a tensor nor a scalar");
    const std::string bytes = write_npy(number ? *number : value.toTensor());
    if (bytes.empty()) fail(1, "NumPy lacks the dtype of " + name);
    if (fwrite(bytes.data(), 1, bytes.size(), stdout) != bytes.size())
      fail(2, "the standard output is closed");
  }
  std::fflush(stdout);
}

/// Runs a case of a bundled program and prints a line for each output. Returns whether all outputs match.
bool run_case(Method& method, const BundledProgram& bundle, size_t index) {
  const char* name = method.method_meta().name();
  if (index >= bundle.num_cases(name))
    fail(2,
         "--testset_idx: " + std::string(name) + " has " + std::to_string(bundle.num_cases(name)) + " cases");
  const Error input_error = bundle.load_bundled_input(method, index);
  if (input_error != Error::Ok) fail(name, input_error);
  for (long i = integer_option("num_executions", 1); i > 0; --i) {
    const Error ran = SourceLines::explain(method, method.execute());
    if (ran != Error::Ok) fail(name, ran);
  }
  if (!options["output_file"].empty()) {
    std::vector<Value> outputs;
    for (size_t i = 0; i < method.outputs_size(); ++i) outputs.push_back(method.get_output(i));
    if (options["output_file"] == "-") {
      stream_outputs(outputs);
      return true;
    }
    write_outputs(outputs, options["output_file"], ends_with_npy(options["output_file"]));
  }
  const size_t expected = bundle.num_expected(name, index);
  if (expected == 0) return true;  // the case has no expected outputs
  std::printf("output    elements  mismatches  largest difference\n");
  bool matches = expected == method.outputs_size();
  for (size_t i = 0; i < expected && i < method.outputs_size(); ++i) {
    const Result<OutputComparison> result = bundle.compare(
        method, index, i, tolerance_option("bundleio_rtol"), tolerance_option("bundleio_atol"));
    if (!result.ok()) fail(name, result.error());
    matches = matches && result->matches();
    std::printf("%6zu%12zu%12zu%20g  %s\n", i, result->elements, result->mismatches, result->difference,
                result->matches()   ? "matches"
                : result->same_kind ? "differs"
                                    : "has another dtype or shape");
  }
  if (expected != method.outputs_size())
    std::printf("the case expects %zu outputs, the method has %zu\n", expected, method.outputs_size());
  std::fflush(stdout);
  return matches;
}

double milliseconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - since).count();
}

/// Reads the inputs from their files, executes the method and writes the outputs.
void run(Module& module, const std::string& method, double load_ms) {
  const Result<MethodMeta> meta = module.method_meta(method);
  if (!meta.ok()) fail(method, meta.error());
  std::vector<std::string> files = split(options["inputs"], ',');
  std::vector<std::string> shapes = split(options["input_shapes"], ',');
  if (files.size() > meta->num_inputs())
    fail(2, "--inputs has " + std::to_string(files.size()) + " entries, method " + method + " has " +
                std::to_string(meta->num_inputs()) + " inputs");
  if (!shapes.empty() && shapes.size() != meta->num_inputs())
    fail(2, "--input_shapes has " + std::to_string(shapes.size()) + " entries, method " + method + " has " +
                std::to_string(meta->num_inputs()) + " inputs");
  files.resize(meta->num_inputs());
  shapes.resize(meta->num_inputs());
  std::vector<TensorPtr> tensors;
  bool npy = ends_with_npy(options["output_file"]);
  for (size_t i = 0; i < meta->num_inputs(); ++i) {
    tensors.push_back(make_input(*meta, i, files[i], shapes[i]));
    npy = npy || ends_with_npy(files[i]);
  }
  const std::vector<Value> inputs(tensors.begin(), tensors.end());
  std::vector<double> times;
  std::vector<Value> outputs;
  for (long i = integer_option("num_executions", 1); i > 0; --i) {
    const auto start = std::chrono::steady_clock::now();
    Result<std::vector<Value>> result = module.execute(method, inputs);
    if (!result.ok()) fail(method, result.error());
    times.push_back(milliseconds(start));
    outputs = std::move(*result);
  }
  if (options["output_file"] == "-") return stream_outputs(outputs);
  if (!options["output_file"].empty()) write_outputs(outputs, options["output_file"], npy);
  const std::string& mode = options["print_output"];
  std::cout.precision(9);
  if (is_set("json")) {
    std::sort(times.begin(), times.end());
    std::cout << "{\"model\": ";
    print_json_string(std::cout, options["model_path"]);
    std::cout << ", \"method\": ";
    print_json_string(std::cout, method);
    std::cout << ", \"executions\": " << times.size() << ", \"load_ms\": " << load_ms
              << ", \"execute_ms\": {\"best\": " << times.front()
              << ", \"median\": " << times[times.size() / 2] << "}, \"outputs\": [";
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (i != 0) std::cout << ", ";
      print_json(std::cout, outputs[i], mode);
    }
    std::cout << "]}\n";
  } else if (mode != "none") {
    for (size_t i = 0; i < outputs.size(); ++i)
      std::cout << "Output " << i << ": " << evalue_edge_items(mode == "all" ? 0 : 100) << outputs[i] << '\n';
  }
  std::cout.flush();
}

FILE* open_for_writing(const std::string& path) {
  FILE* const file = fopen(path.c_str(), "wb");
  if (file == nullptr) fail(2, "cannot write " + path);
  return file;
}

/// Writes `size` bytes and closes the file.
void write_file(const std::string& path, FILE* file, const void* data, size_t size) {
  const bool whole = size == 0 || fwrite(data, 1, size, file) == size;
  if (fclose(file) != 0 || !whole) fail(2, "cannot write " + path);
}

/// The ETDump that the options request. Its files are opened before anything runs.
class Dump {
 public:
  Dump() {
    const bool values = is_set("dump_outputs") || is_set("dump_intermediate_outputs");
    path_ = options["etdump_path"];
    values_path_ = options["debug_output_path"];
    if (path_.empty() && values) fail(2, "--dump_outputs and --dump_intermediate_outputs need --etdump_path");
    if (path_.empty()) return;
    if (!options["trace_path"].empty()) fail(2, "--etdump_path cannot be combined with --trace_path");
    tracer_ = std::make_shared<ETDumpGen>();
    file_ = open_for_writing(path_);
    if (!values) return;
    tracer_->set_event_tracer_debug_level(is_set("dump_intermediate_outputs")
                                              ? EventTracerDebugLogLevel::kIntermediateOutputs
                                              : EventTracerDebugLogLevel::kProgramOutputs);
    if (options["debug_buffer_size"].empty()) {
      Result<FileDataSink> sink = FileDataSink::create(values_path_.c_str());
      if (!sink.ok()) fail(2, "cannot write " + values_path_);
      sink_.emplace(std::move(*sink));
      tracer_->set_data_sink(&*sink_);
    } else {
      buffer_.resize(static_cast<size_t>(integer_option("debug_buffer_size", 1)));
      values_file_ = open_for_writing(values_path_);
      Result<BufferDataSink> sink = BufferDataSink::create({buffer_.data(), buffer_.size()}, 16);
      if (sink.ok()) buffer_sink_ = std::move(*sink);
      tracer_->set_data_sink(&buffer_sink_);
    }
  }

  /// Returns the tracer, or null if the options do not request an ETDump.
  const std::shared_ptr<ETDumpGen>& tracer() const { return tracer_; }

  void write() {
    if (tracer_ == nullptr) return;
    const ETDumpResult result = tracer_->get_etdump_data();
    write_file(path_, file_, result.buf, result.size);
    platform_free(result.buf);
    if (sink_ && !sink_->close()) fail(2, "cannot write " + values_path_);
    if (values_file_ != nullptr)
      write_file(values_path_, values_file_, buffer_.data(), buffer_sink_.get_used_bytes());
  }

 private:
  std::string path_, values_path_;
  std::shared_ptr<ETDumpGen> tracer_;
  std::optional<FileDataSink> sink_;
  std::vector<uint8_t> buffer_;
  BufferDataSink buffer_sink_;
  FILE *file_ = nullptr, *values_file_ = nullptr;
};

/// Writes the recorded events, in microseconds since the first event, and closes the file.
void write_trace(const EventRecorder& recorder, const std::string& path, FILE* file) {
  std::ostringstream text;  // the C++ library of WASI has no file streams
  text.precision(15);
  const torchette_tick_ratio_t ratio = ticks_to_ns_multiplier();
  const auto microseconds = [ratio](torchette_timestamp_t ticks) {
    return static_cast<double>(ticks) * static_cast<double>(ratio.numerator) /
           static_cast<double>(ratio.denominator) / 1000;
  };
  const char* between = "{\"traceEvents\": [\n";
  for (const RecordedEvent& event : recorder.events()) {
    text << between << "{\"name\": ";
    print_json_string(text, event.name.empty() ? "part " + std::to_string(event.part) : event.name);
    text << ", \"ph\": \"X\", \"pid\": 1, \"tid\": 1, \"ts\": "
         << microseconds(event.begin - recorder.events()[0].begin)
         << ", \"dur\": " << microseconds(event.end - event.begin);
    if (event.chain != kUnsetChainId)
      text << ", \"args\": {\"chain\": " << event.chain << ", \"instruction\": " << event.instruction << "}";
    text << "}";
    between = ",\n";
  }
  text << "\n]}\n";
  const std::string written = text.str();
  write_file(path, file, written.data(), written.size());
}

/// Runs the executions that the options request. Returns the exit status.
int execute(Module& module, const std::string& method, const std::optional<BundledProgram>& bundle,
            double load_ms) {
  if (bundle)
    return run_case(**module.method(method), *bundle, static_cast<size_t>(integer_option("testset_idx", 0)))
               ? 0
               : 1;
  if (!is_set("server_mode")) {
    run(module, method, load_ms);
    return 0;
  }
  std::string line;
  while (std::getline(std::cin, line)) run(module, method, load_ms);
  return 0;
}

}  // namespace

/// Stops if an option has an invalid value, or if options cannot be combined. Sets the number of threads.
/// Returns whether the program comes from the standard input.
static bool check_options() {
  const std::string& mode = options["print_output"];
  if (mode != "none" && mode != "summary" && mode != "all")
    fail(2, "--print_output must be none, summary or all, got '" + mode + "'");
  integer_option("num_executions", 1);
  const long threads = options["cpu_threads"] == "-1" ? 1 : integer_option("cpu_threads", 1);
  if (const Error set = set_num_threads(static_cast<size_t>(threads)); set != Error::Ok)
    fail("--cpu_threads", set);
  const std::string& level = options["verification"];
  if (level != "minimal" && level != "internalconsistency" && level != "integrity")
    fail(2, "--verification must be minimal, internalconsistency or integrity, got '" + level + "'");
  if (options["output_file"] == "-" && is_set("json"))
    fail(2, "--json cannot be combined with --output_file -");
  const bool from_input = options["model_path"] == "-";
  if (from_input && (is_set("server_mode") || !options["data_path"].empty()))
    fail(2, "--server_mode and --data_path cannot be combined with --model_path -");
  if (from_input)
    options["model_path"] = "the standard input";
  else
    check_file(options["model_path"]);
  for (const std::string& path : split(options["data_path"], ',')) check_file(path);
  tolerance_option("bundleio_rtol");
  tolerance_option("bundleio_atol");
  return from_input;
}

int main(int argc, char** argv) {
  runtime_init();
  parse(argc, argv);
  if (is_set("help")) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  const bool from_input = check_options();
  const std::string& level = options["verification"];

  const Error backends = register_all_backends();
  if (backends != Error::Ok) fail("backends", backends);
  const auto start = std::chrono::steady_clock::now();
  // A bundled program contains the program to load.
  const std::optional<InputStream> input = from_input ? std::make_optional<InputStream>() : std::nullopt;
  std::optional<Result<MmapDataLoader>> file;
  Span<const uint8_t> bytes;
  if (input) {
    bytes = input->bytes();
  } else {
    file.emplace(MmapDataLoader::from(options["model_path"].c_str()));
    if (!file->ok()) fail(options["model_path"], file->error());
    const size_t size = *(*file)->size();
    const Result<FreeableBuffer> whole = (*file)->load(0, size, {DataLoader::SegmentInfo::Type::Program});
    if (!whole.ok()) fail(options["model_path"], whole.error());
    bytes = {static_cast<const uint8_t*>(whole->data()), size};  // valid as long as the file is mapped
  }
  std::optional<BundledProgram> bundle;
  std::shared_ptr<DataLoader> program_loader;
  if (input) program_loader = std::make_shared<BufferDataLoader>(bytes.data(), bytes.size());
  if (is_set("bundleio") || BundledProgram::is_bundled(bytes.data(), bytes.size())) {
    if (!options["data_path"].empty()) fail(2, "--data_path cannot be combined with a bundled program");
    const Result<BundledProgram> found = BundledProgram::load(bytes.data(), bytes.size());
    if (!found.ok()) fail(options["model_path"], found.error());
    bundle = *found;
    program_loader = std::make_shared<BufferDataLoader>(bundle->program().data(), bundle->program().size());
  }
  const std::string trace = options["trace_path"];
  const auto recorder = trace.empty() ? nullptr : std::make_shared<EventRecorder>();
  FILE* const trace_file = trace.empty() ? nullptr : open_for_writing(trace);
  Dump dump;
  std::shared_ptr<EventTracer> tracer = dump.tracer();
  if (recorder != nullptr) tracer = recorder;
  std::unique_ptr<Module> module_owner =
      program_loader ? std::make_unique<Module>(program_loader, nullptr, nullptr, tracer)
                     : std::make_unique<Module>(options["model_path"], split(options["data_path"], ','),
                                                Module::LoadMode::Mmap, tracer);
  Module& module = *module_owner;
  const Error opened = module.load(level == "minimal" ? Program::Verification::Minimal
                                                      : Program::Verification::InternalConsistency);
  if (opened != Error::Ok) fail(options["model_path"], opened);
  const Error whole = level == "integrity" ? module.verify_integrity() : Error::Ok;
  if (whole != Error::Ok) fail(options["model_path"] + ": integrity", whole);
  std::string method = options["method_name"];
  if (method.empty()) {
    const Result<const char*> first = module.program()->get_method_name(0);
    if (!first.ok()) fail(options["model_path"], first.error());
    method = *first;
  }
  const Error loaded = module.load_method(method);
  if (loaded != Error::Ok) fail(method, loaded);
  const int status = execute(module, method, bundle, milliseconds(start));
  dump.write();
  if (trace_file != nullptr) write_trace(*recorder, trace, trace_file);
  return status;
}
