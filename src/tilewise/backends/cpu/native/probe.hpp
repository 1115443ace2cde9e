// What this core can do at most: the ceilings that the benchmarks divide by.
#pragma once
#include <cstddef>

namespace tilewise {

// FLOP/s of one thread: multiply-adds on registers for about `seconds`; pairs: the bf16 pair product.
double peak_flops(double seconds, bool pairs);
// Bytes/s of reading a buffer of this size in order, best of `repeats`, on num_threads() threads.
double read_bandwidth(std::size_t bytes, int repeats);

}  // namespace tilewise
