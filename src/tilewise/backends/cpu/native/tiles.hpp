// The register tile, the one inner loop of every product:   C(r, j) = start(r, j) + sum over k of A(r, k) * B(k, j)
//
//   product<F32Unit, Start::zero>(ByRow{lda}, rows, vectors, depth, A, B, ldb, C, ldc);
//
// A   words, one broadcast at a time: ByRow{ld}: A[r * ld + k];  ByColumn{ld}: A[k * ld + r] (transposed, for free).
// B   a panel of `vectors` <= kTileVectors vectors of words; row k at B + k * ldb. From pack.hpp: ldb = kPanel<U>.
// C   reals, row r at C + r * ldc. No alignment is needed anywhere.
// rows is any number (the panel stays in L1 while row groups of kTileRows pass), depth counts words: element pairs for
// Bf16Unit.
// Start: zero (overwrite), keep (C + ...), scale (alpha[r] * C + ...: the online softmax's rescue of the old
// accumulator), add (the sum is formed apart, then added to C: a long reduction in blocks loses less than one chain).
// A row's bits do not depend on `rows`: each (r, j) is one chain of fma in order of k.
#pragma once
#include <cstddef>

#include "simd.hpp"

namespace tilewise {

// Accumulators, the panel's vectors and one broadcast fill the register file: 32 on AVX-512 and NEON, 16 elsewhere.
#if TW_LANES == 16 || defined(__aarch64__)
constexpr int kTileRows = 6, kTileVectors = 4;
#define TW_TILE_UNROLL 2
#else
constexpr int kTileRows = 6, kTileVectors = 2;
#define TW_TILE_UNROLL 4
#endif
template <class U> constexpr int kUnitLanes = VectorOf<typename U::real>::lanes;
template <class U> constexpr int kPanel = kTileVectors * kUnitLanes<U>;  // columns of a panel

enum class Start { zero, keep, scale, add };

struct ByRow {
  std::ptrdiff_t ld;
  template <class W> const W* at(const W* a, std::ptrdiff_t r, std::ptrdiff_t k) const { return a + r * ld + k; }
};
struct ByColumn {
  std::ptrdiff_t ld;
  template <class W> const W* at(const W* a, std::ptrdiff_t r, std::ptrdiff_t k) const { return a + k * ld + r; }
};

template <class U, int R, int N, Start start, class Walk>
TW_INLINE void tile(Walk walk, int64_t depth, const typename U::word* __restrict a,
                    const typename U::word* __restrict b, std::ptrdiff_t ldb, typename U::real* __restrict c,
                    std::ptrdiff_t ldc, const typename U::real* alpha) {
  using V = typename VectorOf<typename U::real>::type;
  constexpr int lanes = kUnitLanes<U>;
  V acc[R][N];
  TW_UNROLL(8) for (int r = 0; r < R; r++)
    TW_UNROLL(8) for (int j = 0; j < N; j++) {
      if constexpr (start == Start::zero || start == Start::add) acc[r][j] = V{};
      else acc[r][j] = load(c + r * ldc + j * lanes);
      if constexpr (start == Start::scale) acc[r][j] *= splat(alpha[r]);
    }
  TW_UNROLL(TW_TILE_UNROLL) for (int64_t k = 0; k < depth; k++, b += ldb) {
    decltype(U::load(b)) panel[N];
    TW_UNROLL(8) for (int j = 0; j < N; j++) panel[j] = U::load(b + j * lanes);
    TW_UNROLL(8) for (int r = 0; r < R; r++) {
      const auto x = U::splat(walk.at(a, r, k));
      TW_UNROLL(8) for (int j = 0; j < N; j++) acc[r][j] = U::fma(x, panel[j], acc[r][j]);
    }
  }
  TW_UNROLL(8) for (int r = 0; r < R; r++)
    TW_UNROLL(8) for (int j = 0; j < N; j++) {
      auto* to = c + r * ldc + j * lanes;
      store(to, start == Start::add ? load(to) + acc[r][j] : acc[r][j]);
    }
}

template <class U, int N, Start start, class Walk>
TW_NOINLINE void product_of(Walk walk, int64_t rows, int64_t depth, const typename U::word* a,
                            const typename U::word* b, std::ptrdiff_t ldb, typename U::real* c, std::ptrdiff_t ldc,
                            const typename U::real* alpha) {
  const auto alpha_at = [&](int64_t i) { return start == Start::scale ? alpha + i : alpha; };
  int64_t r = 0;
  for (; r + kTileRows <= rows; r += kTileRows)
    tile<U, kTileRows, N, start>(walk, depth, walk.at(a, r, 0), b, ldb, c + r * ldc, ldc, alpha_at(r));
  const auto last = [&](auto n) {
    tile<U, decltype(n)::value, N, start>(walk, depth, walk.at(a, r, 0), b, ldb, c + r * ldc, ldc, alpha_at(r));
  };
  switch (rows - r) {
    case 1: return last(std::integral_constant<int, 1>{});
    case 2: return last(std::integral_constant<int, 2>{});
    case 3: return last(std::integral_constant<int, 3>{});
    case 4: return last(std::integral_constant<int, 4>{});
    case 5: return last(std::integral_constant<int, 5>{});
    default: return;
  }
}

template <class U, Start start, class Walk>
TW_INLINE void product(Walk walk, int64_t rows, int vectors, int64_t depth, const typename U::word* a,
                       const typename U::word* b, std::ptrdiff_t ldb, typename U::real* c, std::ptrdiff_t ldc,
                       const typename U::real* alpha = nullptr) {
  static_assert(kTileRows == 6 && (kTileVectors == 2 || kTileVectors == 4));
  if (vectors == kTileVectors) return product_of<U, kTileVectors, start>(walk, rows, depth, a, b, ldb, c, ldc, alpha);
  if constexpr (kTileVectors == 4) {
    if (vectors == 3) return product_of<U, 3, start>(walk, rows, depth, a, b, ldb, c, ldc, alpha);
    if (vectors == 2) return product_of<U, 2, start>(walk, rows, depth, a, b, ldb, c, ldc, alpha);
  }
  return product_of<U, 1, start>(walk, rows, depth, a, b, ldb, c, ldc, alpha);
}

}  // namespace tilewise
