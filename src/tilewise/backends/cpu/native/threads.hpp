// A small pool of our own: a short spin, then sleep; the caller works too; a busy pool never blocks a caller.
#pragma once
#include <cstdint>

namespace tilewise {

void set_num_threads(int n);  // at least 1
int num_threads();

// Runs body(context, task, worker) for every task in [0, tasks), handed out one by one in order; returns when all are
// done. worker is in [0, max_workers()), and below max_threads where that is given; fixed for the duration of a task:
// it indexes scratch of the call (Workspace serves scratch of the thread). The first exception of a task reaches the
// caller. Runs on the caller alone when tasks is 1, num_threads() is 1, the pool is busy with another caller's work, or
// in a nested call.
void parallel_for(int64_t tasks, void (*body)(void* context, int64_t task, int worker), void* context,
                  int max_threads = 0);
int max_workers();

template <class F> void parallel_for(int64_t tasks, F&& f, int max_threads = 0) {
  parallel_for(tasks, [](void* c, int64_t task, int worker) { (*static_cast<F*>(c))(task, worker); }, &f, max_threads);
}

}  // namespace tilewise
