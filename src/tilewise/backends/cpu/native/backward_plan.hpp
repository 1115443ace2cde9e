// Who computes what, in which order. A task owns a span of keys of one unit (a sequence's kv head): its dk and dv are
// its own. Spans of one unit add to the same dq rows, always in the order of the spans, so the bits do not depend on
// the threads. Tasks are handed out span by span over all units: with many units nobody waits for a neighbour, with
// few the spans follow one another like a wave.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "backward_block.hpp"
#include "sequences.hpp"
#include "threads.hpp"

namespace tilewise::gradients {

// One kv head of one sequence.
struct Unit {
  DenseSequence sequence;
  int64_t kv_head = 0;
  int64_t dq_rows = 0;     // first row of its float32 dq, where the output is narrower; in rows
  int64_t first_gate = 0;  // gate of (head, query block): first_gate + head_in_group * query_blocks + block
  int64_t query_blocks() const { return (sequence.q_count + kGradQueryBlock - 1) / kGradQueryBlock; }
};

// Units whose dbias lies in the same place must not run at once: they form a set, one after another in each task.
struct Task { int32_t set, span; };

// Gates keep the order of the spans at every (head, query block).
class Gates {
 public:
  explicit Gates(int64_t n) : next_(new std::atomic<int32_t>[static_cast<std::size_t>(n)]()) {}
  void wait(int64_t gate, int64_t span) const {
    for (int tries = 0; next_[gate].load(std::memory_order_acquire) != span;) {
      if (abandoned_.load(std::memory_order_relaxed)) throw Abandoned{};
      if (tries < kSpins + kYields) tries++;
      if (tries > kSpins + kYields - 1) std::this_thread::sleep_for(kNap);
      else if (tries > kSpins) std::this_thread::yield();
    }
  }
  void pass(int64_t gate, int64_t span) {
    next_[gate].store(static_cast<int32_t>(span + 1), std::memory_order_release);
  }
  // A task failed: those behind it must not wait for it.
  void abandon() { abandoned_.store(true, std::memory_order_relaxed); }
  struct Abandoned {};

 private:
  static constexpr int kSpins = 200, kYields = 2000;
  static constexpr std::chrono::microseconds kNap{50};  // a neighbour that is this late has lost its core

  std::unique_ptr<std::atomic<int32_t>[]> next_;
  std::atomic<bool> abandoned_{false};
};

// Key blocks of a span, at most: packing a query block is paid once a span.
constexpr int64_t kMostSpanBlocks = 4;
constexpr int64_t kDqBudget = int64_t{32} << 20;  // bytes of float32 dq in flight, roughly

// Enough tasks for the threads, else as long as pays. Does not change a bit of the result.
inline int64_t span_blocks(int64_t key_blocks_of_all_units, int64_t tasks_wanted) {
  const int64_t n = key_blocks_of_all_units / tasks_wanted;
  return n < 1 ? 1 : n > kMostSpanBlocks ? kMostSpanBlocks : n;
}

}  // namespace tilewise::gradients
