// SPDX-License-Identifier: BSD-3-Clause
// Binds a method of extension::Module. Executes it without the GIL; Ctrl-C cancels it.
#include "torchette/runtime/method.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <pthread.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "torchette/extension/event_recorder.h"
#include "torchette/extension/kernel_threads.h"
#include "torchette/extension/module.h"
#include "torchette/pybindings/arguments.h"
#include "torchette/pybindings/bindings.h"
#include "torchette/pybindings/faults.h"
#include "torchette/pybindings/log.h"
#include "torchette/pybindings/memory.h"
#include "torchette/pybindings/outcomes.h"
#include "torchette/pybindings/program.h"
#include "torchette/pybindings/signature.h"
#include "torchette/pybindings/values.h"
#include "torchette/runtime/threads.h"

namespace torchette::pybindings {
namespace {

/// While an object exists on Python's main thread, SIGINT first cancels the method and then calls Python's
/// handler. Otherwise an endless loop of a model could not be interrupted. Ignored signals and other handlers
/// keep their effect.
class SigintScope {
 public:
  explicit SigintScope(Method& method) {
    static thread_local const bool is_main = PyThread_get_thread_ident() == main_thread;
    if (!is_main) return;
    is_interrupted_ = false;
    running_ = &method;
    struct sigaction action{};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    installed_ = sigaction(SIGINT, &action, &previous_) == 0;
  }
  SigintScope(const SigintScope&) = delete;
  ~SigintScope() {
    if (!installed_) return;
    sigaction(SIGINT, &previous_, nullptr);
    if (is_interrupted_) (void)running_.load()->reset_execution();  // discards a cancel() that came too late
    running_ = nullptr;
  }

  static inline unsigned long main_thread;

 private:
  static void handle(int number, siginfo_t* info, void* context) {
    const bool accepts_info = (previous_.sa_flags & SA_SIGINFO) != 0;
    if (!accepts_info && previous_.sa_handler == SIG_IGN) return;
    if (Method* method = running_) method->cancel();
    is_interrupted_ = true;
    if (accepts_info) {
      previous_.sa_sigaction(number, info, context);
    } else if (previous_.sa_handler != SIG_DFL) {
      previous_.sa_handler(number);
    } else {
      sigaction(number, &previous_, nullptr);
      raise(number);
    }
  }

  static inline std::atomic<Method*> running_;
  static inline std::atomic<bool> is_interrupted_;
  static inline struct sigaction previous_;
  bool installed_ = false;
};

/// Identifies the process: 1, incremented in each child of fork().
std::atomic<uint32_t> process{1};

/// A mutex that throws in a child of fork() if another thread of the parent held it: that thread does not
/// exist in the child, so waiting would never end.
class MethodMutex {
 public:
  void lock() {
    const uint32_t owner = owner_;
    if (owner != 0 && owner != process)
      throw Fault{
          Fault::Kind::Runtime, Error::InvalidState,
          "another thread executed the method when the process forked; load the method again in the child",
          0};
    mutex_.lock();
    owner_ = process.load();
  }
  void unlock() {
    owner_ = 0;
    mutex_.unlock();
  }

 private:
  std::mutex mutex_;
  std::atomic<uint32_t> owner_{0};  // id of the process that holds the mutex; 0 if it is free
};

/// A method in a separate module of the program. Calls from several threads run in sequence.
class LoadedMethod {
 public:
  /// `threads` is 0 for the default of the process.
  LoadedMethod(SharedProgram program, std::string name, size_t threads, bool tracing)
      : program_(std::move(program)), name_(std::move(name)), module_(program_->module()) {
    if (tracing) recorder_.emplace();
    if (threads != 0) check(module_.set_num_threads(threads));
    {
      const Locks locks = lock();
      check(module_.share_state(*program_->module()));
      check(module_.load_method(name_, nullptr, tracer()));
    }
    method_ = unwrap(module_.method_without_outputs(name_));
    if (tracing) blocks_ = 1 - static_cast<int64_t>(recorder_->blocks().size());
    const MethodMeta meta = method_->method_meta();
    for (size_t i = 0; i < meta.num_inputs(); ++i)
      inputs_.push_back(unwrap(meta.input_tag(i)) == Tag::Tensor
                            ? std::optional<TensorInfo>(unwrap(meta.input_tensor_meta(i)))
                            : std::nullopt);
    loading_log_ = take_log();
  }

  /// `observer` is None or a Python function. It is called with (chain, instruction, step, in_delegate, part,
  /// name, value) for each value that an instruction writes. `selected` has the observed instructions,
  /// (chain, index in the chain); empty for all.
  nb::list execute(nb::sequence inputs, nb::object observer,
                   const std::set<std::pair<int32_t, uint32_t>>& selected) {
    check_not_observing();
    const size_t count = nb::len(inputs);
    if (count != inputs_.size()) throw Fault{Fault::Kind::InputValue, Error::InvalidArgument, "count", count};
    std::deque<Argument> arguments(count);
    std::vector<Value> values(count);
    bool torch = false;
    for (size_t i = 0; i < count; ++i) {
      const nb::object object = inputs[i];
      convert(object, i, &arguments[i]);
      values[i] = arguments[i].value();
      torch = torch || (inputs_[i].has_value() && is_torch_tensor(object));
    }
    std::vector<Outcome> outcomes(method_->outputs_size());
    Error error;
    std::string log;
    {
      nb::gil_scoped_release release;
      const std::unique_lock<std::recursive_mutex> execution_lock = program_->execution_lock();
      const std::lock_guard<MethodMutex> lock(mutex_);
      take_log();
      const SigintScope sigint_scope(*method_);
      Observation observation(*this, observer, selected, torch);
      const LogScope log_scope;
      error = run(values, outcomes);
      observation.end();
      log = take_log();
    }
    if (error == Error::OutOfResources && PyErr_CheckSignals() != 0) throw nb::python_error();
    if (error != Error::Ok) throw Fault{Fault::Kind::Runtime, error, log, 0};
    nb::list results;
    for (Outcome& outcome : outcomes) results.append(to_python(outcome, torch));
    return results;
  }

  nb::object attribute(const char* name, bool torch) {
    const Locks locks = lock();
    const Result<Tensor> tensor = method_->get_attribute(name);
    if (!tensor.ok()) throw nb::key_error(name);
    Outcome outcome;
    detach(*tensor, nullptr, outcome);
    return to_python(outcome, torch);
  }

  void set_attribute(const char* name, nb::handle bytes) {
    const View view(bytes);
    const Locks locks = lock();
    const Result<Tensor> tensor = method_->get_attribute(name);
    if (!tensor.ok()) throw nb::key_error(name);
    if (static_cast<size_t>(view.get().len) != tensor->nbytes())
      throw nb::value_error("the number of bytes differs");
    if (view.get().len != 0 && !is_planned(*tensor))
      throw nb::value_error("it is a weight of a file, which is read-only");
    memcpy(tensor->mutable_data_ptr(), view.get().buf, tensor->nbytes());
  }

  /// Output `i` as an array over its planned memory, which keeps the Python object `self` alive. None if the
  /// output is not in planned memory, since the memory of a file may be read-only.
  nb::object output_in_place(nb::handle self, size_t i) {
    const Value& output = method_->get_output(i);
    if (!output.is_tensor() || output.to_tensor().scalar_type() == ScalarType::BFloat16) return nb::none();
    const Tensor& tensor = output.to_tensor();
    return is_planned(tensor) ? array_over(tensor, self) : nb::none();
  }

  void cancel() { method_->cancel(); }

  bool is_traced() const { return recorder_.has_value(); }

  /// The signature of the loaded plan, which is the portable plan if a backend is missing or refused.
  MethodSignature signature() const { return signature_of(method_->method_meta()); }
  /// The log lines of a successful load.
  const std::string& loading_log() const { return loading_log_; }
  size_t method_bytes() { return memory().method_bytes; }
  /// The maximum over all executions.
  size_t dynamic_memory_peak() { return memory().dynamic_peak; }

  void reset() {
    const Locks locks = lock();
    check(module_.reset(name_));
  }

  /// Returns and removes the recorded events, one tuple each: block (0: loading), name, chain, instruction,
  /// whether a backend reported it, its part, begin and end in nanoseconds.
  nb::list take_events() {
    const Locks locks = lock();
    nb::list events;
    if (!recorder_.has_value()) return events;
    const torchette_tick_ratio_t ratio = ticks_to_ns_multiplier();
    const auto ns = [&](torchette_timestamp_t ticks) { return ticks * ratio.numerator / ratio.denominator; };
    for (const extension::RecordedEvent& event : recorder_->events()) {
      const int64_t block = blocks_ + static_cast<int64_t>(event.block);
      if (block < 0) continue;
      events.append(nb::make_tuple(block, text_of({event.name.data(), event.name.size()}), event.chain,
                                   event.instruction, event.in_delegate, event.part, ns(event.begin),
                                   ns(event.end)));
    }
    blocks_ += static_cast<int64_t>(recorder_->blocks().size());
    recorder_->clear();
    return events;
  }

 private:
  EventTracer* tracer() {
    if (recorder_.has_value()) return &*recorder_;
    return program_->etdump();
  }

  /// The method is locked while the observer runs, so a call from the observer would deadlock.
  void check_not_observing() const {
    if (observing_ == std::this_thread::get_id())
      throw Fault{Fault::Kind::Runtime, Error::InvalidState,
                  "its observer called it while it executes; call it after execute() returns", 0};
  }

  using Locks = std::pair<std::unique_lock<MethodMutex>, std::unique_lock<std::recursive_mutex>>;

  /// Waits without the GIL, which an observer of the running method may need. The program's lock always comes
  /// first: an observer holds it when it calls another method.
  Locks lock() {
    check_not_observing();
    nb::gil_scoped_release release;
    std::unique_lock<std::recursive_mutex> execution_lock = program_->execution_lock();
    return {std::unique_lock<MethodMutex>(mutex_), std::move(execution_lock)};
  }

  extension::MethodMemory memory() { return unwrap(module_.method_memory(name_)); }

  /// Whether the tensor is in planned memory, not in the read-only memory of a file.
  bool is_planned(const Tensor& tensor) {
    const auto* const data = static_cast<const uint8_t*>(tensor.const_data_ptr());
    for (const Span<uint8_t>& buffer : memory().planned)
      if (data >= buffer.data() && data < buffer.data() + buffer.size()) return true;
    return false;
  }

  /// During its lifetime, a Python function is called with each value that an instruction writes. If the
  /// function raises an exception, the execution ends.
  class Observation {
   public:
    Observation(LoadedMethod& method, const nb::object& observer,
                const std::set<std::pair<int32_t, uint32_t>>& selected, bool torch)
        : method_(method), observer_(observer), selected_(selected), torch_(torch) {
      if (observer.is_none() || !method.recorder_.has_value()) return;
      method_.observing_ = std::this_thread::get_id();
      method_.recorder_->observe([this](const extension::ObservedValue& value) { observe_value(value); });
    }
    Observation(const Observation&) = delete;
    ~Observation() {
      if (method_.recorder_.has_value()) method_.recorder_->observe({});
      method_.observing_ = std::thread::id();
    }
    /// Throws the exception that the observer raised.
    void end() {
      if (!raised_) return;
      (void)method_.method_->reset_execution();  // discards a cancel() after the last instruction
      std::rethrow_exception(raised_);
    }

   private:
    void observe_value(const extension::ObservedValue& value) {
      if (raised_ || (!selected_.empty() && selected_.count({value.chain, value.instruction}) == 0)) return;
      Outcome outcome;
      if (detach(value.value, nullptr, outcome) != Error::Ok) return;
      const nb::gil_scoped_acquire acquire;
      try {
        observer_(value.chain, value.instruction, value.step, value.in_delegate, value.part,
                  text_of(value.name == nullptr ? "" : value.name), to_python(outcome, torch_));
      } catch (...) {
        raised_ = std::current_exception();
        method_.method_->cancel();
      }
    }

    LoadedMethod& method_;
    const nb::object& observer_;
    const std::set<std::pair<int32_t, uint32_t>>& selected_;
    bool torch_;
    std::exception_ptr raised_;
  };

  void convert(nb::handle object, size_t i, Argument* out) {
    if (inputs_[i].has_value()) {
      out->set_tensor(object, *inputs_[i], method_->writes_input(i), i);
      return;
    }
    const Value& input = method_->get_input(i);
    PyObject* p = object.ptr();
    const char* expected = nullptr;
    switch (input.tag()) {
      case Tag::Bool:
        if (PyBool_Check(p)) return out->set_number(Value(p == Py_True));
        expected = "a bool";
        break;
      case Tag::Int:
        if (PyIndex_Check(p) && !PyBool_Check(p))
          return out->set_number(Value(nb::cast<int64_t>(nb::steal(PyNumber_Index(p)))));
        expected = "an int";
        break;
      case Tag::Double:
        if (PyFloat_Check(p) || (PyLong_Check(p) && !PyBool_Check(p)))
          return out->set_number(Value(PyFloat_AsDouble(p)));
        expected = "a float";
        break;
      case Tag::String:
        if (PyUnicode_Check(p)) return out->set_string(nb::borrow<nb::str>(object).c_str());
        expected = "a str";
        break;
      case Tag::None:
        // ExecuTorch's compiler stores a string argument, which is constant, as None.
        if (object.is_none() || PyUnicode_Check(p)) return;
        expected = "None";
        break;
      default:
        expected = "a value of a kind that Python does not support";
    }
    throw input_type_fault(i, std::string("is a ") + Py_TYPE(p)->tp_name + ", expected " + expected);
  }

  /// Executes the method. Called without the GIL.
  Error run(const std::vector<Value>& values, std::vector<Outcome>& outcomes) {
    std::vector<Memory> output_memory(outcomes.size());
    for (size_t i = 0; i < outcomes.size(); ++i) {
      // An output without planned memory is written to the memory of the returned array.
      if (!method_->output_needs_memory(i)) continue;
      const TensorImpl& impl = *method_->get_output(i).to_tensor().unsafe_impl();
      const size_t size = impl.capacity * element_size(impl.type);
      output_memory[i] = allocate_memory(size, impl.dynamism != TensorShapeDynamism::STATIC);
      TORCHETTE_TRY(method_->set_output_data_ptr(output_memory[i].get(), size, i));
    }
    const Result<std::vector<Value>> outputs = module_.execute(name_, values);
    if (!outputs.ok()) return outputs.error();
    for (size_t i = 0; i < outcomes.size(); ++i)
      TORCHETTE_TRY(detach((*outputs)[i], std::move(output_memory[i]), outcomes[i]));
    return Error::Ok;
  }

  SharedProgram program_;  // first, so that it is destroyed last
  std::string name_;
  std::optional<extension::EventRecorder> recorder_;
  extension::Module module_;
  Method* method_ = nullptr;
  std::string loading_log_;
  std::vector<std::optional<TensorInfo>> inputs_;
  int64_t blocks_ = 0;  // index of the recorder's block 0; negative if a refused plan recorded events before
  MethodMutex mutex_;
  std::atomic<std::thread::id> observing_{};  // the thread of the observed execution
};

}  // namespace

void bind_methods(nb::module_& m, nb::class_<LoadedProgram>& programs) {
  SigintScope::main_thread =
      nb::cast<unsigned long>(nb::module_::import_("threading").attr("main_thread")().attr("ident"));
  pthread_atfork(nullptr, nullptr, [] { ++process; });
  programs.def(
      "load_method",
      [](const SharedProgram& program, const std::string& name, size_t threads, bool tracing) {
        take_log();
        return std::make_unique<LoadedMethod>(program, name, threads, tracing);
      },
      nb::arg("name"), nb::arg("threads") = 0, nb::arg("tracing") = false);
  m.def("set_num_threads", [](size_t count) {
    take_log();
    check(set_num_threads(count));
  });
  m.def("num_threads", &extension::default_num_threads);
  m.def("physical_cores", &extension::physical_cores);
  nb::class_<LoadedMethod>(m, "Method")
      .def("execute", &LoadedMethod::execute, nb::arg("inputs"), nb::arg("observer") = nb::none(),
           nb::arg("selected") = std::set<std::pair<int32_t, uint32_t>>())
      .def("attribute", &LoadedMethod::attribute, nb::arg("name"), nb::arg("torch"))
      .def("set_attribute", &LoadedMethod::set_attribute, nb::arg("name"), nb::arg("bytes"))
      .def("output_in_place", [](nb::handle_t<LoadedMethod> self,
                                 size_t i) { return nb::cast<LoadedMethod&>(self).output_in_place(self, i); })
      .def("reset", &LoadedMethod::reset)
      .def("cancel", &LoadedMethod::cancel)
      .def("take_events", &LoadedMethod::take_events)
      .def_prop_ro("signature", &LoadedMethod::signature)
      .def_prop_ro("loading_log",
                   [](const LoadedMethod& self) { return text_of(self.loading_log().c_str()); })
      .def_prop_ro("is_traced", &LoadedMethod::is_traced)
      .def_prop_ro("method_bytes", &LoadedMethod::method_bytes)
      .def_prop_ro("dynamic_memory_peak", &LoadedMethod::dynamic_memory_peak);
}

}  // namespace torchette::pybindings
