// Rows whose lse is so large that its rounding shows in exp(s - lse). They take their greatest logit m for lse, and
//   p = exp(s - m) * factor,   factor = 1 / sum of exp(s - m)
// where the factor goes onto dout and delta: dv and ds are linear in both, so the usual kernels need not know.
#pragma once
#include <vector>

#include "bias_gradient.hpp"
#include "pair_visibility.hpp"

namespace tilewise::gradients {

constexpr double kLargeLse = 131072;  // 2^17: a float's rounding is 1 % of p there

template <class real> struct Rebased { real base; double factor; };

// What row i of a head takes in place of its lse. Logits are rounded to real, as the kernels have them.
template <class T, class real>
Rebased<real> rebase(const AttentionArguments& a, const DenseSequence& s, int64_t head, int64_t i,
                     const PairVisibility& pairs, real sink) {
  const int64_t kv_head = head / (a.q_heads / a.kv_heads);
  const T* q = static_cast<const T*>(a.q) + s.batch * a.qs.b + head * a.qs.h + (s.q_first + i) * a.qs.t;
  const T* k = static_cast<const T*>(a.k) + s.batch * a.ks.b + kv_head * a.ks.h + s.kv_first * a.ks.t;
  const Range keys = keys_seen(s, a.meaning, {i, i + 1});
  std::vector<real> logits;
  real top = sink;
  for (int64_t j = keys.begin; j < keys.end; j++) {
    if (!pairs.visible(i, j)) continue;
    double x = 0;
    for (int64_t d = 0; d < a.qk_dim; d++)
      x += static_cast<double>(to_float(q[d])) * static_cast<double>(to_float(k[j * a.ks.t + d]));
    x *= a.meaning.scale;
    if (a.meaning.softcap > 0) x = a.meaning.softcap * std::tanh(x / a.meaning.softcap);
    real bias = 0;
    if (a.bias) BiasTiles{a}.read(s, head, i, j, 1, 0, 1, &bias, 1);
    logits.push_back(static_cast<real>(x + static_cast<double>(bias)));
    top = std::max(top, logits.back());
  }
  double sum = std::exp(static_cast<double>(sink) - static_cast<double>(top));
  for (const real x : logits) sum += std::exp(static_cast<double>(x) - static_cast<double>(top));
  return {top, 1 / sum};
}

}  // namespace tilewise::gradients
