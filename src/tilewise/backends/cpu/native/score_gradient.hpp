// Between the products: from s = k q and dp = v dout to p and ds. Keys are rows, queries are lanes, so lse and delta
// load as vectors.
//   p  = exp(cap(scale s) + bias - lse)      ds = p (dp - delta) cap'(scale s) scale      dbias = p (dp - delta)
#pragma once
#include "pack.hpp"
#include "tanh.hpp"

namespace tilewise::gradients {

template <class U> using Vector = typename VectorOf<typename U::real>::type;
template <class U> using Integer = std::remove_reference_t<decltype(typename VectorOf<typename U::real>::integer{}[0])>;

// What a query block brings: one value a query, padded with absent rows.
template <class U> struct RowTerms {
  const typename U::real* lse;           // +inf: the row is absent, its p is 0
  const typename U::real* delta;
  const typename U::real* scaled_delta;  // delta * scale
};

// A chunk of keys by a run of queries; row r, query i at r * ld + i.
template <class U> struct Chunk {
  using real = typename U::real;
  std::ptrdiff_t ld;
  real *s, *dp;
  typename U::element *p, *ds;
  real* dbias = nullptr;                 // wanted, or null
  const real* bias = nullptr;
  const Integer<U>* keep = nullptr;      // -1: visible, 0: hidden; null: the band below alone decides
  int64_t band_first = 0, band_last = 0; // key r is seen by queries band_first + r <= i < band_last + r
};

template <class V> TW_INLINE V lane_numbers() {
  V v{};
  TW_UNROLL(16) for (unsigned i = 0; i < sizeof(V) / sizeof(v[0]); i++) v[i] = static_cast<int>(i);
  return v;
}

// e^x of a difference x = s - lse, which is small where p is not: so the change of base rounds little.
TW_INLINE f32v exp_of(f32v x) { return exp2v(x * splat(1.44269504f)); }
TW_INLINE f64v exp_of(f64v x) {
  TW_UNROLL(8) for (int i = 0; i < kLanes / 2; i++) x[i] = std::exp(x[i]);
  return x;
}

// Everything is visible and nothing is added: the usual tile.
template <class U>
TW_NOINLINE void plain_score_gradient(const Chunk<U>& c, int64_t rows, int64_t from, int64_t to, RowTerms<U> terms,
                                      double scale) {
  using real = typename U::real;
  const auto by_scale = splat(static_cast<real>(scale));
  for (int64_t r = 0; r < rows; r++) {
    const std::ptrdiff_t row = r * c.ld;
    TW_UNROLL(2) for (int64_t i = from; i < to; i += kUnitLanes<U>) {
      const auto p = exp_of(load(c.s + row + i) * by_scale - load(terms.lse + i));
      const auto ds = p * (load(c.dp + row + i) * by_scale - load(terms.scaled_delta + i));
      store(c.p + row + i, p);
      store(c.ds + row + i, ds);
    }
  }
}

// Any tile. What is hidden is selected away, never multiplied by 0.
template <class U>
TW_NOINLINE void score_gradient(const Chunk<U>& c, int64_t rows, int64_t from, int64_t to, RowTerms<U> terms,
                                double scale, double softcap) {
  using real = typename U::real;
  using V = Vector<U>;
  using I = typename VectorOf<real>::integer;
  const V by_scale = splat(static_cast<real>(scale));
  const V cap = splat(static_cast<real>(softcap));
  const V by_cap = splat(static_cast<real>(softcap > 0 ? scale / softcap : 0.0));
  const I lane = lane_numbers<I>();
  const auto clamp = [&](int64_t i) { return static_cast<Integer<U>>(i < from ? from : i > to ? to : i); };
  for (int64_t r = 0; r < rows; r++) {
    const std::ptrdiff_t row = r * c.ld;
    const I first = I{} + clamp(c.band_first + r), last = I{} + clamp(c.band_last + r);
    for (int64_t i = from; i < to; i += kUnitLanes<U>) {
      const V s = load(c.s + row + i);
      V x, factor = by_scale;
      if (softcap > 0) {
        V t, slope;
        tanh_and_slope(s * by_cap, t, slope);
        factor *= slope;
        x = (c.bias ? t * cap + load(c.bias + row + i) : t * cap) - load(terms.lse + i);
      } else {
        x = (c.bias ? s * by_scale + load(c.bias + row + i) : s * by_scale) - load(terms.lse + i);
      }
      I visible;
      if (c.keep) {
        visible = load_as<I>(c.keep + row + i);
      } else {
        const I at = lane + static_cast<Integer<U>>(i);
        visible = (at >= first) & (at < last);
      }
      const V p = visible ? exp_of(x) : V{};
      const V g = visible ? p * (load(c.dp + row + i) - load(terms.delta + i)) : V{};
      store(c.p + row + i, p);
      store(c.ds + row + i, visible ? g * factor : V{});
      if (c.dbias) store(c.dbias + row + i, g);
    }
  }
}

}  // namespace tilewise::gradients
