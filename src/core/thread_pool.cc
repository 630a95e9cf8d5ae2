#include "adder/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>

#include "core/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace adder {
namespace {

// Longer than the gap between two loops of a model, whose threads end together, and than waking a
// thread takes; far shorter than a scheduler's time slice. In time, not in turns: a pause takes
// from 10 to 140 cycles, by processor.
constexpr std::chrono::microseconds kSpinTime{200};
constexpr int kSpinsPerLook = 16;  // at the clock

inline void cpu_relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until `value` differs from `old`: first spinning, then in the kernel.
template <typename T>
T wait_for_change(const std::atomic<T>& value, T old) {
  const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < kSpinsPerLook; ++i) {
      const T now = value.load(std::memory_order_acquire);
      if (now != old) return now;
      cpu_relax();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  for (;;) {
    value.wait(old, std::memory_order_acquire);
    const T now = value.load(std::memory_order_acquire);
    if (now != old) return now;
  }
}

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

struct ThreadPool::Shared {
  std::mutex one_loop_at_a_time;
  alignas(64) std::atomic<std::uint32_t> generation{0};  // bumped to start a loop or to stop
  alignas(64) std::atomic<std::uint32_t> pending{0};     // workers that have not finished the loop
  bool stopping = false;
  std::int64_t n = 0;
  std::int64_t ranges = 0;
  Function function = nullptr;
  void* context = nullptr;
  std::mutex error_mutex;
  std::exception_ptr error;

  void run_range(std::int64_t range) {
    if (range >= ranges) return;
    const std::int64_t begin = n * range / ranges;
    const std::int64_t end = n * (range + 1) / ranges;
    try {
      function(context, begin, end);
    } catch (...) {
      const std::lock_guard lock(error_mutex);
      if (!error) error = std::current_exception();
    }
  }

  void work(std::int64_t index) {
    std::uint32_t seen = 0;
    for (;;) {
      seen = wait_for_change(generation, seen);
      if (stopping) return;
      run_range(index);
      if (pending.fetch_sub(1, std::memory_order_acq_rel) == 1) pending.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int nthreads)
    : nthreads_(nthreads == 0 ? available_cores() : nthreads), shared_(std::make_unique<Shared>()) {
  check(nthreads >= 0 && nthreads <= 1024,
        "thread pool: {} threads were asked for, expected 0 to 1024", nthreads);
  workers_.reserve(static_cast<std::size_t>(nthreads_ - 1));
  for (int i = 1; i < nthreads_; ++i) {
    workers_.emplace_back([shared = shared_.get(), i] { shared->work(i); });
  }
}

ThreadPool::~ThreadPool() {
  shared_->stopping = true;
  shared_->generation.fetch_add(1, std::memory_order_release);
  shared_->generation.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

std::int64_t ThreadPool::ranges_for(std::int64_t n, std::int64_t grain) const {
  const std::int64_t by_grain = n / std::max<std::int64_t>(1, grain);
  return std::clamp<std::int64_t>(by_grain, 1, nthreads_);
}

void ThreadPool::run(std::int64_t n, std::int64_t ranges, Function function, void* context) {
  Shared& s = *shared_;
  const std::lock_guard lock(s.one_loop_at_a_time);
  s.n = n;
  s.ranges = ranges;
  s.function = function;
  s.context = context;
  s.error = nullptr;
  s.pending.store(static_cast<std::uint32_t>(nthreads_ - 1), std::memory_order_relaxed);
  s.generation.fetch_add(1, std::memory_order_release);
  s.generation.notify_all();
  s.run_range(0);
  for (std::uint32_t left = s.pending.load(std::memory_order_acquire); left != 0;) {
    left = wait_for_change(s.pending, left);
  }
  if (s.error) std::rethrow_exception(s.error);
}

}  // namespace adder
