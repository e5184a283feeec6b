// SPDX-License-Identifier: BSD-3-Clause
// Runs a payload on the device. Every operator is a function that computes the sizes of its results and
// dispatches shaders. The operators run twice when sizes change: first to plan the memory, then to record the
// commands. graph.cpp reads the payload, constants.cpp uploads its constants, plan.cpp, record.cpp and
// execute.cpp are the steps of an execution, and call.cpp is the interface of the operators.
#pragma once

#include <initializer_list>
#include <vector>

#include "torchette/backends/vulkan/device.h"
#include "torchette/backends/vulkan/payload.h"

namespace torchette {
namespace vulkan {

constexpr int kMaxDims = kMaxVulkanDims;
constexpr int64_t kMaxElements = INT32_MAX;  // of a tensor

/// Storages start at multiples of 256 bytes, the largest alignment that a device may require.
inline uint64_t aligned(uint64_t size) { return size == 0 ? 256 : (size + 255) / 256 * 256; }

/// The element type of a tensor on the device. An element has 4 bytes, a kHalf 2, a kByte (8-bit weights) 1.
/// The shaders use the same numeric values.
enum class Kind : uint32_t { kFloat = 0, kInt = 1, kBool = 2, kHalf = 3, kByte = 4 };
inline uint32_t bytes_of(Kind kind) { return kind == Kind::kHalf ? 2 : kind == Kind::kByte ? 1 : 4; }
inline bool is_float(Kind kind) { return kind == Kind::kFloat || kind == Kind::kHalf; }

/// A strided view of a storage; strides and offset count elements.
struct View {
  int storage = -1;
  Kind kind = Kind::kFloat;
  int rank = 0;
  int64_t sizes[kMaxDims]{};
  int64_t strides[kMaxDims]{};
  int64_t offset = 0;

  int64_t numel() const;
  bool is_contiguous() const;
  void make_contiguous_strides();
  /// The size of dimension `dim`, which may be negative; 1 if the view has no such dimension.
  int64_t size(int dim) const;
};

struct Numbers {
  int count = 0;
  int64_t items[kMaxDims]{};
  int64_t operator[](int i) const { return items[i]; }
};

class Call;
using Operator = void (*)(Call&);
struct NamedOperator {
  const char* name;
  Operator run;
};

/// The second operand that an epilogue may have: none, a tensor with the layout of the results, or a tensor
/// of any strides.
enum class EpilogueOperand { kNone, kSameLayout, kStrided };

/// A pointwise operator that a shader applies to its results, so that the operator needs no separate
/// dispatch.
struct Epilogue {
  uint32_t operation = 0;  // a row of pointwise.def, from 1
  uint32_t p = 0, q = 0;   // the bits of its float parameters
  bool swapped = false;    // the result of the shader is its second operand
  bool has_other = false;
  View other;  // the other operand, broadcast to the sizes of the result
};

/// The push constants of a dispatch; at most 32 words.
class Push {
 public:
  Push& operator<<(int64_t number) { return word(static_cast<uint32_t>(number)); }
  Push& operator<<(int number) { return word(static_cast<uint32_t>(number)); }
  Push& operator<<(uint32_t number) { return word(number); }
  Push& operator<<(float number) {
    uint32_t bits;
    memcpy(&bits, &number, 4);
    return word(bits);
  }
  Push& operator<<(double number) { return *this << static_cast<float>(number); }

 private:
  friend class Graph;
  Push& word(uint32_t bits) {
    if (count_ < kPushBytes / 4) words_[count_] = bits;
    ++count_;
    return *this;
  }
  uint32_t words_[kPushBytes / 4]{};
  uint32_t count_ = 0;
};

class Graph {
 public:
  explicit Graph(std::shared_ptr<Device> device) : held_(std::move(device)), device_(*held_) {}
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();

  /// Reads the payload, uploads its constants, and records the calls for the maximum sizes. `bytes` must
  /// outlive this. Errors: DelegateInvalidCompatibility, NotSupported (this build does not have an operator
  /// or a type), and the errors of memory, of the device and of the named data.
  Error open(const void* bytes, size_t size, const NamedDataMap* named);
  /// Reports the time of every shader to `tracer`, with the handle of its call.
  Error execute(Span<torchette::Value*> arguments, EventTracer* tracer);
  /// Sets the states to the values that they had after open().
  Error reset();
  size_t inputs() const { return payload_.inputs().size(); }

  // --- Interface of the operators

  /// Records the first error. After an error, dispatch() does nothing.
  void fail(Error error) {
    if (error_ == Error::Ok) error_ = error;
  }
  bool ok() const { return error_ == Error::Ok; }
  /// Allocates a contiguous tensor with the sizes and kind of `like`.
  View scratch(const View& like);
  /// Runs `shader` on `groups` times `layers` work groups. Bit i of `writes` is set if the shader writes
  /// buffer i. `groups` has no limit: the work groups are spread over x and y, and the shader computes one
  /// index from both.
  void dispatch(const Shader& shader, std::initializer_list<uint32_t> constants, const Push& push,
                std::initializer_list<const View*> views, uint32_t writes, int64_t groups,
                int64_t layers = 1);
  bool has_half() const { return device_.has_half(); }
  bool has_half_arithmetic() const { return device_.has_half_arithmetic(); }
  int64_t enough_groups() const { return device_.enough_groups(); }
  uint32_t max_bindings() const { return device_.max_bindings(); }
  Call call_of(int step);
  /// States that an earlier call computes the result of a step.
  void mark_done(int step) { steps_[static_cast<size_t>(step)].is_done = true; }

 private:
  friend class Call;

  enum class Use { kArena, kInput, kOutput, kConstant };
  struct Storage {
    uint64_t bytes = 0;
    Use use = Use::kArena;
    int owner = -1;             // kOutput: index of the output; kConstant: index of the buffer in constants_
    int32_t value = -1;         // kConstant: index of the value
    int first = -1, last = -1;  // first and last dispatch that use it
    bool is_state = false;      // kConstant: its elements change
    uint64_t offset = 0;        // in `buffer`
    const Buffer* buffer = nullptr;
  };
  enum class Type : uint8_t {
    kNone,
    kInt,
    kSymInt,
    kBool,
    kDouble,
    kTensor,
    kInts,
    kDoubles,
    kBools,
    kList,
    kText
  };
  struct Value {
    Type type = Type::kNone;
    Kind kind = Kind::kFloat;  // kTensor only
    int64_t integer = 0;
    double real = 0;
    int32_t constant = -1;
    Span<const uint32_t> dims;
    Span<const int64_t> ints;
    Span<const double> reals;
    Span<const uint8_t> flags;
    Span<const int32_t> list;  // indices of values
    Span<const char> text;
    int readers = 0;         // number of steps and outputs that read it
    int reader = -1;         // one of the steps that read it
    View view;               // of a tensor that has been computed
    bool is_packed = false;  // kConstant: filters, as pack_filters() stores them
    bool is_state = false;
    View state;                    // where a state is kept between executions
    std::vector<uint8_t> initial;  // bytes of a state after open(); empty if all are zero
  };
  struct Step {
    Operator run = nullptr;
    const char* name = "";
    Span<const int32_t> args;
    uint32_t handle = 0;   // its id in the payload
    bool is_done = false;  // an earlier step computes it in its epilogue
  };
  struct Range {
    const Buffer* buffer;
    uint64_t begin, end;
    bool written;
  };

  Error read_values();
  Error read_calls();
  void count_reader(int32_t value, int step, int depth = 0);
  void pack_filters_of(const Step& step);
  Error upload_constants();
  Error upload(size_t buffer, bool states_only);
  Error write_initial(Value* value, uint8_t* to, bool states_only);
  Error write_constant(Value* value, uint8_t* to);
  Error set_input(size_t i, const torchette::Value& argument, bool* changed);
  Error set_output(size_t i, const torchette::Value& argument, bool* changed);
  Error upload_inputs(Span<torchette::Value*> arguments);
  Error read_output(size_t i, torchette::Value* argument);
  Error build();
  Error trace(bool record);
  Error assign_offsets();
  Error begin_commands();
  void write_timestamp(int step);
  Error report_times(EventTracer* tracer, torchette_timestamp_t start, torchette_timestamp_t end) const;
  Error reserve(Buffer* buffer, uint64_t size, Memory kind);
  int add_storage(uint64_t bytes, Use use);
  bool allocate(View* view);
  void finish_outputs();
  void store_state(int32_t result);
  void wait_for_shaders();
  void add_barrier(std::initializer_list<const View*> views, uint32_t writes);

  std::shared_ptr<Device> held_;
  Device& device_;
  Payload payload_;
  std::vector<Value> values_;
  std::vector<Step> steps_;
  std::vector<Storage> storages_;
  std::vector<Buffer> constants_;
  size_t constant_storages_ = 0, next_storage_ = 0;
  std::vector<Range> pending_;
  struct Order {
    DimOrderType dims[kMaxDims] = {0, 1, 2, 3, 4, 5, 6, 7};
  };
  std::vector<View> inputs_, outputs_;
  std::vector<Order> orders_;  // dimension orders of the outputs
  Buffer arena_, io_;
  bool recording_ = false, is_recorded_ = false, has_state_ = false;
  int dispatches_ = 0, bindings_ = 0, step_ = 0;
  Counts counts_;
  Error error_ = Error::Ok;
  VkCommandPool command_pool_ = VK_NULL_HANDLE;
  VkCommandBuffer commands_ = VK_NULL_HANDLE;
  VkDescriptorPool sets_ = VK_NULL_HANDLE;
  VkFence fence_ = VK_NULL_HANDLE;
  bool is_timed_ = false;  // whether the recorded commands write timestamps
  VkQueryPool times_ = VK_NULL_HANDLE;
  std::vector<int> timed_steps_;  // the step that ends at each timestamp; -1 for the first, the start
};

/// A call of an operator: its arguments, in the order of torch's schema, and its results. Reading an argument
/// as a type that it does not have makes the graph fail.
class Call {
 public:
  Call(Graph& in, const char* name, Span<const int32_t> args) : graph(in), name_(name), args_(args) {}

  const char* name() const { return name_; }
  /// The number of arguments, results not included.
  int count() const { return static_cast<int>(args_.size()) - 1; }
  /// Whether argument `i` exists and is not None.
  bool has(int i) const;
  bool is_tensor(int i) const;
  /// Whether argument `i` is a tensor that has been computed.
  bool is_computed(int i) const;
  bool is_real(int i) const;
  bool is_text(int i, const char* text) const;
  View tensor(int i);
  /// The tensors of a list; a None item is a View without storage.
  std::vector<View> tensors(int i);
  int64_t integer(int i);
  int64_t integer(int i, int64_t absent) { return has(i) ? integer(i) : absent; }
  double real(int i);
  double real(int i, double absent) { return has(i) ? real(i) : absent; }
  bool flag(int i) { return has(i) && integer(i) != 0; }
  Numbers numbers(int i);
  std::vector<double> reals(int i);

  int results() const;
  /// The index of argument `i` among the values of the payload.
  int value_index(int i) const { return args_[static_cast<size_t>(i)]; }
  bool wants(int result) const { return result < results(); }
  /// The kind of a result, as the payload declares it.
  Kind result_kind(int result) const;
  /// Allocates a result with these sizes.
  View result(int result, const Numbers& sizes);
  View result_like(int result, const View& like);
  /// Makes the result a copy of `operand`, for an operator that then changes a part of it. Returns `operand`
  /// itself if it is a state that the payload changes in place.
  View changed(const View& operand);
  /// Allocates the single result of a shader that supports an epilogue. If exactly one operator reads the
  /// result and it is pointwise on floats, that operator becomes the epilogue, and its result is returned
  /// instead.
  View result_with_epilogue(const Numbers& sizes, EpilogueOperand operand, Epilogue* epilogue);
  /// The index of the single result among the values of the payload.
  int result_index() const { return args_[args_.size() - 1]; }
  /// The step that reads the single result, a tensor, and has not run; -1 if several steps read it or it is
  /// an output, or if that step changes a state.
  int only_reader() const;
  /// Makes a result a view of an existing storage.
  void alias(int result, const View& view);
  /// Sets an integer result.
  void set_integer(int64_t integer);

  bool ok() const { return graph.ok(); }
  void refuse(const char* why);

  Graph& graph;

 private:
  Graph::Value* value(int i) const;
  Graph::Value* result_value(int i) const;

  const char* name_;
  Span<const int32_t> args_;
};

/// Whether `call` can be the epilogue of the shader that computes `result`, which is value `index` of the
/// payload.
bool as_epilogue(Call& call, const View& result, int index, EpilogueOperand operand, Epilogue* out);
/// Whether the operator reads its second operand as kByte.
bool reads_bytes(Operator run);
/// Whether the operator is a convolution in floats, with the arguments of aten.convolution.
bool is_convolution(Operator run);
/// Sets the strides of filters (output channels, input channels, taps) to those of convolution_tiled.comp:
/// the output channels are the innermost dimension, padded to padded_filters().
void pack_filters(View* weight);
int64_t padded_filters(const View& weight);
/// Looks up an operator by name in the tables of all families; null if there is none.
Operator find_operator(Span<const char> name);

// --- Functions that several operators use

/// Checks a dimension, which may be negative, and returns it as a non-negative index.
int dim_of(Call& call, int64_t dim, int rank);
/// Returns `view` if it is contiguous, else a contiguous copy.
View contiguous(Graph& graph, const View& view);
/// Copies elements between views of equal sizes; strides and kinds may differ.
void copy(Graph& graph, const View& from, const View& to);
Numbers sizes_of(const View& view);
/// Merges adjacent dimensions that are contiguous with each other in all `views`, and drops dimensions of
/// size 1. The views have equal sizes. Returns false if more than `max_rank` dimensions remain.
bool collapse(std::initializer_list<View*> views, int max_rank);

}  // namespace vulkan
}  // namespace torchette
