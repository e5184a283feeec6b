// SPDX-License-Identifier: BSD-3-Clause
// The arguments and results of a call, and functions that several operators use.
#include <cstring>

#include "torchette/backends/vulkan/graph.h"

namespace torchette {
namespace vulkan {
namespace {

bool equal(Span<const char> text, const char* other) {
  return strlen(other) == text.size() && memcmp(text.data(), other, text.size()) == 0;
}

}  // namespace

Graph::Value* Call::value(int i) const {
  if (i < 0 || i >= count()) return nullptr;
  return &graph.values_[static_cast<size_t>(args_[static_cast<size_t>(i)])];
}

Graph::Value* Call::result_value(int i) const {
  Graph::Value* last = &graph.values_[static_cast<size_t>(args_[args_.size() - 1])];
  if (last->type != Graph::Type::kList) return i == 0 ? last : nullptr;
  return i >= 0 && static_cast<size_t>(i) < last->list.size()
             ? &graph.values_[static_cast<size_t>(last->list[static_cast<size_t>(i)])]
             : nullptr;
}

void Call::refuse(const char* why) {
  if (graph.ok()) TORCHETTE_LOG(Error, "Vulkan cannot run %.80s: %s", name_, why);
  graph.fail(Error::NotSupported);
}

bool Call::has(int i) const {
  const Graph::Value* it = value(i);
  return it != nullptr && it->type != Graph::Type::kNone;
}

bool Call::is_tensor(int i) const {
  const Graph::Value* it = value(i);
  return it != nullptr && it->type == Graph::Type::kTensor;
}

bool Call::is_computed(int i) const { return is_tensor(i) && value(i)->view.storage >= 0; }

bool Call::is_real(int i) const {
  const Graph::Value* it = value(i);
  return it != nullptr && it->type == Graph::Type::kDouble;
}

bool Call::is_text(int i, const char* text) const {
  const Graph::Value* it = value(i);
  return it != nullptr && it->type == Graph::Type::kText && equal(it->text, text);
}

View Call::tensor(int i) {
  const Graph::Value* it = value(i);
  if (it == nullptr || it->type != Graph::Type::kTensor || it->view.storage < 0) {
    refuse("an operand is not a tensor, or is not computed");
    return View();
  }
  return it->view;
}

std::vector<View> Call::tensors(int i) {
  std::vector<View> found;
  const Graph::Value* it = value(i);
  if (it == nullptr || it->type != Graph::Type::kList) {
    refuse("an operand is not a list of tensors");
    return found;
  }
  for (const int32_t id : it->list) {
    const Graph::Value& item = graph.values_[static_cast<size_t>(id)];
    if (item.type == Graph::Type::kNone) {
      found.emplace_back();  // the index of this dimension is None
      continue;
    }
    if (item.type != Graph::Type::kTensor || item.view.storage < 0) {
      refuse("a list contains an item that is not a tensor");
      return found;
    }
    found.push_back(item.view);
  }
  return found;
}

int64_t Call::integer(int i) {
  const Graph::Value* it = value(i);
  if (it != nullptr) {
    if (it->type == Graph::Type::kInt || it->type == Graph::Type::kSymInt || it->type == Graph::Type::kBool)
      return it->integer;
    if (it->type == Graph::Type::kDouble && it->real >= -0x1p31 && it->real <= 0x1p31)
      return static_cast<int64_t>(it->real);
  }
  refuse("an operand is not an integer");
  return 0;
}

double Call::real(int i) {
  const Graph::Value* it = value(i);
  if (it != nullptr && it->type == Graph::Type::kDouble) return it->real;
  return static_cast<double>(integer(i));
}

Numbers Call::numbers(int i) {
  Numbers found;
  const Graph::Value* it = value(i);
  if (it == nullptr || it->type == Graph::Type::kNone) return found;
  const bool is_list = it->type == Graph::Type::kList;
  const size_t count = is_list                           ? it->list.size()
                       : it->type == Graph::Type::kInts  ? it->ints.size()
                       : it->type == Graph::Type::kBools ? it->flags.size()
                                                         : 1;
  if (count > kMaxDims) {
    refuse("a list has more than eight items");
    return found;
  }
  found.count = static_cast<int>(count);
  for (size_t k = 0; k < count; ++k) {
    if (it->type == Graph::Type::kInts) {
      found.items[k] = it->ints[k];
    } else if (it->type == Graph::Type::kBools) {
      found.items[k] = it->flags[k];
    } else {
      const Graph::Value& item = is_list ? graph.values_[static_cast<size_t>(it->list[k])] : *it;
      if (item.type != Graph::Type::kInt && item.type != Graph::Type::kSymInt)
        refuse("a list contains an item that is not an integer");
      found.items[k] = item.integer;
    }
  }
  return found;
}

std::vector<double> Call::reals(int i) {
  const Graph::Value* it = value(i);
  std::vector<double> found;
  if (it == nullptr) return found;
  if (it->type == Graph::Type::kDoubles) found.assign(it->reals.begin(), it->reals.end());
  if (it->type == Graph::Type::kInts) found.assign(it->ints.begin(), it->ints.end());
  if (it->type == Graph::Type::kList) {
    for (const int32_t id : it->list) {
      const Graph::Value& item = graph.values_[static_cast<size_t>(id)];
      found.push_back(item.type == Graph::Type::kDouble ? item.real : static_cast<double>(item.integer));
    }
  }
  return found;
}

int Call::results() const {
  const Graph::Value& last = graph.values_[static_cast<size_t>(args_[args_.size() - 1])];
  return last.type == Graph::Type::kList ? static_cast<int>(last.list.size()) : 1;
}

Kind Call::result_kind(int i) const {
  const Graph::Value* it = result_value(i);
  return it == nullptr ? Kind::kFloat : it->kind;
}

View Call::result(int i, const Numbers& sizes) {
  View view;
  Graph::Value* it = result_value(i);
  if (it == nullptr || it->type != Graph::Type::kTensor || (it->constant >= 0 && !it->is_state)) {
    refuse("a result is not a tensor");
    return view;
  }
  view.kind = it->kind;
  view.rank = sizes.count;
  memcpy(view.sizes, sizes.items, sizeof(view.sizes));
  graph.allocate(&view);
  it->view = view;
  return view;
}

View Call::result_like(int i, const View& like) { return result(i, sizes_of(like)); }

View Call::changed(const View& operand) {
  const Graph::Value* own = result_value(0);
  if (own != nullptr && own == value(0) && own->is_state) return operand;
  const View out = result_like(0, operand);
  copy(graph, operand, out);
  return out;
}

int Call::only_reader() const {
  const Graph::Value* own = result_value(0);
  if (!graph.ok() || own != &graph.values_[static_cast<size_t>(result_index())] || own->readers != 1 ||
      own->reader <= graph.step_ || own->type != Graph::Type::kTensor)
    return -1;
  const Graph::Step& step = graph.steps_[static_cast<size_t>(own->reader)];
  const Graph::Value* target = Call(graph, step.name, step.args).result_value(0);
  return step.is_done || target == nullptr || target->is_state ? -1 : own->reader;
}

Call Graph::call_of(int step) {
  const Step& it = steps_[static_cast<size_t>(step)];
  return Call(*this, it.name, it.args);
}

View Call::result_with_epilogue(const Numbers& sizes, EpilogueOperand operand, Epilogue* epilogue) {
  const int step = only_reader();
  if (step >= 0 && is_float(result_kind(0))) {
    View view;
    view.kind = result_kind(0);
    view.rank = sizes.count;
    memcpy(view.sizes, sizes.items, sizeof(view.sizes));
    Call reader = graph.call_of(step);
    Epilogue found;
    if (as_epilogue(reader, view, result_index(), operand, &found)) {
      graph.mark_done(step);
      *epilogue = found;
      return reader.result(0, sizes);
    }
  }
  return result(0, sizes);
}

void Call::alias(int i, const View& view) {
  Graph::Value* it = result_value(i);
  if (it == nullptr || it->type != Graph::Type::kTensor || (it->constant >= 0 && !it->is_state))
    return refuse("a result is not a tensor");
  double count = 1;
  for (int d = 0; d < view.rank; ++d) count *= static_cast<double>(view.sizes[d]);
  if (count >= static_cast<double>(kMaxElements)) return refuse("a result has 2^31 elements or more");
  if (it->kind != view.kind) {  // the result has the same elements in another kind
    copy(graph, view, result_like(i, view));
    return;
  }
  it->view = view;
}

void Call::set_integer(int64_t integer) {
  Graph::Value* it = result_value(0);
  if (it == nullptr || (it->type != Graph::Type::kSymInt && it->type != Graph::Type::kInt))
    return refuse("the result is not an integer");
  it->integer = integer;
}

Numbers sizes_of(const View& view) {
  Numbers sizes;
  sizes.count = view.rank;
  memcpy(sizes.items, view.sizes, sizeof(sizes.items));
  return sizes;
}

int dim_of(Call& call, int64_t dim, int rank) {
  const int64_t limit = rank == 0 ? 1 : rank;
  if (dim < -limit || dim >= limit) {
    call.refuse("a dimension is out of range");
    return 0;
  }
  return static_cast<int>(dim < 0 ? dim + limit : dim);
}

View contiguous(Graph& graph, const View& view) {
  if (!graph.ok() || view.is_contiguous()) return view;
  const View out = graph.scratch(view);
  copy(graph, view, out);
  return out;
}

bool collapse(std::initializer_list<View*> views, int max_rank) {
  View& first = **views.begin();
  int rank = 0;
  int64_t sizes[kMaxDims];
  for (int d = 0; d < first.rank; ++d) {
    const int64_t size = first.sizes[d];
    if (size == 1) continue;
    bool joins = rank != 0;
    for (const View* view : views) joins = joins && view->strides[rank - 1] == view->strides[d] * size;
    if (joins) {
      sizes[rank - 1] *= size;
      for (View* view : views) view->strides[rank - 1] = view->strides[d];
    } else {
      sizes[rank] = size;
      for (View* view : views) view->strides[rank] = view->strides[d];
      ++rank;
    }
  }
  for (View* view : views) {
    view->rank = rank;
    memcpy(view->sizes, sizes, sizeof(int64_t) * static_cast<size_t>(rank));
  }
  return rank <= max_rank;
}

}  // namespace vulkan
}  // namespace torchette
