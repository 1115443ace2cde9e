#include "merge.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "simd.hpp"
#include "threads.hpp"
#include "workspace.hpp"

namespace tilewise {
namespace {

constexpr int64_t kTaskElements = 32 << 10;

// Weights of the states of one row: exp(lse - the largest), shared out among infinite ones; returns the lse of all.
// A state whose lse is -inf holds nothing: its weight is 0, and `held` says that its out is not to be looked at.
template <class Real> Real weigh(const Real* lse, int64_t n, Real* weight, bool* held) {
  constexpr Real inf = std::numeric_limits<Real>::infinity();
  Real m = -inf, sum = 0;
  bool nan = false;
  for (int64_t i = 0; i < n; i++) {
    held[i] = lse[i] != -inf;
    nan |= std::isnan(lse[i]);
    m = lse[i] > m ? lse[i] : m;
  }
  for (int64_t i = 0; i < n; i++) {
    weight[i] = !held[i] ? Real{0} : m == inf ? static_cast<Real>(lse[i] == inf) : std::exp(lse[i] - m);
    if (held[i] && std::isnan(lse[i])) weight[i] = lse[i];
    sum += weight[i];
  }
  for (int64_t i = 0; i < n; i++)
    if (held[i]) weight[i] /= sum;
  return nan ? std::numeric_limits<Real>::quiet_NaN() : m == -inf ? -inf : m + std::log(sum);
}

template <class T, class Real> void merge_rows(const MergeArguments& a, int64_t first, int64_t end) {
  const std::size_t n = static_cast<std::size_t>(a.states);
  Workspace space(2 * Workspace::padded(n * sizeof(Real)) + Workspace::padded(n));
  Real *lse = space.take<Real>(n), *weight = space.take<Real>(n);
  bool* held = space.take<bool>(n);
  constexpr int64_t lanes = VectorOf<Real>::lanes;
  for (int64_t i = first; i < end; i++) {
    const int64_t row = i / a.heads, head = i % a.heads;
    for (int64_t s = 0; s < a.states; s++)
      lse[s] = static_cast<const Real*>(a.lses[s])[row * a.lse_strides[s].t + head * a.lse_strides[s].h];
    const Real total = weigh(lse, a.states, weight, held);
    T* out = static_cast<T*>(a.out) + row * a.os.t + head * a.os.h;
    const auto from = [&](int64_t s) {
      return static_cast<const T*>(a.outs[s]) + row * a.out_strides[s].t + head * a.out_strides[s].h;
    };
    int64_t e = 0;
    if constexpr (sizeof(Real) == 4 || std::is_same_v<T, double>)
      for (; e + lanes <= a.v_dim; e += lanes) {  // out may be one of the states: read all of a vector, then write it
        typename VectorOf<Real>::type sum{};
        for (int64_t s = 0; s < a.states; s++)
          if (held[s]) sum += load(from(s) + e) * splat(weight[s]);
        store(out + e, sum);
      }
    for (; e < a.v_dim; e++) {
      Real sum = 0;
      for (int64_t s = 0; s < a.states; s++)
        if (held[s]) sum += static_cast<Real>(to_float(from(s)[e])) * weight[s];
      out[e] = from_float<T>(sum);
    }
    if (a.lse) static_cast<Real*>(a.lse)[row * a.ls.t + head * a.ls.h] = total;
  }
}

template <class T, class Real = float> void run(const MergeArguments& a) {
  const int64_t rows = a.rows * a.heads;
  const int64_t each = std::max<int64_t>(1, kTaskElements / std::max<int64_t>(1, a.states * a.v_dim));
  parallel_for((rows + each - 1) / each, [&](int64_t task, int) {
    merge_rows<T, Real>(a, task * each, std::min(rows, (task + 1) * each));
  });
}

}  // namespace

void merge(const MergeArguments& a) {
  switch (a.dtype) {
    case DType::f32: return run<float>(a);
    case DType::bf16: return run<bf16>(a);
    case DType::f16: return run<f16>(a);
    case DType::f64: return run<double, double>(a);
    default: return;
  }
}

}  // namespace tilewise
