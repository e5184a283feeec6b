// SPDX-License-Identifier: BSD-3-Clause
// InterpolatedClock: reads the platform's clock rarely and interpolates with the processor's counter between
// readings. The two clock readings of each event are most of the cost of tracing.
#pragma once

#include "torchette/runtime/platform.h"

#if TORCHETTE_GNU && defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace torchette::extension {

/// Reads the platform's clock directly if the processor has no counter with a constant rate, or if the
/// platform's clock does not count nanoseconds. Only one thread at a time may use an object.
class InterpolatedClock {
 public:
  /// Measures the rate of the counter, in about 0.1 ms. Further calls have no effect.
  void prepare();
  /// Returns the current time. The result never decreases.
  torchette_timestamp_t now() {
#if TORCHETTE_GNU && defined(__x86_64__)
    if (scale_ != 0) {
      uint64_t elapsed = __rdtsc() - count_;
      if (TORCHETTE_UNLIKELY(elapsed > kMaxCounts)) {
        read();
        elapsed = 0;
      }
      const torchette_timestamp_t time = time_ + (elapsed * scale_ >> kShift);
      if (time > last_) last_ = time;
      return last_;
    }
#endif
    return current_ticks();
  }

 private:
#if TORCHETTE_GNU && defined(__x86_64__)
  // Counts after which the clock is read again, about a millisecond. kMaxCounts * scale_ fits 64 bits.
  static constexpr uint64_t kMaxCounts = 1 << 22;
  static constexpr int kShift = 32;
  static constexpr double kMinNsPerCount = 0.15, kMaxNsPerCount = 4;  // range of the nanoseconds per count

  void read();

  uint64_t scale_ = 0;                    // nanoseconds per 2^32 counts; 0 if the counter is not used
  uint64_t count_ = 0, first_count_ = 0;  // counter at the last and at the first reading of the clock
  torchette_timestamp_t time_ = 0, first_time_ = 0, last_ = 0;
  bool is_prepared_ = false;
#endif
};

#if TORCHETTE_GNU && defined(__x86_64__)

inline void InterpolatedClock::prepare() {
  if (is_prepared_) return;
  is_prepared_ = true;
  unsigned a, b, c, d;
  const torchette_tick_ratio_t ratio = ticks_to_ns_multiplier();
  const bool is_constant = __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & 1u << 8) != 0;
  if (!is_constant || ratio.numerator != ratio.denominator) return;
  constexpr uint64_t kMinDuration = 100000;  // nanoseconds
  first_time_ = current_ticks();
  first_count_ = __rdtsc();
  // Do not use the counter if the clock is stopped, advances in large steps or counts its readings.
  int steps = 0;
  for (int i = 0; i < 100000 && scale_ == 0; ++i) {
    const torchette_timestamp_t before = time_;
    time_ = current_ticks();
    count_ = __rdtsc();
    steps += time_ != before;
    if (time_ - first_time_ < kMinDuration) continue;
    if (steps < 200) return;
    const double ns_per_count =
        static_cast<double>(time_ - first_time_) / static_cast<double>(count_ - first_count_);
    if (ns_per_count < kMinNsPerCount || ns_per_count > kMaxNsPerCount) return;
    scale_ = static_cast<uint64_t>(ns_per_count * (uint64_t{1} << kShift));
  }
  last_ = time_;
}

inline void InterpolatedClock::read() {
  time_ = current_ticks();
  count_ = __rdtsc();
  const double ns_per_count =
      static_cast<double>(time_ - first_time_) / static_cast<double>(count_ - first_count_);
  if (ns_per_count >= kMinNsPerCount && ns_per_count <= kMaxNsPerCount)
    scale_ = static_cast<uint64_t>(ns_per_count * (uint64_t{1} << kShift));
}

#else

inline void InterpolatedClock::prepare() {}

#endif

}  // namespace torchette::extension
