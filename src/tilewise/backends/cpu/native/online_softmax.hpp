// The state of a softmax that sees its keys block by block: m (greatest logit so far), l (sum of p), and, outside, acc.
// Units of m: base 2 when logits are products times a positive factor (one fma per element), natural otherwise (a logit
// of -3.4e38 is legal, and would overflow in base 2).
#pragma once
#include <limits>

#include "logits.hpp"

namespace tilewise {

template <class real> TW_INLINE real row_max(const real* s, int v0, int v1) {
  constexpr int lanes = VectorOf<real>::lanes;
  constexpr real low = -std::numeric_limits<real>::infinity();
  auto a = splat(low), b = a, c = a, d = a;
  int i = v0;
  for (; i + 4 <= v1; i += 4) {
    a = vmax(a, load(s + i * lanes));
    b = vmax(b, load(s + (i + 1) * lanes));
    c = vmax(c, load(s + (i + 2) * lanes));
    d = vmax(d, load(s + (i + 3) * lanes));
  }
  for (; i < v1; i++) a = vmax(a, load(s + i * lanes));
  return reduce_max(vmax(vmax(a, b), vmax(c, d)));
}

// Base-2 logits this large lie more than 1 apart: the rounding of m itself would show in exp2(x * c - m).
template <class real> constexpr real kWideLogit = 1 / std::numeric_limits<real>::epsilon();

// A row's step: raises m to the block's greatest logit, returns by how much l and acc shrink.
template <class real, bool natural> TW_INLINE real raise_max(real block_max, real factor, real& m) {
  real candidate = natural ? block_max : block_max * factor;
  if (!natural && std::abs(candidate) >= kWideLogit<real> && std::fma(block_max, factor, -candidate) < 0)
    candidate = std::nextafter(candidate, -std::numeric_limits<real>::infinity());  // never above the greatest logit
  const real old = m;
  if (!(candidate > old)) return 1;
  m = candidate;
  const real fall = natural ? (old - candidate) * static_cast<real>(kLog2e) : old - candidate;
  return exp2v(splat(fall))[0];
}


// p = exp(s - m) in place of s (as bf16 pairs for Bf16Unit) over vectors [v0, v1); returns the sum of p
// before it is rounded, so that lse is exact; rounding to nearest leaves the mean of p where it was.
// careful: a hidden key's p is -0, so that values() can tell it from one that underflowed.
// scaled: p * value_scale is stored.
template <class U, bool natural, bool careful, bool scaled>
TW_INLINE typename U::real exponentiate(typename U::real* s, int v0, int v1, typename U::real m,
                                        typename U::real factor, const typename U::real* value_scale) {
  using real = typename U::real;
  constexpr int lanes = VectorOf<real>::lanes;
  constexpr real low = -std::numeric_limits<real>::infinity();
  const real shift = m == low ? real{0} : m;  // nothing seen yet: every p is 0, not NaN
  auto c = splat(natural ? static_cast<real>(kLog2e) : factor), mm = splat(shift);
  if (!natural && std::abs(shift) >= kWideLogit<real>) {
    for (int i = v0 * lanes; i < v1 * lanes; i += lanes) {
      const auto x = load(s + i) * c - mm;
      store(s + i, x > splat(real{0}) ? splat(real{0}) : x);  // a NaN stays
    }
    c = splat(real{1}), mm = splat(real{0});
  }
  auto sum = splat(real{0});
  auto* p_row = reinterpret_cast<typename U::element*>(s);
  const auto some = [&](auto n, int i) {  // n vectors from column i on
    decltype(load(s)) x[n], p[n];
    TW_UNROLL(4) for (int k = 0; k < n; k++) {
      x[k] = load(s + i + k * lanes);
      p[k] = natural ? (x[k] - mm) * c : x[k] * c - mm;
    }
    exp2v(p);
    TW_UNROLL(4) for (int k = 0; k < n; k++) {
      auto* out = p_row + i + k * lanes;
      if constexpr (careful || scaled) {
        auto stored = p[k];
        if constexpr (scaled) stored *= load(value_scale + i + k * lanes);
        stored = x[k] == splat(low) ? splat(careful ? real(-0.0) : real(0)) : stored;
        store(out, stored);
      } else {
        store(out, p[k]);
      }
      sum += p[k];
    }
  };
  int i = v0 * lanes;
  for (; i + 4 * lanes <= v1 * lanes; i += 4 * lanes) some(std::integral_constant<int, 4>{}, i);
  for (; i < v1 * lanes; i += lanes) some(std::integral_constant<int, 1>{}, i);
  return reduce_add(sum);
}

// What a row's state means: out = acc * weight, and lse.
// A sink is one more logit (natural units, null: none) without a value.
template <class real> inline real finish_row(real m, real l, double unit, const real* sink, real& lse) {
  constexpr double low = -std::numeric_limits<double>::infinity();
  double top = double(m) * unit, sum = double(l);
  if (l == 0) {
    lse = sink ? *sink : static_cast<real>(low);
    return 0;
  }
  double own = 1;
  if (sink && *sink > low) {
    const double all = std::max(top, double(*sink));
    own = std::exp(top - all);
    sum = sum * own + std::exp(double(*sink) - all);
    top = all;
  } else if (sink && *sink != *sink) sum = double(*sink);
  lse = static_cast<real>(top + std::log(sum));
  return static_cast<real>(own / sum);
}

}  // namespace tilewise
