// SPDX-License-Identifier: BSD-3-Clause
// cpu::chain: torchette/backends/engine/operators/chain.py. The program runs over one block of elements at a
// time, so that its intermediate results stay in the L1 cache.
#include <cmath>

#include "torchette/kernels/engine/chain_program.h"
#include "torchette/kernels/engine/operands.h"
#include "torchette/kernels/engine/panels.h"

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

// Floats of all blocks of a worker, and the maximum per block. 24 KB leave room in the L1 cache for the
// inputs.
constexpr size_t kBlocks = 6144;
constexpr size_t kMaxBlock = 1024;

enum class Fold : uint8_t {
  none,
#define TORCHETTE_CHAIN_FOLD(name, ...) name,
#include "torchette/schema/engine.def"
};

Error fold_of(Span<const char> name, Fold& fold) {
  static constexpr const char* kNames[] = {
      "none",
#define TORCHETTE_CHAIN_FOLD(name, ...) #name,
#include "torchette/schema/engine.def"
  };
  for (size_t i = 0; i < sizeof(kNames) / sizeof(kNames[0]); ++i)
    if (is_word(name, kNames[i])) {
      fold = static_cast<Fold>(i);
      return Error::Ok;
    }
  TORCHETTE_CHECK(false, InvalidArgument, "chain: unknown fold %.*s", static_cast<int>(name.size()),
                  name.data());
}

/// The loop nest over the result's elements. Dimensions with compatible strides in all inputs are merged.
struct Shape {
  size_t dim = 0;
  size_t size[kMaxDim];
};

/// An input and its strides in the loop nest, 0 for broadcast dimensions.
struct Input {
  const void* data;
  bool is_bool;
  bool is_dense;  // same elements as the result, in the same order
  ptrdiff_t stride[kMaxDim];
};

struct Chain {
  const Program* program;
  const float* scalars;  // one vector per scalar operand
  const Input* inputs;   // followed by the conditions
  Shape shape;
  size_t block;    // maximum number of elements of a block
  size_t buffers;  // blocks per worker: one per input and one per slot of the program
};

/// Copies `n` floats, or one float `n` times, in pieces of four that overlap at the end. Rows often have only
/// a few elements, for which a call of memcpy costs more than the copy.
template <bool kOne>
TORCHETTE_INLINE void copy_row(float* to, const float* from, size_t n) {
  struct Four {
    float of[4];
  };
  Four piece = {{*from, *from, *from, *from}};
  if (n < 4) {
    for (size_t i = 0; i < n; ++i) to[i] = from[kOne ? 0 : i];
    return;
  }
  for (size_t i = 0;; i = i + 4 < n - 4 ? i + 4 : n - 4) {
    if (!kOne) memcpy(&piece, from + i, sizeof(piece));
    memcpy(to + i, &piece, sizeof(piece));
    if (i + 4 == n) return;
  }
}

/// Returns the elements [start, start + count) of an input: in place if they are contiguous floats, otherwise
/// copied to `buffer` and zero-padded to a full vector.
Source read(const Input& input, const Shape& shape, size_t start, size_t count, float* buffer) {
  const bool is_full = count % kLanes == 0;
  if (input.is_dense && !input.is_bool && is_full) return {static_cast<const float*>(input.data) + start, 1};
  size_t at[kMaxDim] = {}, remaining = start;
  ptrdiff_t offset = 0;
  for (size_t d = shape.dim; d-- > 0;) {
    at[d] = remaining % shape.size[d];
    remaining /= shape.size[d];
    offset += static_cast<ptrdiff_t>(at[d]) * input.stride[d];
  }
  const size_t last = shape.dim - 1;
  const ptrdiff_t step = input.stride[last];  // 0 or 1: inputs are contiguous
  const auto value = [&](ptrdiff_t i) TORCHETTE_INLINED {
    if (input.is_bool) return static_cast<const uint8_t*>(input.data)[i] != 0 ? 1.0f : 0.0f;
    return static_cast<const float*>(input.data)[i];
  };
  if (shape.size[last] - at[last] >= count) {
    if (step == 1 && !input.is_bool && is_full) return {static_cast<const float*>(input.data) + offset, 1};
    if (step == 0) {
      store(buffer, broadcast(value(offset)));
      return {buffer, 0};
    }
  }
  const size_t length = shape.size[last], rows_of_plane = last > 0 ? shape.size[last - 1] : 1;
  const ptrdiff_t row_step = last > 0 ? input.stride[last - 1] : 0;
  size_t row = last > 0 ? at[last - 1] : 0;
  for (size_t done = 0; done < count;) {
    // Copies part of a row, or all full rows up to the end of the plane.
    const size_t left = length - at[last], remaining_count = count - done;
    const size_t here = left < remaining_count ? left : remaining_count;
    size_t rows = here == length ? remaining_count / length : 1;
    if (rows > rows_of_plane - row) rows = rows_of_plane - row;
    float* to = buffer + done;
    if (input.is_bool) {
      const auto* from = static_cast<const uint8_t*>(input.data) + offset;
      for (size_t r = 0; r < rows; ++r, to += here, from += row_step)
        for (size_t i = 0; i < here; ++i) to[i] = from[static_cast<ptrdiff_t>(i) * step] != 0 ? 1.0f : 0.0f;
    } else {
      const auto* from = static_cast<const float*>(input.data) + offset;
      if (step == 0)
        for (size_t r = 0; r < rows; ++r, to += here, from += row_step) copy_row<true>(to, from, here);
      else
        for (size_t r = 0; r < rows; ++r, to += here, from += row_step) copy_row<false>(to, from, here);
    }
    done += rows * here;
    offset += static_cast<ptrdiff_t>(rows) * row_step - static_cast<ptrdiff_t>(at[last]) * step;
    at[last] = 0;
    row += rows;
    if (row < rows_of_plane) continue;
    offset -= static_cast<ptrdiff_t>(row) * row_step;
    row = 0;
    for (size_t d = last; d-- > 1;) {
      offset += input.stride[d - 1];
      if (++at[d - 1] < shape.size[d - 1]) break;
      offset -= static_cast<ptrdiff_t>(at[d - 1]) * input.stride[d - 1];
      at[d - 1] = 0;
    }
  }
  for (size_t i = count; i % kLanes != 0; ++i) buffer[i] = 0.0f;
  return {buffer, 1};
}

/// Runs the program on the elements [start, start + count). Writes the results to `out`, or to a buffer if
/// `out` is null, and returns the pointer to them.
const float* run_block(const Chain& chain, float* buffers, size_t start, size_t count, float* out) {
  const Program& program = *chain.program;
  const size_t inputs = program.inputs + program.conditions;
  const size_t rounded = (count + kLanes - 1) / kLanes * kLanes;
  Source sources[kMaxChainInputs + kMaxChainNumbers + kMaxChainInstructions];
  for (size_t i = 0; i < inputs; ++i)
    sources[i] = read(chain.inputs[i], chain.shape, start, count, buffers + i * chain.block);
  for (size_t i = 0; i < program.scalars; ++i) sources[inputs + i] = {chain.scalars + i * kLanes, 0};
  float* to = nullptr;
  for (size_t i = 0; i < program.length; ++i) {
    const Instruction& instruction = program.instructions[i];
    to = buffers + (inputs + instruction.slot) * chain.block;
    if (i + 1 == program.length && out != nullptr && rounded == count) to = out;
    const Source operands[] = {sources[instruction.operands[0]], sources[instruction.operands[1]],
                               sources[instruction.operands[2]]};
    instruction.operation->loop(operands, to, rounded);
    sources[inputs + program.scalars + i] = {to, 1};
  }
  if (out != nullptr && to != out) memcpy(out, to, count * sizeof(float));
  return to;
}

/// Folds the elements of a block into the accumulated value of the previous blocks.
template <typename Op>
float fold_run(const float* x, size_t n, float so_far, Op op, float identity) {
  Vec sum[4] = {broadcast(identity), broadcast(identity), broadcast(identity), broadcast(identity)};
  size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) TORCHETTE_UNROLL(4)
  for (int j = 0; j < 4; ++j) sum[j] = op(sum[j], load(x + i + static_cast<size_t>(j) * kLanes));
  for (; i + kLanes <= n; i += kLanes) sum[0] = op(sum[0], load(x + i));
  float lanes[kLanes];
  store(lanes, op(op(sum[0], sum[1]), op(sum[2], sum[3])));
  for (int j = 0; j < kLanes; ++j) so_far = op(so_far, lanes[j]);
  for (; i < n; ++i) so_far = op(so_far, x[i]);
  return so_far;
}

constexpr float identity_of(Fold fold) { return fold == Fold::max ? -INFINITY : 0.0f; }

float fold_run(Fold fold, const float* x, size_t n, float so_far) {
  const float identity = identity_of(fold);
  if (fold == Fold::max)
    return fold_run(
        x, n, so_far,
        [](auto a, auto b) TORCHETTE_INLINED { return TORCHETTE_SELECT((a > b) | (a != a), a, b); },
        identity);
  return fold_run(x, n, so_far, [](auto a, auto b) TORCHETTE_INLINED { return a + b; }, identity);
}

/// Folds the rows [first, last) of `length` elements. Short rows share a block.
void fold_rows(const Chain& chain, Fold fold, size_t length, size_t first, size_t last, float* buffers,
               float* out) {
  const size_t rows = length <= chain.block ? chain.block / length : 1;
  for (size_t row = first; row < last;) {
    const size_t here = last - row < rows ? last - row : rows;
    const size_t elements = here * length;
    float so_far = identity_of(fold);
    for (size_t done = 0; done < elements;) {
      const size_t count = elements - done < chain.block ? elements - done : chain.block;
      const float* const x = run_block(chain, buffers, row * length + done, count, nullptr);
      for (size_t r = 0; r < here; ++r) {
        so_far = fold_run(fold, x + r * length, rows == 1 ? count : length, so_far);
        if (rows != 1 || done + count == elements) {
          out[row + r] = fold == Fold::mean ? so_far / static_cast<float>(length) : so_far;
          so_far = identity_of(fold);
        }
      }
      done += count;
    }
    row += here;
  }
}

/// Computes the sizes to which all inputs broadcast.
Error broadcast_sizes(Span<const Tensor> inputs, SizesType* sizes, size_t& rank) {
  for (const Tensor& t : inputs) {
    const auto dim = static_cast<size_t>(t.dim());
    TORCHETTE_CHECK(dim <= kMaxDim, InvalidArgument,
                    "chain: one of inputs has %d dimensions, the maximum is 16", static_cast<int>(dim));
    for (; rank < dim; ++rank) {
      for (size_t d = rank; d > 0; --d) sizes[d] = sizes[d - 1];
      sizes[0] = 1;
    }
    for (size_t d = 0; d < dim; ++d) {
      SizesType& size = sizes[rank - dim + d];
      const auto own = static_cast<SizesType>(t.size(static_cast<ptrdiff_t>(d)));
      TORCHETTE_CHECK(own == size || own == 1 || size == 1, InvalidArgument,
                      "chain: inputs do not broadcast: dimension %d has sizes %d and %d", static_cast<int>(d),
                      static_cast<int>(own), static_cast<int>(size));
      if (own != 1) size = own;
    }
  }
  return Error::Ok;
}

/// Computes the strides of an input in the result's dimensions; 0 if the input is broadcast.
Input input_of(const Tensor& t, const SizesType* sizes, size_t rank) {
  Input input = {t.const_data_ptr(), t.scalar_type() == ScalarType::Bool, true, {}};
  const auto dim = static_cast<size_t>(t.dim());
  ptrdiff_t step = 1;
  for (size_t d = rank; d-- > 0;) {
    const ptrdiff_t own = d + dim >= rank ? t.size(static_cast<ptrdiff_t>(d + dim - rank)) : 1;
    input.stride[d] = own == 1 ? 0 : step;
    step *= own;
    if (own != sizes[d]) input.is_dense = false;
  }
  return input;
}

/// Removes dimensions of size 1 and merges adjacent dimensions that every input traverses with a single
/// stride.
Shape merge(Input* inputs, size_t count, const SizesType* sizes, size_t rank) {
  Shape shape;
  for (size_t d = 0; d < rank; ++d) {
    const auto size = static_cast<size_t>(sizes[d]);
    if (size == 1) continue;
    bool joins = shape.dim > 0;
    for (size_t i = 0; joins && i < count; ++i)
      joins = inputs[i].stride[shape.dim - 1] == inputs[i].stride[d] * static_cast<ptrdiff_t>(size);
    const size_t at = joins ? shape.dim - 1 : shape.dim++;
    shape.size[at] = joins ? shape.size[at] * size : size;
    for (size_t i = 0; i < count; ++i) inputs[i].stride[at] = inputs[i].stride[d];
  }
  if (shape.dim == 0) {
    shape.size[shape.dim++] = 1;
    for (size_t i = 0; i < count; ++i) inputs[i].stride[0] = 0;
  }
  return shape;
}

Error check_inputs(Span<const Tensor> inputs, ScalarType type) {
  for (const Tensor& t : inputs) {
    TORCHETTE_CHECK(t.scalar_type() == type, InvalidType,
                    "chain: one of inputs or conditions is of type %d, expected %d",
                    static_cast<int>(t.scalar_type()), static_cast<int>(type));
    TORCHETTE_CHECK(is_contiguous(t), InvalidArgument,
                    "chain: one of inputs or conditions is not contiguous");
  }
  return Error::Ok;
}

}  // namespace

static Error chain_out(Context& context, Span<const Tensor> inputs, Span<const Tensor> conditions,
                       Span<const double> scalars, Span<const char> text, Span<const char> fold_name,
                       bool keepdim, Tensor& out) {
  TORCHETTE_TRY(check_inputs(inputs, ScalarType::Float));
  TORCHETTE_TRY(check_inputs(conditions, ScalarType::Bool));
  Program program;
  TORCHETTE_TRY(program.parse(text, inputs.size(), conditions.size(), scalars.size()));
  Fold fold;
  TORCHETTE_TRY(fold_of(fold_name, fold));
  SizesType sizes[kMaxDim];
  size_t rank = 0;
  TORCHETTE_TRY(broadcast_sizes(inputs, sizes, rank));
  TORCHETTE_TRY(broadcast_sizes(conditions, sizes, rank));
  Input given[kMaxChainInputs];
  size_t count = 0;
  for (const Tensor& t : inputs) given[count++] = input_of(t, sizes, rank);
  for (const Tensor& t : conditions) given[count++] = input_of(t, sizes, rank);
  size_t total = 1;
  for (size_t d = 0; d < rank; ++d) total *= static_cast<size_t>(sizes[d]);
  size_t length = 1;
  const Shape shape = total == 0 ? Shape{} : merge(given, count, sizes, rank);
  if (fold != Fold::none) {
    TORCHETTE_CHECK(rank > 0, InvalidArgument, "chain: fold requires inputs with at least one dimension");
    length = static_cast<size_t>(sizes[rank - 1]);
    TORCHETTE_CHECK(length > 0 || fold != Fold::max, InvalidArgument,
                    "chain: fold max requires a last dimension with at least one element");
    sizes[rank - 1] = 1;
    if (!keepdim) --rank;
  }
  TORCHETTE_TRY(check_result("chain", out, {sizes, rank}));
  if (total == 0) {  // empty reductions
    float* const to = out.mutable_data_ptr<float>();
    for (int64_t i = 0; i < out.numel(); ++i) to[i] = fold == Fold::mean ? NAN : 0.0f;
    return Error::Ok;
  }

  float vectors[kMaxChainNumbers * kLanes];
  for (size_t i = 0; i < scalars.size(); ++i)
    store(vectors + i * kLanes, broadcast(static_cast<float>(scalars[i])));
  const size_t buffers = count + program.slots;
  size_t block = kBlocks / buffers / kPanelWidth * kPanelWidth;
  if (block > kMaxBlock) block = kMaxBlock;
  const size_t each = buffers * block;
  float* const scratch = static_cast<float*>(context.allocate_temp(context.workers() * each * sizeof(float)));
  TORCHETTE_CHECK(scratch != nullptr, MemoryAllocationFailed,
                  "chain: no scratch memory for %d blocks of %d floats", static_cast<int>(buffers),
                  static_cast<int>(block));
  const Chain chain = {&program, vectors, given, shape, block, buffers};
  float* const y = out.mutable_data_ptr<float>();
  const size_t work = program.length * 8;  // approximate multiply-adds per element
  if (fold != Fold::none) {
    context.parallel_for(total / length, min_items(work * length),
                         [&](size_t begin, size_t end, size_t worker) {
                           fold_rows(chain, fold, length, begin, end, scratch + worker * each, y);
                         });
    return Error::Ok;
  }
  context.parallel_for(
      (total + block - 1) / block, min_items(work * block), [&](size_t begin, size_t end, size_t worker) {
        for (size_t b = begin; b < end; ++b) {
          const size_t start = b * block, left = total - start < block ? total - start : block;
          run_block(chain, scratch + worker * each, start, left, y + start);
        }
      });
  return Error::Ok;
}

TORCHETTE_KERNELS(chain, TORCHETTE_KERNEL("cpu::chain.out", chain_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
