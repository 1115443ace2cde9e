#include "threads.hpp"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <signal.h>
#endif
#if defined(__linux__)
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <condition_variable>
#include <mutex>
#endif

namespace tilewise {
namespace {

constexpr int kMaxWorkers = 256;
constexpr auto kSpin = std::chrono::microseconds(30);

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A counter that threads wait on: a short spin, then sleep.
class Signal {
 public:
  uint32_t now() const { return count_.load(std::memory_order_acquire); }

  void raise(int wake) {
    count_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) wake_sleepers(wake);
  }

  // Returns once the count differs from `seen`. (May return early: callers check their condition again.)
  void wait(uint32_t seen) {
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int i = 0; i < 32; i++) {
        if (now() != seen) return;
        relax();
      }
    } while (std::chrono::steady_clock::now() < deadline);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    sleep(seen);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
#if defined(__linux__)
  static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free);
  void sleep(uint32_t seen) { syscall(SYS_futex, &count_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0); }
  void wake_sleepers(int n) { syscall(SYS_futex, &count_, FUTEX_WAKE_PRIVATE, n, nullptr, nullptr, 0); }
#else
  void sleep(uint32_t seen) {
    std::unique_lock<std::mutex> lock(mutex_);
    while (now() == seen) changed_.wait(lock);
  }
  void wake_sleepers(int) {
    { std::lock_guard<std::mutex> lock(mutex_); }
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
#endif
  std::atomic<uint32_t> count_{0};
  std::atomic<int> sleepers_{0};
};

// Who may join the current job, in one word, so that a worker that wakes late can never touch a job that is over.
constexpr int kActiveShift = 16, kSeatShift = 32;
constexpr uint64_t kJoined = 1, kActive = uint64_t{1} << kActiveShift;
int joined(uint64_t gate) { return static_cast<int>(gate & 0xffff); }
int active(uint64_t gate) { return static_cast<int>(gate >> kActiveShift & 0xffff); }
int seats(uint64_t gate) { return static_cast<int>(gate >> kSeatShift & 0xffff); }

thread_local bool inside_a_job = false;

// No signal reaches the calling thread while this lives: signals belong to the program's own threads.
class SignalsBlocked {
#if defined(__unix__) || defined(__APPLE__)
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &old_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t old_;
#else
 public:
  SignalsBlocked() {}  // not trivial, or its variable would be called unused
#endif
};

// Never destroyed: sleeping workers hold a pointer to it until the process is gone.
class Pool {
 public:
  bool acquire() { return !busy_.exchange(true, std::memory_order_acquire); }
  void release() { busy_.store(false, std::memory_order_release); }

  // The caller holds the pool (acquire).
  void run(int64_t tasks, void (*body)(void*, int64_t, int), void* context, int threads) {
    start_workers(threads - 1);
    const int helpers = threads - 1 < started_ ? threads - 1 : started_;
    body_ = body, context_ = context, tasks_ = tasks;
    next_.store(0, std::memory_order_relaxed);
    failed_.store(false, std::memory_order_relaxed);
    gate_.store(static_cast<uint64_t>(helpers) << kSeatShift, std::memory_order_release);
    job_.raise(helpers);
    inside_a_job = true;
    work(0);
    inside_a_job = false;
    gate_.fetch_and(~(uint64_t{0xffff} << kSeatShift), std::memory_order_acq_rel);  // no more joining
    for (;;) {
      const uint32_t seen = left_.now();
      if (active(gate_.load(std::memory_order_acquire)) == 0) break;
      left_.wait(seen);
    }
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  void work(int worker) {
    for (;;) {
      const int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
      if (task >= tasks_) return;
      try {
        body_(context_, task, worker);
      } catch (...) {
        if (!failed_.exchange(true, std::memory_order_relaxed)) error_ = std::current_exception();
        next_.store(tasks_, std::memory_order_relaxed);
        return;
      }
    }
  }

  // The seat taken (1, 2, ...), or 0 when there is none.
  int join() {
    uint64_t gate = gate_.load(std::memory_order_acquire);
    while (joined(gate) < seats(gate))
      if (gate_.compare_exchange_weak(gate, gate + kJoined + kActive, std::memory_order_acq_rel))
        return joined(gate) + 1;
    return 0;
  }

  void serve() {
    inside_a_job = true;
    for (uint32_t seen = 0;; seen = job_.now()) {  // `seen` is read before joining again, so no job is slept through
      while (const int seat = join()) {
        work(seat);
        const uint64_t before = gate_.fetch_sub(kActive, std::memory_order_acq_rel);
        if (active(before) == 1 && seats(before) == 0) left_.raise(1);
      }
      job_.wait(seen);
    }
  }

  void start_workers(int wanted) {
    if (started_ >= wanted) return;
    const SignalsBlocked blocked;  // threads inherit it
    try {
      while (started_ < wanted) {
        std::thread([this] { serve(); }).detach();
        started_++;
      }
    } catch (const std::system_error&) {  // no more threads to be had: fewer will do
    }
  }

  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint64_t> gate_{0};
  alignas(64) Signal job_;
  alignas(64) Signal left_;
  alignas(64) void (*body_)(void*, int64_t, int) = nullptr;
  void* context_ = nullptr;
  int64_t tasks_ = 0;
  int started_ = 0;
  std::exception_ptr error_;
  std::atomic<bool> failed_{false}, busy_{false};
};

std::atomic<Pool*> the_pool{nullptr};
std::atomic<int> threads_wanted{0};  // 0: not decided yet

#if defined(__unix__) || defined(__APPLE__)
// In a forked child only the forking thread lives on: it must not wait for the parent's workers.
void forget_pool() {
  the_pool.store(nullptr, std::memory_order_relaxed);
  inside_a_job = false;
}
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, forget_pool);
#endif

Pool& pool() {
  Pool* p = the_pool.load(std::memory_order_acquire);
  if (p) return *p;
  Pool* fresh = new Pool;
  if (the_pool.compare_exchange_strong(p, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;
  return *p;
}

int clamp_threads(long n) { return n < 1 ? 1 : n > kMaxWorkers ? kMaxWorkers : static_cast<int>(n); }

int default_threads() {
  if (const char* text = std::getenv("TILEWISE_NUM_THREADS")) {
    char* end = nullptr;
    const long n = std::strtol(text, &end, 10);
    if (end != text && *end == '\0' && n >= 1) return clamp_threads(n);
  }
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return clamp_threads(CPU_COUNT(&set));
#endif
  return clamp_threads(static_cast<long>(std::thread::hardware_concurrency()));
}

}  // namespace

void set_num_threads(int n) { threads_wanted.store(clamp_threads(n), std::memory_order_relaxed); }

int num_threads() {
  int n = threads_wanted.load(std::memory_order_relaxed);
  if (n) return n;
  const int fallback = default_threads();
  return threads_wanted.compare_exchange_strong(n, fallback, std::memory_order_relaxed) ? fallback : n;
}

int max_workers() { return kMaxWorkers; }

void parallel_for(int64_t tasks, void (*body)(void*, int64_t, int), void* context, int max_threads) {
  if (tasks <= 0) return;
  int64_t threads = num_threads();
  if (max_threads > 0 && max_threads < threads) threads = max_threads;
  if (tasks < threads) threads = tasks;
  if (threads > 1 && !inside_a_job) {
    Pool& shared = pool();
    if (shared.acquire()) {
      struct Held {
        Pool& pool;
        ~Held() { pool.release(); }
      } held{shared};
      return shared.run(tasks, body, context, static_cast<int>(threads));
    }
  }
  for (int64_t task = 0; task < tasks; task++) body(context, task, 0);
}

}  // namespace tilewise
