// One pass over out and dout before the products: what each row brings (lse, delta), and the gradient of the sinks.
//   delta = rowsum(dout * out) - dlse        dsink = sum over rows of exp(sink - lse) * -delta
// A row that owns no weight (lse = -inf) is absent: lse +inf makes its p 0, and whatever its dout holds is not read.
#pragma once
#include "large_rows.hpp"
#include "score_gradient.hpp"

namespace tilewise::gradients {

template <class T, class real> inline real row_dot(const T* x, const T* y, int64_t n) {
  using V = typename VectorOf<real>::type;
  constexpr int64_t lanes = VectorOf<real>::lanes;
  V sum0{}, sum1{};
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    sum0 += load(x + i) * load(y + i);
    sum1 += load(x + i + lanes) * load(y + i + lanes);
  }
  for (; i + lanes <= n; i += lanes) sum0 += load(x + i) * load(y + i);
  real rest = 0;
  for (; i < n; i++) rest += static_cast<real>(to_float(x[i])) * static_cast<real>(to_float(y[i]));
  return reduce_add(sum0 + sum1) + rest;
}

// The per-row arrays of a call, indexed like out's rows: [batch or 1, q_heads, q_len].
template <class real> struct RowArrays {
  real *lse, *delta, *factor;  // factor: on the row's dout, and in delta already (large_rows.hpp)
  static int64_t rows(const AttentionArguments& a) { return (a.q_starts ? 1 : a.batch) * a.q_heads * a.q_len; }
  static int64_t at(const AttentionArguments& a, const DenseSequence& s, int64_t head) {
    return (s.batch * a.q_heads + head) * a.q_len + s.q_first;
  }
};

// Rows [first, last) of one head; returns their share of dsink.
template <class T, class real>
double row_terms(const BackwardArguments& b, const DenseSequence& s, int64_t head, Range rows, RowArrays<real> to) {
  const AttentionArguments& a = b.forward;
  const auto row_of = [&](const void* base, const Strides& st, int64_t i) {
    return static_cast<const T*>(base) + s.batch * st.b + head * st.h + (s.q_first + i) * st.t;
  };
  const auto real_of = [&](const void* base, const Strides& st, int64_t i) {
    return static_cast<const real*>(base)[s.batch * st.b + head * st.h + (s.q_first + i) * st.t];
  };
  const real sink = a.sinks ? static_cast<const real*>(a.sinks)[head] : -std::numeric_limits<real>::infinity();
  const PairVisibility pairs = pair_visibility(a, s, head);
  const auto sees_something = [&](int64_t i) {
    const Range keys = keys_seen(s, a.meaning, {i, i + 1});
    for (int64_t j = keys.begin; j < keys.end; j++)
      if (pairs.visible(i, j)) return true;
    return false;
  };
  const int64_t base = RowArrays<real>::at(a, s, head);
  double dsink = 0.0;
  for (int64_t i = rows.begin; i < rows.end; i++) {
    real lse = real_of(a.lse, a.lse_strides, i);
    double factor = 1;
    const bool absent = lse == -std::numeric_limits<real>::infinity();
    real delta = 0;
    if (!absent) {
      delta = row_dot<T, real>(row_of(a.out, a.os, i), row_of(b.dout, b.dout_strides, i), a.v_dim);
      if (!std::isfinite(delta) && !sees_something(i)) delta = 0;  // only the sink is there: out is a constant 0
      if (b.dlse) delta -= real_of(b.dlse, b.dlse_strides, i);
      if (std::isfinite(lse) && std::abs(static_cast<double>(lse)) >= kLargeLse) {
        const Rebased<real> row = rebase<T, real>(a, s, head, i, pairs, sink);
        lse = row.base, factor = row.factor;
      }
      if (a.sinks && sink != -std::numeric_limits<real>::infinity())
        dsink -= std::exp(static_cast<double>(sink) - static_cast<double>(lse)) * factor * static_cast<double>(delta);
    }
    // A lse of +inf comes from a visible +inf: the row is NaN, not absent.
    to.lse[base + i] = absent ? std::numeric_limits<real>::infinity()
                     : std::isinf(lse) ? std::numeric_limits<real>::quiet_NaN() : lse;
    to.delta[base + i] = static_cast<real>(delta * factor);
    to.factor[base + i] = static_cast<real>(factor);
  }
  return dsink;
}

}  // namespace tilewise::gradients
