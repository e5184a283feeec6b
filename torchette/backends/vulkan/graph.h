// SPDX-License-Identifier: BSD-3-Clause
// A payload as dispatches. Every operator is a function that runs whenever sizes are new: it works out the
// sizes of its results and dispatches shaders. It runs twice, first to see which memory is needed how long,
// then to record.
#pragma once

#include <initializer_list>
#include <vector>

#include "torchette/backends/vulkan/device.h"
#include "torchette/backends/vulkan/payload.h"

namespace torchette {
namespace vulkan {

constexpr int kMostDims = kMaxVulkanDims;

/// What the elements of a tensor are on the device: four bytes each, two of a half, or one of weights that
/// are whole numbers. Shaders know the numbers.
enum class Kind : uint32_t { kFloat = 0, kInt = 1, kBool = 2, kHalf = 3, kByte = 4 };
inline uint32_t bytes_of(Kind kind) { return kind == Kind::kHalf ? 2 : kind == Kind::kByte ? 1 : 4; }
inline bool is_float(Kind kind) { return kind == Kind::kFloat || kind == Kind::kHalf; }

/// Elements of a storage: which of them, in units of elements.
struct View {
  int storage = -1;
  Kind kind = Kind::kFloat;
  int rank = 0;
  int64_t sizes[kMostDims]{};
  int64_t strides[kMostDims]{};
  int64_t offset = 0;

  int64_t numel() const;
  bool is_contiguous() const;
  void make_contiguous_strides();
  /// The size of a dimension that may count from the end; 1 where there is none.
  int64_t size(int dim) const;
};

struct Numbers {
  int count = 0;
  int64_t items[kMostDims]{};
  int64_t operator[](int i) const { return items[i]; }
};

class Call;
using Operator = void (*)(Call&);
struct NamedOperator {
  const char* name;
  Operator run;
};

/// What a shader's epilogue may read besides its results: nothing, a tensor that lies as they do, or one of
/// any strides.
enum class Beside { kNothing, kAlike, kStrided };

/// A pointwise operator on a shader's results, which then needs no dispatch of its own.
struct Epilogue {
  uint32_t operation = 0;  // a row of pointwise.def, from 1
  uint32_t p = 0, q = 0;   // its numbers, as floats
  bool swapped = false;    // the result is its second operand
  bool has_other = false;
  View other;  // its other operand, broadcast to the sizes of the result
};

/// What a shader is told besides its buffers; 32 words.
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

  /// Reads the payload, whose bytes must outlive this, brings its constants to the device, and records the
  /// calls for the greatest sizes. Errors: DelegateInvalidCompatibility, NotSupported (an operator or a type
  /// that this build does not have), those of memory, of the device and of the named data.
  Error open(const void* bytes, size_t size, const NamedDataMap* named);
  /// A tracer is told the time of every shader, under the number of the call that it came from.
  Error execute(Span<torchette::Value*> arguments, EventTracer* tracer);
  /// Gives the state the values that it had after open().
  Error reset();
  size_t inputs() const { return payload_.inputs().size(); }

  // --- for operators
  // ------------------------------------------------------------------------------------------------
  /// The first error wins, and nothing is dispatched after it.
  void fail(Error error) {
    if (error_ == Error::Ok) error_ = error;
  }
  bool ok() const { return error_ == Error::Ok; }
  /// Memory for a new tensor without gaps, whose sizes and kind are those of `like`.
  View scratch(const View& like);
  /// `writes` says which buffers the shader writes: a bit each. Groups may be any number: `groups` are spread
  /// over x and y, of which shaders make one number again.
  void dispatch(const Shader& shader, std::initializer_list<uint32_t> constants, const Push& push,
                std::initializer_list<const View*> views, uint32_t writes, int64_t groups,
                int64_t layers = 1);
  bool has_half() const { return device_.has_half(); }

 private:
  friend class Call;

  enum class Place { kArena, kInput, kOutput, kConstant };
  struct Storage {
    uint64_t bytes = 0;
    Place place = Place::kArena;
    int owner = -1;             // which output it is, or of which constant's buffers it is a part
    int32_t value = -1;         // of a constant
    int first = -1, last = -1;  // dispatches that use it
    bool is_state = false;      // a constant that changes
    uint64_t offset = 0;        // in its buffer
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
    Kind kind = Kind::kFloat;  // of a tensor
    int64_t integer = 0;
    double real = 0;
    int32_t constant = -1;
    Span<const uint32_t> dims;
    Span<const int64_t> ints;
    Span<const double> reals;
    Span<const uint8_t> flags;
    Span<const int32_t> list;  // values
    Span<const char> text;
    int readers = 0;  // steps that read it, and outputs
    int reader = -1;  // one of them
    View view;        // of a tensor, once it is there
    bool is_state = false;
    View state;                  // where it stays from call to call
    std::vector<uint8_t> first;  // its bytes after open(), empty where all are zero
  };
  struct Step {
    Operator run = nullptr;
    const char* name = "";
    Span<const int32_t> args;
    uint32_t handle = 0;   // what the payload calls it
    bool is_done = false;  // by an epilogue of a step before
  };
  struct Range {
    const Buffer* buffer;
    uint64_t begin, end;
    bool written;
  };

  Error read_values();
  Error read_calls();
  void count_reader(int32_t value, int step, int depth = 0);
  Error upload_constants();
  Error upload(size_t buffer, bool again);
  Error first_bytes(Value* value, uint8_t* to, bool again);
  Error set_input(size_t i, const torchette::Value& argument, bool* changed);
  Error set_output(size_t i, const torchette::Value& argument, bool* changed);
  Error build();
  Error trace(bool record);
  Error place();
  Error begin_commands();
  void mark_time(int step);
  Error tell(EventTracer* tracer, torchette_timestamp_t start, torchette_timestamp_t end) const;
  Error reserve(Buffer* buffer, uint64_t size, Memory kind);
  int add_storage(uint64_t bytes, Place place);
  bool make(View* view);
  void finish_outputs();
  void keep_state(int32_t result);
  void wait_for_shaders();
  void bar(std::initializer_list<const View*> views, uint32_t writes);

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
    DimOrderType dims[kMostDims] = {0, 1, 2, 3, 4, 5, 6, 7};
  };
  std::vector<View> inputs_, outputs_;
  std::vector<Order> orders_;  // in which the outputs' dimensions lie
  Buffer arena_, io_;
  bool recording_ = false, is_recorded_ = false, has_state_ = false;
  int dispatches_ = 0, bindings_ = 0, step_ = 0;
  Counts counts_;
  Error error_ = Error::Ok;
  VkCommandPool command_pool_ = VK_NULL_HANDLE;
  VkCommandBuffer commands_ = VK_NULL_HANDLE;
  VkDescriptorPool sets_ = VK_NULL_HANDLE;
  VkFence fence_ = VK_NULL_HANDLE;
  bool is_timed_ = false;  // as it is recorded
  VkQueryPool times_ = VK_NULL_HANDLE;
  std::vector<int> marks_;  // the steps of the times; the first one is the start
};

/// A call of an operator: its arguments, in the order of torch's schema, and where its results go. An
/// argument of another kind than is asked for makes the graph fail.
class Call {
 public:
  Call(Graph& in, const char* name, Span<const int32_t> args) : graph(in), name_(name), args_(args) {}

  const char* name() const { return name_; }
  /// Arguments without the results.
  int count() const { return static_cast<int>(args_.size()) - 1; }
  /// Whether it is there and not None.
  bool has(int i) const;
  bool is_tensor(int i) const;
  /// Whether it is a tensor that is computed already.
  bool is_there(int i) const;
  bool is_real(int i) const;
  bool is_text(int i, const char* text) const;
  View tensor(int i);
  /// The tensors of a list.
  std::vector<View> tensors(int i);
  int64_t integer(int i);
  int64_t integer(int i, int64_t absent) { return has(i) ? integer(i) : absent; }
  double real(int i);
  double real(int i, double absent) { return has(i) ? real(i) : absent; }
  bool flag(int i) { return has(i) && integer(i) != 0; }
  Numbers numbers(int i);
  std::vector<double> reals(int i);

  int results() const;
  /// The number of an argument among the payload's values.
  int number(int i) const { return args_[static_cast<size_t>(i)]; }
  bool wants(int result) const { return result < results(); }
  /// What the payload says that a result holds.
  Kind result_kind(int result) const;
  /// A new tensor of these sizes as a result.
  View result(int result, const Numbers& sizes);
  View result_like(int result, const View& like);
  /// The result as the first operand with something changed: the operand's copy, or itself where it is a
  /// state that the payload changes in place.
  View changed(const View& operand);
  /// The same for the only result of a shader that takes an epilogue: where one operator alone reads the
  /// result, and is pointwise in floats, it becomes the epilogue, and what is returned is its result.
  View result_with_epilogue(const Numbers& sizes, Beside beside, Epilogue* epilogue);
  /// Lets a result be a view of what is there already.
  void alias(int result, const View& view);
  /// Lets the result be a number.
  void give(int64_t number);

  bool ok() const { return graph.ok(); }
  void refuse(const char* why);

  Graph& graph;

 private:
  Graph::Value* value(int i) const;
  Graph::Value* result_value(int i) const;

  const char* name_;
  Span<const int32_t> args_;
};

/// Whether `call` can be the epilogue of what gives `result`, of that number among the payload's values.
bool as_epilogue(Call& call, const View& result, int number, Beside beside, Epilogue* out);
/// Whether the operator takes its second operand as bytes.
bool reads_bytes(Operator run);
/// The tables of all families.
Operator find_operator(Span<const char> name);

// --- shared by operators
// ------------------------------------------------------------------------------------------
/// A dimension that may count from the end, checked.
int dim_of(Call& call, int64_t dim, int rank);
/// The same elements without gaps, copied where there are some.
View contiguous(Graph& graph, const View& view);
/// Copies elements, with strides on both sides and conversion between kinds; equal sizes.
void copy(Graph& graph, const View& from, const View& to);
Numbers sizes_of(const View& view);
/// Merges neighbouring dimensions that lie alike in all `views`, drops those of one element; false if more
/// than `most` are left. All have the sizes of the first.
bool collapse(std::initializer_list<View*> views, int most);

}  // namespace vulkan
}  // namespace torchette
