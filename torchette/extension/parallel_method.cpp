// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/extension/parallel_method.h"

#include <algorithm>
#include <functional>

#include "torchette/extension/source_lines.h"
#include "torchette/runtime/backend.h"
#include "torchette/runtime/kernel_registry.h"
#include "torchette/schema/program.h"

namespace torchette::extension {

namespace {

struct ByteRange {
  uintptr_t begin, end;  // addresses of bytes, or of the Value objects
};
/// Sorted by address; no two ranges overlap or are adjacent.
using ByteRanges = std::vector<ByteRange>;

ByteRanges merge(ByteRanges& all) {
  std::sort(all.begin(), all.end(), [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
  ByteRanges result;
  for (const ByteRange& each : all) {
    if (!result.empty() && each.begin <= result.back().end)
      result.back().end = std::max(result.back().end, each.end);
    else
      result.push_back(each);
  }
  return result;
}

bool overlap(const ByteRanges& a, const ByteRanges& b) {
  for (size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    if (a[i].begin < b[k].end && b[k].begin < a[i].end) return true;
    if (a[i].end < b[k].end)
      ++i;
    else
      ++k;
  }
  return false;
}

/// The memory that a chain uses.
struct MemoryUse {
  ByteRanges read, written;

  bool conflict(const MemoryUse& other) const {
    return overlap(written, other.written) || overlap(written, other.read) || overlap(read, other.written);
  }
};

}  // namespace

/// Determines the values that each instruction uses, and the dependencies between chains.
class ParallelMethod::Analysis {
 public:
  explicit Analysis(ParallelMethod& owner)
      : owner_(owner),
        method_(owner.method_),
        reader_(method_.program_->reader()),
        plan_(flat::Table::at(&reader_, method_.plan_)) {}

  /// Returns false if the chains cannot run in parallel.
  bool run() {
    constexpr size_t kMaxChains = 256;  // the time is quadratic in the number of chains
    const flat::Tables chains = plan_.tables(schema::ExecutionPlan::kChains);
    if (chains.size() < 2 || chains.size() > kMaxChains) return false;
    size_t at = 0;
    std::vector<MemoryUse> uses;
    for (size_t c = 0; c < chains.size(); ++c) {
      const flat::Tables records = chains[c].tables(schema::Chain::kInstructions);
      use_ = {};
      for (size_t i = 0; i < records.size(); ++i)
        if (at + i >= method_.instructions_.size() || !instruction(records[i], method_.instructions_[at + i]))
          return false;
      owner_.chains_.push_back({&owner_, at, at + records.size(), {}});
      at += records.size();
      uses.push_back({merge(use_.read), merge(use_.written)});
    }
    if (at != method_.instructions_.size() || !reader_.ok()) return false;
    for (size_t later = 0; later < uses.size(); ++later)
      for (size_t earlier = 0; earlier < later; ++earlier) {
        if (!uses[earlier].conflict(uses[later])) {
          owner_.parallel_ = true;
          continue;
        }
        owner_.chains_[earlier].dependents.push_back(later);
        ++owner_.chains_[later].waits_for;
      }
    std::sort(owner_.caller_values_.begin(), owner_.caller_values_.end());
    owner_.caller_values_.erase(std::unique(owner_.caller_values_.begin(), owner_.caller_values_.end()),
                                owner_.caller_values_.end());
    return true;
  }

 private:
  bool instruction(const flat::Table& record, const Method::Instruction& loaded) {
    const flat::Table call = record.table(schema::Instruction::kInstrArgs);
    if (loaded.function == nullptr) return delegate(*static_cast<const Method::Control*>(loaded.argument));
    const flat::Table op =
        plan_.tables(schema::ExecutionPlan::kOperators)[call.get<uint32_t>(schema::KernelCall::kOpIndex)];
    const Kernel* kernel =
        find_kernel(op.string(schema::Operator::kName), op.string(schema::Operator::kOverload));
    if (kernel == nullptr) return false;
    const Span<const int32_t> arguments = call.vector<int32_t>(schema::KernelCall::kArgs);
    size_t i = 0;
    for (const char* code = kernel->signature; *code != 0; ++code, ++i) {
      if (*code == '?') ++code;
      if (i >= arguments.size() || *code == 0) return false;
      if (!value(arguments[i], is_written(code))) return false;
    }
    return true;
  }

  bool delegate(const Method::Control& control) {
    if (control.kind != Method::Control::Kind::Delegate) return false;  // jumps, moves, views
    const Method::Delegate& delegate = method_.delegates_[static_cast<size_t>(control.a)];
    const size_t inputs = delegate.backend->num_inputs(delegate.handle);
    for (size_t i = 0; i < control.delegate_arguments.size(); ++i)
      if (!value(static_cast<int32_t>(control.delegate_arguments[i] - method_.values_.data()), i >= inputs))
        return false;
    add(&delegate, sizeof(delegate), true);  // only one thread at a time may use a handle
    return true;
  }

  bool value(int32_t index, bool written) {
    if (index < 0) return true;
    const Value& value = method_.value(index);
    if (value.tag() == Tag::ListTensor || value.tag() == Tag::ListOptionalTensor) {
      const BoxedList& list = *value.boxed_list();
      for (uint32_t k = 0; k < list.size; ++k)
        if (!this->value(static_cast<const int32_t*>(list.indices)[k], written)) return false;
      add(&value, sizeof(value), true);  // reading the list writes its elements to one array
    } else if (value.tag() == Tag::ListInt) {
      const BoxedList& list = *value.boxed_list();
      for (uint32_t k = 0; k < list.size; ++k)
        add(list.values + static_cast<const int64_t*>(list.indices)[k], sizeof(Value), false);
      add(&value, sizeof(value), true);
    } else {
      add(&value, sizeof(value), written);
    }
    if (!value.is_tensor()) return true;
    const TensorImpl& impl = *value.to_tensor().unsafe_impl();
    if (impl.dynamism == TensorShapeDynamism::OWNED) return false;  // its memory is allocated during the run
    if ((method_.flags(index) & Method::kCallerMemory) != 0) {
      owner_.caller_values_.emplace_back(index, written);
    } else if (impl.data != nullptr) {
      add(impl.data, impl.capacity * element_size(impl.type), written);
    }
    return true;
  }

  void add(const void* begin, size_t size, bool written) {
    const auto at = reinterpret_cast<uintptr_t>(begin);
    if (size != 0) (written ? use_.written : use_.read).push_back({at, at + size});
  }

  ParallelMethod& owner_;
  Method& method_;
  flat::Reader reader_;
  flat::Table plan_;
  MemoryUse use_;  // of one chain
};

ParallelMethod::ParallelMethod(Method& method, std::vector<MemoryAllocator*> temp)
    : method_(method), temp_(std::move(temp)) {
  Analysis analysis(*this);
  if (!analysis.run()) {
    chains_.clear();
    parallel_ = false;
  }
}

ParallelMethod::~ParallelMethod() { (void)wait(); }

bool ParallelMethod::waits_for(size_t later, size_t earlier) const {
  const std::vector<size_t>& dependents = chains_[earlier].dependents;
  return std::find(dependents.begin(), dependents.end(), later) != dependents.end();
}

/// Returns whether no written tensor in the caller's memory overlaps another tensor in the caller's memory.
bool ParallelMethod::caller_memory_is_disjoint() const {
  for (const auto& [index, written] : caller_values_) {
    const Tensor a = method_.value(index).to_tensor();
    const auto* begin = static_cast<const uint8_t*>(a.const_data_ptr());
    for (const auto& [other, other_written] : caller_values_) {
      if (other == index || !(written || other_written)) continue;
      const Tensor b = method_.value(other).to_tensor();
      const auto* at = static_cast<const uint8_t*>(b.const_data_ptr());
      if (std::less<const uint8_t*>()(begin,
                                      at + b.unsafe_impl()->capacity * element_size(b.scalar_type())) &&
          std::less<const uint8_t*>()(at, begin + a.unsafe_impl()->capacity * element_size(a.scalar_type())))
        return false;
    }
  }
  return true;
}

Error ParallelMethod::execute_async(Executor& executor, Callback callback, void* context) {
  return begin(executor, callback, context, false);
}

/// Starts an execution. If `run_on_caller`, the calling thread runs chains until none is ready.
Error ParallelMethod::begin(Executor& executor, Callback callback, void* context, bool run_on_caller) {
  std::unique_lock<std::mutex> lock(mutex_);
  TORCHETTE_CHECK(!is_active_, InvalidState, "the method is already executing");
  TORCHETTE_TRY(method_.start());
  executor_ = &executor;
  callback_ = callback;
  callback_context_ = context;
  error_ = Error::Ok;
  is_active_ = true;
  // A tracer supports only one instruction at a time.
  if (!parallel_ || temp_.empty() || method_.get_event_tracer() != nullptr || !caller_memory_is_disjoint()) {
    num_running_ = num_remaining_ = 1;
    lock.unlock();
    if (run_on_caller)
      run_method(this);
    else
      executor.submit(&run_method, this);
    return Error::Ok;
  }
  num_remaining_ = chains_.size();
  ready_.clear();
  for (size_t i = chains_.size(); i-- > 0;) {
    chains_[i].num_pending = chains_[i].waits_for;
    if (chains_[i].num_pending == 0) ready_.push_back(i);
  }
  if (Chain* const caller_chain = proceed(lock, run_on_caller); caller_chain != nullptr)
    run_chain(caller_chain);
  return Error::Ok;
}

/// Submits the chains that are ready, except one for the calling thread if `keep_chain`, which it returns.
/// Ends the execution if no chain remains. The mutex is not locked during submit(), because an executor may
/// run the task at once on the calling thread. Releases `lock`.
ParallelMethod::Chain* ParallelMethod::proceed(std::unique_lock<std::mutex>& lock, bool keep_chain) {
  Chain* caller_chain = nullptr;
  ++num_proceeding_;
  while (error_ == Error::Ok && !ready_.empty() && !temp_.empty()) {
    Chain& chain = chains_[ready_.back()];
    ready_.pop_back();
    chain.temp = temp_.back();
    temp_.pop_back();
    chain.context = BackendExecutionContext(chain.temp, method_, &method_);
    chain.next = chain.begin;
    chain.error = Error::Ok;
    ++num_running_;
    if (keep_chain && caller_chain == nullptr) {
      caller_chain = &chain;
      continue;
    }
    Executor& executor = *executor_;
    lock.unlock();
    executor.submit(&run_chain, &chain);
    lock.lock();
  }
  // A waiting thread may destroy the object once the execution ends, so only the last thread that uses the
  // object ends the execution.
  const bool is_last =
      --num_proceeding_ == 0 && num_running_ == 0 && (num_remaining_ == 0 || error_ != Error::Ok);
  const Callback callback = is_last ? callback_ : nullptr;
  void* const context = callback_context_;
  const Error error = error_;
  if (is_last) {
    (void)method_.reset_execution();
    is_active_ = false;
    ended_.notify_all();
  }
  lock.unlock();
  if (callback != nullptr) callback(context, error);
  return caller_chain;
}

/// Runs a chain and then one that it makes ready, because waking another thread would take longer.
void ParallelMethod::run_chain(void* argument) {
  for (auto* chain = static_cast<Chain*>(argument); chain != nullptr;) {
    ParallelMethod& self = *chain->owner;
    Error error = chain->error;
    if (error == Error::Ok && !self.run(*chain, &error)) return;
    std::unique_lock<std::mutex> lock(self.mutex_);
    self.temp_.push_back(chain->temp);
    if (error == Error::Ok)
      for (size_t dependent : chain->dependents)
        if (--self.chains_[dependent].num_pending == 0) self.ready_.push_back(dependent);
    chain = self.ended(lock, error);
  }
}

/// Continues a chain after its asynchronous delegate call.
void ParallelMethod::continue_chain(void* argument, Error error) {
  auto& chain = *static_cast<Chain*>(argument);
  chain.context.reset_temp();
  chain.error = error;
  chain.owner->executor_->submit(&run_chain, &chain);
}

void ParallelMethod::run_method(void* argument) {
  ParallelMethod& self = *static_cast<ParallelMethod*>(argument);
  const Error error = self.method_.execute();
  std::unique_lock<std::mutex> lock(self.mutex_);
  (void)self.ended(lock, error);
}

/// Ends a task. Returns a chain for the calling thread, or null.
ParallelMethod::Chain* ParallelMethod::ended(std::unique_lock<std::mutex>& lock, Error error) {
  --num_running_;
  if (error == Error::Ok)
    --num_remaining_;
  else if (error_ == Error::Ok)
    error_ = error;
  return proceed(lock, true);
}

/// Runs the instructions of a chain. Returns false if the chain waits for a delegate; another thread then
/// continues it.
bool ParallelMethod::run(Chain& chain, Error* error) {
  while (chain.next < chain.end) {
    if (method_.end_.load(std::memory_order_relaxed) == 0) {
      TORCHETTE_LOG(Error, "the execution was cancelled");
      *error = Error::OutOfResources;
      return true;
    }
    const size_t i = chain.next++;
    const Method::Instruction& instruction = method_.instructions_[i];
    if (instruction.function != nullptr) {
      *error = instruction.function(
          chain.context, {method_.values_.data(), static_cast<const int32_t*>(instruction.argument)});
    } else {
      const auto& control = *static_cast<const Method::Control*>(instruction.argument);
      const Method::Delegate& delegate = method_.delegates_[static_cast<size_t>(control.a)];
      const Error started = delegate.backend->execute_async(
          chain.context, delegate.handle, control.delegate_arguments, &continue_chain, &chain);
      if (started == Error::Ok) return false;
      *error = started != Error::NotSupported
                   ? started
                   : delegate.backend->execute(chain.context, delegate.handle, control.delegate_arguments);
    }
    chain.context.reset_temp();
    if (*error != Error::Ok) {
      TORCHETTE_LOG(Error, "instruction %zu failed with error 0x%x", i, static_cast<unsigned>(*error));
      SourceLines::log(method_, i);
      return true;
    }
  }
  return true;
}

bool ParallelMethod::done() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !is_active_;
}

Error ParallelMethod::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  ended_.wait(lock, [this] { return !is_active_; });
  return error_;
}

Error ParallelMethod::execute(Executor* executor) {
  if (executor == nullptr) return method_.execute();
  TORCHETTE_TRY(begin(*executor, nullptr, nullptr, true));
  return wait();
}

}  // namespace torchette::extension
