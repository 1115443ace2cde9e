// Products for a handful of query rows, straight from rows of keys and values: packing would cost more than it saves.
#pragma once
#include <algorithm>

#include "pack.hpp"

namespace tilewise {

template <class U, class T> TW_INLINE auto load_real(const T* p) {  // lanes of U::real
  if constexpr (std::is_same_v<T, typename U::real>) return load_as<typename VectorOf<T>::type>(p);
  else return load(p);
}

// S(r, j) = q_r . key_j for R rows and J keys; every accumulator is one vector along D.
template <class U, int R, int J, class T>
TW_INLINE void dot_tile(const typename U::real* q, std::ptrdiff_t ldq, const T* const* keys, int64_t dim,
                        typename U::real* s, std::ptrdiff_t lds) {
  using real = typename U::real;
  constexpr int lanes = kUnitLanes<U>;
  typename VectorOf<real>::type acc[R][J] = {};
  int64_t d = 0;
  for (; d + lanes <= dim; d += lanes) {
    typename VectorOf<real>::type x[R];
    TW_UNROLL(8) for (int r = 0; r < R; r++) x[r] = load(q + r * ldq + d);
    TW_UNROLL(16) for (int j = 0; j < J; j++) {
      const auto key = load_real<U>(keys[j] + d);
      TW_UNROLL(8) for (int r = 0; r < R; r++) acc[r][j] += x[r] * key;
    }
  }
  TW_UNROLL(8) for (int r = 0; r < R; r++)
    TW_UNROLL(16) for (int j = 0; j < J; j++) {
      real sum = reduce_add(acc[r][j]);
      for (int64_t i = d; i < dim; i++) sum += q[r * ldq + i] * static_cast<real>(to_float(keys[j][i]));
      s[r * lds + j] = sum;
    }
}
template <class U, int R, class T>
TW_INLINE void dot_rows(const typename U::real* q, std::ptrdiff_t ldq, const T* const* keys, int64_t count, int64_t dim,
                        typename U::real* s, std::ptrdiff_t lds) {
  constexpr int J = R == 1 ? 8 : R == 2 ? 4 : 2;
  int64_t j = 0;
  for (; j + J <= count; j += J) dot_tile<U, R, J>(q, ldq, keys + j, dim, s + j, lds);
  for (; j < count; j++) dot_tile<U, R, 1>(q, ldq, keys + j, dim, s + j, lds);
}
template <class U, class T>
TW_NOINLINE void few_scores(int64_t rows, const typename U::real* q, std::ptrdiff_t ldq, const T* const* keys,
                            int64_t count, int64_t dim, typename U::real* s, std::ptrdiff_t lds) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) dot_rows<U, 4>(q + r * ldq, ldq, keys, count, dim, s + r * lds, lds);
  for (; r + 2 <= rows; r += 2) dot_rows<U, 2>(q + r * ldq, ldq, keys, count, dim, s + r * lds, lds);
  if (r < rows) dot_rows<U, 1>(q + r * ldq, ldq, keys, count, dim, s + r * lds, lds);
}

// acc_r = alpha_r * acc_r + sum over keys of p(r, key) * value, for N vectors of columns from e on. p: reals.
template <class U, int R, int N, class T>
TW_INLINE void sum_tile(const typename U::real* p, std::ptrdiff_t ldp, const T* const* values, int64_t count, int64_t e,
                        typename U::real* acc, std::ptrdiff_t ld, const typename U::real* alpha) {
  constexpr int lanes = kUnitLanes<U>;
  typename VectorOf<typename U::real>::type a[R][N];
  TW_UNROLL(8) for (int r = 0; r < R; r++)
    TW_UNROLL(8) for (int n = 0; n < N; n++) a[r][n] = load(acc + r * ld + e + n * lanes) * splat(alpha[r]);
  for (int64_t k = 0; k < count; k++) {
    typename VectorOf<typename U::real>::type x[R];
    TW_UNROLL(8) for (int r = 0; r < R; r++) x[r] = splat(p[r * ldp + k]);
    TW_UNROLL(8) for (int n = 0; n < N; n++) {
      const auto v = load_real<U>(values[k] + e + n * lanes);
      TW_UNROLL(8) for (int r = 0; r < R; r++) a[r][n] += x[r] * v;
    }
  }
  TW_UNROLL(8) for (int r = 0; r < R; r++)
    TW_UNROLL(8) for (int n = 0; n < N; n++) store(acc + r * ld + e + n * lanes, a[r][n]);
}
template <class U, int R, class T>
TW_INLINE void sum_rows(const typename U::real* p, std::ptrdiff_t ldp, const T* const* values, int64_t count,
                        int64_t dim, typename U::real* acc, std::ptrdiff_t ld, const typename U::real* alpha) {
  using real = typename U::real;
  constexpr int lanes = kUnitLanes<U>, N = R == 1 ? 8 : R == 2 ? 4 : 2;
  int64_t e = 0;
  for (; e + N * lanes <= dim; e += N * lanes) sum_tile<U, R, N>(p, ldp, values, count, e, acc, ld, alpha);
  for (; e + lanes <= dim; e += lanes) sum_tile<U, R, 1>(p, ldp, values, count, e, acc, ld, alpha);
  for (; e < dim; e++)
    for (int r = 0; r < R; r++) {
      real a = acc[r * ld + e] * alpha[r];
      for (int64_t k = 0; k < count; k++) a += p[r * ldp + k] * static_cast<real>(to_float(values[k][e]));
      acc[r * ld + e] = a;
    }
}
template <class U, class T>
TW_NOINLINE void few_values(int64_t rows, const typename U::real* p, std::ptrdiff_t ldp, const T* const* values,
                            int64_t count, int64_t dim, typename U::real* acc, std::ptrdiff_t ld,
                            const typename U::real* alpha) {
  int64_t r = 0;
  const auto go = [&](auto n) {
    sum_rows<U, decltype(n)::value>(p + r * ldp, ldp, values, count, dim, acc + r * ld, ld, alpha + r);
    r += n;
  };
  while (r + 4 <= rows) go(std::integral_constant<int, 4>{});
  while (r + 2 <= rows) go(std::integral_constant<int, 2>{});
  if (r < rows) go(std::integral_constant<int, 1>{});
}

}  // namespace tilewise
