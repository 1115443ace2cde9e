// The value half of decode: acc[row] = alpha[row] * acc[row] + sum over keys of p[key][row] * v[key], a strip of
// columns at a time. acc is in the order of W::value_place inside each group, padded to whole groups.
#pragma once
#include "ahead.hpp"
#include "decode.hpp"

namespace tilewise {

// Accumulators that fit beside a step's vectors and a broadcast: 32 registers on AVX-512 and NEON, 16 elsewhere.
#if TW_LANES == 16 || defined(__aarch64__)
constexpr int kStripBudget = 16, kStripMost = 24;
#else
constexpr int kStripBudget = 8, kStripMost = 12;
#endif
template <class W>
constexpr int kValueRows = kStripMost / W::value_vectors < kDecodeRows ? kStripMost / W::value_vectors : kDecodeRows;
template <class W> constexpr int strip_groups(int rows) {
  const int n = kStripBudget / (rows * W::value_vectors);
  return n < 1 ? 1 : n > 4 ? 4 : n;
}

// Where a step's values are: in the page rows, or in what a strip before saved of their cache lines.
template <class T> struct InPages {
  const T* const* value;
  int64_t e;
  const T* row(int key) const { return value[key] + e; }
};
template <class T> struct Saved {
  const T* at;
  int64_t stride;
  const T* row(int key) const { return at + key * stride; }
};

// save: elements past the strip to copy to saved[key][save].
template <class W, int R, int G, bool tail, int save, class From, class T>
TW_INLINE void value_strip(From from, T* saved, int keys, int left, const typename W::Word* p, int ldp, float* acc,
                           int64_t ldacc, const float* alpha, Ahead& ahead, int lines) {
  using V = typename W::Vector;
  constexpr int n = W::value_vectors;
  f32v sum[R][G * n] = {};  // of this block alone: two short sums round less than a long one
  const auto step = [&](const T* v, const T* next, const typename W::Word* weight) __attribute__((always_inline)) {
    TW_UNROLL(4) for (int g = 0; g < G; g++) {
      V x[n];
      if constexpr (tail) {
        T a[W::group] = {}, b[W::group] = {};
        std::memcpy(a, v, static_cast<std::size_t>(left) * sizeof(T));
        if (W::step == 2) std::memcpy(b, next, static_cast<std::size_t>(left) * sizeof(T));
        W::load_value(a, b, x);
      } else {
        W::load_value(v + g * W::group, next + g * W::group, x);
      }
      TW_UNROLL(8) for (int r = 0; r < R; r++) {
        const V w = W::Unit::splat(weight + r);
        TW_UNROLL(8) for (int j = 0; j < n; j++) sum[r][g * n + j] = W::Unit::fma(w, x[j], sum[r][g * n + j]);
      }
    }
  };
  const auto keep = [&](int key) __attribute__((always_inline)) {
    if constexpr (save > 0) std::memcpy(saved + key * save, from.row(key) + G * W::group, save * sizeof(T));
  };
  int key = 0;
  constexpr int often = 4;  // keys between looks ahead
  for (; key + often <= keys; key += often) {
    TW_UNROLL(4) for (int i = 0; i < often; i += W::step) {
      TW_UNROLL(2) for (int j = 0; j < W::step; j++) keep(key + i + j);
      step(from.row(key + i), from.row(key + i + W::step - 1), p + (key + i) / W::step * ldp);
    }
    ahead.touch(lines);
  }
  for (; key < keys; key += W::step) {
    TW_UNROLL(2) for (int j = 0; j < W::step; j++)
      if (key + j < keys) keep(key + j);
    const T zeros[G * W::group] = {};
    step(from.row(key), key + W::step <= keys ? from.row(key + W::step - 1) : zeros, p + key / W::step * ldp);
  }
  TW_UNROLL(8) for (int r = 0; r < R; r++)
    TW_UNROLL(16) for (int j = 0; j < G * n; j++) {
      float* at = acc + r * ldacc + j * kLanes;
      store(at, load(at) * splat(alpha[r]) + sum[r][j]);
    }
}

// Rows of neighbouring keys lie a power of two apart as a rule, and drive each other out of the first cache. So a strip
// that is narrower than a cache line saves the rest of the line while it has it.
template <class W, int R, class T>
TW_NOINLINE void gather_rows(const T* const* value, int keys, int64_t columns, const typename W::Word* p, int ldp,
                             float* acc, int64_t ldacc, const float* alpha, Ahead& ahead, int lines) {
  constexpr int G = strip_groups<W>(R), wide = G * W::group,
                strips = wide * sizeof(T) < 64 ? 64 / (wide * sizeof(T)) : 1;
  constexpr int save = (strips - 1) * wide;
  T saved[kDecodeKeys * (save ? save : 1)];
  int64_t e = 0;
  for (; e + strips * wide <= columns; e += strips * wide) {
    value_strip<W, R, G, false, save>(InPages<T>{value, e}, saved, keys, 0, p, ldp, acc + e, ldacc, alpha, ahead,
                                      lines);
    if constexpr (save > 0)
      for (int i = 0; i < strips - 1; i++)
        value_strip<W, R, G, false, 0>(Saved<T>{saved + i * wide, save}, saved, keys, 0, p, ldp,
                                       acc + e + (i + 1) * wide, ldacc, alpha, ahead, lines);
  }
  for (; e + W::group <= columns; e += W::group)
    value_strip<W, R, 1, false, 0>(InPages<T>{value, e}, saved, keys, 0, p, ldp, acc + e, ldacc, alpha, ahead, lines);
  if (e < columns)
    value_strip<W, R, 1, true, 0>(InPages<T>{value, e}, saved, keys, static_cast<int>(columns - e), p, ldp, acc + e,
                                  ldacc, alpha, ahead, lines);
}

// Calls f with rows as a compile-time number.
template <int most, class F> TW_INLINE void with_rows(int rows, F&& f) {
  if constexpr (most > 1)
    if (rows < most) return with_rows<most - 1>(rows, f);
  f(std::integral_constant<int, most>{});
}

template <class W, class T>
inline void gather_values(const T* const* value, int keys, int64_t columns, const typename W::Word* p, int ldp,
                          int rows, float* acc, int64_t ldacc, const float* alpha, Ahead& ahead, int lines) {
  const int passes = (rows + kValueRows<W> - 1) / kValueRows<W>, each = (rows + passes - 1) / passes;
  for (int r = 0; r < rows; r += each)
    with_rows<kValueRows<W>>(rows - r < each ? rows - r : each, [&](auto n) {
      gather_rows<W, decltype(n)::value>(value, keys, columns, p + r, ldp, acc + r * ldacc, ldacc, alpha + r, ahead,
                                         lines);
    });
}

}  // namespace tilewise
