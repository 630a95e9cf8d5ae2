#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace adder {

/// A fixed team of threads for data-parallel loops. The calling thread is one of the team, so
/// `ThreadPool(1)` starts no thread at all. Workers spin briefly between loops (a decode step runs
/// a few hundred small loops) and then sleep.
///
/// One loop runs at a time: concurrent calls from several threads are served one after the other.
/// A loop body must not start another loop on the same pool. The first exception thrown by a body
/// is rethrown by `parallel_for` after all of the loop has ended.
class ThreadPool {
 public:
  /// `nthreads` in [1, 1024]; 0 takes the number of cores this process may run on.
  explicit ThreadPool(int nthreads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int nthreads() const { return nthreads_; }

  /// Calls `body(begin, end)` over disjoint ranges that cover [0, n), each at least `grain` long
  /// (but for the last). A range is a contiguous share: thread t always gets the t-th, so memory
  /// first touched in one loop is near the same thread in the next.
  template <typename Body>
  void parallel_for(std::int64_t n, std::int64_t grain, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    if (n <= 0) return;
    const std::int64_t ranges = ranges_for(n, grain);
    if (ranges == 1) {
      body(std::int64_t{0}, n);
      return;
    }
    run(
        n, ranges,
        [](void* context, std::int64_t begin, std::int64_t end) {
          (*static_cast<Plain*>(context))(begin, end);
        },
        const_cast<std::remove_const_t<Plain>*>(&body));
  }

  /// Calls `body(row, column)` for each cell of a table, each of them some 10 us of work at least.
  /// A thread has a contiguous share of the columns, the t-th thread the t-th, and walks through it
  /// row by row; one that is done with its own share goes on with what the others have left, so
  /// that no loop waits for a thread that the system held up.
  template <typename Body>
  void parallel_cells(std::int64_t rows, std::int64_t columns, Body&& body) {
    if (rows <= 0 || columns <= 0) return;
    if (nthreads_ == 1 || rows * columns == 1) {
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t column = 0; column < columns; ++column) body(row, column);
      }
      return;
    }
    const auto next_cells = std::make_unique<NextCell[]>(static_cast<std::size_t>(nthreads_));
    parallel_for(nthreads_, 1, [&](std::int64_t thread, std::int64_t) {
      for (std::int64_t i = 0; i < nthreads_; ++i) {
        const std::int64_t owner = (thread + i) % nthreads_;
        const std::int64_t first = columns * owner / nthreads_;
        const std::int64_t width = columns * (owner + 1) / nthreads_ - first;
        std::atomic<std::int64_t>& next = next_cells[static_cast<std::size_t>(owner)].value;
        for (std::int64_t cell; (cell = next.fetch_add(1)) < rows * width;) {
          body(cell / width, first + cell % width);
        }
      }
    });
  }

  /// Calls `body(begin, end)` over ranges that cover [0, n), `grain` long (but for the last): those
  /// of few loops with much work, see parallel_cells; with little, as parallel_for.
  template <typename Body>
  void parallel_pieces(std::int64_t n, std::int64_t grain, Body&& body) {
    const std::int64_t pieces = (n + grain - 1) / grain;
    if (pieces <= 2 * nthreads_) return parallel_for(n, grain, body);
    parallel_cells(1, pieces, [&](std::int64_t, std::int64_t piece) {
      body(piece * grain, std::min(n, (piece + 1) * grain));
    });
  }

 private:
  using Function = void (*)(void* context, std::int64_t begin, std::int64_t end);
  struct Shared;
  /// Of one thread's share of a table.
  struct alignas(64) NextCell {
    std::atomic<std::int64_t> value{0};
  };

  std::int64_t ranges_for(std::int64_t n, std::int64_t grain) const;
  void run(std::int64_t n, std::int64_t ranges, Function function, void* context);

  int nthreads_;
  std::unique_ptr<Shared> shared_;
  std::vector<std::thread> workers_;
};

}  // namespace adder
