#include "probe.hpp"

#include <algorithm>
#include <chrono>
#include <memory>

#include "simd.hpp"
#include "threads.hpp"

namespace tilewise {
namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Twelve chains hide the latency of a multiply-add on every core that we know (two units, four or five cycles).
template <class Unit> double chains(double seconds) {
  constexpr int kChains = 12, kRounds = 4096;
  f32v acc[kChains];
  const float one = 1.0f, small = 1e-9f;
  using Words = decltype(Unit::load(nullptr));
  Words a = (Words)splat(one), b = (Words)splat(small);
  TW_UNROLL(12)
  for (int i = 0; i < kChains; i++) acc[i] = splat(static_cast<float>(i));  // unlike chains, or they become one
  double done = 0, best = 0;
  const auto start = Clock::now();
  while (since(start) < seconds) {
    const auto round = Clock::now();
    for (int r = 0; r < kRounds; r++) {
      TW_UNROLL(12) for (int i = 0; i < kChains; i++) acc[i] = Unit::fma(a, b, acc[i]);
#if defined(__GNUC__)
      asm volatile("" : "+m"(a), "+m"(b));  // keep the loop
#endif
    }
    done = 2.0 * Unit::pair * kLanes * kChains * kRounds;
    best = std::max(best, done / since(round));
  }
  volatile float sink = 0;
  TW_UNROLL(12) for (int i = 0; i < kChains; i++) sink = sink + acc[i][0];
  return best;
}

}  // namespace

double peak_flops(double seconds, bool pairs) { return pairs ? chains<Bf16Unit>(seconds) : chains<F32Unit>(seconds); }

double read_bandwidth(std::size_t bytes, int repeats) {
  const std::size_t vectors = bytes / kBytes / 8 * 8;
  const std::unique_ptr<float[]> data(new float[vectors * kLanes + 1]());
  const int64_t pieces = 8 * std::max(1, num_threads());
  const std::size_t piece = vectors / pieces / 8 * 8;
  double best = 0;
  for (int r = 0; r < repeats; r++) {
    const auto start = Clock::now();
    parallel_for(pieces, [&](int64_t task, int) {
      const float* p = data.get() + task * piece * kLanes;
      f32v sums[8] = {};
      for (std::size_t i = 0; i < piece; i += 8)
        TW_UNROLL(8) for (int j = 0; j < 8; j++) sums[j] += load(p + (i + j) * kLanes);
      volatile float sink = 0;
      for (const f32v& s : sums) sink = sink + s[0];
    });
    best = std::max(best, static_cast<double>(pieces * piece * kBytes) / since(start));
  }
  return best;
}

}  // namespace tilewise
